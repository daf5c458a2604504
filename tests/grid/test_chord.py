"""The chord method: the states of Newton's method, and independent lanes."""

import numpy as np
import pytest
from numpy.typing import NDArray

from powerphase.grid import (
    PQ,
    SLACK,
    Chord,
    Grid,
    PowerFlow,
    admittance_matrix,
    consumption_mva,
    load_grid,
    mismatch_pu,
)
from powerphase.grid.chord import LANES, _jacobian
from powerphase.synthesis import Injections
from tests.dataset.exact import exact_signals

Array = NDArray[np.float64]
TOLERANCE_PU = 1e-10


class Problem:
    """A grid with the recipe's injections, and the chord at their mean."""

    def __init__(self, name: str) -> None:
        self.grid = load_grid(name)
        self.injections = Injections(self.grid, exact_signals(), seed=2, dispatch="proportional")
        mean = self.injections.mean()
        self.flow = PowerFlow(self.grid, np.full(self.grid.n_buses, 1.02), *mean)
        self.ybus = admittance_matrix(self.grid)
        self.chord = Chord(self.grid, self.ybus, self.flow.start, TOLERANCE_PU)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem("activsg500")


@pytest.mark.parametrize("name", ["ieee14", "ieee118", "pegase1354", "polish2383", "pegase9241"])
def test_states_equal_those_of_newton(name: str) -> None:
    problem = Problem(name)
    steps = problem.injections.steps(40, 40 + LANES)
    voltage, iterations = problem.chord.solve(*steps)
    newton = problem.flow.newton(*steps)
    solved = iterations > 0
    assert solved.sum() >= 0.8 * LANES
    assert newton.converged[solved].all()
    np.testing.assert_allclose(voltage[solved], newton.voltage[solved], atol=2e-9)
    solved_mva = consumption_mva(problem.ybus, problem.grid.base_mva, voltage[solved])
    p_mw, q_mvar = (part[solved] for part in steps)
    assert mismatch_pu(problem.grid, solved_mva, p_mw, q_mvar).max() < 2 * TOLERANCE_PU


def test_ordinary_days_are_solved_without_newton(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    n_steps: list[int] = []
    newton = PowerFlow.newton

    def count(self: PowerFlow, p_mw: Array, q_mvar: Array, iwamoto: bool = False) -> object:
        n_steps.append(len(p_mw))
        return newton(self, p_mw, q_mvar, iwamoto)

    monkeypatch.setattr(PowerFlow, "newton", count)
    assert problem.flow.solve(*problem.injections.steps(0, 960)).converged.all()
    assert sum(n_steps) == 0


@pytest.mark.parametrize("rows", [[0], [3, 1], list(range(LANES + 3)), [5] * 40])
def test_the_bits_of_a_step_do_not_depend_on_other_steps(problem: Problem, rows: list[int]) -> None:
    p_mw, q_mvar = problem.injections.steps(0, 96)
    voltage, iterations = problem.chord.solve(p_mw, q_mvar)
    part_voltage, part_iterations = problem.chord.solve(p_mw[rows], q_mvar[rows])
    assert part_voltage.tobytes() == voltage[rows].tobytes()
    assert np.array_equal(part_iterations, iterations[rows])


def test_failed_steps_do_not_affect_other_steps(problem: Problem) -> None:
    n_steps = 3 * LANES  # lanes with a failed step then solve valid ones
    p_mw, q_mvar = problem.injections.steps(0, n_steps)
    expected, _ = problem.chord.solve(p_mw, q_mvar)
    p_mw[1] *= 60
    p_mw[4, 3], q_mvar[6, 5] = np.nan, np.inf
    voltage, iterations = problem.chord.solve(p_mw, q_mvar)
    failed = [1, 4, 6]
    assert np.flatnonzero(iterations == 0).tolist() == failed
    assert (voltage[failed] == 0).all()
    kept = np.delete(np.arange(n_steps), failed)
    assert voltage[kept].tobytes() == expected[kept].tobytes()


def test_the_jacobian_equals_central_differences(problem: Problem) -> None:
    """Central differences of P, Q and V² are exact, because the equations are quadratic."""
    grid, state = problem.grid, problem.flow.start
    free = np.flatnonzero(grid.bus_type != SLACK)
    holds_v = (grid.bus_type != PQ)[free]
    jacobian = _jacobian(problem.ybus, state, free, holds_v)
    rng = np.random.default_rng(0)
    for _ in range(3):
        f_step, e_step = rng.normal(size=(2, len(free))) * 1e-3
        step = np.zeros(grid.n_buses, dtype=complex)
        step[free] = e_step + 1j * f_step
        ahead, behind = (_equations(grid, problem, state + sign * step) for sign in (1, -1))
        expected = (ahead - behind) / 2
        np.testing.assert_allclose(jacobian @ np.concatenate([f_step, e_step]), expected, atol=1e-9)


def _equations(grid: Grid, problem: Problem, state: NDArray[np.complex128]) -> Array:
    power = state * np.asarray(problem.ybus @ state).conj()
    second = np.where(grid.bus_type == PQ, power.imag, np.abs(state) ** 2)
    free = grid.bus_type != SLACK
    return np.concatenate([power.real[free], second[free]])
