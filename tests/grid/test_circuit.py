"""Flows, loading and limits: compared with MATPOWER's formulas, pandapower and two-port algebra."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pandapower
import pytest
from numpy.typing import NDArray
from pandapower.converter.pypower.from_ppc import from_ppc
from pandapower.pypower.makeYbus import makeYbus

from powerphase.errors import CaseError, UnknownName
from powerphase.grid import (
    BR_STATUS,
    BS,
    F_BUS,
    GS,
    PAPER_GRIDS,
    PD,
    QD,
    RATE_A,
    RATE_B,
    RATE_C,
    SHIFT,
    SLACK,
    T_BUS,
    TAP,
    VA,
    VM,
    VMAX,
    VMIN,
    Grid,
    bus_level_case,
    limits_of,
)
from powerphase.synthesis import Injections, Signals
from tests.conftest import SETPOINT_PU, Problem

GridOf = Callable[[str], Grid]
ProblemOf = Callable[[str], Problem]


def state_of(grid: Grid) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Magnitudes and angles of the case file, disturbed so that no flow is special."""
    random = np.random.default_rng(0)
    vm_pu = grid.bus[:, VM] + random.normal(0, 0.01, grid.n_buses)
    return vm_pu, np.deg2rad(grid.bus[:, VA]) + random.normal(0, 0.05, grid.n_buses)


def matpower_flows(grid: Grid, voltage: NDArray[np.complex128]) -> NDArray[np.complex128]:
    """Flows at both ends, as MATPOWER's `pfsoln` has them, from the matrices of its port."""
    rows, bus = grid.branch_rows[grid.branch_on], grid.bus.copy()
    branch = np.zeros((len(rows), 30))  # the port has more columns
    branch[:, :11] = grid.branch[grid.branch_on]
    branch[:, [F_BUS, T_BUS]], bus[:, 0] = rows, np.arange(grid.n_buses)
    _, from_matrix, to_matrix = makeYbus(grid.base_mva, bus, branch)
    currents = np.stack([from_matrix @ voltage, to_matrix @ voltage], axis=1)
    return np.asarray(grid.base_mva * voltage[rows] * currents.conj())


@pytest.mark.parametrize("name", PAPER_GRIDS)
def test_flows_and_loading_equal_matpowers(grid_of: GridOf, name: str) -> None:
    grid, limits = grid_of(name), limits_of(grid_of(name))
    vm_pu, va_rad = state_of(grid)
    expected = matpower_flows(grid, vm_pu * np.exp(1j * va_rad))
    largest = abs(expected).max()
    actual = grid.circuit.flow_mva(vm_pu, va_rad)
    np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-12 * largest)
    rating = grid.branch[grid.branch_on, RATE_A]
    loading = grid.circuit.loading(vm_pu, va_rad, limits.rating_mva)
    rated = rating > 0
    assert np.isnan(loading[~rated]).all()
    np.testing.assert_allclose(
        loading[rated], abs(expected[rated]).max(1) / rating[rated], rtol=1e-8
    )


RATED_BRANCHES = {
    "activsg500": (597, 597),
    "pegase1354": (1432, 1991),
    "polish2383": (2896, 2896),
    "pegase2869": (2743, 4582),
    "polish3120": (3681, 3693),
    "pegase9241": (6295, 16049),
}


@pytest.mark.parametrize("name", PAPER_GRIDS)
def test_rated_branches_of_the_paper_grids(grid_of: GridOf, name: str) -> None:
    limits = limits_of(grid_of(name))
    assert (limits.is_rated.sum(), len(limits.is_rated)) == RATED_BRANCHES[name]


def pandapower_net(grid: Grid, signals: Signals) -> Any:
    """pandapower's form of the grid, solved at the recipe's mean injections."""
    p_mw, q_mvar = Injections(grid, signals, seed=0, dispatch="proportional").mean()
    case = bus_level_case(grid, np.full(grid.n_buses, SETPOINT_PU))
    bus = np.array(case["bus"])
    bus[:, PD], bus[:, QD] = p_mw, q_mvar
    net = from_ppc({**case, "bus": bus, "version": "2"}, validate_conversion=False)
    pandapower.runpp(net, calculate_voltage_angles=True, trafo_model="pi", numba=False)
    return net


ALTERED = ("polish2383", "polish3120", "pegase9241")
"""Grids whose transformers pandapower's importer alters."""


@pytest.mark.filterwarnings("ignore:Setting an item of incompatible dtype:FutureWarning")
@pytest.mark.parametrize("name", PAPER_GRIDS)
def test_loading_equals_pandapowers(grid_of: GridOf, signals: Signals, name: str) -> None:
    """Its lines have limits of current, so its loading is ours divided by the voltage.

    It converts transformers to elements of its own, whose flows are compared.
    """
    grid = grid_of(name)
    net = pandapower_net(grid, signals)
    state = net.res_bus.loc[grid.bus_id]
    vm_pu, va_rad = state.vm_pu.to_numpy(), np.deg2rad(state.va_degree.to_numpy())
    circuit, rating_mva = grid.circuit, limits_of(grid).rating_mva
    flow_mva = abs(circuit.flow_mva(vm_pu, va_rad))
    branch = net._from_ppc_lookups["branch"].reset_index(drop=True)

    rated_lines = branch[(branch.element_type == "line") & np.isfinite(rating_mva)]
    current = flow_mva / vm_pu[circuit.ends]
    ours = 100 * (current.max(1) / rating_mva)[rated_lines.index]
    theirs = net.res_line.loading_percent.loc[rated_lines.element]
    assert len(theirs) > 0.6 * np.isfinite(rating_mva).sum()
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-8)

    for kind, ends in {"trafo": ("hv", "lv"), "impedance": ("from", "to")}.items():
        others = branch[branch.element_type == kind]
        if others.empty or (name in ALTERED and kind == "trafo"):
            continue
        result = net[f"res_{kind}"].loc[others.element]
        expected = [np.hypot(result[f"p_{end}_mw"], result[f"q_{end}_mvar"]) for end in ends]
        actual = np.sort(flow_mva[others.index], axis=1)  # it may exchange the ends
        np.testing.assert_allclose(actual, np.sort(np.transpose(expected), axis=1), atol=1e-9)


def test_power_that_enters_branches_and_shunts_is_the_consumption(
    problem_of: ProblemOf,
) -> None:
    """Kirchhoff's law at every bus of a solved state."""
    problem = problem_of("pegase89")
    grid, circuit = problem.grid, problem.grid.circuit
    voltage = problem.flow.start
    total = grid.base_mva * abs(voltage) ** 2 * circuit.shunt_pu.conj()
    np.add.at(total, circuit.ends, circuit.flow_mva(abs(voltage), np.angle(voltage)))
    p_mw, _ = problem.injections.mean()
    free = grid.bus_type == SLACK
    np.testing.assert_allclose(-total.real[~free], p_mw[~free], rtol=0, atol=1e-6)


def changed(grid: Grid, row: int, **columns: float) -> Grid:
    """The grid with some numbers of a branch changed."""
    numbers = {"rate_a": RATE_A, "rate_b": RATE_B, "rate_c": RATE_C, "tap": TAP, "shift": SHIFT}
    numbers |= {"end": T_BUS, "status": BR_STATUS, "start": F_BUS}
    branch = grid.branch.copy()
    for name, value in columns.items():
        branch[row, numbers[name]] = value
    return replace(grid, branch=branch)


def two_port_flow(grid: Grid, row: int, v: complex, w: complex) -> tuple[complex, complex]:
    """The flows of one branch, by way of its ideal transformer and its π circuit."""
    r, x, b = grid.branch[row, 2:5]
    shift = np.deg2rad(grid.branch[row, SHIFT])
    turns = (grid.branch[row, TAP] or 1.0) * complex(np.cos(shift), np.sin(shift))
    inner, charging = v / turns, 0.5j * b
    series = (inner - w) / complex(r, x)
    into_start = inner * np.conj(series + charging * inner)  # an ideal transformer loses nothing
    into_end = w * np.conj(charging * w - series)
    return grid.base_mva * into_start, grid.base_mva * into_end


def test_parallel_branches_and_phase_shifters_flow_by_themselves(grid_of: GridOf) -> None:
    grid = changed(grid_of("ieee24"), 0, tap=0.97, shift=12.0)
    grid = replace(grid, branch=np.vstack([grid.branch, grid.branch[:1]]))
    grid = changed(grid, len(grid.branch) - 1, shift=-7.0, rate_a=10.0)
    vm_pu, va_rad = state_of(grid)
    flow = grid.circuit.flow_mva(vm_pu, va_rad)
    voltage = (vm_pu * np.exp(1j * va_rad))[grid.branch_rows]
    for row in (0, len(grid.branch) - 1):
        expected = two_port_flow(grid, row, *voltage[row])
        np.testing.assert_allclose(flow[row], expected, rtol=1e-12)
    assert abs(flow[0, 0] - flow[-1, 0]) > 1


def test_names_number_parallel_circuits_in_either_direction(grid_of: GridOf) -> None:
    grid = grid_of("ieee14")
    again, back = grid.branch[:1].copy(), grid.branch[:1].copy()
    back[:, [F_BUS, T_BUS]] = back[:, [T_BUS, F_BUS]]
    grid = replace(grid, branch=np.vstack([grid.branch, again, back]))
    names = grid.circuit.name
    assert (names[0], *names[-2:]) == ("1-2", "1-2/2", "2-1/3")
    switched = changed(grid, len(grid.branch) - 2, status=0)
    assert switched.circuit.name == (*names[:-2], "2-1/3")
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("unlimited", [0.0, 1e10, np.inf])
def test_a_branch_without_a_limit_has_a_flow_and_no_loading(
    grid_of: GridOf, unlimited: float
) -> None:
    grid = changed(grid_of("ieee24"), 3, rate_a=unlimited)
    limits = limits_of(grid)
    assert np.flatnonzero(~limits.is_rated).tolist() == [3]
    vm_pu, va_rad = state_of(grid)
    assert np.isfinite(grid.circuit.flow_mva(vm_pu, va_rad)).all()
    loading = grid.circuit.loading(vm_pu, va_rad, limits.rating_mva)
    assert np.flatnonzero(np.isnan(loading)).tolist() == [3]


def test_a_rating_is_the_chosen_one(grid_of: GridOf) -> None:
    grid = grid_of("ieee24")
    for letter, column in (("a", RATE_A), ("b", RATE_B), ("c", RATE_C)):
        rating_mva = limits_of(grid, rating=letter).rating_mva
        np.testing.assert_array_equal(rating_mva, grid.branch[:, column])


@pytest.mark.parametrize("value", [-1.0, -np.inf, np.nan, 1e-6, 1e9])
@pytest.mark.parametrize("column", ["rate_a", "rate_b", "rate_c"])
def test_a_rating_that_is_none_is_rejected(grid_of: GridOf, column: str, value: float) -> None:
    with pytest.raises(CaseError, match=r"branch 1-2 .*rating"):
        changed(grid_of("ieee24"), 0, **{column: value})


@pytest.mark.parametrize("value", [1e-3, 1e7, 1e10, np.inf, 0.0])
def test_the_ends_of_the_range_of_ratings_are_in_it(grid_of: GridOf, value: float) -> None:
    limits = limits_of(changed(grid_of("ieee24"), 0, rate_a=value))
    assert limits.rating_mva[0] == (value if 0 < value < 1e10 else np.inf)


def test_a_branch_between_one_bus_is_rejected(grid_of: GridOf) -> None:
    with pytest.raises(CaseError, match=r"bus 2 "):
        changed(grid_of("ieee14"), 0, start=2.0)


def test_a_rating_that_no_branch_has_is_rejected(grid_of: GridOf) -> None:
    with pytest.raises(CaseError, match="rating B"):
        limits_of(grid_of("activsg500"), rating="b")
    assert not limits_of(grid_of("ieee14")).is_rated.any()


def test_limits_of_the_case_are_those_of_each_bus(grid_of: GridOf) -> None:
    grid = grid_of("pegase1354")
    normal, case = limits_of(grid), limits_of(grid, "case")
    np.testing.assert_array_equal(case.v_min_pu, grid.bus[:, VMIN])
    np.testing.assert_array_equal(case.v_max_pu, grid.bus[:, VMAX])
    assert len(set(case.v_max_pu)) > 1
    assert (set(normal.v_min_pu), set(normal.v_max_pu)) == ({0.95}, {1.05})


@pytest.mark.parametrize(("low", "high"), [(1.1, 0.9), (0.0, 1.1), (0.9, np.inf), (np.nan, 1.1)])
def test_voltage_limits_that_are_no_band_are_rejected(
    grid_of: GridOf, low: float, high: float
) -> None:
    bus = grid_of("ieee14").bus.copy()
    bus[4, [VMIN, VMAX]] = low, high
    grid = replace(grid_of("ieee14"), bus=bus)
    with pytest.raises(CaseError, match="bus 5 "):
        limits_of(grid, "case")
    limits_of(grid)  # the normal band needs no limits of the case


def test_unknown_limits_raise(grid_of: GridOf) -> None:
    with pytest.raises(UnknownName, match="narrow"):
        limits_of(grid_of("ieee14"), "narrow")
    with pytest.raises(UnknownName, match="'d'"):
        limits_of(grid_of("ieee14"), rating="d")


def test_shunts_are_those_of_the_case(grid_of: GridOf) -> None:
    grid = grid_of("ieee118")
    expected = (grid.bus[:, GS] + 1j * grid.bus[:, BS]) / grid.base_mva
    np.testing.assert_array_equal(grid.circuit.shunt_pu, expected)
