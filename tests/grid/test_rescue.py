"""Steps that Newton does not solve: the order of attempts, and what is recorded."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from powerphase.dataset import PROVENANCE
from powerphase.grid import (
    BACKED_OFF,
    BACKOFF_SCALES,
    CARRIED,
    IWAMOTO,
    NEWTON,
    PowerFlow,
    RescuedSolution,
    Solution,
    admittance_matrix,
    consumption_mva,
    mismatch_pu,
    solve_with_rescue,
)
from tests.conftest import Problem
from tests.grid.two_buses import nose_pu, two_buses

HOPELESS, BROKEN = 3, 7
Injected = tuple[NDArray[np.float64], NDArray[np.float64]]
ARRAYS = ("voltage", "p_mw", "q_mvar", "provenance", "backoff", "iterations")


@pytest.fixture(scope="module")
def injected(problem_of: Callable[[str], Problem]) -> Injected:
    """An evening on PEGASE 1354 beyond its limits; one row far beyond, one with NaN."""
    p_mw, q_mvar = problem_of("pegase1354").injections.steps(66, 82)
    p_mw, q_mvar = 1.05 * p_mw, 1.05 * q_mvar
    p_mw[HOPELESS] *= 10
    p_mw[BROKEN, 100] = np.nan
    p_mw.flags.writeable = q_mvar.flags.writeable = False  # callers' arrays must not change
    return p_mw, q_mvar


@pytest.fixture(scope="module")
def rescued(
    problem_of: Callable[[str], Problem],
    injected: Injected,
) -> RescuedSolution:
    return solve_with_rescue(problem_of("pegase1354").flow, *injected)


def test_the_evening_has_rows_of_every_kind(rescued: RescuedSolution) -> None:
    """A precondition of the tests below."""
    counts = np.bincount(rescued.provenance, minlength=4)
    assert counts[NEWTON] > 2
    assert counts[BACKED_OFF] > 2
    assert len(np.unique(rescued.backoff[rescued.provenance == BACKED_OFF])) > 1
    np.testing.assert_array_equal(np.flatnonzero(rescued.provenance == CARRIED), [HOPELESS, BROKEN])


def test_rows_that_newton_solves_are_unchanged(
    problem_of: Callable[[str], Problem], injected: Injected, rescued: RescuedSolution
) -> None:
    plain = problem_of("pegase1354").flow.solve(*injected)
    solved = plain.converged
    np.testing.assert_array_equal(rescued.provenance == NEWTON, solved)
    np.testing.assert_array_equal(rescued.voltage[solved], plain.voltage[solved])
    np.testing.assert_array_equal(rescued.iterations[solved], plain.iterations[solved])
    np.testing.assert_array_equal(rescued.p_mw[solved], injected[0][solved])
    np.testing.assert_array_equal(rescued.q_mvar[solved], injected[1][solved])
    assert (rescued.backoff[solved] == 1).all()


def test_backed_off_rows_have_scaled_injections(
    injected: Injected, rescued: RescuedSolution
) -> None:
    rows = rescued.provenance == BACKED_OFF
    scale = rescued.backoff[rows]
    assert np.isin(scale, BACKOFF_SCALES).all()
    np.testing.assert_array_equal(rescued.p_mw[rows], scale[:, None] * injected[0][rows])
    np.testing.assert_array_equal(rescued.q_mvar[rows], scale[:, None] * injected[1][rows])


def test_rescued_states_obey_kirchhoff_for_their_injections(
    problem_of: Callable[[str], Problem], rescued: RescuedSolution
) -> None:
    grid = problem_of("pegase1354").grid
    solved = rescued.provenance != CARRIED
    solved_mva = consumption_mva(admittance_matrix(grid), grid.base_mva, rescued.voltage[solved])
    mismatch = mismatch_pu(grid, solved_mva, rescued.p_mw[solved], rescued.q_mvar[solved])
    assert mismatch.max() < 1e-9


def test_the_next_larger_scale_does_not_solve(
    problem_of: Callable[[str], Problem], injected: Injected, rescued: RescuedSolution
) -> None:
    flow = problem_of("pegase1354").flow
    rows = np.flatnonzero(rescued.provenance == BACKED_OFF)
    larger = rescued.backoff[rows, None] + 0.02
    assert not flow.solve(larger * injected[0][rows], larger * injected[1][rows]).converged.any()


def test_unsolved_rows_are_nan(rescued: RescuedSolution) -> None:
    for row in (HOPELESS, BROKEN):
        assert rescued.iterations[row] == 0
        for name in ("voltage", "p_mw", "q_mvar", "backoff"):
            assert np.isnan(getattr(rescued, name)[row]).all()


def test_a_rows_bits_do_not_depend_on_its_batch(
    problem_of: Callable[[str], Problem], injected: Injected, rescued: RescuedSolution
) -> None:
    flow = problem_of("pegase1354").flow
    for rows in (slice(0, 5), slice(5, 16), slice(None, None, -1)):
        part = solve_with_rescue(flow, injected[0][rows], injected[1][rows])
        for name in ARRAYS:
            assert getattr(part, name).tobytes() == getattr(rescued, name)[rows].tobytes()


@pytest.mark.parametrize(
    ("beyond", "scale"),
    [(0.99, 1.0), (1.01, 0.98), (1.05, 0.94), (1.2, 0.82), (1.4, 0.7), (1.5, np.nan)],
)
def test_two_buses_back_off_to_just_below_the_nose(beyond: float, scale: float) -> None:
    r, x, q_per_p = 0.02, 0.1, 0.3
    load_mw = 100 * beyond * nose_pu(r, x, q_per_p)
    flow = PowerFlow(two_buses(r, x), np.ones(2), np.zeros(2), np.zeros(2))
    p_mw = np.array([[0.0, load_mw]])
    solution = solve_with_rescue(flow, p_mw, q_per_p * p_mw)
    np.testing.assert_array_equal(solution.backoff, [scale])


class ScriptedFlow(PowerFlow):
    """Solves by rule instead of by Newton, and records its attempts.

    The one bus has P = scale and Q / P = number of the row: row 0 can be solved, row 1 only with
    damping, row 2 only up to a scale of 0.95, and row 3 never.
    """

    def __init__(self) -> None:
        self.attempts: list[tuple[bool, dict[int, float]]] = []

    def solve(self, p_mw: NDArray[np.float64], q_mvar: NDArray[np.float64]) -> Solution:
        return self.newton(p_mw, q_mvar)

    def newton(
        self, p_mw: NDArray[np.float64], q_mvar: NDArray[np.float64], iwamoto: bool = False
    ) -> Solution:
        scale, row = p_mw[:, 0], np.rint(q_mvar / p_mw)[:, 0].astype(int)
        self.attempts.append((iwamoto, dict(zip(row.tolist(), scale.tolist(), strict=True))))
        converged = scale <= np.array([1.0, 1.0 if iwamoto else 0.0, 0.95, 0.0])[row]
        voltage = np.where(converged, scale + 1j * iwamoto, 0)[:, None]
        return Solution(voltage, converged, np.full(len(row), len(self.attempts)))


def test_attempts_run_in_order_and_only_for_open_rows() -> None:
    flow = ScriptedFlow()
    solution = solve_with_rescue(flow, np.ones((4, 1)), np.arange(4.0)[:, None])
    assert flow.attempts == [
        (False, {0: 1.0, 1: 1.0, 2: 1.0, 3: 1.0}),
        (True, {1: 1.0, 2: 1.0, 3: 1.0}),
        (False, {2: 0.98, 3: 0.98}),
        (False, {2: 0.96, 3: 0.96}),
        (False, {2: 0.94, 3: 0.94}),
        *((False, {3: scale}) for scale in BACKOFF_SCALES[3:]),
    ]
    np.testing.assert_array_equal(solution.provenance, [NEWTON, IWAMOTO, BACKED_OFF, CARRIED])
    np.testing.assert_array_equal(solution.backoff, [1.0, 1.0, 0.94, np.nan])
    np.testing.assert_array_equal(solution.voltage[:3, 0], [1.0, 1.0 + 1.0j, 0.94])
    np.testing.assert_array_equal(solution.iterations, [1, 2, 5, 0])


def test_scales_decrease_by_two_percent_to_seventy() -> None:
    assert BACKOFF_SCALES[0] == 0.98
    assert BACKOFF_SCALES[-1] == 0.70
    np.testing.assert_allclose(np.diff(BACKOFF_SCALES), -0.02)


def test_provenance_codes_match_their_names() -> None:
    names = [PROVENANCE[code] for code in (NEWTON, IWAMOTO, BACKED_OFF, CARRIED)]
    assert names == ["newton", "iwamoto", "backed off", "carried forward"]
