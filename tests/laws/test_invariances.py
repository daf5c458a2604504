"""What no score may depend on, and the exceptions that the paper's own definitions make."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

from powerphase.axes import V
from powerphase.metrics import fidelity, safety
from powerphase.metrics.fan import Fan
from powerphase.metrics.proper import energy_score
from powerphase.metrics.streaming import Scorecard
from powerphase.records.scores import SCORES
from powerphase.scenarios import Scenarios
from tests.metrics.examples import Example, example, score

IGNORES_WEIGHTS = {"distortion", "cvar_0.1"}
WEIGHTED = SCORES.keys() - IGNORES_WEIGHTS - {"fair_crps"}

# Without the search for a smaller example, which would take a minute where a law is broken.
lawful = settings(
    deadline=None, max_examples=12, derandomize=True, phases=(Phase.explicit, Phase.generate)
)


def forecasts_with(tied: st.SearchStrategy[bool]) -> st.SearchStrategy[Example]:
    return st.builds(
        example,
        st.integers(0, 2**32 - 1),
        n_windows=st.integers(1, 2),
        n_scenarios=st.integers(1, 24),
        n_buses=st.integers(1, 2),
        equal=st.booleans(),
        tied=tied,
    )


forecasts = forecasts_with(st.booleans())
shares = st.floats(0, 1)


def joined(scenarios: Scenarios, more: Tensor, weights: Tensor) -> Scenarios:
    """Scenarios with more values (B, more, H, C), and the weights of them all."""
    return Scenarios(torch.cat([scenarios.values, more], dim=1), weights)


def split(scenarios: Scenarios, which: int, share: float) -> Scenarios:
    """One scenario twice, and its weight shared out between the two."""
    copy = scenarios.weights[:, which] * share
    weights = torch.cat([scenarios.weights, copy[:, None]], dim=1)
    weights[:, which] -= copy
    return joined(scenarios, scenarios.values[:, which, None], weights)


def with_weightless(scenarios: Scenarios, values: Tensor) -> Scenarios:
    """One scenario more, which weighs nothing."""
    nothing = torch.zeros_like(scenarios.weights[:, :1])
    return joined(scenarios, values[:, None], torch.cat([scenarios.weights, nothing], dim=1))


def assert_equal_scores(one: Scorecard, other: Scorecard, names: set[str]) -> None:
    for name in sorted(names):
        for part in ("by_window", "by_type", "by_step"):
            found, wanted = getattr(one, part)[name], getattr(other, part)[name]
            message = f"{name} {part}"
            np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-13, err_msg=message)


@lawful
@given(forecasts, st.randoms())
def test_the_order_of_scenarios_is_of_no_account(made: Example, random) -> None:
    order = list(range(made.scenarios.values.shape[1]))
    random.shuffle(order)
    moved = Scenarios(made.scenarios.values[:, order], made.scenarios.weights[:, order])
    assert_equal_scores(score(moved, made.target), score(made.scenarios, made.target), set(SCORES))


@lawful
@given(forecasts, st.integers(0, 1000), shares)
def test_a_scenario_may_be_two_that_share_its_weight(
    made: Example, which: int, share: float
) -> None:
    two = split(made.scenarios, which % made.scenarios.values.shape[1], share)
    assert_equal_scores(
        score(two, made.target), score(made.scenarios, made.target), {*WEIGHTED, "distortion"}
    )


@lawful
@given(forecasts, st.integers(0, 2**32 - 1))
def test_a_scenario_without_weight_is_of_no_account(made: Example, seed: int) -> None:
    values = torch.from_numpy(np.random.default_rng(seed).normal(1, 0.2, made.target.shape))
    more = with_weightless(made.scenarios, values)
    assert_equal_scores(score(more, made.target), score(made.scenarios, made.target), set(WEIGHTED))


def test_distortion_is_moved_by_a_scenario_without_weight() -> None:
    made = example(1)
    assert score(made.scenarios, made.target)["distortion"] > 0.1
    lucky = with_weightless(made.scenarios, made.target)
    assert score(lucky, made.target)["distortion"] == 0


def ten_voltages() -> Scenarios:
    """At one bus, nine scenarios of 1.0 p.u. and one that is 0.04 below the band."""
    values = torch.ones((1, 10, 1, 4), dtype=torch.float64)
    values[:, 0, :, V] = 0.91
    return Scenarios(values, torch.full((1, 10, 4), 0.1, dtype=torch.float64))


def test_cvar_is_moved_by_a_copy() -> None:
    """The worst of ten is 0.04 off; of eleven, the worst two are averaged: 0.04 and 0."""
    scenarios, target = ten_voltages(), torch.ones((1, 1, 4), dtype=torch.float64)
    assert score(scenarios, target)["cvar_0.1"] == pytest.approx(0.04)
    assert score(split(scenarios, 9, 0.5), target)["cvar_0.1"] == pytest.approx(0.02)


def test_cvar_is_moved_by_a_scenario_without_weight() -> None:
    """Eleven scenarios of which two are outside, by 0.04 and 0.10."""
    scenarios, target = ten_voltages(), torch.ones((1, 1, 4), dtype=torch.float64)
    more = with_weightless(scenarios, torch.full_like(target, 0.85))
    assert score(more, target)["cvar_0.1"] == pytest.approx(0.07)


def test_fair_crps_takes_a_copy_for_a_sample() -> None:
    """Each sample twice is the same distribution, but not as many independent samples."""
    made = example(2, equal=True, n_scenarios=5)
    values = made.scenarios.values.repeat(1, 2, 1, 1)
    weights = made.scenarios.weights.repeat(1, 2, 1) / 2
    twice, once = score(Scenarios(values, weights), made.target), score(*vars(made).values())
    assert twice["crps"] == pytest.approx(once["crps"], rel=1e-12)
    assert twice["fair_crps"] > once["fair_crps"] + 0.01


@lawful
@given(forecasts)
def test_turning_the_axis_around_turns_the_central_interval_around(made: Example) -> None:
    turned = Fan.of(Scenarios(-made.scenarios.values, made.scenarios.weights))
    fan = Fan.of(made.scenarios)
    (low, high), (turned_low, turned_high) = fan.central_interval, turned.central_interval
    assert torch.equal(turned_low, -high)
    assert torch.equal(turned_high, -low)


@lawful
@given(forecasts)
def test_turning_the_axis_around_changes_no_score_that_has_no_band(made: Example) -> None:
    turned = Scenarios(-made.scenarios.values, made.scenarios.weights)
    assert_equal_scores(
        score(turned, -made.target),
        score(made.scenarios, made.target),
        {name for name, about in SCORES.items() if not about.voltage_only},
    )


@lawful
@given(forecasts_with(st.just(False)))
def test_the_band_has_two_equal_sides(made: Example) -> None:
    """Voltages mirrored at 1.0 p.u. are as safe as before, but for rounding on the very edge."""
    mirrored = score(Scenarios(2 - made.scenarios.values, made.scenarios.weights), 2 - made.target)
    names = {name for name, about in SCORES.items() if about.voltage_only}
    assert_equal_scores(mirrored, score(made.scenarios, made.target), names)


Marginal = Callable[[Fan, Tensor], Tensor]


@lawful
@given(forecasts, st.floats(-100, 100), st.floats(0.01, 100))
@pytest.mark.parametrize("of", [fidelity.crps, fidelity.absolute_error, fidelity.bias])
def test_marginal_scores_move_and_scale_with_the_unit(
    of: Marginal, made: Example, shift: float, scale: float
) -> None:
    moved = Scenarios(made.scenarios.values * scale + shift, made.scenarios.weights)
    found = of(Fan.of(moved), made.target * scale + shift)
    wanted = of(Fan.of(made.scenarios), made.target) * scale
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-10 * scale + 1e-10)


def test_the_energy_score_scales_with_the_unit() -> None:
    random = np.random.default_rng(3)
    errors = torch.from_numpy(random.normal(size=(8, 5, 64)))
    weights = torch.from_numpy(random.dirichlet(np.ones(8)))
    found = energy_score(40 * errors, weights)
    torch.testing.assert_close(found, 40 * energy_score(errors, weights))


@lawful
@given(forecasts, st.integers(1, 30))
def test_a_perfect_forecast_scores_nothing(made: Example, n_scenarios: int) -> None:
    values = made.target[:, None].expand(-1, n_scenarios, -1, -1)
    weights = torch.full((len(values), n_scenarios, values.shape[-1]), 1 / n_scenarios)
    card = score(Scenarios(values, weights.double()), made.target)
    for name in ("crps", "energy", "distortion", "twcrps", "mse", "width_80"):
        assert (card.by_window[name] == 0).all(), name
    for name in ("brier", "safety_mbrier", "excursion_error"):
        np.testing.assert_allclose(card.by_window[name], 0, atol=1e-7, err_msg=name)
    assert card["coverage_80"] == 1
    happened = safety.signed_excursion(made.target[..., V::4]).abs()
    assert card["necv"] == pytest.approx(happened.mean().item(), rel=1e-6, abs=1e-12)
    assert card["necv"] == pytest.approx(card["excursion"], rel=1e-6, abs=1e-12)


def test_one_per_unit_everywhere_is_perfect_for_the_scores_that_ignore_the_truth() -> None:
    """The flaw of NECV and CVaR, beside scores that see it."""
    made = example(4, n_windows=3, n_scenarios=20)
    values = made.scenarios.values.clone()
    values[..., V::4] = 1.0
    card = score(Scenarios(values, made.scenarios.weights), made.target)
    assert card["violation"] > 0.1
    assert card["necv"] == card["cvar_0.1"] == 0
    assert card["brier"] == pytest.approx(card["violation"])
    assert card["twcrps"] == pytest.approx(card["excursion"])
    assert card["excursion_error"] == pytest.approx(card["excursion"])
    assert card["excursion_bias"] == pytest.approx(-card["excursion"])


@lawful
@given(forecasts)
def test_brier_is_never_more_than_safety_mbrier(made: Example) -> None:
    card = score(made.scenarios, made.target)
    for part in (card.by_window, card.by_step, card.by_bus):
        brier, safety_mbrier = (np.nan_to_num(part[name]) for name in ("brier", "safety_mbrier"))
        assert (brier <= safety_mbrier + 1e-15).all()


def test_weights_that_sum_to_a_little_more_cannot_buy_a_score() -> None:
    """A far scenario with next to no weight must cost, not pay."""
    made = example(5, n_windows=1, equal=True)
    values, weights = made.scenarios.values, made.scenarios.weights
    far = values[:, :1] + 1e6
    more = Scenarios(
        torch.cat([values, far], dim=1),
        torch.cat([weights, torch.full_like(weights[:, :1], 9e-6)], dim=1),
    )
    honest, played = (score(given, made.target) for given in (made.scenarios, more))
    assert played["crps"] > honest["crps"]
    assert played["energy"] > honest["energy"]
