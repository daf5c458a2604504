"""A grid is checked when it is made: every refusal, and what a sound one says about itself."""

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
"""A matrix, a row (or all), a column and the value to put there."""

ALL = slice(None)


def edited(grid: Grid, *edits: Edit) -> Grid:
    """The grid with some numbers changed."""
    matrices = {name: getattr(grid, name).copy() for name in ("bus", "gen", "branch")}
    for name, row, column, value in edits:
        matrices[name][row, column] = value
    return replace(grid, **matrices)


def refusal(grid: Grid, *edits: Edit) -> str:
    with pytest.raises(CaseError) as caught:
        edited(grid, *edits)
    return str(caught.value)


@pytest.mark.parametrize(
    ("edits", "complaint"),
    [
        ([("bus", 0, BUS_TYPE, 1)], "no slack bus (type 3)"),
        ([("bus", 3, BUS_TYPE, 3)], "2 slack buses (1, 4); exactly one must have type 3"),
        ([("gen", 0, GEN_STATUS, 0)], "the slack bus 1 has no generator in service"),
        ([("gen", 0, GEN_BUS, 2)], "the slack bus 1 has no generator in service"),
        ([("bus", 8, BUS_TYPE, 4)], "bus 9 has type 4; remove isolated buses"),
        ([("bus", 8, BUS_TYPE, 7)], "bus 9 has type 7"),
        ([("bus", 4, BUS_I, 9)], "bus number 9 is used 2 times"),
        ([("bus", 4, BUS_I, 5.5)], "bus number 5.5 is not a positive whole number"),
        ([("bus", 4, BUS_I, 0)], "bus number 0 is not a positive whole number"),
        ([("bus", 4, BUS_I, 1e300)], "bus number 1e+300 is not a positive whole number"),
        ([("gen", 2, GEN_BUS, 77)], "mpc.gen refers to bus 77, which mpc.bus lacks"),
        ([("branch", 2, T_BUS, 77)], "mpc.branch refers to bus 77, which mpc.bus lacks"),
        ([("bus", 1, PD, np.nan)], "row 2 of mpc.bus holds a number that is not finite"),
        ([("bus", 1, QD, np.inf)], "row 2 of mpc.bus holds a number that is not finite"),
        ([("gen", 3, PG, -np.inf)], "row 4 of mpc.gen holds a number that is not finite"),
        ([("branch", 5, TAP, np.nan)], "row 6 of mpc.branch holds a number that is not finite"),
        ([("branch", 0, BR_R, 0), ("branch", 0, BR_X, 0)], "the branch 1-2 has no impedance"),
        ([("bus", ALL, PD, 0)], "no bus has a load with P > 0"),
        ([("bus", ALL, PD, -5)], "no bus has a load with P > 0"),
    ],
)
def test_a_grid_without_one_power_flow_is_refused_by_name_and_place(
    grid_of: GridOf, edits: list[Edit], complaint: str
) -> None:
    message = refusal(grid_of("ieee14"), *edits)
    assert message.startswith("grid 'ieee14': ")
    assert complaint in message


@pytest.mark.parametrize("base_mva", [0.0, -100.0, np.nan, np.inf])
def test_the_base_power_must_be_positive_and_finite(grid_of: GridOf, base_mva: float) -> None:
    with pytest.raises(CaseError, match=r"baseMVA is .*, it must be positive"):
        replace(grid_of("ieee14"), base_mva=base_mva)


def test_an_island_is_named_by_one_of_its_buses(grid_of: GridOf) -> None:
    grid = grid_of("ieee14")  # bus 8 hangs on bus 7 alone
    (only,) = np.flatnonzero((grid.branch[:, [F_BUS, T_BUS]] == 8).any(axis=1))
    message = refusal(grid, ("branch", int(only), BR_STATUS, 0))
    assert "2 islands; bus 8 is among 1 buses that no branch in service connects" in message


def test_all_problems_of_the_data_are_told_at_once(grid_of: GridOf) -> None:
    message = refusal(grid_of("ieee14"), ("bus", 1, PD, np.nan), ("gen", 2, GEN_BUS, 77))
    assert "row 2 of mpc.bus" in message
    assert "mpc.gen refers to bus 77" in message


def test_a_short_circuit_out_of_service_and_an_unlimited_bound_do_not_matter(
    grid_of: GridOf,
) -> None:
    grid = grid_of("ieee14")
    off = ("branch", 0, BR_STATUS, 0.0)
    short = (("branch", 0, BR_R, 0.0), ("branch", 0, BR_X, 0.0))
    taken = edited(grid, off, *short, ("bus", 0, VMAX, np.inf))
    assert not taken.branch_on[0]
    assert np.isfinite(admittance_matrix(taken).data).all()
    assert "has no impedance" in refusal(grid, *short)


@pytest.mark.parametrize(("name", "n_without"), [("activsg500", 34), ("polish3120", 101)])
def test_a_pv_bus_whose_generators_are_all_off_is_pq(
    grid_of: GridOf, name: str, n_without: int
) -> None:
    grid = grid_of(name)
    # Plain loops over the file's rows, as an oracle of the array code.
    on = {row[GEN_BUS] for row in grid.gen if row[GEN_STATUS] > 0}
    lost = [row[BUS_I] for row in grid.bus if row[BUS_TYPE] == 2 and row[BUS_I] not in on]
    assert len(lost) == n_without
    assert (grid.bus_type[grid.rows(np.array(lost))] == PQ).all()
    assert (grid.bus_type == PQ).sum() == grid.n_pq_in_file + n_without
    assert (grid.bus_type == PV).sum() == (grid.bus[:, BUS_TYPE] == 2).sum() - n_without
    assert (grid.bus_type == SLACK).sum() == 1


@pytest.mark.parametrize("name", ["rte1888", "polish2736"])
def test_a_pq_bus_with_a_generator_stays_pq(grid_of: GridOf, name: str) -> None:
    grid = grid_of(name)
    held = grid.generator_row[grid.generator_on]
    pq_in_file = grid.bus[held, BUS_TYPE] == 1
    assert pq_in_file.any()
    assert (grid.bus_type[held[pq_in_file]] == PQ).all()


def test_rows_are_where_the_bus_numbers_stand_in_the_file(grid_of: GridOf) -> None:
    grid = grid_of("pegase1354")
    assert (np.diff(grid.bus_id) != 1).any()
    for generator, row in zip(grid.gen, grid.generator_row, strict=True):
        assert grid.bus[row, BUS_I] == generator[GEN_BUS]
    for branch, (start, end) in zip(grid.branch, grid.branch_rows, strict=True):
        assert (grid.bus[start, BUS_I], grid.bus[end, BUS_I]) == (branch[F_BUS], branch[T_BUS])


def test_rows_of_an_unordered_file_are_found(grid_of: GridOf) -> None:
    grid = grid_of("ieee14")
    shuffled = replace(grid, bus=grid.bus[::-1].copy())
    np.testing.assert_array_equal(shuffled.rows(np.array([1.0, 14.0, 5.0])), [13, 0, 9])


def test_an_unknown_bus_number_is_named(grid_of: GridOf) -> None:
    with pytest.raises(CaseError, match=r"no bus 15; its 14 buses are numbered 1 to 14"):
        grid_of("ieee14").rows(np.array([3.0, 15.0]))


def test_setpoints_are_the_files_and_stand_at_controlled_buses_only(grid_of: GridOf) -> None:
    grid = grid_of("ieee14")
    controlled = grid.bus_type != PQ
    np.testing.assert_array_equal(grid.setpoint_pu[controlled], [1.06, 1.045, 1.01, 1.07, 1.09])
    assert np.isnan(grid.setpoint_pu[~controlled]).all()


def test_generators_that_disagree_on_a_setpoint_are_refused_when_it_is_asked_for(
    grid_of: GridOf,
) -> None:
    grid = edited(grid_of("ieee14"), ("gen", 4, GEN_BUS, 6), ("gen", 4, VG, 1.0))
    with pytest.raises(CaseError, match="generators at bus 6 have different voltage set-points"):
        _ = grid.setpoint_pu


def test_a_generator_that_is_off_has_no_say_in_the_setpoint(grid_of: GridOf) -> None:
    off = ("gen", 4, GEN_STATUS, 0.0)
    grid = edited(grid_of("ieee14"), ("gen", 4, GEN_BUS, 6), ("gen", 4, VG, 1.0), off)
    assert grid.setpoint_pu[grid.rows(np.array([6.0]))] == 1.07


@pytest.mark.parametrize(
    "edit", [("bus", 3, PD, 48.0), ("gen", 1, VG, 1.0), ("branch", 0, BR_X, 0.06)]
)
def test_the_hash_changes_with_the_content(grid_of: GridOf, edit: Edit) -> None:
    grid = grid_of("ieee14")
    assert edited(grid, edit).sha256 != grid.sha256
    assert replace(grid, base_mva=50.0).sha256 != grid.sha256


def test_the_hash_does_not_depend_on_the_name_or_the_memory_layout(grid_of: GridOf) -> None:
    grid = grid_of("ieee14")
    assert replace(grid, name="other", bus=np.asfortranarray(grid.bus)).sha256 == grid.sha256
