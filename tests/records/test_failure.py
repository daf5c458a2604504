"""Records of failures: read as written, never taken for rows, and noted by a leaderboard."""

from dataclasses import replace
from pathlib import Path

import pytest

from powerphase.errors import ResultError
from powerphase.records.failure import Failure, read_failures, write_failure
from powerphase.records.result import read_results, write_result
from powerphase.report.leaderboard import leaderboard
from tests.records.rows import row

FAILURE = Failure(
    task="powerphase-day-ahead",
    edition="synthetic",
    grid="activsg500",
    model="deepar+short",
    name="deepar+short",
    seed=22,
    kind="limit",
    sentence="took longer than the 60 s of --limit and was stopped",
    last_lines=["step 7", "step 8 – θ"],
    seconds=60.5,
    date="2026-07-01",
    commit=None,
    hardware="a test",
)


def test_a_failure_lies_where_its_row_would_and_is_read_as_written(tmp_path: Path) -> None:
    path = write_failure(FAILURE, tmp_path)
    here = "powerphase-day-ahead/synthetic/activsg500/deepar+short-22.failed.json"
    assert path == tmp_path / here
    assert read_failures([tmp_path, tmp_path]) == [FAILURE]
    write_failure(replace(FAILURE, kind="exit"), tmp_path)
    assert [failure.kind for failure in read_failures([tmp_path])] == ["exit"]


def test_a_failure_is_no_row(tmp_path: Path) -> None:
    write_failure(FAILURE, tmp_path)
    assert read_results([tmp_path]) == []
    write_result(row(), {}, tmp_path)
    assert read_results([tmp_path]) == [row()]


def test_a_failure_is_over_when_a_row_came_from_elsewhere(tmp_path: Path) -> None:
    """As from `powerphase score`, which knows nothing of benches."""
    write_failure(FAILURE, tmp_path)
    write_result(row(model="deepar", variant="short", seed=42), {}, tmp_path)
    assert read_failures([tmp_path]) == [FAILURE]
    write_result(row(model="deepar", variant="short", seed=22), {}, tmp_path)
    assert read_failures([tmp_path]) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"grid": "activsg500"}'])
def test_a_broken_record_is_named(tmp_path: Path, text: str) -> None:
    write_failure(FAILURE, tmp_path).write_text(text)
    with pytest.raises(ResultError, match=r"deepar\+short-22.failed.json: no record of a failure"):
        read_failures([tmp_path])


def test_a_leaderboard_notes_the_failures_of_its_own_grid() -> None:
    elsewhere = replace(FAILURE, grid="pegase1354", name="ets")
    (board,) = leaderboard([row()], failures=[FAILURE, elsewhere])
    assert board.failures == (FAILURE,)
    (note,) = [note for note in board.notes if "deepar" in note]
    assert note == f"Without a row: deepar+short-22 ({FAILURE.sentence})."
    assert not any("Without a row" in note for note in leaderboard([row()])[0].notes)
