"""Injections: the laws of noise, power factors and dispatch."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from powerphase.grid import GEN_STATUS, PAPER_GRIDS, PD, PG, PQ, QD, QG, Grid
from powerphase.synthesis import EV, NO_LOAD, PV, Injections, Signals, load_shapes

GridOf = Callable[[str], Grid]
Array = NDArray[np.float64]


@pytest.fixture(scope="module")
def constant(signals: Signals) -> Signals:
    """No solar and wind: every shape but EV is exactly 1, so that only noise varies."""
    return replace(signals, values_mw=np.tile([50e3, 0.0, 0.0], (len(signals.time), 1)))


def generation(grid: Grid, column: int) -> Array:
    """The injection of the generators in service at each bus, by the case file."""
    total = np.zeros(grid.n_buses)
    for generator, row in zip(grid.gen, grid.generator_row, strict=True):
        if generator[GEN_STATUS] > 0:
            total[row] += generator[column]
    return total


def ratio_of(grid: Grid, p_mw: Array) -> Array:
    """The dispatch ratio of each step, from the largest generator at a bus without a load."""
    alone = np.where(grid.bus[:, PD] == 0, generation(grid, PG), 0.0)
    row = int(np.abs(alone).argmax())
    return p_mw[:, row] / -alone[row]


def loads_of(grid: Grid, p_mw: Array) -> Array:
    """The loads [MW], without the generation at their buses."""
    return (p_mw + ratio_of(grid, p_mw)[:, None] * generation(grid, PG))[:, grid.bus[:, PD] > 0]


@pytest.fixture(scope="module")
def noise(grid_of: GridOf, constant: Signals) -> tuple[Array, NDArray[np.int64], NDArray[np.bool_]]:
    """Relative noise of each load on Polish 3120 over two weeks, its region and voltage class."""
    grid = grid_of("polish3120")
    injections = Injections(grid, constant, seed=0, dispatch="proportional")
    roles = injections.roles
    p_mw, _ = injections.steps(0, len(constant.time))
    flat = (roles.archetype != EV)[grid.bus[:, PD] > 0]
    rows = np.flatnonzero(grid.bus[:, PD] > 0)[flat]
    relative = loads_of(grid, p_mw)[:, flat] / grid.bus[rows, PD] - 1
    return relative, roles.region[rows], roles.high_voltage[rows]


Noise = tuple[Array, NDArray[np.int64], NDArray[np.bool_]]


def regional(noise: Noise) -> Array:
    """Mean noise of the loads of each region."""
    relative, region, _ = noise
    return np.stack([relative[:, region == index].mean(axis=1) for index in range(3)], axis=1)


def test_regional_noise_has_three_percent(noise: Noise) -> None:
    np.testing.assert_allclose(regional(noise).std(axis=0), 0.03, rtol=0.08)


def test_regions_are_independent(noise: Noise) -> None:
    correlation = np.corrcoef(regional(noise).T) - np.eye(3)
    assert np.abs(correlation).max() < 4 / np.sqrt(len(noise[0]))


@pytest.mark.parametrize(("high", "sigma"), [(True, 0.02), (False, 0.08)])
def test_bus_noise_depends_on_the_voltage_class(noise: Noise, high: bool, sigma: float) -> None:
    relative, region, is_high = noise
    by_bus = relative - regional(noise)[:, region]
    per_bus = by_bus[:, is_high == high].std(axis=0)
    np.testing.assert_allclose(per_bus.mean(), sigma, rtol=0.02)
    np.testing.assert_allclose(per_bus, sigma, rtol=0.12)


def test_noise_has_mean_zero(noise: Noise) -> None:
    assert abs(noise[0].mean()) < 4 * 0.03 / np.sqrt(3 * len(noise[0]))


@pytest.mark.parametrize("lag", [1, 4, 96, 7 * 96])
def test_noise_is_independent_between_steps(noise: Noise, lag: int) -> None:
    """Days are independent too: no noise is drawn twice."""
    common = regional(noise)
    by_bus = noise[0][:, :3] - common[:, noise[1][:3]]
    for series in (*common.T, *by_bus.T):
        correlation = np.corrcoef(series[:-lag], series[lag:])[0, 1]
        assert abs(correlation) < 4.5 / np.sqrt(len(series) - lag)


def test_a_record_that_starts_later_has_the_same_noise(grid_of: GridOf, constant: Signals) -> None:
    later = replace(constant, time=constant.time[3 * 96 :], values_mw=constant.values_mw[3 * 96 :])
    grid = grid_of("activsg500")
    whole = Injections(grid, constant, seed=0, dispatch="proportional")
    part = Injections(grid, later, seed=0, dispatch="proportional")
    np.testing.assert_array_equal(part.steps(0, 2 * 96), whole.steps(3 * 96, 5 * 96))


def test_noise_multiplies_the_shape(grid_of: GridOf, signals: Signals, constant: Signals) -> None:
    grid = grid_of("activsg500")
    varying, flat = (
        Injections(grid, source, seed=0, dispatch="proportional") for source in (signals, constant)
    )
    archetype = varying.roles.archetype[grid.bus[:, PD] > 0]
    loads = [loads_of(grid, injections.steps(0, 192)[0]) for injections in (varying, flat)]
    shapes = [load_shapes(source)[:192, archetype] for source in (signals, constant)]
    np.testing.assert_allclose(loads[0] / shapes[0], loads[1] / shapes[1], rtol=1e-9)


@pytest.mark.parametrize("cuts", [[1, 2, 95, 96, 97], [40, 200], [96, 192]])
def test_any_split_of_the_record_gives_the_same_bits(
    grid_of: GridOf, signals: Signals, cuts: list[int]
) -> None:
    injections = Injections(grid_of("pegase1354"), signals, seed=0, dispatch="proportional")
    whole = injections.steps(0, 288)
    edges = [0, *cuts, 288]
    parts = [injections.steps(a, b) for a, b in pairwise(edges)]
    for index in range(2):
        joined = np.concatenate([part[index] for part in parts])
        assert joined.tobytes() == whole[index].tobytes()


def test_the_seed_determines_the_noise(grid_of: GridOf, constant: Signals) -> None:
    blocks = [
        Injections(grid_of("ieee118"), constant, seed, "proportional").steps(0, 96)[0]
        for seed in (1, 1, 2)
    ]
    np.testing.assert_array_equal(blocks[0], blocks[1])
    assert (blocks[0] != blocks[2]).mean() > 0.5


def test_loads_are_zero_where_their_shape_is_negative(grid_of: GridOf, signals: Signals) -> None:
    grid = grid_of("ieee300")
    sunny = replace(signals, values_mw=signals.values_mw * [1.0, 2.0, 1.0])
    injections = Injections(grid, sunny, seed=0, dispatch="proportional")
    p_mw, q_mvar = injections.steps(0, 96)
    noon = load_shapes(sunny)[:96, PV] < 0
    load_only = (injections.roles.archetype == PV) & (generation(grid, PG) == 0)
    load_only &= ~np.isin(np.arange(grid.n_buses), grid.generator_row)
    assert noon.any()
    assert load_only.any()
    for power in (p_mw, q_mvar):
        assert (power[np.ix_(noon, load_only)] == 0).all()
        assert (power[np.ix_(~noon, load_only)] > 0).mean() > 0.99
    assert loads_of(grid, p_mw).min() > -1e-9


def test_extreme_noise_is_clipped_at_zero(
    grid_of: GridOf, constant: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerphase.synthesis.injections.LV_SIGMA", 10.0)
    monkeypatch.setattr("powerphase.synthesis.injections.HV_SIGMA", 10.0)
    grid = grid_of("activsg500")
    p_mw, _ = Injections(grid, constant, seed=0, dispatch="proportional").steps(0, 96)
    load_only = (grid.bus[:, PD] > 0) & ~np.isin(np.arange(500), grid.generator_row)
    assert p_mw[:, load_only].min() == 0
    assert 0.4 < (p_mw[:, load_only] == 0).mean() < 0.5


def test_reactive_power_follows_the_power_factor(grid_of: GridOf, signals: Signals) -> None:
    grid = grid_of("pegase1354")
    injections = Injections(grid, signals, seed=0, dispatch="proportional")
    p_mw, q_mvar = injections.steps(0, 96)
    load_only = (grid.bus[:, PD] > 0) & ~np.isin(np.arange(grid.n_buses), grid.generator_row)
    assert load_only.sum() > 300
    factor = p_mw[:, load_only] / np.hypot(p_mw[:, load_only], q_mvar[:, load_only])
    expected = np.broadcast_to(injections.roles.power_factor[load_only], factor.shape)
    np.testing.assert_allclose(factor, expected, rtol=1e-12)
    assert (q_mvar[:, load_only] > 0).all()


@pytest.mark.parametrize("name", PAPER_GRIDS)
def test_the_dispatch_ratio_is_total_load_over_nominal_load(
    grid_of: GridOf, signals: Signals, name: str
) -> None:
    grid = grid_of(name)
    p_mw, _ = Injections(grid, signals, seed=0, dispatch="proportional").steps(0, 4)
    nominal_mw = grid.bus[grid.bus[:, PD] > 0, PD].sum()
    ratio = loads_of(grid, p_mw).sum(axis=1) / nominal_mw
    np.testing.assert_allclose(ratio_of(grid, p_mw), ratio, rtol=1e-12)
    assert 0.5 < ratio.min() <= ratio.max() < 1.5


@pytest.mark.parametrize(("name", "n_negative"), [("pegase1354", 52), ("pegase9241", 434)])
def test_generators_and_negative_loads_follow_the_dispatch_ratio(
    grid_of: GridOf, signals: Signals, name: str, n_negative: int
) -> None:
    grid = grid_of(name)
    p_mw, q_mvar = Injections(grid, signals, seed=0, dispatch="proportional").steps(0, 4)
    ratio = ratio_of(grid, p_mw)[:, None]
    negative = grid.bus[:, PD] < 0
    assert negative.sum() == n_negative
    planned = grid.bus[:, PD] - generation(grid, PG)
    unloaded = grid.bus[:, PD] <= 0
    np.testing.assert_allclose(p_mw[:, unloaded], ratio * planned[unloaded], rtol=1e-12)
    np.testing.assert_allclose(q_mvar[:, negative], ratio * grid.bus[negative, QD], rtol=1e-12)


def test_a_generator_at_a_pq_bus_injects_its_reactive_power(
    grid_of: GridOf, signals: Signals
) -> None:
    grid = grid_of("rte1888")
    p_mw, q_mvar = Injections(grid, signals, seed=0, dispatch="proportional").steps(0, 4)
    generated = generation(grid, QG)
    rows = (
        (grid.bus_type == PQ) & (generated != 0) & (grid.bus[:, PD] == 0) & (grid.bus[:, QD] == 0)
    )
    assert rows.any()
    np.testing.assert_allclose(q_mvar[:, rows], -ratio_of(grid, p_mw)[:, None] * generated[rows])


@pytest.mark.parametrize(
    ("name", "n_reactive"),
    [("polish2383", 4), ("pegase2869", 6), ("polish3120", 37), ("pegase9241", 33)],
)
def test_a_purely_reactive_load_is_constant(
    grid_of: GridOf, signals: Signals, name: str, n_reactive: int
) -> None:
    grid = grid_of(name)
    rows = (grid.bus[:, PD] == 0) & (grid.bus[:, QD] != 0)
    assert rows.sum() == n_reactive
    _, q_mvar = Injections(grid, signals, seed=0, dispatch="proportional").steps(0, 4)
    rows &= grid.bus_type == PQ
    rows &= ~np.isin(np.arange(grid.n_buses), grid.generator_row)
    assert (q_mvar[:, rows] == grid.bus[rows, QD]).all()


@pytest.mark.parametrize("name", PAPER_GRIDS)
def test_a_bus_without_load_and_generation_is_exactly_zero(
    grid_of: GridOf, signals: Signals, name: str
) -> None:
    grid = grid_of(name)
    running = np.zeros(grid.n_buses, dtype=bool)
    running[grid.generator_row[grid.generator_on]] = True
    idle = (grid.bus[:, PD] == 0) & (grid.bus[:, QD] == 0) & ~running
    assert idle.any()
    for power in Injections(grid, signals, seed=0, dispatch="proportional").steps(0, 4):
        assert (power[:, idle] == 0).all()
        assert not np.signbit(power[:, idle]).any()


def test_proportional_dispatch_leaves_only_losses_to_the_slack_bus(
    grid_of: GridOf, signals: Signals
) -> None:
    """The surplus of generation is the same share of the load at every step."""
    grid = grid_of("activsg500")
    nominal_mw = grid.bus[:, PD].sum()
    planned = generation(grid, PG).sum() / nominal_mw - 1
    assert 0 < planned < 0.05
    p_mw, _ = Injections(grid, signals, seed=0, dispatch="proportional").steps(0, 96)
    share = -p_mw.sum(axis=1) / (ratio_of(grid, p_mw) * nominal_mw)
    np.testing.assert_allclose(share, planned, rtol=1e-9)


def test_slack_dispatch_keeps_the_generation_of_the_file(grid_of: GridOf, signals: Signals) -> None:
    grid = grid_of("pegase1354")
    p_mw, q_mvar = Injections(grid, signals, 0, "slack").steps(0, 96)
    unloaded, negative = grid.bus[:, PD] <= 0, grid.bus[:, PD] < 0
    planned = grid.bus[:, PD] - generation(grid, PG)
    assert (p_mw[:, unloaded] == planned[unloaded]).all()
    assert (q_mvar[:, negative] == grid.bus[negative, QD]).all()


def test_loads_do_not_depend_on_the_dispatch(grid_of: GridOf, signals: Signals) -> None:
    grid = grid_of("activsg500")
    load_only = (grid.bus[:, PD] > 0) & ~np.isin(np.arange(500), grid.generator_row)
    proportional = Injections(grid, signals, 0, "proportional").steps(0, 96)
    slack = Injections(grid, signals, 0, "slack").steps(0, 96)
    for index in range(2):
        np.testing.assert_array_equal(proportional[index][:, load_only], slack[index][:, load_only])


@pytest.mark.parametrize("solar", [1.0, 2.0])
def test_the_mean_equals_the_average_of_the_record(
    grid_of: GridOf, signals: Signals, solar: float
) -> None:
    """Also where clipping at zero (much solar) raises it above the nominal load."""
    grid = grid_of("ieee300")
    scaled = replace(signals, values_mw=signals.values_mw * [1.0, solar, 1.0])
    injections = Injections(grid, scaled, seed=0, dispatch="proportional")
    averages = [block.mean(axis=0) for block in injections.steps(0, len(signals.time))]
    # A bus with both a load and a generator may be near zero, where relative errors mean nothing.
    single = (injections.roles.archetype == NO_LOAD) | (generation(grid, PG) == 0)
    for average, mean in zip(averages, injections.mean(), strict=True):
        np.testing.assert_allclose(average[single], mean[single], rtol=0.02)
