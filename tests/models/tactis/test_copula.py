"""The copula: a density over levels, consistent draws, and a planted correlation learned."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.errors import TrainingError
from powerphase.models.framework import Progress, training, window_generators
from powerphase.models.tactis import Copula, TACTiS, TactisNetwork, context_scale
from powerphase.models.tactis import copula as copula_module
from tests.models.recurrent.toys import CONTEXT, HORIZON, training_of, waves, windows_of
from tests.models.tactis.toys import tiny
from tests.models.toys import same_weights

STAGES: dict[str, Any] = {"epochs": 3, "margin_epochs": 1, "copula": True}
T, H, K = 5, 2, 2
CPU = torch.device("cpu")


def copula_of(bins: int = 20) -> Copula:
    torch.manual_seed(0)
    copula = Copula(tiny(**STAGES, copula_bins=bins), K, T, H).double()
    with torch.no_grad():  # at the start all bins are nearly equal, and tests could see nothing
        last: Any = copula.bins[-1]
        last.weight.mul_(20)
    return copula


def inputs(n: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    past = torch.randn(n, K, T, generator=generator, dtype=torch.float64)
    u = torch.rand(n, K, T + H, generator=generator, dtype=torch.float64)
    return past, torch.arange(K).expand(n, -1), u


def test_the_density_integrates_to_one() -> None:
    """The bins' probabilities of a token, given earlier ones, sum to one, and so do products."""
    copula, (past, series, u) = copula_of(bins=3), inputs()
    total = torch.zeros((), dtype=torch.float64)
    cells = list(product([0.1, 0.5, 0.9], repeat=K * H))
    order = torch.tensor([[2, 0, 3, 1]])
    for cell in cells:
        u[:, :, T:] = torch.tensor(cell).view(1, K, H)
        total += copula(past, series, u, order).exp().sum().detach()
    torch.testing.assert_close(total / len(cells), torch.ones(()).double(), rtol=1e-9, atol=0)


def test_a_level_depends_only_on_earlier_levels() -> None:
    copula, (past, series, u) = copula_of(), inputs()
    order = torch.tensor([[2, 0, 3, 1]])
    u.requires_grad_()
    for count in (1, 2, 3):
        log_density = copula(past, series, u, order[:, : count + 1])
        moved = torch.autograd.grad(log_density.sum(), u)[0][0, :, T:].flatten() != 0
        assert moved.nonzero()[:, 0].tolist() == sorted(order[0, :count].tolist())


@pytest.mark.parametrize("numbers", [2**26, 1])
def test_draws_follow_the_density(numbers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A token's noise is the conditional distribution function at its level."""
    monkeypatch.setattr(copula_module, "SCORE_NUMBERS", numbers)
    copula, (past, series, u) = copula_of(bins=4), inputs()
    order = torch.tensor([2, 0, 3, 1])
    noise = torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    levels = copula.draw(past, u[..., :T], order, noise)
    for path in range(6):
        for last in (1, 2, 3):
            whole = u.clone()
            probabilities = []
            for level in (0.125, 0.375, 0.625, 0.875):
                values = levels[:, path].clone()
                values[order[last]] = level
                whole[0, :, T:] = values.view(K, H)
                both = [copula(past, series, whole, order[None, : last + k]) for k in (0, 1)]
                probabilities.append(float((both[1] - both[0]).detach().exp()) / 4)
            level = float(levels[order[last], path])
            bin_ = min(int(level * 4), 3)
            below = sum(probabilities[:bin_]) + probabilities[bin_] * (level * 4 - bin_)
            assert below == pytest.approx(float(noise[last, path]), abs=1e-9)
    assert torch.equal(levels[order[0]], noise[0])


def network_with_copula(block: int | None = None, **changes: Any) -> TactisNetwork:
    torch.manual_seed(1)
    config = tiny(**{**STAGES, **changes})
    network = TactisNetwork(config, 8, CONTEXT, HORIZON, block).double().eval()
    network.enter(1)
    return network


def test_paths_have_the_levels_that_the_copula_draws() -> None:
    network, (context, _) = network_with_copula(), windows_of(1)
    with torch.no_grad():
        last: Any = network.copula.bins[-1]
        last.weight.mul_(20)
    scenarios: Any = network.scenarios(context, seed=3)
    scale, (generator,) = context_scale(context.past, 1e-4), window_generators(3, context.time, CPU)
    past = scale.normalise(context.past)
    margin = network.margins(network.encoder(past, torch.arange(8)[None], CONTEXT + HORIZON))
    levels = []
    for path in scenarios.values.unbind(1):
        u = margin.distribution(torch.cat([past, scale.normalise(path)], dim=2)).detach()
        levels.append(u[0, :, CONTEXT:].flatten())
    order = torch.randperm(8 * HORIZON, generator=generator)
    noise = torch.rand(8 * HORIZON, 7, generator=generator, dtype=torch.float64)
    expected = network.copula.draw(past, u[..., :CONTEXT], order, noise)
    torch.testing.assert_close(torch.stack(levels, 1), 1e-6 + (1 - 2e-6) * expected)


def test_the_second_stage_trains_only_the_copula_and_adds_to_the_first_loss() -> None:
    network = network_with_copula(bag=3)
    torch.manual_seed(4)
    joint = network(*windows_of())
    trained = {name for name, value in network.named_parameters() if value.requires_grad}
    joint.loss.backward()
    moved = {name for name, value in network.named_parameters() if value.grad is not None}
    assert trained == moved == {n for n, _ in network.named_parameters() if n.startswith("copula")}
    network.enter(0)
    torch.manual_seed(4)
    marginal = network(*windows_of())
    expected = marginal.loss + joint.parts["copula"]
    torch.testing.assert_close(joint.loss.detach(), expected.detach())


@pytest.mark.parametrize("block", [1, 7])
def test_blocks_change_neither_the_copulas_loss_nor_its_gradient(block: int) -> None:
    results = []
    for size in (None, block):
        network = network_with_copula(size, bag=3, validation_bags=1)
        torch.manual_seed(4)
        loss = network(*windows_of()).loss
        trained = [value for value in network.parameters() if value.requires_grad]
        results.append([loss, *torch.autograd.grad(loss, trained)])
    for whole, part in zip(*results, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("last", "seconds"), [(3, 0.0), (4, 0.0), (8, 1e9)])
def test_a_training_interrupted_near_its_second_stage_ends_the_same(
    last: int, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in the first stage, at the second's first step, and before its first save."""
    monkeypatch.setattr(training, "SAVE_SECONDS", seconds)

    class Interrupted(Exception):
        pass

    def stop(now: Progress) -> None:
        if now.step == last:
            raise Interrupted

    def fit(run: Path, **options: Any) -> Any:
        model = TACTiS(tiny(**STAGES, bag=3), device="cpu", run=run, **options)
        model.fit(training_of(waves()))
        return model

    whole = fit(tmp_path / "whole")
    with pytest.raises(Interrupted):
        fit(tmp_path / "cut", on_progress=stop)
    assert same_weights(whole.network, fit(tmp_path / "cut").network)


def test_too_many_channels_for_a_copula_are_rejected() -> None:
    model = TACTiS(tiny(**STAGES, copula_channels=7), device="cpu")
    with pytest.raises(TrainingError, match=r"8 channels x 6 steps; copula_channels allows 7"):
        model.fit(training_of(waves()))


def correlated() -> np.ndarray:
    """Noise that is mostly common to all four channels."""
    separate, shared = (np.random.default_rng(k).normal(size=(500, n)) for k, n in ((0, 4), (1, 1)))
    return np.asarray(0.3 * separate + shared + np.arange(4))


def test_the_copula_draws_a_planted_correlation_that_marginals_alone_lack() -> None:
    train = training_of(correlated(), context=4, horizon=1, n_validation=40)
    rate = {"learning_rate": 4e-3, "batches_per_epoch": 60, "batch_size": 16}
    sizes = {"encoder_layers": 1, "flow_layers": 1, "copula_heads": 1, "copula_hidden": 32}
    sizes |= {"copula_bins": 5, "paths": 400, "validation_bags": 1}
    config = tiny(**{**STAGES, "epochs": 6}, **sizes, training=rate)
    model: Any = TACTiS(config, device="cpu")
    model.fit(train)

    def correlation() -> Tensor:
        scenarios = model.predict(train.validation.context(0))
        return torch.corrcoef(scenarios.values[0, :, 0].mT)

    assert correlation().min() > 0.4
    model.network.joint.fill_(0)
    assert (correlation() - torch.eye(4)).abs().max() < 0.2
