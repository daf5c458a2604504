"""The five shapes by hand, and the shares in which buses follow them."""

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
    """One day: 40 MW and 5 of sun in the morning, 60 MW and 10 of wind in the afternoon."""
    values_mw = np.repeat([[40.0, 5.0, 0.0], [60.0, 0.0, 10.0]], 48, axis=0)
    return replace(signals, time=signals.time[:96], values_mw=values_mw)


def test_shapes_follow_the_papers_formulas(two_halves: Signals) -> None:
    found = load_shapes(two_halves)
    morning, afternoon, evening = found[0], found[48], found[72]
    assert ARCHETYPES == ("baseline", "industrial", "pv", "wind", "ev")
    # Means: 50; 50; (25 + 60) / 2; 40; (48 of 40, 32 of 60, 16 of 84) / 96 = 54.
    np.testing.assert_allclose(morning, [40 / 50, 47 / 50, 25 / 42.5, 40 / 40, 40 / 54])
    np.testing.assert_allclose(afternoon, [60 / 50, 53 / 50, 60 / 42.5, 40 / 40, 60 / 54])
    np.testing.assert_allclose(evening, [60 / 50, 53 / 50, 60 / 42.5, 40 / 40, 84 / 54])


def test_every_shape_has_mean_one_over_the_record(signals: Signals) -> None:
    np.testing.assert_allclose(load_shapes(signals).mean(axis=0), 1.0, rtol=1e-13)


def test_shapes_have_no_unit(signals: Signals) -> None:
    in_kw = replace(signals, values_mw=1000 * signals.values_mw)
    np.testing.assert_allclose(load_shapes(in_kw), load_shapes(signals), rtol=1e-13)


@pytest.mark.parametrize("first_day", ["2015-01-01", "2015-07-01"])
def test_cars_charge_from_18_to_22_hours_utc_in_winter_and_summer(
    signals: Signals, first_day: str
) -> None:
    moved = signals.time - signals.time[0] + np.datetime64(first_day, "s")
    found = load_shapes(replace(signals, time=moved))
    charging = found[:, EV] / found[:, BASELINE]
    raised = charging > 1.2 * charging.min()
    clock = moved - moved.astype("datetime64[D]")
    assert set(clock[raised] // np.timedelta64(900, "s")) == set(range(72, 88))
    assert raised.sum() == 14 * 16
    np.testing.assert_allclose(charging[raised], 1.4 * charging[0])
    np.testing.assert_allclose(charging[~raised], charging[0])


def test_a_shape_is_negative_where_renewables_exceed_the_load(signals: Signals) -> None:
    values_mw = signals.values_mw * [1.0, 2.0, 1.0]
    load, solar, _ = values_mw.T
    found = load_shapes(replace(signals, values_mw=values_mw))
    np.testing.assert_array_equal(found[:, PV] < 0, 3 * solar > load)
    assert (found[:, PV] < 0).any()


@pytest.mark.parametrize(("column", "name"), [(1, "pv"), (2, "wind")])
def test_renewables_beyond_the_load_on_average_are_refused(
    signals: Signals, column: int, name: str
) -> None:
    values_mw = signals.values_mw.copy()
    values_mw[:, column] *= 10
    with pytest.raises(SignalError, match=f"signals 'analytic': the {name} shape has a mean of -"):
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
    low, most = (0.96, 0.99) if high else (0.90, 0.99)
    assert low <= roles.power_factor[5] <= most


@pytest.mark.parametrize("p_mw", [0.0, -20.0])
def test_a_bus_without_a_load_has_no_role(grid_of: GridOf, p_mw: float) -> None:
    bus = grid_of("ieee14").bus.copy()
    bus[5, PD] = p_mw
    roles = assign_roles(replace(grid_of("ieee14"), bus=bus), seed=0)
    assert roles.archetype[5] == NO_LOAD
    assert np.isnan(roles.power_factor[5])
    assert not roles.high_voltage[5]


def test_regions_go_round_by_row(grid_of: GridOf) -> None:
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
    drawn = []
    for seed in SEEDS:
        roles = assign_roles(grid_of("polish3120"), seed)
        loaded = roles.archetype != NO_LOAD
        drawn.append(
            roles.archetype[loaded & (roles.high_voltage == high) & (roles.region == region)]
        )
    counts = np.bincount(np.concatenate(drawn), minlength=len(ARCHETYPES))
    n = counts.sum()
    assert n > 500
    wanted = np.array([shares.get(index, 0.0) for index in range(len(ARCHETYPES))])
    assert (np.abs(counts - n * wanted) <= 4 * np.sqrt(n * wanted * (1 - wanted))).all()


@pytest.mark.parametrize(("high", "low_end"), [(True, 0.96), (False, 0.90)])
def test_power_factors_are_uniform_in_their_range(
    grid_of: GridOf, high: bool, low_end: float
) -> None:
    drawn = []
    for seed in SEEDS:
        roles = assign_roles(grid_of("polish3120"), seed)
        drawn.append(
            roles.power_factor[(roles.archetype != NO_LOAD) & (roles.high_voltage == high)]
        )
    factors = np.concatenate(drawn)
    assert low_end <= factors.min()
    assert factors.max() <= 0.99
    assert kstest(factors, "uniform", args=(low_end, 0.99 - low_end)).pvalue > 1e-3


def test_power_factors_do_not_depend_on_shapes(grid_of: GridOf) -> None:
    roles = assign_roles(grid_of("polish3120"), seed=0)
    low = (roles.archetype != NO_LOAD) & ~roles.high_voltage
    is_baseline = roles.archetype[low] == BASELINE
    correlation = np.corrcoef(is_baseline, roles.power_factor[low])[0, 1]
    assert abs(correlation) < 4 / np.sqrt(low.sum())


def test_a_bus_keeps_its_role_whatever_the_others_do(grid_of: GridOf) -> None:
    grid = grid_of("activsg500")
    bus = grid.bus.copy()
    loads = np.flatnonzero(bus[:, PD] > 0)
    kept, changed = loads[::2], loads[1::2]
    bus[changed, PD] = 0.0
    before, after = assign_roles(grid, seed=3), assign_roles(replace(grid, bus=bus), seed=3)
    np.testing.assert_array_equal(after.archetype[kept], before.archetype[kept])
    np.testing.assert_array_equal(after.power_factor[kept], before.power_factor[kept])


def test_the_seed_decides_the_roles(grid_of: GridOf) -> None:
    grid = grid_of("activsg500")
    one, again, other = (assign_roles(grid, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one.archetype, again.archetype)
    np.testing.assert_array_equal(one.power_factor, again.power_factor)
    assert (one.archetype != other.archetype).any()
