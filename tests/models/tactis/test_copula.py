"""The copula: a density over levels, consistent draws, and a planted correlation learned."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.models.framework import Progress, training, window_generators
from powerphase.models.tactis import (
    Bags,
    Copula,
    TACTiS,
    TactisNetwork,
    context_scale,
    draw_noise,
    forecast_bags,
)
from powerphase.models.tactis import copula as copula_module
from powerphase.models.tactis import model as model_module
from tests.models.recurrent.toys import CONTEXT, HORIZON, training_of, waves, windows_of
from tests.models.tactis.toys import tiny
from tests.models.toys import same_weights

STAGES: dict[str, Any] = {"epochs": 3, "margin_epochs": 1, "copula": True, "copula_links": 1}
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
@pytest.mark.parametrize("n_known", [0, 1])
def test_draws_follow_the_density(
    n_known: int, numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new token's noise is the conditional distribution function at its level."""
    monkeypatch.setattr(copula_module, "SCORE_NUMBERS", numbers)
    copula, (past, series, u) = copula_of(bins=4), inputs(2)
    bags, generator = Bags(series[:, :n_known], series[:, n_known:]), torch.Generator()
    noise = draw_noise(bags, H, 3, torch.float64, generator.manual_seed(5))
    known = torch.rand(2, n_known * H, 3, dtype=torch.float64, generator=generator)
    new = copula.draw(past, series, u[..., :T], known, noise)
    levels, first = torch.cat([known, new], dim=1), n_known * H
    for bag, path, last in product(range(2), range(3), range(first, K * H)):
        order = noise.order[bag]
        each = levels[bag, :, path].repeat(4, 1)
        each[:, order[last]] = torch.tensor([0.125, 0.375, 0.625, 0.875]).double()
        whole = torch.cat([u[bag, :, :T].expand(4, -1, -1), each.view(4, K, H)], dim=2)
        same = past[bag].expand(4, -1, -1), series[bag].expand(4, -1), whole
        orders = (order[: last + k].expand(4, -1) for k in (0, 1))
        before, after = (copula(*same, order).detach() for order in orders)
        probability, level = (after - before).exp() / 4, float(levels[bag, order[last], path])
        bin_ = min(int(level * 4), 3)
        below = float(probability[:bin_].sum() + probability[bin_] * (level * 4 - bin_))
        assert below == pytest.approx(float(noise.uniform[bag, last - first, path]), abs=1e-9)


def network_with_copula(block: int | None = None, **changes: Any) -> TactisNetwork:
    torch.manual_seed(1)
    config = tiny(**{**STAGES, **changes})
    network = TactisNetwork(config, 8, CONTEXT, HORIZON, block).double().eval()
    network.enter(1)
    return network


@pytest.mark.parametrize(("epochs", "first"), [(200, 100), (400, 100), (20, 10), (3, 1), (1, 1)])
def test_both_stages_have_epochs_in_a_training_of_any_length(epochs: int, first: int) -> None:
    network = network_with_copula(epochs=epochs, margin_epochs=100)
    assert network.stages == (first,)


def with_strong_copula(**changes: Any) -> TactisNetwork:
    network = network_with_copula(**changes)
    with torch.no_grad():
        last: Any = network.copula.bins[-1]
        last.weight.mul_(20)
    return network


@pytest.mark.parametrize("bag", [3, 4, 9])
def test_paths_have_the_levels_that_the_copula_draws(bag: int) -> None:
    """Bag by bag: first a bag by itself, then the others given its links."""
    network, (context, _) = with_strong_copula(bag=bag, copula_links=2), windows_of(1)
    scenarios: Any = network.scenarios(context, seed=3)
    scale, (generator,) = context_scale(context.past, 1e-4), window_generators(3, context.time, CPU)
    past = scale.normalise(context.past)
    z = scale.normalise(scenarios.values[0])  # of all paths
    for batch in forecast_bags(8, bag, 2, generator):
        for bags in batch.split(1):
            series, n_known = bags.channels, bags.known.shape[1]
            margin = network.margins(network.encoder(past[:, series[0]], series, CONTEXT + HORIZON))
            values = torch.cat([past[:, series[0]].expand(7, -1, -1), z[:, series[0]]], dim=2)
            u = margin.distribution(values).detach()
            levels = u[..., CONTEXT:].flatten(1).T[None]
            first = n_known * HORIZON
            noise = draw_noise(bags, HORIZON, 7, torch.float64, generator)
            context_u = u[:1, :, :CONTEXT]
            of_bag = past[:, series[0]]
            drawn = network.copula.draw(of_bag, series, context_u, levels[:, :first], noise)
            torch.testing.assert_close(levels[:, first:], 1e-6 + (1 - 2e-6) * drawn)


@pytest.mark.parametrize("numbers", [1, 2000])
def test_how_many_bags_are_drawn_together_changes_no_path(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, (context, _) = with_strong_copula(bag=2), windows_of(2)
    together: Any = network.scenarios(context, seed=3)
    monkeypatch.setattr(model_module, "DRAW_NUMBERS", numbers)
    in_parts: Any = network.scenarios(context, seed=3)
    torch.testing.assert_close(in_parts.values, together.values, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("n_channels", "size", "links"), [(9, 4, 1), (9, 4, 3), (10, 8, 4), (3, 8, 4)]
)
def test_every_channel_is_drawn_once_and_every_bag_has_links(
    n_channels: int, size: int, links: int
) -> None:
    first, *others = forecast_bags(n_channels, size, links, torch.Generator().manual_seed(0))
    drawn = torch.cat([bags.new.flatten() for bags in (first, *others)])
    assert drawn.sort().values.tolist() == list(range(n_channels))
    assert first.channels.shape == (1, min(size, n_channels))
    for bags in others:
        assert bags.channels.shape[1] == size
        assert bags.known.shape[1] >= links
        assert set(bags.known.flatten().tolist()) <= set(first.new.flatten().tolist())


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


def correlated(n_channels: int) -> np.ndarray:
    """Noise that is mostly common to all channels."""
    sizes = ((0, n_channels), (1, 1))
    separate, shared = (np.random.default_rng(k).normal(size=(500, n)) for k, n in sizes)
    return np.asarray(0.3 * separate + shared + np.arange(n_channels))


def test_the_copula_draws_a_planted_correlation_and_keeps_the_marginals() -> None:
    """Also between channels of different bags, which only the links connect."""
    train = training_of(correlated(8), context=4, horizon=1, n_validation=40)
    rate = {"learning_rate": 4e-3, "batches_per_epoch": 60, "batch_size": 16}
    sizes = {"encoder_layers": 1, "flow_layers": 1, "copula_hidden": 32, "copula_bins": 10}
    sizes |= {"paths": 1000, "validation_bags": 4, "bag": 6, "copula_links": 4}
    model: Any = TACTiS(tiny(**{**STAGES, **sizes, "epochs": 7}, training=rate), device="cpu")
    model.fit(train)

    def draws() -> Tensor:
        values: Tensor = model.predict(train.validation.context(0)).values[0, :, 0]
        return values

    assert model.joint_scenarios
    joint = draws()
    model.network.joint.fill_(0)
    assert not model.joint_scenarios
    separate = draws()
    assert torch.corrcoef(joint.mT).min() > 0.4
    assert (torch.corrcoef(separate.mT) - torch.eye(8)).abs().max() < 0.2
    levels = (joint[:, None] < separate).double().mean(0)  # of one's values among the other's
    uniform = (torch.arange(1000) + 0.5) / 1000
    assert (levels.sort(0).values - uniform[:, None]).abs().max() < 0.2
