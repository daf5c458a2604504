"""Failures: read as written, never read as rows, and noted by a leaderboard."""

from dataclasses import replace
from pathlib import Path

import pytest

from powerphase import leaderboard
from powerphase.errors import ResultError
from powerphase.records import read_failures, read_results, write_failure, write_result
from tests.records.rows import FAILURE, row


def test_a_failure_is_in_the_folder_of_its_row_and_read_as_written(tmp_path: Path) -> None:
    path = write_failure(FAILURE, tmp_path)
    folder = tmp_path / "powerphase-day-ahead/synthetic/activsg500"
    assert path == folder / "deepar+short-22.failed.json"
    assert read_failures([tmp_path, tmp_path]) == [FAILURE]
    write_failure(replace(FAILURE, kind="exit"), tmp_path)
    assert [failure.kind for failure in read_failures([tmp_path])] == ["exit"]


def test_a_failure_is_not_read_as_a_row(tmp_path: Path) -> None:
    write_failure(FAILURE, tmp_path)
    assert read_results([tmp_path]) == []
    write_result(row(), {}, tmp_path)
    assert read_results([tmp_path]) == [row()]


def test_a_failure_does_not_count_once_its_row_exists(tmp_path: Path) -> None:
    """Also if the row was written by `powerphase score`, which does not remove failures."""
    write_failure(FAILURE, tmp_path)
    write_result(row(model="deepar", variant="short", seed=42), {}, tmp_path)
    assert read_failures([tmp_path]) == [FAILURE]
    write_result(row(model="deepar", variant="short", seed=22), {}, tmp_path)
    assert read_failures([tmp_path]) == []


@pytest.mark.parametrize("text", ["{", "[]", '{"grid": "activsg500"}'])
def test_the_error_names_a_damaged_failure(tmp_path: Path, text: str) -> None:
    write_failure(FAILURE, tmp_path).write_text(text)
    with pytest.raises(ResultError, match=r"deepar\+short-22.failed.json"):
        read_failures([tmp_path])


def test_a_leaderboard_notes_the_failures_of_its_grid() -> None:
    on_another_grid = replace(FAILURE, grid="pegase1354", name="ets")
    (board,) = leaderboard([row()], failures=[FAILURE, on_another_grid])
    assert board.failures == (FAILURE,)
    (note,) = [note for note in board.notes if "deepar+short-22" in note]
    assert FAILURE.sentence in note
    assert not any("deepar" in note for note in leaderboard([row()])[0].notes)
