"""The copula: a density over levels, drawn from as it is judged, that learns what is planted."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.errors import TrainingError
from powerphase.models.framework import training
from powerphase.models.framework.sampling import window_generators
from powerphase.models.framework.training import Progress
from powerphase.models.tactis import copula as copula_module
from powerphase.models.tactis.copula import Copula
from powerphase.models.tactis.encoder import scale_of
from powerphase.models.tactis.model import TACTiS
from powerphase.models.tactis.network import TactisNetwork
from tests.models.recurrent.toys import CONTEXT, HORIZON, training_of, waves, windows_of
from tests.models.tactis.toys import tiny
from tests.models.toys import same_weights

STAGES: dict[str, Any] = {"epochs": 3, "margin_epochs": 1, "copula": True}
T, H, K = 5, 2, 2
CPU = torch.device("cpu")


def copula_of(bins: int = 20) -> Copula:
    torch.manual_seed(0)
    made = Copula(tiny(**STAGES, copula_bins=bins), K, T, H).double()
    with torch.no_grad():  # at the start all bins are alike, and nothing could be seen
        made.bins[-1].weight.mul_(20)
    return made


def inputs(n: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    past = torch.randn(n, K, T, generator=generator, dtype=torch.float64)
    u = torch.rand(n, K, T + H, generator=generator, dtype=torch.float64)
    return past, torch.arange(K).expand(n, -1), u


def test_the_density_of_all_levels_is_one_in_all() -> None:
    """Of a token, given those before it, the bins' shares sum to one; and so all products do."""
    copula, (past, series, u) = copula_of(bins=3), inputs()
    total = torch.zeros((), dtype=torch.float64)
    cells = list(product([0.1, 0.5, 0.9], repeat=K * H))
    order = torch.tensor([[2, 0, 3, 1]])
    for cell in cells:
        u[:, :, T:] = torch.tensor(cell).view(1, K, H)
        total += copula(past, series, u, order).exp().sum().detach()
    torch.testing.assert_close(total / len(cells), torch.ones(()).double(), rtol=1e-9, atol=0)


def test_a_level_depends_on_those_before_it_alone() -> None:
    copula, (past, series, u) = copula_of(), inputs()
    order = torch.tensor([[2, 0, 3, 1]])
    u.requires_grad_()
    before = []
    for count in (1, 2, 3):
        shorter = order[:, : count + 1]
        found = copula(past, series, u, shorter)
        before.append(torch.autograd.grad(found.sum(), u)[0][0, :, T:].flatten() != 0)
    for count, moved in zip((1, 2, 3), before, strict=True):
        assert moved.nonzero()[:, 0].tolist() == sorted(order[0, :count].tolist())


@pytest.mark.parametrize("numbers", [2**26, 1])
def test_draws_have_the_density_by_which_they_are_judged(
    numbers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The noise of a token is its level's place in the distribution given all before it."""
    monkeypatch.setattr(copula_module, "FIT_NUMBERS", numbers)
    copula, (past, series, u) = copula_of(bins=4), inputs()
    order = torch.tensor([2, 0, 3, 1])
    noise = torch.rand(4, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    drawn = copula.draw(past, u[..., :T], order, noise)
    for path in range(6):
        for last in (1, 2, 3):
            whole = u.clone()
            shares = []
            for level in (0.125, 0.375, 0.625, 0.875):
                values = drawn[:, path].clone()
                values[order[last]] = level
                whole[0, :, T:] = values.view(K, H)
                both = [copula(past, series, whole, order[None, : last + k]) for k in (0, 1)]
                shares.append(float((both[1] - both[0]).detach().exp()) / 4)
            level = float(drawn[order[last], path])
            here = min(int(level * 4), 3)
            place = sum(shares[:here]) + shares[here] * (level * 4 - here)
            assert place == pytest.approx(float(noise[last, path]), abs=1e-9)
    assert torch.equal(drawn[order[0]], noise[0])


def network_with_copula(block: int | None = None, **changes: Any) -> TactisNetwork:
    torch.manual_seed(1)
    config = tiny(**{**STAGES, **changes})
    network = TactisNetwork(config, 8, CONTEXT, HORIZON, block).double().eval()
    network.enter(1)
    return network


def test_paths_are_at_the_levels_that_the_copula_draws_after_those_of_the_context() -> None:
    network, (context, _) = network_with_copula(), windows_of(1)
    with torch.no_grad():
        network.copula.bins[-1].weight.mul_(20)
    drawn: Any = network.scenarios(context, seed=3)
    scale, (generator,) = scale_of(context.past, 1e-4), window_generators(3, context.time, CPU)
    past = scale.normalised(context.past)
    margin = network.margins(network.encoder(past, torch.arange(8)[None], CONTEXT + HORIZON))
    levels = []
    for path in drawn.values.unbind(1):
        found = margin.distribution(torch.cat([past, scale.normalised(path)], dim=2)).detach()
        levels.append(found[0, :, CONTEXT:].flatten())
    order = torch.randperm(8 * HORIZON, generator=generator)
    noise = torch.rand(8 * HORIZON, 7, generator=generator, dtype=torch.float64)
    expected = network.copula.draw(past, found[..., :CONTEXT], order, noise)
    torch.testing.assert_close(torch.stack(levels, 1), 1e-6 + (1 - 2e-6) * expected)


def test_the_copula_is_learned_with_the_margins_frozen_and_judged_with_them() -> None:
    network = network_with_copula(bag=3)
    torch.manual_seed(4)
    joint = network(*windows_of())
    trained = {name for name, one in network.named_parameters() if one.requires_grad}
    joint.loss.backward()
    moved = {name for name, one in network.named_parameters() if one.grad is not None}
    assert trained == moved == {n for n, _ in network.named_parameters() if n.startswith("copula")}
    network.enter(0)
    torch.manual_seed(4)
    alone = network(*windows_of())
    expected = alone.loss + joint.parts["copula"]
    torch.testing.assert_close(joint.loss.detach(), expected.detach())


@pytest.mark.parametrize("block", [1, 7])
def test_blocks_change_neither_loss_nor_gradient_of_the_copula(block: int) -> None:
    found = []
    for size in (None, block):
        network = network_with_copula(size, bag=3, validation_bags=1)
        torch.manual_seed(4)
        loss = network(*windows_of()).loss
        trained = [one for one in network.parameters() if one.requires_grad]
        found.append([loss, *torch.autograd.grad(loss, trained)])
    for whole, part in zip(*found, strict=True):
        torch.testing.assert_close(part, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("last", "seconds"), [(3, 0.0), (4, 0.0), (8, 1e9)])
def test_a_training_that_is_cut_around_its_second_stage_ends_the_same(
    last: int, seconds: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cut in the first stage, at the second's first step, and where only its start was saved."""
    monkeypatch.setattr(training, "SAVE_SECONDS", seconds)

    class Stopped(Exception):
        pass

    def stop(now: Progress) -> None:
        if now.step == last:
            raise Stopped

    def fit(run: Path, **options: Any) -> Any:
        model = TACTiS(tiny(**STAGES, bag=3), device="cpu", run=run, **options)
        model.fit(training_of(waves()))
        return model

    whole = fit(tmp_path / "whole")
    with pytest.raises(Stopped):
        fit(tmp_path / "cut", on_progress=stop)
    assert same_weights(whole.network, fit(tmp_path / "cut").network)


def test_too_many_channels_are_refused_with_what_to_do() -> None:
    model = TACTiS(tiny(**STAGES, copula_channels=7), device="cpu")
    with pytest.raises(TrainingError, match=r"8 channels times 6 steps .* is 7; train it without"):
        model.fit(training_of(waves()))


def correlated() -> np.ndarray:
    """Noise that all four channels share, but for a little."""
    own, shared = (np.random.default_rng(k).normal(size=(500, n)) for k, n in ((0, 4), (1, 1)))
    return np.asarray(0.3 * own + shared + np.arange(4))


def test_a_planted_correlation_is_drawn_with_the_copula_and_not_without() -> None:
    train = training_of(correlated(), context=4, horizon=1, n_validation=40)
    rate = {"learning_rate": 4e-3, "batches_per_epoch": 60, "batch_size": 16}
    sizes = {"encoder_layers": 1, "flow_layers": 1, "copula_heads": 1, "copula_hidden": 32}
    sizes |= {"copula_bins": 5, "paths": 400, "validation_bags": 1}
    config = tiny(**{**STAGES, "epochs": 6}, **sizes, training=rate)
    model: Any = TACTiS(config, device="cpu")
    model.fit(train)

    def correlation() -> Tensor:
        drawn = model.predict(train.validation.context(0))
        return torch.corrcoef(drawn.values[0, :, 0].mT)

    assert correlation().min() > 0.4
    model.network.joint.fill_(0)
    assert (correlation() - torch.eye(4)).abs().max() < 0.2
