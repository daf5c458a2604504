"""Scenarios: the margins that they claim, what happens as often, and what goes with what."""

import json
from statistics import NormalDist

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.axes import STEP_S, STEPS_PER_DAY, VARIABLES
from powerphase.errors import ForecastError
from powerphase.models.factorforge.forge import Forge
from powerphase.models.factorforge.model import FactorForge
from powerphase.scenarios import Context
from tests.models.factorforge import World, training_of, windows_of

CONTEXT, HORIZON, LATER = 2 * STEPS_PER_DAY, 24, "2015-09-07"
STILL = (5, 16)
MOVING = np.delete(np.arange(24), STILL)
WORLD = World(n_buses=6, still=STILL)


@pytest.fixture(scope="module")
def model() -> FactorForge:
    fitted = FactorForge()
    fitted.fit(training_of(WORLD.states(240, seed=50), CONTEXT, HORIZON))
    return fitted


@pytest.fixture(scope="module")
def forge(model: FactorForge) -> Forge:
    return model.forge


@pytest.fixture(scope="module")
def fresh() -> tuple[Context, Tensor]:
    """Windows of later months, in five histories that the model was not fitted on."""
    parts = [
        windows_of(WORLD.states(40, seed, LATER), CONTEXT, HORIZON, LATER) for seed in range(1, 6)
    ]
    contexts, targets = zip(*parts, strict=True)
    context = Context(
        torch.cat([one.past for one in contexts]),
        np.concatenate([one.time for one in contexts]),
        contexts[0].layout,
    )
    return context, torch.cat(targets)


@pytest.fixture(scope="module")
def future(forge: Forge, fresh: tuple[Context, Tensor]) -> Tensor:
    return forge.future(fresh[0])


@pytest.mark.parametrize("count", [1, 2, 5, 16, 33])
def test_scenario_m_of_a_fan_is_its_quantile_of_every_channel(
    forge: Forge, future: Tensor, count: int
) -> None:
    fan = forge.fan(future[:3], count)
    middle, deviation = forge.factors.states(future[:3]), forge.deviation(future[:3])
    assert fan.values.shape == (3, count, HORIZON, 24)
    torch.testing.assert_close(fan.weights, torch.full_like(fan.weights, 1 / count))
    for m in range(count):
        z = NormalDist().inv_cdf((m + 0.5) / count)
        wanted = middle + z * forge.sign * deviation
        torch.testing.assert_close(fan.values[:, m], wanted, rtol=0, atol=1e-5)


def test_a_single_scenario_is_what_is_expected(forge: Forge, future: Tensor) -> None:
    assert torch.equal(forge.fan(future, 1).values[:, 0], forge.factors.states(future))


def test_the_scenarios_of_a_fan_differ_along_one_pattern_of_signs(
    forge: Forge, future: Tensor
) -> None:
    assert set(forge.sign.tolist()) == {-1.0, 1.0}
    steps = (forge.fan(future, 7).values.diff(dim=1) * forge.sign)[..., MOVING]
    assert (steps > 0).all()


def test_the_pattern_is_that_of_the_commonest_error(forge: Forge) -> None:
    """The first principal component of what the factors' errors do to all channels."""
    loading = forge.factors.loading.double().numpy()
    covariance = loading.T @ forge.outlook.covariance.mean(0) @ loading
    commonest = np.linalg.eigh(covariance)[1][:, -1]
    agreed = np.sign(commonest)[MOVING] * forge.sign.numpy()[MOVING]
    assert abs(agreed.sum()) == len(MOVING)


def test_a_channel_s_deviation_is_of_the_factors_errors_and_its_noise(
    forge: Forge, future: Tensor
) -> None:
    loading = forge.factors.loading.double().numpy()
    ours = np.einsum("kc,hkl,lc->hc", loading, forge.outlook.covariance, loading)
    noise = forge.factors.deviation(future).double().numpy()
    np.testing.assert_allclose(forge.deviation(future), np.sqrt(ours + noise**2), rtol=1e-4)


def test_channels_that_never_move_are_forecast_bit_for_bit(
    forge: Forge, fresh: tuple[Context, Tensor], future: Tensor
) -> None:
    context, target = fresh
    start = context.future_time[:2, 0]
    for scenarios in (forge.fan(future[:2], 4), forge.draws(future[:2], start, 4, seed=1)):
        still = scenarios.values[..., STILL]
        assert torch.equal(still, target[:2, None, :, STILL].expand_as(still))


def covered(fan: Tensor, target: Tensor) -> Tensor:
    """Whether what happened lies between the lowest and the highest of five quantiles."""
    return ((target >= fan.amin(1)) & (target <= fan.amax(1)))[..., MOVING].double()


def test_four_in_five_truths_lie_within_the_central_four_fifths_of_a_fan(
    forge: Forge, fresh: tuple[Context, Tensor], future: Tensor
) -> None:
    """Of five scenarios, the outer ones are the quantiles of 10 and 90 %."""
    found = covered(forge.fan(future, 5).values, fresh[1])
    assert float(found.mean()) == pytest.approx(0.8, abs=0.04)
    np.testing.assert_allclose(found.mean((0, 2)).view(4, -1).mean(1), 0.8, atol=0.08)
    np.testing.assert_allclose(found.mean((0, 1)), 0.8, atol=0.1)


@pytest.fixture(scope="module")
def drawn(forge: Forge, fresh: tuple[Context, Tensor], future: Tensor) -> Tensor:
    """Four hundred draws of each of some windows, as deviations from what is expected."""
    some = slice(0, None, 8)
    draws = forge.draws(future[some], fresh[0].future_time[some, 0], 400, seed=1)
    return draws.values - forge.factors.states(future[some])[:, None]


def test_draws_spread_as_a_fan_does(forge: Forge, future: Tensor, drawn: Tensor) -> None:
    """By channel, and by step: there less exactly, since a fan's neighbouring steps agree."""
    found = drawn[..., MOVING].square().mean((0, 1))
    wanted = forge.deviation(future)[..., MOVING].square().mean(0)
    np.testing.assert_allclose(found.mean(0).sqrt(), wanted.mean(0).sqrt(), rtol=0.12)
    np.testing.assert_allclose(found.mean(1).sqrt(), wanted.mean(1).sqrt(), rtol=0.25)


def test_four_in_five_truths_lie_within_the_central_four_fifths_of_draws(
    forge: Forge, fresh: tuple[Context, Tensor], future: Tensor, drawn: Tensor
) -> None:
    wrong = (fresh[1] - forge.factors.states(future))[::8]
    low, high = np.quantile(drawn, [0.1, 0.9], axis=1)
    inside = ((wrong.numpy() >= low) & (wrong.numpy() <= high))[..., MOVING]
    assert inside.mean() == pytest.approx(0.8, abs=0.06)


def test_in_draws_channels_go_together_as_they_do_in_the_world(
    forge: Forge, fresh: tuple[Context, Tensor], future: Tensor, drawn: Tensor
) -> None:
    """Errors of the factors and noise that channels share; in a fan, all are one."""
    middle = forge.factors.states(future)
    fan = forge.fan(future, 8).values - middle[:, None]
    found, wanted, all_one = (
        np.corrcoef(values[..., MOVING].reshape(-1, len(MOVING)).T)
        for values in (drawn, fresh[1] - middle, fan)
    )
    assert np.abs(found - wanted).max() < 0.2
    assert np.abs(all_one - wanted).max() > 0.5


def test_in_draws_steps_go_together_as_they_do_in_the_world(
    forge: Forge, fresh: tuple[Context, Tensor], future: Tensor, drawn: Tensor
) -> None:
    """Of the factor that explains most: errors last, while noise is new at every step."""
    read = forge.factors.readout[:, 0]
    wrong = ((fresh[1] - forge.factors.states(future)) @ read).numpy()
    found = np.corrcoef((drawn @ read).flatten(0, 1).numpy().T)
    wanted = np.corrcoef(wrong.T)
    assert np.abs(found - wanted).mean() < 0.12
    assert wanted[0, -1] < 0.6 < wanted[-5, -1]


def test_draws_are_fixed_by_their_seed_and_window(
    forge: Forge, fresh: tuple[Context, Tensor], future: Tensor
) -> None:
    start = fresh[0].future_time[:, 0]
    both = forge.draws(future[:2], start[:2], 3, seed=1).values
    assert torch.equal(forge.draws(future[1:2], start[1:2], 3, seed=1).values, both[1:])
    assert not torch.equal(forge.draws(future[:2], start[:2], 3, seed=2).values, both)
    moved = forge.draws(future[[0, 0]], start[[0, 1]], 3, seed=1).values
    assert torch.equal(moved[0], both[0])
    assert not torch.equal(moved[0], moved[1])


def test_what_was_packed_forecasts_to_the_same_bits(
    model: FactorForge, fresh: tuple[Context, Tensor]
) -> None:
    tensors, facts = model.forge.packed()
    again = Forge.unpacked(model.config, tensors, json.loads(json.dumps(facts)))
    one, other = model.forge.future(fresh[0]), again.future(fresh[0])
    assert torch.equal(one, other)
    assert torch.equal(model.forge.fan(one, 5).values, again.fan(other, 5).values)
    start = fresh[0].future_time[:, 0]
    drawn = [forge.draws(one, start, 2, seed=1).values for forge in (model.forge, again)]
    assert torch.equal(*drawn)


def test_facts_tell_of_each_factor_and_whose_the_errors_are(forge: Forge) -> None:
    facts = json.loads(json.dumps(forge.facts()))
    assert len(facts["each"]) == len(forge.factors)
    errors = [fact["error"] for fact in facts["each"]]
    diagonal = np.einsum("hkk->k", forge.outlook.covariance) / HORIZON
    np.testing.assert_allclose(errors, np.sqrt(diagonal))
    assert set(facts["shares"]) == set(VARIABLES)
    assert all(0 < share < 1 for share in facts["shares"].values())


@pytest.mark.parametrize("shift", [-4, 1, 48])
def test_windows_that_begin_at_another_time_of_day_are_refused(
    forge: Forge, fresh: tuple[Context, Tensor], shift: int
) -> None:
    context = fresh[0]
    time = context.time[:2].copy()
    time[1] += shift * np.timedelta64(STEP_S, "s")
    sentence = f"windows that begin 0 h after midnight UTC, and one begins at {time[1, CONTEXT]}"
    with pytest.raises(ForecastError, match=sentence):
        forge.future(Context(context.past[:2], time, context.layout))


def test_a_record_that_starts_at_noon_is_forecast_from_noon_on() -> None:
    start = "2015-01-01T12:00"
    fitted = FactorForge()
    fitted.fit(training_of(WORLD.states(10, 0, start), STEPS_PER_DAY, 4, start))
    context, _ = windows_of(WORLD.states(4, 1, start), STEPS_PER_DAY, 4, start)
    assert fitted.predict(context).values.shape[0] == 3
    context, _ = windows_of(WORLD.states(4, 1), STEPS_PER_DAY, 4)
    with pytest.raises(ForecastError, match="begin 12 h after midnight UTC, and one begins at"):
        fitted.predict(context)


def test_a_world_that_never_moves_is_forecast_exactly() -> None:
    states = np.tile(np.float32([0.1, -0.2, 1.02, 0.3]), (10 * STEPS_PER_DAY, 2))
    fitted = FactorForge()
    fitted.fit(training_of(states, STEPS_PER_DAY, 4))
    context, target = windows_of(states[: 3 * STEPS_PER_DAY], STEPS_PER_DAY, 4)
    found = fitted.predict(context).values
    assert torch.equal(found, target[:, None].expand_as(found))
    assert set(fitted.outcome["factors"]["shares"].values()) == {None}
