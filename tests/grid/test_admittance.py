"""The admittance matrix and the mismatch, compared with independent computations."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from lightsim2grid.network import init_from_matpower

from powerphase.grid import (
    BR_STATUS,
    PAPER_GRIDS,
    PQ,
    PV,
    SHIFT,
    SLACK,
    TAP,
    Grid,
    admittance_matrix,
    bus_level_case,
    consumption_mva,
    mismatch_pu,
)

GridOf = Callable[[str], Grid]


def branch_by_branch(grid: Grid) -> np.ndarray:
    """The dense matrix, built one two-port at a time."""
    row_of = {int(bus[0]): row for row, bus in enumerate(grid.bus)}
    dense = np.zeros((len(grid.bus), len(grid.bus)), dtype=complex)
    for row, bus in enumerate(grid.bus):
        dense[row, row] += complex(bus[4], bus[5]) / grid.base_mva
    for start, end, r, x, b, *_, ratio, shift_deg, status in grid.branch:
        if status != 1:
            continue
        series, half = 1 / complex(r, x), 0.5j * b
        line = np.array([[series + half, -series], [-series, series + half]])
        # Behind its ideal transformer the from bus has voltage V / turns; power is conserved.
        shift = np.pi * shift_deg / 180
        turns = (ratio or 1.0) * complex(np.cos(shift), np.sin(shift))
        ideal = np.array([1 / turns, 1.0])
        ends = [row_of[int(start)], row_of[int(end)]]
        dense[np.ix_(ends, ends)] += ideal.conj()[:, None] * line * ideal
    return dense


@pytest.mark.parametrize("name", ["ieee14", "ieee24", "nordic60", "pegase89", "ieee300"])
def test_the_matrix_is_the_sum_of_its_branches(grid_of: GridOf, name: str) -> None:
    grid = grid_of(name)
    np.testing.assert_allclose(
        admittance_matrix(grid).toarray(), branch_by_branch(grid), rtol=1e-13
    )


def test_shifters_without_a_ratio_and_lines_out_of_service(
    grid_of: GridOf,
) -> None:
    branch = grid_of("ieee14").branch.copy()
    branch[0, [TAP, SHIFT]] = 0.0, 10.0
    branch[1, [TAP, SHIFT]] = 0.95, -30.0
    branch[2, BR_STATUS] = 0.0
    grid = replace(grid_of("ieee14"), branch=branch)
    ybus = admittance_matrix(grid).toarray()
    np.testing.assert_allclose(ybus, branch_by_branch(grid), rtol=1e-13)
    assert abs(ybus[0, 1] / ybus[1, 0] - np.exp(2j * np.deg2rad(10.0))) < 1e-14
    assert ybus[1, 2] == 0


@pytest.mark.parametrize("name", PAPER_GRIDS)
def test_the_matrix_equals_the_solvers(grid_of: GridOf, name: str) -> None:
    grid = grid_of(name)
    network = init_from_matpower(bus_level_case(grid, np.ones(grid.n_buses)))
    network.ac_pf(np.ones(grid.n_buses, dtype=complex), 1, 1e-8)  # builds the matrix
    ours, theirs = admittance_matrix(grid), network.get_Ybus()
    assert abs(ours - theirs).max() <= 1e-14 * abs(ours).max()


def test_equal_voltages_draw_no_power_without_shunts_charging_and_ratios(
    grid_of: GridOf,
) -> None:
    grid = grid_of("ieee118")
    bus, branch = grid.bus.copy(), grid.branch.copy()
    bus[:, [4, 5]] = 0.0
    branch[:, [4, TAP, SHIFT]] = 0.0
    bare = replace(grid, bus=bus, branch=branch)
    equal = np.full((1, grid.n_buses), 1.02 * np.exp(0.3j))
    power = consumption_mva(admittance_matrix(bare), bare.base_mva, equal)
    np.testing.assert_allclose(power, 0.0, atol=1e-9)


def test_consumption_is_minus_the_power_into_the_branches(grid_of: GridOf) -> None:
    grid = grid_of("ieee14")
    voltage = np.exp(1j * np.linspace(0, 1, 28)).reshape(2, 14) * np.linspace(0.9, 1.1, 14)
    dense = branch_by_branch(grid)
    by_hand = [
        [-100 * v * (y @ row).conjugate() for v, y in zip(row, dense, strict=True)]
        for row in voltage
    ]
    np.testing.assert_allclose(
        consumption_mva(admittance_matrix(grid), 100.0, voltage), by_hand, rtol=1e-12
    )


@pytest.mark.parametrize(
    ("bus_type", "p_counts", "q_counts"),
    [(SLACK, False, False), (PV, True, False), (PQ, True, True)],
)
def test_only_specified_quantities_count_as_mismatch(
    grid_of: GridOf, bus_type: int, p_counts: bool, q_counts: bool
) -> None:
    grid = grid_of("ieee14")
    p_mw, q_mvar = np.zeros((3, 14)), np.zeros((3, 14))
    bus = np.flatnonzero(grid.bus_type == bus_type)[0]
    p_mw[1, bus], q_mvar[2, bus] = 5.0, -7.0
    mismatch = mismatch_pu(grid, np.zeros((3, 14), dtype=complex), p_mw, q_mvar)
    np.testing.assert_array_equal(mismatch, [0.0, 0.05 * p_counts, 0.07 * q_counts])
