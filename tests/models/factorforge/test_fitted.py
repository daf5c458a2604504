"""The fitted state of FactorForge: quantiles, coverage and correlations of its scenarios."""

import json
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.axes import KINDS, STEP_S, STEPS_PER_DAY, VARIABLES, P
from powerphase.errors import ForecastError
from powerphase.models.factorforge import FactorForge, FittedFactorForge
from powerphase.scenarios import Context
from tests.models.factorforge import World, training_of, windows_of
from tests.models.typed import scenarios_of

CONTEXT, HORIZON, LATER = 2 * STEPS_PER_DAY, 24, "2015-09-07"
CONSTANT = (5, 16)
BUS_TYPE = np.array([3, 1, 1, 2, 1, 1])
MOVING = np.delete(np.arange(24), CONSTANT)
WORLD = World(n_buses=6, constant=CONSTANT)


@pytest.fixture(scope="module")
def model() -> FactorForge:
    model = FactorForge()
    model.fit(training_of(WORLD.states(240, seed=50), CONTEXT, HORIZON))
    return model


@pytest.fixture(scope="module")
def new_windows() -> tuple[Context, Tensor]:
    """Windows of later months, in five histories that the model was not fitted to."""
    parts = [
        windows_of(WORLD.states(40, seed, LATER), CONTEXT, HORIZON, LATER) for seed in range(1, 6)
    ]
    contexts, targets = zip(*parts, strict=True)
    context = Context(
        torch.cat([context.past for context in contexts]),
        np.concatenate([context.time for context in contexts]),
        contexts[0].layout,
    )
    return context, torch.cat(targets)


@pytest.fixture(scope="module")
def future(state: FittedFactorForge, new_windows: tuple[Context, Tensor]) -> Tensor:
    return state.forecast_factors(new_windows[0])


@pytest.mark.parametrize("count", [1, 2, 5, 16, 33])
def test_each_scenario_of_a_fan_is_one_quantile_of_every_channel(
    state: FittedFactorForge, future: Tensor, count: int
) -> None:
    fan = state.fan(future[:3], count)
    middle, deviation = state.factors.states(future[:3]), state.deviation(future[:3])
    assert fan.values.shape == (3, count, HORIZON, 24)
    torch.testing.assert_close(fan.weights, torch.full_like(fan.weights, 1 / count))
    for m in range(count):
        z = NormalDist().inv_cdf((m + 0.5) / count)
        expected = middle + z * state.sign * deviation
        torch.testing.assert_close(fan.values[:, m], expected, rtol=0, atol=1e-5)


def test_a_fan_of_one_is_the_expected_state(state: FittedFactorForge, future: Tensor) -> None:
    assert torch.equal(state.fan(future, 1).values[:, 0], state.factors.states(future))


def test_the_scenarios_of_a_fan_move_with_one_pattern_of_signs(
    state: FittedFactorForge, future: Tensor
) -> None:
    assert set(state.sign.tolist()) == {-1.0, 1.0}
    steps = (state.fan(future, 7).values.diff(dim=1) * state.sign)[..., MOVING]
    assert (steps > 0).all()


def test_the_pattern_of_signs_is_that_of_the_most_common_error(state: FittedFactorForge) -> None:
    """The first principal component of the channels' errors that are due to factors."""
    loading = state.factors.loading.double().numpy()
    covariance = loading.T @ state.forecaster.covariance.mean(0) @ loading
    component = np.linalg.eigh(covariance)[1][:, -1]
    agreement = np.sign(component)[MOVING] * state.sign.numpy()[MOVING]
    assert abs(agreement.sum()) == len(MOVING)


def test_a_channel_s_deviation_combines_errors_of_factors_and_noise(
    state: FittedFactorForge, future: Tensor
) -> None:
    loading = state.factors.loading.double().numpy()
    by_factors = np.einsum("kc,hkl,lc->hc", loading, state.forecaster.covariance, loading)
    noise = state.factors.deviation(future).double().numpy()
    np.testing.assert_allclose(state.deviation(future), np.sqrt(by_factors + noise**2), rtol=1e-4)


def test_constant_channels_are_forecast_bit_for_bit(
    state: FittedFactorForge, new_windows: tuple[Context, Tensor], future: Tensor
) -> None:
    context, target = new_windows
    start = context.future_time[:2, 0]
    for scenarios in (
        state.fan(future[:2], 4),
        state.draws(future[:2], start, 4, seed=1),
        state.ranked(future[:2], start, 4, 1, BUS_TYPE),
    ):
        constant = scenarios.values[..., CONSTANT]
        assert torch.equal(constant, target[:2, None, :, CONSTANT].expand_as(constant))


def is_covered(fan: Tensor, target: Tensor) -> Tensor:
    """Whether the target lies between the lowest and the highest quantile."""
    return ((target >= fan.amin(1)) & (target <= fan.amax(1)))[..., MOVING].double()


def test_the_central_80_percent_of_a_fan_covers_80_percent_of_targets(
    state: FittedFactorForge, new_windows: tuple[Context, Tensor], future: Tensor
) -> None:
    """The outer two of five scenarios are the quantiles of 10 and 90 %."""
    coverage = is_covered(state.fan(future, 5).values, new_windows[1])
    assert float(coverage.mean()) == pytest.approx(0.8, abs=0.04)
    np.testing.assert_allclose(coverage.mean((0, 2)).view(4, -1).mean(1), 0.8, atol=0.08)
    np.testing.assert_allclose(coverage.mean((0, 1)), 0.8, atol=0.1)


@pytest.fixture(scope="module")
def draws(state: FittedFactorForge, new_windows: tuple[Context, Tensor], future: Tensor) -> Tensor:
    """400 draws of each of some windows, as deviations from the expected state."""
    part = slice(0, None, 8)
    scenarios = state.draws(future[part], new_windows[0].future_time[part, 0], 400, seed=1)
    return scenarios.values - state.factors.states(future[part])[:, None]


def test_draws_have_the_deviation_of_a_fan(
    state: FittedFactorForge, future: Tensor, draws: Tensor
) -> None:
    """By channel, and less exactly by step, since a fan averages neighbouring steps."""
    actual = draws[..., MOVING].square().mean((0, 1))
    expected = state.deviation(future)[..., MOVING].square().mean(0)
    np.testing.assert_allclose(actual.mean(0).sqrt(), expected.mean(0).sqrt(), rtol=0.12)
    np.testing.assert_allclose(actual.mean(1).sqrt(), expected.mean(1).sqrt(), rtol=0.25)


def test_the_central_80_percent_of_draws_covers_80_percent_of_targets(
    state: FittedFactorForge, new_windows: tuple[Context, Tensor], future: Tensor, draws: Tensor
) -> None:
    error = (new_windows[1] - state.factors.states(future))[::8]
    low, high = np.quantile(draws, [0.1, 0.9], axis=1)
    inside = ((error.numpy() >= low) & (error.numpy() <= high))[..., MOVING]
    assert inside.mean() == pytest.approx(0.8, abs=0.06)


def test_draws_have_the_correlations_of_channels(
    state: FittedFactorForge, new_windows: tuple[Context, Tensor], future: Tensor, draws: Tensor
) -> None:
    """From errors of factors and shared noise; in a fan, all channels are fully correlated."""
    middle = state.factors.states(future)
    fan = state.fan(future, 8).values - middle[:, None]
    actual, expected, of_fan = (
        np.corrcoef(values[..., MOVING].reshape(-1, len(MOVING)).T)
        for values in (draws, new_windows[1] - middle, fan)
    )
    assert np.abs(actual - expected).max() < 0.2
    assert np.abs(of_fan - expected).max() > 0.5


def test_draws_have_the_correlations_of_steps(
    state: FittedFactorForge, new_windows: tuple[Context, Tensor], future: Tensor, draws: Tensor
) -> None:
    """In the largest factor: errors persist, noise is independent at every step."""
    readout = state.factors.readout[:, 0]
    error = ((new_windows[1] - state.factors.states(future)) @ readout).numpy()
    actual = np.corrcoef((draws @ readout).flatten(0, 1).numpy().T)
    expected = np.corrcoef(error.T)
    assert np.abs(actual - expected).mean() < 0.12
    assert expected[0, -1] < 0.6 < expected[-5, -1]


def test_ranked_scenarios_have_the_quantiles_of_the_fan_but_for_the_total_power(
    state: FittedFactorForge, new_windows: tuple[Context, Tensor], future: Tensor
) -> None:
    start = new_windows[0].future_time[:3, 0]
    ranked = state.ranked(future[:3], start, 16, 1, BUS_TYPE).values.sort(dim=1).values
    fan = state.fan(future[:3], 16).values.sort(dim=1).values
    power = np.arange(24) % KINDS == P
    torch.testing.assert_close(ranked[..., ~power], fan[..., ~power])
    middle, deviation = state.factors.states(future[:3]), state.deviation(future[:3])
    off = ((ranked - fan) / deviation[:, None].clamp(min=1e-9))[..., power]
    assert 0 < off.square().mean().sqrt() < 0.3
    assert (middle[:, None] - ranked)[..., CONSTANT].abs().max() == 0


def test_ranked_scenarios_have_the_correlations_of_channels(
    state: FittedFactorForge, new_windows: tuple[Context, Tensor], future: Tensor
) -> None:
    start = new_windows[0].future_time[::8, 0]
    ranked = state.ranked(future[::8], start, 64, 1, BUS_TYPE).values
    middle = state.factors.states(future)
    actual, expected = (
        np.corrcoef(values[..., MOVING].reshape(-1, len(MOVING)).T)
        for values in (ranked - middle[::8, None], new_windows[1] - middle)
    )
    assert np.abs(actual - expected).max() < 0.25


def test_draws_depend_only_on_seed_and_window(
    state: FittedFactorForge, new_windows: tuple[Context, Tensor], future: Tensor
) -> None:
    start = new_windows[0].future_time[:, 0]
    both = state.draws(future[:2], start[:2], 3, seed=1).values
    assert torch.equal(state.draws(future[1:2], start[1:2], 3, seed=1).values, both[1:])
    assert not torch.equal(state.draws(future[:2], start[:2], 3, seed=2).values, both)
    moved = state.draws(future[[0, 0]], start[[0, 1]], 3, seed=1).values
    assert torch.equal(moved[0], both[0])
    assert not torch.equal(moved[0], moved[1])


def test_a_state_from_tensors_forecasts_the_same_bits(
    model: FactorForge, new_windows: tuple[Context, Tensor]
) -> None:
    assert model.fitted is not None
    tensors, facts = model.fitted.to_tensors()
    again = FittedFactorForge.from_tensors(model.config, tensors, json.loads(json.dumps(facts)))
    future, same = (part.forecast_factors(new_windows[0]) for part in (model.fitted, again))
    assert torch.equal(future, same)
    assert torch.equal(model.fitted.fan(future, 5).values, again.fan(same, 5).values)
    start = new_windows[0].future_time[:, 0]
    first, second = (part.draws(future, start, 2, seed=1).values for part in (model.fitted, again))
    assert torch.equal(first, second)


def test_facts_describe_each_factor_and_the_sources_of_errors(state: FittedFactorForge) -> None:
    facts = json.loads(json.dumps(state.facts()))
    assert len(facts["each"]) == len(state.factors)
    errors = [fact["error"] for fact in facts["each"]]
    diagonal = np.einsum("hkk->k", state.forecaster.covariance) / HORIZON
    np.testing.assert_allclose(errors, np.sqrt(diagonal))
    assert set(facts["shares"]) == set(VARIABLES)
    assert all(0 < share < 1 for share in facts["shares"].values())


@pytest.mark.parametrize("shift", [-4, 1, 48])
def test_windows_that_start_at_another_time_of_day_raise(
    state: FittedFactorForge, new_windows: tuple[Context, Tensor], shift: int
) -> None:
    context = new_windows[0]
    time = context.time[:2].copy()
    time[1] += shift * np.timedelta64(STEP_S, "s")
    with pytest.raises(ForecastError, match=str(time[1, CONTEXT])):
        state.forecast_factors(Context(context.past[:2], time, context.layout))


def test_a_record_that_starts_at_noon_is_forecast_from_noon() -> None:
    start = "2015-01-01T12:00"
    model = FactorForge()
    model.fit(training_of(WORLD.states(10, 0, start), STEPS_PER_DAY, 4, start))
    context, _ = windows_of(WORLD.states(4, 1, start), STEPS_PER_DAY, 4, start)
    assert scenarios_of(model, context).values.shape[0] == 3
    context, _ = windows_of(WORLD.states(4, 1), STEPS_PER_DAY, 4)
    with pytest.raises(ForecastError, match="12 h"):
        model.predict(context)


def test_a_constant_record_is_forecast_exactly() -> None:
    states = np.tile(np.array([0.1, -0.2, 1.02, 0.3], dtype=np.float32), (10 * STEPS_PER_DAY, 2))
    model = FactorForge()
    model.fit(training_of(states, STEPS_PER_DAY, 4))
    context, target = windows_of(states[: 3 * STEPS_PER_DAY], STEPS_PER_DAY, 4)
    actual = scenarios_of(model, context).values
    assert torch.equal(actual, target[:, None].expand_as(actual))
    assert model.outcome is not None
    assert set(model.outcome["factors"]["shares"].values()) == {None}
