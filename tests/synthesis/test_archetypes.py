"""The five load shapes, and how they are assigned to buses."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import kstest

from powerphase.errors import SignalError
from powerphase.grid import BASE_KV, PD, Grid
from powerphase.synthesis import (
    ARCHETYPES,
    BASELINE,
    EV,
    INDUSTRIAL,
    NO_LOAD,
    PV,
    WIND,
    Signals,
    assign_roles,
    load_shapes,
)

GridOf = Callable[[str], Grid]
SEEDS = range(10)


@pytest.fixture
def two_halves(signals: Signals) -> Signals:
    """One day: load 40 and solar 5 MW in the morning, load 60 and wind 10 MW afterwards."""
    values_mw = np.repeat([[40.0, 5.0, 0.0], [60.0, 0.0, 10.0]], 48, axis=0)
    return replace(signals, time=signals.time[:96], values_mw=values_mw)


def test_shapes_follow_the_papers_formulas(two_halves: Signals) -> None:
    shapes = load_shapes(two_halves)
    morning, afternoon, evening = shapes[0], shapes[48], shapes[72]
    assert ARCHETYPES == ("baseline", "industrial", "pv", "wind", "ev")
    # Means: 50; 50; (25 + 60) / 2; 40; (48 of 40, 32 of 60, 16 of 84) / 96 = 54.
    np.testing.assert_allclose(morning, [40 / 50, 47 / 50, 25 / 42.5, 40 / 40, 40 / 54])
    np.testing.assert_allclose(afternoon, [60 / 50, 53 / 50, 60 / 42.5, 40 / 40, 60 / 54])
    np.testing.assert_allclose(evening, [60 / 50, 53 / 50, 60 / 42.5, 40 / 40, 84 / 54])


def test_every_shape_has_mean_one_over_the_record(signals: Signals) -> None:
    np.testing.assert_allclose(load_shapes(signals).mean(axis=0), 1.0, rtol=1e-13)


def test_shapes_do_not_depend_on_the_unit(signals: Signals) -> None:
    in_kw = replace(signals, values_mw=1000 * signals.values_mw)
    np.testing.assert_allclose(load_shapes(in_kw), load_shapes(signals), rtol=1e-13)


@pytest.mark.parametrize("first_day", ["2015-01-01", "2015-07-01"])
def test_electric_vehicles_charge_from_18_to_22_hours_utc_all_year(
    signals: Signals, first_day: str
) -> None:
    moved = signals.time - signals.time[0] + np.datetime64(first_day, "s")
    shapes = load_shapes(replace(signals, time=moved))
    charging = shapes[:, EV] / shapes[:, BASELINE]
    is_raised = charging > 1.2 * charging.min()
    clock = moved - moved.astype("datetime64[D]")
    assert set(clock[is_raised] // np.timedelta64(900, "s")) == set(range(72, 88))
    assert is_raised.sum() == 14 * 16
    np.testing.assert_allclose(charging[is_raised], 1.4 * charging[0])
    np.testing.assert_allclose(charging[~is_raised], charging[0])


def test_a_shape_is_negative_where_renewables_exceed_the_load(signals: Signals) -> None:
    values_mw = signals.values_mw * [1.0, 2.0, 1.0]
    load, solar, _ = values_mw.T
    shapes = load_shapes(replace(signals, values_mw=values_mw))
    np.testing.assert_array_equal(shapes[:, PV] < 0, 3 * solar > load)
    assert (shapes[:, PV] < 0).any()


@pytest.mark.parametrize(("column", "name"), [(1, "pv"), (2, "wind")])
def test_renewables_that_exceed_the_load_on_average_raise(
    signals: Signals, column: int, name: str
) -> None:
    values_mw = signals.values_mw.copy()
    values_mw[:, column] *= 10
    with pytest.raises(SignalError, match=f"'analytic': the {name} shape .* -"):
        load_shapes(replace(signals, values_mw=values_mw))


@pytest.mark.parametrize(
    ("base_kv", "p_mw", "high"),
    [(110.0, 10.0, False), (110.1, 0.1, True), (20.0, 10.1, True), (0.0, 3.0, False)],
)
def test_a_load_is_high_voltage_above_110_kv_or_above_10_mw(
    grid_of: GridOf, base_kv: float, p_mw: float, high: bool
) -> None:
    bus = grid_of("ieee14").bus.copy()
    bus[5, [BASE_KV, PD]] = base_kv, p_mw
    roles = assign_roles(replace(grid_of("ieee14"), bus=bus), seed=0)
    assert roles.high_voltage[5] == high
    low, highest = (0.96, 0.99) if high else (0.90, 0.99)
    assert low <= roles.power_factor[5] <= highest


@pytest.mark.parametrize("p_mw", [0.0, -20.0])
def test_a_bus_without_a_load_has_no_role(grid_of: GridOf, p_mw: float) -> None:
    bus = grid_of("ieee14").bus.copy()
    bus[5, PD] = p_mw
    roles = assign_roles(replace(grid_of("ieee14"), bus=bus), seed=0)
    assert roles.archetype[5] == NO_LOAD
    assert np.isnan(roles.power_factor[5])
    assert not roles.high_voltage[5]


def test_regions_alternate_by_row(grid_of: GridOf) -> None:
    roles = assign_roles(grid_of("ieee14"), seed=0)
    np.testing.assert_array_equal(roles.region, [0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1, 2, 0, 1])


@pytest.mark.parametrize(
    ("high", "region", "shares"),
    [
        (True, 0, {INDUSTRIAL: 0.8, BASELINE: 0.2}),
        (True, 1, {INDUSTRIAL: 0.8, BASELINE: 0.2}),
        (True, 2, {INDUSTRIAL: 0.8, BASELINE: 0.2}),
        (False, 0, {BASELINE: 4 / 13, PV: 6 / 13, EV: 2 / 13, WIND: 1 / 13}),
        (False, 1, {BASELINE: 4 / 11, PV: 3 / 11, EV: 2 / 11, WIND: 2 / 11}),
        (False, 2, {BASELINE: 0.4, PV: 0.3, EV: 0.2, WIND: 0.1}),
    ],
)
def test_shares_are_the_papers_within_binomial_error(
    grid_of: GridOf, high: bool, region: int, shares: dict[int, float]
) -> None:
    draws = []
    for seed in SEEDS:
        roles = assign_roles(grid_of("polish3120"), seed)
        has_load = roles.archetype != NO_LOAD
        draws.append(
            roles.archetype[has_load & (roles.high_voltage == high) & (roles.region == region)]
        )
    counts = np.bincount(np.concatenate(draws), minlength=len(ARCHETYPES))
    n = counts.sum()
    assert n > 500
    expected = np.array([shares.get(index, 0.0) for index in range(len(ARCHETYPES))])
    assert (np.abs(counts - n * expected) <= 4 * np.sqrt(n * expected * (1 - expected))).all()


@pytest.mark.parametrize(("high", "low_end"), [(True, 0.96), (False, 0.90)])
def test_power_factors_are_uniform_in_their_range(
    grid_of: GridOf, high: bool, low_end: float
) -> None:
    draws = []
    for seed in SEEDS:
        roles = assign_roles(grid_of("polish3120"), seed)
        draws.append(
            roles.power_factor[(roles.archetype != NO_LOAD) & (roles.high_voltage == high)]
        )
    factors = np.concatenate(draws)
    assert low_end <= factors.min()
    assert factors.max() <= 0.99
    assert kstest(factors, "uniform", args=(low_end, 0.99 - low_end)).pvalue > 1e-3


def test_power_factors_do_not_depend_on_shapes(grid_of: GridOf) -> None:
    roles = assign_roles(grid_of("polish3120"), seed=0)
    low = (roles.archetype != NO_LOAD) & ~roles.high_voltage
    is_baseline = roles.archetype[low] == BASELINE
    correlation = np.corrcoef(is_baseline, roles.power_factor[low])[0, 1]
    assert abs(correlation) < 4 / np.sqrt(low.sum())


def test_a_role_does_not_depend_on_other_buses(grid_of: GridOf) -> None:
    grid = grid_of("activsg500")
    bus = grid.bus.copy()
    loads = np.flatnonzero(bus[:, PD] > 0)
    kept, changed = loads[::2], loads[1::2]
    bus[changed, PD] = 0.0
    before, after = assign_roles(grid, seed=3), assign_roles(replace(grid, bus=bus), seed=3)
    np.testing.assert_array_equal(after.archetype[kept], before.archetype[kept])
    np.testing.assert_array_equal(after.power_factor[kept], before.power_factor[kept])


def test_the_seed_determines_the_roles(grid_of: GridOf) -> None:
    grid = grid_of("activsg500")
    first, again, different = (assign_roles(grid, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first.archetype, again.archetype)
    np.testing.assert_array_equal(first.power_factor, again.power_factor)
    assert (first.archetype != different.archetype).any()
