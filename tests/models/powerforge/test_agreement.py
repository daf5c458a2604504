"""The network against the straightforward one: on real windows, at ties, and over a training."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.axes import THETA, P, Q, V
from powerphase.dataset import Store
from powerphase.models.framework.configuration import TrainingConfig
from powerphase.models.framework.stepping import Stepper, make_optimiser
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.network import PowerForgeNetwork
from powerphase.scenarios import Context, Record, Training, Windows
from powerphase.task.windows import Task
from tests.models.powerforge import TINY, layout, network, windows
from tests.models.powerforge.straightforward import Straightforward
from tests.models.toys import CPU

Batch = tuple[Context, Tensor]


class Graded(NamedTuple):
    """A loss and its gradient by parameter, in float64 whatever they were computed in."""

    loss: Tensor
    parts: dict[str, Tensor]
    gradients: dict[str, Tensor]

    @property
    def whole(self) -> Tensor:
        """The gradient in one piece."""
        return torch.cat([gradient.flatten() for gradient in self.gradients.values()])


def oracle_of(net: PowerForgeNetwork) -> Straightforward:
    """The straightforward version on the same weights, with the noise that the network draws."""
    oracle = Straightforward(net)
    oracle.drawn_noise = lambda: net.decoder.draw_noise().mT
    return oracle


def graded(model: torch.nn.Module, batch: Batch, seed: int = 0, half: bool = False) -> Graded:
    """What the model says of a batch in its own precision; the seed fixes the noise."""
    net = model.network if isinstance(model, Straightforward) else model
    context, target = batch[0], batch[1].to(net.decoder.scenario)
    torch.manual_seed(seed)
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss, parts = model(replace(context, past=context.past.to(target)), target)
    slopes = torch.autograd.grad(loss, list(net.parameters()))
    names = [name for name, _ in net.named_parameters()]
    return Graded(
        loss.detach().double(),
        {name: part.detach().double() for name, part in parts.items()},
        {name: slope.double() for name, slope in zip(names, slopes, strict=True)},
    )


def misses(found: Graded, truth: Graded) -> dict[str, float]:
    """How far each gradient is off, as a share of its norm.

    What the rounding of the whole gradient would swallow is no miss: the calendar of a whole week
    is zero but for rounding, and so is its slope.
    """
    least = torch.finfo(torch.float64).eps * truth.whole.norm()
    return {
        name: float(
            ((found.gradients[name] - slope).norm() - least).clamp(min=0)
            / slope.norm().clamp(min=least)
        )
        for name, slope in truth.gradients.items()
    }


def check(found: Graded, truth: Graded, share: float = 1e-9) -> None:
    """Loss and parts within a share of the oracle's, each gradient within a share of its norm."""
    torch.testing.assert_close(found.loss, truth.loss, rtol=share, atol=0)
    assert found.parts.keys() == truth.parts.keys()
    for name, part in truth.parts.items():
        torch.testing.assert_close(found.parts[name], part, rtol=share, atol=1e-3 * share)
    for name, off in misses(found, truth).items():
        assert off <= share, f"the gradient of {name} is off by {off:.1e}"


# Real windows: a week of 14 buses and the day after it, as power flows gave them.

WEIGHTS = {"where training begins": PowerForgeConfig().head_start, "with heads wide open": 1.0}
"""Factors on the heads' first weights. The first gives fans that are nearly closed, the second
scenarios as far apart as states are."""


class Case(NamedTuple):
    """A network in float32, real batches, and what the oracle says of them in float64."""

    net: PowerForgeNetwork
    batches: list[Batch]
    truth: list[Graded]


@pytest.fixture(scope="module", params=WEIGHTS.values(), ids=WEIGHTS)
def case(request: pytest.FixtureRequest, sixty_days: Store) -> Case:
    training = Task(sixty_days).training
    batches = training.batches(size=2, seed=0)
    torch.manual_seed(0)
    config = PowerForgeConfig(dropout=0.0, head_start=request.param)
    net = PowerForgeNetwork(config, training.layout.n_buses, 672, 96)
    net.prepare(batches)
    with torch.no_grad():
        net.encoder.gates.copy_(torch.tensor([[0.1, -0.2], [0.3, 0.1]]))
        # Until the law has moved, two of 16 levels are equally near to the median.
        net.objective.law.raw += torch.tensor([1e-3, 2e-3])
    oracle, given = oracle_of(deepcopy(net).double()), [batches[number] for number in range(5)]
    return Case(net, given, [graded(oracle, batch, k) for k, batch in enumerate(given)])


def test_real_windows_have_the_oracles_loss_and_gradients(case: Case) -> None:
    net = deepcopy(case.net).double()
    for number in range(2):
        assert all(part > 0 for part in case.truth[number].parts.values())
        check(graded(net, case.batches[number], number), case.truth[number])


def test_single_precision_is_as_exact_on_real_windows_as_it_can_be(case: Case) -> None:
    """Within 1e-4 of every gradient, or at least no farther off than twice the oracle.

    The loss has a kink wherever scenarios change places. Voltages that are hardly apart do so by
    the rounding of a number near 1, and by that much nobody can know the slope. Nor does a single
    batch say much, since a single pair may change places in it: medians over batches do.
    """
    found = {"network": [], "oracle": []}
    for number, (batch, truth) in enumerate(zip(case.batches, case.truth, strict=True)):
        for name, model in (("network", case.net), ("oracle", oracle_of(case.net))):
            step = graded(model, batch, number)
            torch.testing.assert_close(step.loss, truth.loss, rtol=1e-5, atol=0)
            found[name].append(misses(step, truth))
    for name in found["oracle"][0]:
        ours, oracles = (np.median([off[name] for off in found[by]]) for by in found)
        assert ours <= max(1e-4, 2 * oracles), f"{name}: {ours:.1e} beside {oracles:.1e}"


def test_half_precision_stays_close_to_the_oracle_on_real_windows(case: Case) -> None:
    for number in range(3):
        found, truth = graded(case.net, case.batches[number], number, half=True), case.truth[number]
        assert found.loss != graded(case.net, case.batches[number], number).loss
        torch.testing.assert_close(found.loss, truth.loss, rtol=1e-3, atol=0)
        assert torch.cosine_similarity(found.whole, truth.whole, dim=0) >= 0.999


# Ties.

TIES = {
    "all are equal": [0, 0, 0, 0],
    "two are equal": [0, 1, 0, 3],
    "two and two are equal": [0, 1, 1, 0],
}


@pytest.mark.parametrize("objective", ["ordered-quantile", "winner-takes-all"])
@pytest.mark.parametrize("first_equal", TIES.values(), ids=TIES)
def test_equal_scenarios_have_the_oracles_loss_and_share_its_gradient(
    first_equal: list[int], objective: str
) -> None:
    """Which of them answers for which level, or wins, is nobody's business: their sum counts."""
    net = network(replace(TINY, objective=objective))
    noise = net.decoder.draw_noise()[..., first_equal]
    net.decoder.draw_noise = lambda generator=None: noise
    with torch.no_grad():
        net.decoder.scenario.copy_(net.decoder.scenario[first_equal])
        for parameter in net.score.parameters() if objective == "winner-takes-all" else ():
            parameter.zero_()  # whoever wins, it is a surprise of log 4
    found, truth = graded(net, windows()), graded(oracle_of(net), windows())
    for step in (found, truth):
        by_scenario, slopes = step.gradients["decoder.scenario"], step.gradients
        together = torch.zeros_like(by_scenario)
        slopes["decoder.scenario"] = together.index_add(0, torch.tensor(first_equal), by_scenario)
        slopes.pop("score.weight", None)
        slopes.pop("score.bias", None)
    check(found, truth)


ON_PAPER = [0.25, -0.5, 1.0, 0.0]


def network_on_paper() -> PowerForgeNetwork:
    """P and Q of its scenarios are the numbers on paper, V is 1 and θ 0, to the last bit."""
    net = network(replace(TINY, anchor=False, mixer=False))
    encoder, decoder = net.encoder, net.decoder
    silent = (encoder.norm, encoder.identity, encoder.calendar, *decoder.mean, *decoder.gate)
    with torch.no_grad():
        for parameter in (p for module in silent for p in module.parameters()):
            parameter.zero_()
        for head in decoder.mean:
            head.weight[:, 0] = 1
        decoder.scenario[:, 0] = torch.tensor(ON_PAPER)
    decoder.draw_noise = lambda generator=None: torch.zeros(2, 12, 4).double()
    return net


@pytest.mark.parametrize("value", [*ON_PAPER, 0.3])
def test_a_constant_target_on_a_scenario_has_the_oracles_loss_and_gradient(value: float) -> None:
    """At the target itself both take the slope of a scenario below it."""
    net, (context, target) = network_on_paper(), windows()
    for kind, constant in ((P, value), (Q, value), (V, 1.0), (THETA, 0.0)):
        target[..., kind::4] = constant
    on_target = (net.scenarios(context).values == target.unsqueeze(1)).any(1)
    assert on_target.all() == (value in ON_PAPER)
    found, truth = graded(net, (context, target)), graded(oracle_of(net), (context, target))
    for step in (found, truth):
        # All scenarios of V and θ are equal; their sum is the slope of the bias.
        step.gradients.pop("decoder.gate.0.weight")
        step.gradients.pop("decoder.gate.1.weight")
    check(found, truth)
    assert truth.gradients["decoder.mean.0.bias"].norm() > 1e-3


# A training.

STEPS, LAST = 150, 50
FEW = replace(TINY, kernels=(5,), scenarios=5, calibration_batches=5)
"""An odd number of scenarios: of an even one, rounding alone decides which is the median at the
start."""


class Run(NamedTuple):
    """The losses of all steps, and the CRPS of the held-out windows at first and at last."""

    losses: list[float]
    before: float
    after: float


@pytest.fixture(scope="module")
def training(sixty_days: Store) -> Training:
    """Five buses of the 14, every two hours: days of 12 steps. Ten days are held out."""
    whole = Task(sixty_days).training.validation.record
    time, states = whole.time[::8], whole.read()[::8, :20].numpy()

    def record(n_steps: int) -> Record:
        return Record(layout(5), time[:n_steps], lambda steps, channels: states[steps, channels])

    n_fit, n_all = 35 * 12, 45 * 12
    held_out = np.arange(n_fit + 36, n_all - 11, 3)
    return Training(record(n_fit), Windows(record(n_all), held_out, 36, 12))


def trained(
    training: Training,
    model_of: Callable[[PowerForgeNetwork], Any],
    seed: int = 0,
    n_steps: int = STEPS,
    dtype: torch.dtype = torch.float32,
) -> Run:
    """A training of which all that is random is fixed by the seed."""
    torch.manual_seed(seed)
    net = PowerForgeNetwork(FEW, 5, 36, 12)
    batches = training.batches(8, seed)
    net.prepare(batches)
    model, config = model_of(net.to(dtype)), TrainingConfig(precision="float32")
    step = Stepper(model, make_optimiser(model, config, CPU), config, CPU)
    (held_out,) = training.validation.load(100)
    losses, scores = [], [net.crps(*as_(held_out, dtype)).item()]
    for number in range(n_steps):
        torch.manual_seed(1000 * seed + number)
        losses.append(step(*as_(batches[number], dtype))["loss"].item())
        if number >= n_steps - LAST and number % 10 == 9:
            scores.append(net.crps(*as_(held_out, dtype)).item())
    return Run(losses, scores[0], float(np.mean(scores[1:])))


def as_(batch: Batch, dtype: torch.dtype) -> Batch:
    context, target = batch
    return replace(context, past=context.past.to(dtype)), target.to(dtype)


def itself(net: PowerForgeNetwork) -> PowerForgeNetwork:
    return net


def test_the_first_steps_of_a_training_are_the_oracles(training: Training) -> None:
    found, wanted = (
        trained(training, by, n_steps=30, dtype=torch.float64) for by in (itself, oracle_of)
    )
    assert found.losses == pytest.approx(wanted.losses, rel=1e-9)
    assert found.after == pytest.approx(wanted.after, rel=1e-9)


def test_a_training_ends_within_noise_of_the_oracles(training: Training) -> None:
    """What seeds change is several times what the network changes.

    Not even two roundings of one version stay together for long: slopes that jump where scenarios
    change places, divided by their own size, soon make much of little. So what is compared is how
    good the last networks are on windows that they have not seen.
    """
    found, wanted = trained(training, itself), trained(training, oracle_of)
    others = [trained(training, oracle_of, seed) for seed in (1, 2, 3)]
    assert found.losses[:5] == pytest.approx(wanted.losses[:5], rel=1e-3)
    ends = [run.after for run in (wanted, *others)]
    assert abs(found.after - wanted.after) < 0.5 * (max(ends) - min(ends))
    for run in (found, wanted):
        assert np.mean(run.losses[-LAST:]) < 0.4 * np.mean(run.losses[:5])
        assert run.after < 0.8 * run.before
