"""Drawings: stored layouts match the code, and belong to one set of connections."""

from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest

from powerphase.grid import BR_STATUS, CATALOG, Grid, load_grid
from powerphase.report import (
    LATTICE,
    draw,
    drawing,
    drawing_of,
    layout,
    store_layouts,
    stored_position,
    unique_pairs,
)


@pytest.mark.parametrize("name", ["ieee14", "ieee57"])
def test_the_stored_layout_is_reproduced(name: str, tmp_path: Path) -> None:
    store_layouts(tmp_path, [name])
    packaged = (files("powerphase.report") / "layouts" / f"{name}.npz").read_bytes()
    with np.load(BytesIO(packaged)) as stored, np.load(tmp_path / f"{name}.npz") as new:
        assert str(new["topology"]) == str(stored["topology"])
        np.testing.assert_allclose(
            new["position"] / LATTICE, stored["position"] / LATTICE, atol=0.01
        )


@pytest.mark.parametrize("name", CATALOG)
def test_every_catalogued_grid_has_a_layout_of_distinct_points(
    name: str, grid_of: Callable[[str], Grid]
) -> None:
    grid = grid_of(name)
    pairs = unique_pairs(grid.branch_rows[grid.branch_on])
    position = stored_position(name, grid.n_buses, pairs)
    assert position is not None
    assert len(np.unique(position, axis=0)) == grid.n_buses
    assert position.min() == 0
    assert position.max() == LATTICE


def test_a_drawing_has_the_case_files_buses_and_connections() -> None:
    grid, drawn = load_grid("ieee300"), drawing_of("ieee300")
    assert drawn is not None
    np.testing.assert_array_equal(drawn.bus_id, grid.bus_id)
    expected = {frozenset(ends) for ends in grid.branch_rows[grid.branch_on].tolist()}
    assert sorted(map(sorted, expected)) == drawn.branches.tolist()


def test_a_grid_outside_the_catalogue_has_no_drawing_by_name() -> None:
    assert drawing_of("my-own") is None


def test_a_grid_of_another_name_is_drawn_in_the_same_way() -> None:
    grid = replace(load_grid("ieee14"), name="my-own")
    drawn, stored = draw(grid), drawing_of("ieee14")
    assert stored is not None
    assert drawn.grid == "my-own"
    np.testing.assert_allclose(drawn.x, stored.x, atol=0.01)
    np.testing.assert_allclose(drawn.y, stored.y, atol=0.01)


def test_a_stored_layout_is_not_used_for_other_connections() -> None:
    grid = load_grid("ieee14")
    branch = grid.branch.copy()
    branch[0, BR_STATUS] = 0
    changed = replace(grid, branch=branch)
    drawn = draw(changed)
    expected = layout(14, changed.branch_rows[changed.branch_on])
    np.testing.assert_array_equal(np.stack([drawn.x, drawn.y], axis=1), expected)
    assert len(drawn.branches) == len(draw(grid).branches) - 1


def test_a_stored_layout_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr(drawing, "on_lattice", fail)
    assert drawing_of("pegase1354") is not None
