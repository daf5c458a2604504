"""The checks of a grid's constructor, and the properties of a valid grid."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from powerphase.errors import CaseError
from powerphase.grid import (
    BR_R,
    BR_STATUS,
    BR_X,
    BUS_I,
    BUS_TYPE,
    F_BUS,
    GEN_BUS,
    GEN_STATUS,
    PD,
    PG,
    PQ,
    PV,
    QD,
    SLACK,
    T_BUS,
    TAP,
    VG,
    VMAX,
    Grid,
    admittance_matrix,
)

GridOf = Callable[[str], Grid]
Edit = tuple[str, int | slice, int, float]
"""A matrix, a row (or all), a column and the new value."""

ALL = slice(None)


def change(grid: Grid, *edits: Edit) -> Grid:
    """The grid with some numbers changed."""
    matrices = {name: getattr(grid, name).copy() for name in ("bus", "gen", "branch")}
    for name, row, column, value in edits:
        matrices[name][row, column] = value
    return replace(grid, **matrices)


def error_message(grid: Grid, *edits: Edit) -> str:
    with pytest.raises(CaseError) as caught:
        change(grid, *edits)
    return str(caught.value)


@pytest.mark.parametrize(
    ("edits", "fact"),
    [
        ([("bus", 0, BUS_TYPE, 1)], "no slack bus"),
        ([("bus", 3, BUS_TYPE, 3)], "2 slack buses (1, 4)"),
        ([("gen", 0, GEN_STATUS, 0)], "slack bus 1"),
        ([("gen", 0, GEN_BUS, 2)], "slack bus 1"),
        ([("bus", 8, BUS_TYPE, 4)], "bus 9 has type 4"),
        ([("bus", 8, BUS_TYPE, 7)], "bus 9 has type 7"),
        ([("bus", 4, BUS_I, 9)], "bus number 9 is used 2 times"),
        ([("bus", 4, BUS_I, 5.5)], "bus number 5.5"),
        ([("bus", 4, BUS_I, 0)], "bus number 0"),
        ([("bus", 4, BUS_I, 1e300)], "bus number 1e+300"),
        ([("gen", 2, GEN_BUS, 77)], "mpc.gen refers to bus 77"),
        ([("branch", 2, T_BUS, 77)], "mpc.branch refers to bus 77"),
        ([("bus", 1, PD, np.nan)], "row 2 of mpc.bus"),
        ([("bus", 1, QD, np.inf)], "row 2 of mpc.bus"),
        ([("gen", 3, PG, -np.inf)], "row 4 of mpc.gen"),
        ([("branch", 5, TAP, np.nan)], "row 6 of mpc.branch"),
        ([("branch", 0, BR_R, 0), ("branch", 0, BR_X, 0)], "branch 1-2"),
        ([("branch", 0, BR_R, 0), ("branch", 0, BR_X, 1e-300)], "branch 1-2"),
        ([("branch", 3, T_BUS, 2)], "row 4 of mpc.branch connects bus 2 with itself"),
        ([("branch", 3, T_BUS, 2), ("branch", 3, BR_STATUS, 0)], "row 4 of mpc.branch"),
        ([("branch", 4, BR_X, 1e308)], "row 5 of mpc.branch has x = 1e+308"),
        ([("branch", 4, TAP, -1)], "row 5 of mpc.branch has ratio = -1"),
        ([("gen", 1, VG, -1.02)], "row 2 of mpc.gen has Vg = -1.02"),
        ([("gen", 1, VG, 0)], "row 2 of mpc.gen has Vg = 0"),
        ([("bus", 2, PD, 1e300)], "row 3 of mpc.bus has Pd = 1e+300"),
        ([("bus", ALL, PD, 0)], "no bus has a load"),
        ([("bus", ALL, PD, -5)], "no bus has a load"),
    ],
)
def test_a_grid_without_a_well_defined_power_flow_raises(
    grid_of: GridOf, edits: list[Edit], fact: str
) -> None:
    message = error_message(grid_of("ieee14"), *edits)
    assert message.startswith("grid 'ieee14': ")
    assert fact in message


@pytest.mark.parametrize("base_mva", [0.0, -100.0, np.nan, np.inf])
def test_the_base_power_must_be_positive_and_finite(grid_of: GridOf, base_mva: float) -> None:
    with pytest.raises(CaseError, match="baseMVA"):
        replace(grid_of("ieee14"), base_mva=base_mva)


def test_an_island_raises_and_names_a_bus(grid_of: GridOf) -> None:
    grid = grid_of("ieee14")  # bus 8 is connected to bus 7 only
    (only,) = np.flatnonzero((grid.branch[:, [F_BUS, T_BUS]] == 8).any(axis=1))
    message = error_message(grid, ("branch", int(only), BR_STATUS, 0))
    assert "2 islands; 1 buses (first: 8)" in message


def test_all_data_problems_are_reported_together(grid_of: GridOf) -> None:
    message = error_message(grid_of("ieee14"), ("bus", 1, PD, np.nan), ("gen", 2, GEN_BUS, 77))
    assert "row 2 of mpc.bus" in message
    assert "mpc.gen refers to bus 77" in message


def test_branches_out_of_service_and_limits_are_not_checked(
    grid_of: GridOf,
) -> None:
    grid = grid_of("ieee14")
    off = ("branch", 0, BR_STATUS, 0.0)
    short = (("branch", 0, BR_R, 0.0), ("branch", 0, BR_X, 0.0))
    valid = change(grid, off, *short, ("bus", 0, VMAX, np.inf))
    assert not valid.branch_on[0]
    assert np.isfinite(admittance_matrix(valid).data).all()
    assert "branch 1-2" in error_message(grid, *short)


@pytest.mark.parametrize(("name", "n_without"), [("activsg500", 34), ("polish3120", 101)])
def test_a_pv_bus_without_a_generator_in_service_is_pq(
    grid_of: GridOf, name: str, n_without: int
) -> None:
    grid = grid_of(name)
    # The oracle: plain loops over the rows of the file.
    on = {row[GEN_BUS] for row in grid.gen if row[GEN_STATUS] > 0}
    without = [row[BUS_I] for row in grid.bus if row[BUS_TYPE] == 2 and row[BUS_I] not in on]
    assert len(without) == n_without
    assert (grid.bus_type[grid.rows(np.array(without))] == PQ).all()
    assert (grid.bus_type == PQ).sum() == grid.n_pq_in_file + n_without
    assert (grid.bus_type == PV).sum() == (grid.bus[:, BUS_TYPE] == 2).sum() - n_without
    assert (grid.bus_type == SLACK).sum() == 1
    kept = ~np.isin(grid.bus_id, without)
    assert (grid.bus_type[kept] == grid.bus[kept, BUS_TYPE]).all()  # MATPOWER's codes


@pytest.mark.parametrize("name", ["rte1888", "polish2736"])
def test_a_pq_bus_with_a_generator_stays_pq(grid_of: GridOf, name: str) -> None:
    grid = grid_of(name)
    rows = grid.generator_row[grid.generator_on]
    pq_in_file = grid.bus[rows, BUS_TYPE] == 1
    assert pq_in_file.any()
    assert (grid.bus_type[rows[pq_in_file]] == PQ).all()


def test_generators_and_branches_refer_to_the_right_rows(grid_of: GridOf) -> None:
    grid = grid_of("pegase1354")
    assert (np.diff(grid.bus_id) != 1).any()
    for generator, row in zip(grid.gen, grid.generator_row, strict=True):
        assert grid.bus[row, BUS_I] == generator[GEN_BUS]
    for branch, (start, end) in zip(grid.branch, grid.branch_rows, strict=True):
        assert (grid.bus[start, BUS_I], grid.bus[end, BUS_I]) == (branch[F_BUS], branch[T_BUS])


def test_rows_of_a_file_in_any_order(grid_of: GridOf) -> None:
    grid = grid_of("ieee14")
    shuffled = replace(grid, bus=grid.bus[::-1].copy())
    np.testing.assert_array_equal(shuffled.rows(np.array([1.0, 14.0, 5.0])), [13, 0, 9])


def test_an_unknown_bus_number_raises(grid_of: GridOf) -> None:
    with pytest.raises(CaseError, match="bus 15"):
        grid_of("ieee14").rows(np.array([3.0, 15.0]))


def test_setpoints_come_from_the_file_for_controlled_buses_only(grid_of: GridOf) -> None:
    grid = grid_of("ieee14")
    controlled = grid.bus_type != PQ
    np.testing.assert_array_equal(grid.setpoint_pu[controlled], [1.06, 1.045, 1.01, 1.07, 1.09])
    assert np.isnan(grid.setpoint_pu[~controlled]).all()


def test_generators_with_different_setpoints_at_one_bus_raise(
    grid_of: GridOf,
) -> None:
    grid = change(grid_of("ieee14"), ("gen", 4, GEN_BUS, 6), ("gen", 4, VG, 1.0))
    with pytest.raises(CaseError, match="bus 6"):
        _ = grid.setpoint_pu


def test_a_generator_out_of_service_does_not_affect_the_setpoint(grid_of: GridOf) -> None:
    off = ("gen", 4, GEN_STATUS, 0.0)
    grid = change(grid_of("ieee14"), ("gen", 4, GEN_BUS, 6), ("gen", 4, VG, 1.0), off)
    assert grid.setpoint_pu[grid.rows(np.array([6.0]))] == 1.07


@pytest.mark.parametrize(
    "edit", [("bus", 3, PD, 48.0), ("gen", 1, VG, 1.0), ("branch", 0, BR_X, 0.06)]
)
def test_the_hash_changes_with_the_content(grid_of: GridOf, edit: Edit) -> None:
    grid = grid_of("ieee14")
    assert change(grid, edit).sha256 != grid.sha256
    assert replace(grid, base_mva=50.0).sha256 != grid.sha256


def test_the_hash_ignores_the_name_and_the_memory_layout(grid_of: GridOf) -> None:
    grid = grid_of("ieee14")
    assert replace(grid, name="other", bus=np.asfortranarray(grid.bus)).sha256 == grid.sha256
