"""Power flow, compared with independent oracles, and the pitfalls of the solver library."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pandapower
import pytest
from lightsim2grid.injectionSweep import InjectionSweepCPP
from lightsim2grid.network import init_from_matpower
from numpy.typing import NDArray
from pandapower.converter.pypower.from_ppc import from_ppc

from powerphase.errors import PowerFlowError
from powerphase.grid import (
    BASE_KV,
    BUS_TYPE,
    PAPER_GRIDS,
    PD,
    PG,
    PQ,
    PV,
    QD,
    QG,
    SHIFT,
    SLACK,
    TAP,
    VA,
    VG,
    VM,
    Grid,
    PowerFlow,
    Solution,
    admittance_matrix,
    bus_level_case,
    consumption_mva,
    mismatch_pu,
)
from tests.conftest import SETPOINT_PU, Problem
from tests.grid.newton_oracle import newton
from tests.grid.two_buses import nose_pu, two_buses

GridOf = Callable[[str], Grid]
ProblemOf = Callable[[str], Problem]


def nominal(grid: Grid) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Net consumption in the case file, summed generator by generator."""
    p_mw, q_mvar = grid.bus[:, PD].copy(), grid.bus[:, QD].copy()
    for generator, row in zip(
        grid.gen[grid.generator_on], grid.generator_row[grid.generator_on], strict=True
    ):
        p_mw[row] -= generator[PG]
        q_mvar[row] -= generator[QG]
    return p_mw, q_mvar


def at_steps(
    problem: Problem, steps: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The recipe's injections at single steps."""
    blocks = [problem.injections.steps(int(step), int(step) + 1) for step in steps]
    return np.concatenate([p for p, _ in blocks]), np.concatenate([q for _, q in blocks])


def same_bits(a: Solution, b: Solution) -> bool:
    return all(
        getattr(a, name).tobytes() == getattr(b, name).tobytes()
        for name in ("voltage", "converged", "iterations")
    )


# Oracles.


@pytest.mark.parametrize(("r", "x"), [(0.0, 0.1), (0.02, 0.1), (0.05, 0.05)])
@pytest.mark.parametrize("q_per_p", [-0.2, 0.0, 0.4])
def test_two_buses_follow_the_closed_form_up_to_the_nose(
    r: float, x: float, q_per_p: float
) -> None:
    """|V|² solves u² + (2(rP + xQ) − 1)u + |z|²|S|² = 0 while the discriminant is not negative."""
    z, direction = abs(complex(r, x)), 1 + 1j * q_per_p
    load = nose_pu(r, x, q_per_p) * np.array([0.1, 0.5, 0.9, 0.999, 1.001, 1.5])
    half = 0.5 - load * (r + x * q_per_p)
    expected = np.sqrt(half[:4] + np.sqrt(half[:4] ** 2 - (z * abs(direction) * load[:4]) ** 2))

    flow = PowerFlow(two_buses(r, x), np.ones(2), np.zeros(2), np.zeros(2))
    p_mw = np.stack([np.zeros(6), 100 * load], axis=1)
    solution = flow.solve(p_mw, q_per_p * p_mw)
    np.testing.assert_array_equal(solution.converged, [True] * 4 + [False] * 2)
    np.testing.assert_allclose(np.abs(solution.voltage[:4, 1]), expected, rtol=1e-8)


@pytest.mark.parametrize("name", PAPER_GRIDS)
def test_voltages_equal_those_of_an_independent_newton(
    problem_of: ProblemOf, some_steps: NDArray[np.int64], name: str
) -> None:
    problem = problem_of(name)
    grid, steps = problem.grid, some_steps[:2]
    p_mw, q_mvar = at_steps(problem, steps)
    solution = problem.flow.solve(p_mw, q_mvar)
    assert solution.converged.all()
    start = np.where(grid.bus_type == PQ, 1.0, SETPOINT_PU) * np.exp(
        1j * np.angle(problem.flow.start)
    )
    pv, pq = (np.flatnonzero(grid.bus_type == kind) for kind in (PV, PQ))
    for row in range(len(steps)):
        expected = newton(
            admittance_matrix(grid),
            -p_mw[row] / grid.base_mva,
            -q_mvar[row] / grid.base_mva,
            pv,
            pq,
            start,
        )
        assert expected is not None
        np.testing.assert_allclose(solution.voltage[row], expected, rtol=0, atol=1e-8)


def pandapower_voltage(
    grid: Grid, p_mw: NDArray[np.float64], q_mvar: NDArray[np.float64]
) -> NDArray[np.complex128]:
    case = bus_level_case(grid, np.full(grid.n_buses, SETPOINT_PU))
    bus = np.array(case["bus"])
    bus[:, PD], bus[:, QD] = p_mw, q_mvar
    net = from_ppc({**case, "bus": bus, "version": "2"}, validate_conversion=False)
    pandapower.runpp(net, init="flat", calculate_voltage_angles=True, trafo_model="pi", numba=False)
    state = net.res_bus.loc[grid.bus_id]
    return state.vm_pu.to_numpy() * np.exp(1j * np.deg2rad(state.va_degree.to_numpy()))


@pytest.mark.filterwarnings("ignore:Setting an item of incompatible dtype:FutureWarning")
@pytest.mark.parametrize("name", ["activsg500", "pegase1354", "pegase2869"])
def test_voltages_equal_pandapowers(
    problem_of: ProblemOf, some_steps: NDArray[np.int64], name: str
) -> None:
    problem = problem_of(name)
    p_mw, q_mvar = at_steps(problem, some_steps[:1])
    expected = pandapower_voltage(problem.grid, p_mw[0], q_mvar[0])
    np.testing.assert_allclose(
        problem.flow.solve(p_mw, q_mvar).voltage[0], expected, rtol=0, atol=1e-8
    )


def test_pandapower_alters_a_polish_grid(problem_of: ProblemOf) -> None:
    """The reason why it is an oracle on three grids only; if this fails, use it on more."""
    problem = problem_of("polish2383")
    p_mw, q_mvar = problem.injections.mean()
    theirs = pandapower_voltage(problem.grid, p_mw, q_mvar)
    ybus, base_mva = admittance_matrix(problem.grid), problem.grid.base_mva
    mismatch = [
        mismatch_pu(
            problem.grid, consumption_mva(ybus, base_mva, voltage[None]), p_mw[None], q_mvar[None]
        )[0]
        for voltage in (theirs, problem.flow.start)
    ]
    assert mismatch[0] > 1
    assert mismatch[1] < 1e-9


@pytest.mark.parametrize(
    ("name", "tolerance_pu"), [("newengland39", 5e-8), ("nordic60", 1.1e-6), ("pegase89", 2e-6)]
)
def test_magnitudes_equal_the_solution_in_the_case_file(
    grid_of: GridOf, name: str, tolerance_pu: float
) -> None:
    grid = grid_of(name)
    flow = PowerFlow(grid, grid.setpoint_pu, *nominal(grid))
    np.testing.assert_allclose(np.abs(flow.start), grid.bus[:, VM], rtol=0, atol=tolerance_pu)


@pytest.mark.parametrize(("name", "tolerance_rad"), [("newengland39", 1e-8), ("nordic60", 4e-6)])
def test_angles_equal_the_solution_in_the_case_file(
    grid_of: GridOf, name: str, tolerance_rad: float
) -> None:
    grid = grid_of(name)
    flow = PowerFlow(grid, grid.setpoint_pu, *nominal(grid))
    np.testing.assert_allclose(
        np.angle(flow.start), np.deg2rad(grid.bus[:, VA]), rtol=0, atol=tolerance_rad
    )


# Mismatch, set-points and bus types.


@pytest.mark.parametrize("name", ["activsg500", "pegase1354", "polish3120"])
def test_converged_rows_satisfy_the_equations(problem_of: ProblemOf, name: str) -> None:
    """The solver's tolerance is 1e-8 MVA or 1e-10 p.u.; the rest is for round-off."""
    problem = problem_of(name)
    p_mw, q_mvar = problem.injections.steps(0, 48)
    solution = problem.flow.solve(p_mw, q_mvar)
    power = consumption_mva(
        admittance_matrix(problem.grid), problem.grid.base_mva, solution.voltage
    )
    mismatch = mismatch_pu(problem.grid, power, p_mw, q_mvar)
    assert solution.converged.sum() > 40
    assert mismatch[solution.converged].max() < 1e-9


def test_setpoints_are_held_in_double_precision(problem_of: ProblemOf) -> None:
    problem = problem_of("activsg500")
    held = problem.grid.bus_type != PQ
    injections = problem.injections.steps(0, 24)
    by_newton = np.abs(problem.flow.newton(*injections).voltage[:, held])
    np.testing.assert_allclose(by_newton, 1.02, rtol=4e-16)
    # The chord method treats set-points as equations, solved to the same tolerance as the others.
    np.testing.assert_allclose(
        np.abs(problem.flow.solve(*injections).voltage[:, held]), 1.02, 1e-10
    )


def test_setpoints_differ_by_bus(grid_of: GridOf) -> None:
    grid = grid_of("ieee14")
    setpoint_pu = 1 + np.arange(14) / 1000
    flow = PowerFlow(grid, setpoint_pu, *nominal(grid))
    held = grid.bus_type != PQ
    np.testing.assert_allclose(np.abs(flow.start[held]), setpoint_pu[held], rtol=4e-16)


@pytest.mark.parametrize("name", ["ieee118", "polish2736", "rte1888", "rte2848"])
def test_the_slack_bus_has_angle_zero_even_if_the_file_differs(
    problem_of: ProblemOf, name: str
) -> None:
    problem = problem_of(name)
    slack = problem.grid.bus_type == SLACK
    assert problem.grid.bus[slack, VA] != 0
    solution = problem.flow.solve(*problem.injections.steps(0, 2))
    np.testing.assert_allclose(np.angle(solution.voltage[:, slack]), 0.0, atol=1e-15)


@pytest.mark.parametrize("name", ["rte1888", "polish2736"])
def test_a_generator_at_a_pq_bus_controls_no_voltage(problem_of: ProblemOf, name: str) -> None:
    """As in MATPOWER: P and Q are specified, the voltage is not."""
    problem = problem_of(name)
    grid = problem.grid
    p_mw, q_mvar = problem.injections.steps(0, 2)
    solution = problem.flow.solve(p_mw, q_mvar)
    assert solution.converged.all()
    rows = grid.generator_row[grid.generator_on]
    rows = rows[grid.bus_type[rows] == PQ]
    power = consumption_mva(admittance_matrix(grid), grid.base_mva, solution.voltage)
    np.testing.assert_allclose(power.imag[:, rows], q_mvar[:, rows], atol=1e-7)
    assert (np.abs(np.abs(solution.voltage[:, rows]) - SETPOINT_PU) > 1e-6).all()


def test_phase_shifters_without_a_ratio_are_solved(grid_of: GridOf) -> None:
    branch = grid_of("ieee14").branch.copy()
    branch[0, [TAP, SHIFT]] = 0.0, 5.0
    grid = replace(grid_of("ieee14"), branch=branch)
    p_mw, q_mvar = nominal(grid)
    plain = PowerFlow(grid_of("ieee14"), grid.setpoint_pu, p_mw, q_mvar).start
    shifted = PowerFlow(grid, grid.setpoint_pu, p_mw, q_mvar).start
    assert np.abs(shifted - plain).max() > 1e-3
    power = consumption_mva(admittance_matrix(grid), grid.base_mva, shifted[None])
    assert mismatch_pu(grid, power, p_mw[None], q_mvar[None])[0] < 1e-9


def test_columns_follow_the_order_of_the_file(grid_of: GridOf) -> None:
    grid = grid_of("ieee14")
    order = np.random.default_rng(0).permutation(14)
    shuffled = replace(grid, bus=grid.bus[order].copy())
    p_mw, q_mvar = nominal(grid)
    in_order = PowerFlow(grid, np.full(14, 1.02), p_mw, q_mvar).start
    permuted = PowerFlow(shuffled, np.full(14, 1.02), p_mw[order], q_mvar[order]).start
    np.testing.assert_allclose(permuted, in_order[order], rtol=0, atol=1e-10)


def test_voltage_bases_do_not_matter(grid_of: GridOf) -> None:
    """The file of IEEE 14 has 0 kV throughout."""
    grid = grid_of("ieee14")
    assert (grid.bus[:, BASE_KV] == 0).all()
    bus = grid.bus.copy()
    bus[:, BASE_KV] = np.linspace(20, 400, 14)
    based = replace(grid, bus=bus)
    without, with_bases = (
        PowerFlow(g, np.full(14, 1.02), *nominal(grid)).start for g in (grid, based)
    )
    np.testing.assert_allclose(with_bases, without, rtol=0, atol=1e-12)


# Bits.


@pytest.mark.parametrize("name", ["activsg500", "pegase1354"])
def test_the_bits_of_a_row_do_not_depend_on_its_batch(problem_of: ProblemOf, name: str) -> None:
    problem = problem_of(name)
    p_mw, q_mvar = problem.injections.steps(30, 78)
    whole = problem.flow.solve(p_mw, q_mvar)
    assert same_bits(problem.flow.solve(p_mw, q_mvar), whole)
    for rows in (slice(0, 1), slice(5, 42), slice(None, None, -1)):
        part = problem.flow.solve(p_mw[rows], q_mvar[rows])
        expected = Solution(whole.voltage[rows], whole.converged[rows], whole.iterations[rows])
        assert same_bits(part, expected)


def test_several_threads_may_use_one_power_flow(problem_of: ProblemOf) -> None:
    problem = problem_of("pegase1354")
    days = [problem.injections.steps(first, first + 24) for first in (0, 24, 48, 72)]
    one_by_one = [problem.flow.solve(*day) for day in days]
    with ThreadPoolExecutor(4) as pool:
        at_once = list(pool.map(lambda day: problem.flow.solve(*day), days))
    assert all(map(same_bits, one_by_one, at_once))


def test_a_later_solve_does_not_change_earlier_voltages(problem_of: ProblemOf) -> None:
    problem = problem_of("activsg500")
    p_mw, q_mvar = problem.injections.steps(0, 4)
    first = problem.flow.solve(p_mw, q_mvar).voltage
    kept = first.copy()
    problem.flow.solve(0.9 * p_mw, 0.9 * q_mvar)
    np.testing.assert_array_equal(first, kept)


def test_solving_does_not_change_its_arguments(problem_of: ProblemOf) -> None:
    problem = problem_of("activsg500")
    p_mw, q_mvar = problem.injections.steps(0, 4)
    kept = p_mw.copy(), q_mvar.copy()
    problem.flow.solve(p_mw, q_mvar)
    np.testing.assert_array_equal((p_mw, q_mvar), kept)


def test_the_memory_layout_does_not_matter(problem_of: ProblemOf) -> None:
    problem = problem_of("activsg500")
    p_mw, q_mvar = problem.injections.steps(0, 4)
    transposed = problem.flow.solve(np.asfortranarray(p_mw), np.asfortranarray(q_mvar))
    assert same_bits(transposed, problem.flow.solve(p_mw, q_mvar))


# Failure.


def test_a_failed_row_does_not_affect_other_rows(problem_of: ProblemOf) -> None:
    problem = problem_of("activsg500")
    p_mw, q_mvar = problem.injections.steps(0, 6)
    expected = problem.flow.solve(p_mw, q_mvar)
    broken = p_mw.copy()
    broken[1] *= 50
    broken[2, 7] = np.nan
    broken[4, 7] = np.inf
    solution = problem.flow.solve(broken, q_mvar)
    np.testing.assert_array_equal(solution.converged, [True, False, False, True, False, True])
    assert (solution.voltage[~solution.converged] == 0).all()
    kept = solution.converged
    assert solution.voltage[kept].tobytes() == expected.voltage[kept].tobytes()


def test_typical_injections_without_a_solution_raise(
    problem_of: ProblemOf,
) -> None:
    problem = problem_of("ieee118")
    p_mw, q_mvar = problem.injections.mean()
    with pytest.raises(PowerFlowError, match="ieee118"):
        PowerFlow(problem.grid, np.full(118, 1.02), 50 * p_mw, 50 * q_mvar)


@pytest.mark.parametrize("argument", range(3))
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_typical_injections_and_setpoints_must_be_finite(
    grid_of: GridOf, argument: int, value: float
) -> None:
    grid = grid_of("ieee14")
    arguments = np.stack([np.full(14, 1.02), *nominal(grid)])
    arguments[argument, 0] = value
    with pytest.raises(PowerFlowError, match="ieee14"):
        PowerFlow(grid, *arguments)


def test_an_empty_batch_has_an_empty_solution(problem_of: ProblemOf) -> None:
    empty = np.empty((0, 14))
    assert problem_of("ieee14").flow.solve(empty, empty).voltage.shape == (0, 14)


# Pitfalls of the solver library, each the reason for a precaution in `powerflow.py`. When one of
# these tests fails, the library has changed and the precaution may be removed.


def run_sweep(
    sweep: InjectionSweepCPP, problem: Problem, p_mw: NDArray[np.float64]
) -> NDArray[np.complex128]:
    """The array of voltages that the library returns, not a copy."""
    sweep.modify_load_p(p_mw)
    sweep.modify_load_q(0.2 * p_mw)
    sweep.compute(problem.flow.start, 20, 1e-8)
    return sweep.get_voltages()


def test_the_library_changes_bits_when_a_sweep_is_reused(problem_of: ProblemOf) -> None:
    problem = problem_of("pegase1354")
    p_mw, _ = problem.injections.steps(0, 8)
    sweep = InjectionSweepCPP(problem.flow._network)
    first, second = (run_sweep(sweep, problem, p_mw).copy() for _ in range(2))
    assert first.tobytes() != second.tobytes()
    np.testing.assert_allclose(first, second, rtol=0, atol=1e-9)


def test_the_library_returns_a_view_that_the_next_solve_overwrites(problem_of: ProblemOf) -> None:
    problem = problem_of("ieee14")
    p_mw, _ = problem.injections.steps(0, 2)
    sweep = InjectionSweepCPP(problem.flow._network)
    view = run_sweep(sweep, problem, p_mw)
    kept = view.copy()
    run_sweep(sweep, problem, 0.5 * p_mw)
    assert (view != kept).any()


def test_the_library_returns_zeros_without_an_error_when_its_base_case_fails(
    problem_of: ProblemOf,
) -> None:
    problem = problem_of("ieee14")
    p_mw, _ = problem.injections.steps(0, 2)
    network = init_from_matpower(bus_level_case(problem.grid, np.full(14, 1.02)))
    for row in range(14):
        network.change_p_load(row, 1e6)
    assert (run_sweep(InjectionSweepCPP(network), problem, p_mw) == 0).all()


def test_the_library_ignores_a_load_that_is_not_a_number(grid_of: GridOf) -> None:
    network = init_from_matpower(bus_level_case(grid_of("ieee14"), np.ones(14)))
    network.change_p_load(0, np.nan)
    assert np.isfinite(network.get_loads()[0].target_p_mw)


def test_the_library_updates_setpoints_in_single_precision(grid_of: GridOf) -> None:
    network = init_from_matpower(bus_level_case(grid_of("ieee14"), np.ones(14)))
    changed = np.ones(len(network.get_generators()), dtype=bool)
    network.update_gens_v(changed, np.full(len(changed), 1.02, dtype=np.float32))
    held = network.get_generators()[0].target_vm_pu
    assert held == float(np.float32(1.02)) != 1.02


def test_the_library_lets_a_generator_at_a_pq_bus_control_its_voltage(grid_of: GridOf) -> None:
    grid = grid_of("ieee14")
    bus = grid.bus.copy()
    bus[1, BUS_TYPE] = 1
    bus[:, BASE_KV] = 1.0
    gen, branch = np.zeros((5, 21)), np.zeros((20, 13))
    gen[:, :10], branch[:, :11] = grid.gen, grid.branch
    gen[:, VG] = 1.02
    branch[:, TAP] = np.where(branch[:, TAP] == 0, 1.0, branch[:, TAP])
    network = init_from_matpower({"bus": bus, "gen": gen, "branch": branch, "baseMVA": 100.0})
    voltage = network.ac_pf(np.ones(14, dtype=complex), 20, 1e-8)
    np.testing.assert_allclose(abs(voltage[1]), 1.02, rtol=1e-12)
