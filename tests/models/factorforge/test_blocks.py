"""Scenarios that are drawn by blocks of channels: as they would be all at once."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.axes import KINDS, STEPS_PER_DAY, P
from powerphase.models.factorforge import (
    Excess,
    FactorForge,
    FittedFactorForge,
    channel_blocks,
    fitted,
)
from powerphase.scenarios import Context, Scenarios
from tests.models.factorforge import World, training_of, windows_of

CONTEXT, HORIZON, N_BUSES = 2 * STEPS_PER_DAY, 12, 6
BUS_TYPE = np.array([3, 1, 1, 2, 1, 1])
WORLD = World(n_buses=N_BUSES)
COUNT = 60
TWO_BUSES = [slice(0, 8), slice(8, 16), slice(16, 24)]


@pytest.fixture(scope="module")
def model() -> FactorForge:
    model = FactorForge()
    model.fit(training_of(WORLD.states(120, seed=50), CONTEXT, HORIZON))
    return model


@pytest.fixture(scope="module")
def context() -> Context:
    later = "2015-09-07"
    made = windows_of(WORLD.states(6, 1, later), CONTEXT, HORIZON, later)[0]
    return Context(made.past, made.time, replace(made.layout, bus_type=BUS_TYPE))


@pytest.fixture
def two_buses_at_a_time(monkeypatch: pytest.MonkeyPatch, context: Context) -> None:
    size = 4 * 2 * KINDS * len(context.past) * COUNT * HORIZON
    monkeypatch.setattr(fitted, "BLOCK_BYTES", size)


def whole(prediction: Scenarios | Iterator[tuple[slice, Scenarios]]) -> Tensor:
    """The values of a prediction in blocks, which must be those of two buses each."""
    assert not isinstance(prediction, Scenarios)
    blocks = list(prediction)
    assert [channels for channels, _ in blocks] == TWO_BUSES
    return torch.cat([scenarios.values for _, scenarios in blocks], dim=-1)


def form(model: FactorForge, coupling: str) -> FactorForge:
    """The fitted model with another coupling."""
    made = model.ranked_form(COUNT)
    made.config = replace(made.config, coupling=coupling)
    return made


def test_blocks_are_whole_buses_that_fit() -> None:
    assert channel_blocks(16, 96, 36_964) == [slice(0, 36_964)]
    blocks = channel_blocks(1000, 96, 36_964)
    assert blocks[0].start == 0
    assert blocks[-1].stop == 36_964
    assert {block.start % KINDS for block in blocks} == {0}
    assert max(4 * 1000 * 96 * (block.stop - block.start) for block in blocks) <= fitted.BLOCK_BYTES
    assert channel_blocks(10**9, 96, 8) == [slice(0, 4), slice(4, 8)]


@pytest.mark.usefixtures("two_buses_at_a_time")
def test_a_fan_is_the_same_in_blocks(
    model: FactorForge, state: FittedFactorForge, context: Context
) -> None:
    expected = state.fan(state.forecast_factors(context), COUNT).values
    torch.testing.assert_close(whole(form(model, "fan").predict(context)), expected)


@pytest.mark.usefixtures("two_buses_at_a_time")
def test_draws_in_blocks_have_the_same_errors_and_noise_of_their_own(
    model: FactorForge, state: FittedFactorForge, context: Context
) -> None:
    future, start = state.forecast_factors(context), context.future_time[:, 0]
    at_once = state.draws(future, start, COUNT, seed=42).values
    blocks = whole(form(model, "draws").predict(context))
    assert torch.equal(blocks, whole(form(model, "draws").predict(context)))
    middle = state.factors.states(future)[:, None]
    spread = state.deviation(future)[:, None]
    left, right = (((values - middle) / spread).flatten(0, 2) for values in (at_once, blocks))
    # Both draw the same days and the same shared noise, and so correlate, channel by channel.
    products = (left * right).mean(0)
    assert (products > 0.3).all()
    noise = right - left
    independent = np.corrcoef(noise.T.numpy())
    assert abs(independent[8:16, 16:]).max() < 0.1
    torch.testing.assert_close(right.std(0), left.std(0), rtol=0.1, atol=0.02)


@pytest.mark.usefixtures("two_buses_at_a_time")
def test_ranked_blocks_have_the_fan_s_quantiles_and_the_total_power_of_their_draws(
    model: FactorForge, state: FittedFactorForge, context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    future, drawn = state.forecast_factors(context), []

    class Recorded(Excess):
        def add(self, *arguments: Any) -> None:
            drawn.append(arguments[1])
            super().add(*arguments)

    monkeypatch.setattr(fitted, "Excess", Recorded)
    ranked = whole(form(model, "ranked").predict(context))
    fan = state.fan(future, COUNT).values.sort(1).values
    others = np.arange(N_BUSES * KINDS) % KINDS != P
    torch.testing.assert_close(ranked.sort(1).values[..., others], fan[..., others])
    n_windows = len(context.past)
    blocks = [torch.stack(drawn[k : k + n_windows]) for k in range(0, len(drawn), n_windows)]
    totals = [
        values[..., P::KINDS][..., BUS_TYPE != 3].sum(-1)
        for values in (ranked, torch.cat(blocks, dim=-1))
    ]
    torch.testing.assert_close(*totals, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("two_buses_at_a_time")
@pytest.mark.parametrize("coupling", ["draws", "ranked"])
def test_a_window_s_blocks_do_not_depend_on_the_other_windows(
    model: FactorForge, context: Context, coupling: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    together = whole(form(model, coupling).predict(context))
    n_windows = len(context.past)
    monkeypatch.setattr(fitted, "BLOCK_BYTES", fitted.BLOCK_BYTES // n_windows)
    last = Context(context.past[-1:], context.time[-1:], context.layout)
    torch.testing.assert_close(whole(form(model, coupling).predict(last)), together[-1:])
