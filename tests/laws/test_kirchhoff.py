"""Kirchhoff's laws for solved states, branch by branch and for the whole grid."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from powerphase.grid import (
    BR_B,
    BR_R,
    BR_X,
    BS,
    GS,
    PQ,
    SHIFT,
    SLACK,
    TAP,
    Grid,
    admittance_matrix,
    consumption_mva,
    mismatch_pu,
)
from tests.conftest import Problem

GRIDS = ["ieee14", "nordic60", "activsg500", "pegase1354", "polish2383"]

Solved = tuple[Grid, NDArray[np.float64], NDArray[np.float64], NDArray[np.complex128]]


@pytest.fixture(params=GRIDS)
def solved(request: pytest.FixtureRequest, problem_of: Callable[[str], Problem]) -> Solved:
    """A grid, its specified injections of a few steps, and the solved voltages."""
    problem = problem_of(request.param)
    p_mw, q_mvar = problem.injections.steps(40, 52)
    solution = problem.flow.solve(p_mw, q_mvar)
    converged = solution.converged
    assert converged.sum() > 6
    return problem.grid, p_mw[converged], q_mvar[converged], solution.voltage[converged]


def flows_mva(
    grid: Grid, voltage: NDArray[np.complex128]
) -> tuple[NDArray[np.complex128], NDArray[np.complex128]]:
    """Power that enters each branch in service at its from and at its to end."""
    branch = grid.branch[grid.branch_on]
    start, end = grid.branch_rows[grid.branch_on].T
    ratio = np.where(branch[:, TAP] == 0, 1, branch[:, TAP])
    inside = voltage[:, start] / (ratio * np.exp(1j * np.deg2rad(branch[:, SHIFT])))
    through = (inside - voltage[:, end]) / (branch[:, BR_R] + 1j * branch[:, BR_X])
    half = 0.5j * branch[:, BR_B]
    into_from = inside * (through + half * inside).conj()
    into_to = voltage[:, end] * (-through + half * voltage[:, end]).conj()
    return grid.base_mva * into_from, grid.base_mva * into_to


def test_the_flows_into_a_bus_equal_its_consumption(solved: Solved) -> None:
    grid, p_mw, q_mvar, voltage = solved
    into_from, into_to = flows_mva(grid, voltage)
    leaving = np.abs(voltage) ** 2 * (grid.bus[:, GS] - 1j * grid.bus[:, BS])
    for into, rows in zip((into_from, into_to), grid.branch_rows[grid.branch_on].T, strict=True):
        np.add.at(leaving.T, rows, into.T)
    np.testing.assert_allclose(
        -leaving.real[:, grid.bus_type != SLACK], p_mw[:, grid.bus_type != SLACK], atol=1e-6
    )
    pq = grid.bus_type == PQ
    np.testing.assert_allclose(-leaving.imag[:, pq], q_mvar[:, pq], atol=1e-6)


def test_solved_injections_equal_the_specified_ones(solved: Solved) -> None:
    grid, p_mw, q_mvar, voltage = solved
    consumption = consumption_mva(admittance_matrix(grid), grid.base_mva, voltage)
    assert mismatch_pu(grid, consumption, p_mw, q_mvar).max() < 1e-9


def test_generation_equals_load_plus_losses(solved: Solved) -> None:
    """Losses are counted where they arise: in each branch's resistance and each bus's shunt."""
    grid, _, _, voltage = solved
    consumption = consumption_mva(admittance_matrix(grid), grid.base_mva, voltage)
    into_from, into_to = flows_mva(grid, voltage)
    in_branches = (into_from + into_to).sum(axis=1)
    in_shunts = (np.abs(voltage) ** 2 * (grid.bus[:, GS] - 1j * grid.bus[:, BS])).sum(axis=1)
    np.testing.assert_allclose(
        -consumption.sum(axis=1), in_branches + in_shunts, rtol=1e-9, atol=1e-6
    )


def test_no_branch_with_resistance_generates_active_power(solved: Solved) -> None:
    grid, _, _, voltage = solved
    into_from, into_to = flows_mva(grid, voltage)
    resistive = grid.branch[grid.branch_on, BR_R] >= 0
    assert (into_from + into_to).real[:, resistive].min() > -1e-6
