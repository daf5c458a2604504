"""Every committed row is valid, complete, and agrees with its neighbours."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from powerphase.grid import PAPER_GRIDS
from powerphase.records.result import Result, read_result, read_results
from powerphase.records.sidecar import LIMIT_BYTES, expanded, read_sidecar, rounding_of
from powerphase.report.entries import Entry
from powerphase.report.leaderboard import leaderboard
from powerphase.task.protocol import PROTOCOL_VERSION, Protocol
from tests.page_of_results import PAGE, PART, WORDS, written

RESULTS = Path(__file__).parents[1] / "results"
ROWS = sorted(RESULTS.rglob("*.json"))
REFERENCES = ("climatology", "last-7-days", "last-week", "oracle")


@cache
def rows() -> tuple[Result, ...]:
    """All that are committed."""
    return tuple(read_results([RESULTS]))


@pytest.mark.parametrize("path", ROWS, ids=lambda path: str(path.relative_to(RESULTS)))
def test_a_row_is_valid_and_its_sidecar_tells_the_same(path: Path) -> None:
    row, sidecar = read_result(path), read_sidecar(path)
    assert path.relative_to(RESULTS) == Path(row.path)
    assert row.task_version == PROTOCOL_VERSION
    assert row.commit is not None
    for name in ("crps", "brier", "necv"):
        by_bus, by_step = sidecar[f"by_bus/{name}"], sidecar[f"by_step/{name}"]
        whole = row.scores[name]
        rounding = rounding_of(sidecar)
        assert rounding is not None
        relative = 2.0 ** -(rounding.bits + 1)
        assert np.mean(by_bus, dtype=float) == pytest.approx(whole, rel=relative, abs=1e-9)
        assert np.nanmean(by_step, dtype=float) == pytest.approx(whole, rel=relative, abs=1e-9)
    exact = np.mean(sidecar["by_bus/safety_mbrier"], dtype=float)
    assert exact == pytest.approx(row.scores["safety_mbrier"], rel=1e-5, abs=1e-9)
    assert ("shown/bus_id" in sidecar) == (row.seed in (0, 42))
    if "shown/bus_id" in sidecar:
        assert np.isfinite(expanded(sidecar)["shown/scenario"]).all()


def test_results_are_small() -> None:
    sizes = {file: file.stat().st_size for file in RESULTS.rglob("*") if file.is_file()}
    assert max(size for file, size in sizes.items() if file.suffix == ".npz") <= LIMIT_BYTES
    assert sum(sizes.values()) <= 25_000_000


def test_the_reference_rows_are_there() -> None:
    task = Protocol().name
    wanted = {(task, "opsd-r", grid, model) for grid in PAPER_GRIDS for model in REFERENCES}
    wanted |= {(task, "synthetic", "activsg500", model) for model in REFERENCES}
    assert wanted <= {(row.task, row.edition, row.grid, row.model) for row in rows()}


def test_rows_of_a_grid_are_of_the_same_data_and_windows() -> None:
    boards = leaderboard(rows())
    places = [(board.task, board.edition, board.grid) for board in boards]
    assert len(set(places)) == len(places)


def test_no_row_beats_the_oracle_on_crps() -> None:
    for board in leaderboard(rows(), paper=False):
        scores = {entry.name: entry.mean["crps"] for entry in board.entries}
        assert min(scores, key=scores.__getitem__) == "oracle"


def test_scenarios_and_the_fee_of_the_oracle_s_samples_are_as_said() -> None:
    assert "for the 1 % of CRPS that its 100 samples" in WORDS
    assert "give from 1 to 625 scenarios" in WORDS
    found = [row for row in rows() if row.edition == "opsd-r"]
    assert (min(r.scenarios for r in found), max(r.scenarios for r in found)) == (1, 625)
    for row in found:
        if row.model == "oracle":
            assert row.scenarios == 100
            assert row.scores["crps"] / row.scores["fair_crps"] == pytest.approx(1.01, abs=0.001)


def test_every_file_under_results_belongs_to_a_row() -> None:
    files = {path for path in RESULTS.rglob("*") if path.is_file()}
    assert files == {file for row in ROWS for file in (row, row.with_suffix(".npz"))}


def test_the_page_of_results_is_what_its_commands_write() -> None:
    assert [part["command"].split()[0] for part in PART.finditer(PAGE)] == [
        *("compare", "leaderboard", "leaderboard", "safety", "safety", "compare", "leaderboard")
    ]
    assert written(PAGE) == PAGE, "write it anew with `make results`"


def test_what_the_page_says_about_the_rows_is_so() -> None:
    """Climatology, the oracle and the paper, grid by grid; and how safety scores disagree."""
    boards = [b for b in leaderboard(rows()) if b.conditions == "opsd-r"]
    below, room = [], []
    for board in boards:
        mean = {entry.name: entry.mean for entry in board.entries}
        for name in ("crps", "distortion"):
            past = min(mean[model][name] for model in ("last-week", "last-7-days"))
            assert mean["climatology"][name] < past
        printed = {name: min(e.mean[name] for e in board.paper) for name in ("crps", "distortion")}
        if all(mean["climatology"][name] < printed[name] for name in printed):
            below.append(board.grid)
        room.append(1 - mean["oracle"]["crps"] / mean["climatology"]["crps"])
        if mean["oracle"]["necv"]:
            for name, better in (
                ("safety_mbrier", "last-week"),
                ("brier", "climatology"),
                ("twcrps", "climatology"),
            ):
                pair = ("last-week", "climatology")
                assert min(pair, key=lambda model: mean[model][name]) == better, board.grid
        _check_powerforge(board.grid, mean, {e.name: e for e in board.paper}["powerforge"])
    assert set(PAPER_GRIDS) - set(below) == {"pegase9241"}
    assert (round(min(room), 2), round(max(room), 2)) == (0.30, 0.65)


def _check_powerforge(grid: str, mean: Mapping[str, Mapping[str, float]], paper: Entry) -> None:
    """Near the paper's CRPS or better, too narrow, and where it is beside climatology."""
    ours, climatology = mean["powerforge"], mean["climatology"]
    # The paper prints four decimals, so that its spread may be half of the last one larger.
    assert ours["crps"] <= paper.mean["crps"] + 2 * (paper.std["crps"] + 0.00005)
    assert (ours["crps"] < climatology["crps"]) == (grid in ("polish2383", "pegase9241"))
    assert ours["distortion"] > climatology["distortion"]
    assert ours["mse"] < climatology["mse"]
    narrow = {"activsg500": 0.32, "pegase1354": 0.33, "polish2383": 0.36}
    narrow |= {"pegase2869": 0.32, "polish3120": 0.35, "pegase9241": 0.49}
    assert round(ours["coverage_80"], 2) == narrow[grid]
