"""Every committed row is valid, complete, and agrees with its neighbours."""

from functools import cache
from pathlib import Path

import numpy as np
import pytest

from powerphase.grid import PAPER_GRIDS
from powerphase.records import (
    LIMIT_BYTES,
    Result,
    expand,
    read_result,
    read_results,
    read_sidecar,
    rounding_of,
)
from powerphase.report import leaderboard
from powerphase.task import PROTOCOL_VERSION, Protocol

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
        assert np.isfinite(expand(sidecar)["shown/scenario"]).all()


def test_results_are_small() -> None:
    sizes = {file: file.stat().st_size for file in RESULTS.rglob("*") if file.is_file()}
    assert max(size for file, size in sizes.items() if file.suffix == ".npz") <= LIMIT_BYTES
    assert sum(sizes.values()) <= 25_000_000


def test_the_reference_rows_are_there() -> None:
    task = Protocol().name
    expected = {(task, "opsd-r", grid, model) for grid in PAPER_GRIDS for model in REFERENCES}
    expected |= {(task, "synthetic", "activsg500", model) for model in REFERENCES}
    assert expected <= {(row.task, row.edition, row.grid, row.model) for row in rows()}


def test_rows_of_a_grid_are_of_the_same_data_and_windows() -> None:
    boards = leaderboard(rows())
    keys = [(board.task, board.edition, board.grid) for board in boards]
    assert len(set(keys)) == len(keys)


def test_no_row_beats_the_oracle_on_crps() -> None:
    for board in leaderboard(rows(), paper=False):
        scores = {entry.name: entry.mean["crps"] or 0 for entry in board.entries}
        assert min(scores, key=scores.__getitem__) == "oracle"


def test_every_file_under_results_belongs_to_a_row() -> None:
    files = {path for path in RESULTS.rglob("*") if path.is_file()}
    assert files == {file for row in ROWS for file in (row, row.with_suffix(".npz"))}
