"""Tables of one group of scores: lines, the grid as a whole, safety, fidelity."""

import csv
import json
from collections import Counter
from collections.abc import Sequence
from io import StringIO
from itertools import product
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from powerphase import cli
from powerphase.errors import UnknownName
from powerphase.grid import PAPER_GRIDS
from powerphase.records import GROUPS, SCORES, Result, write_result
from powerphase.report import (
    COUPLING,
    MISSING,
    Board,
    Sheet,
    board_sheet,
    compact_sheets,
    leaderboard,
    pairs_sheet,
    standings_sheets,
)
from tests.records.rows import first_schema
from tests.report.planted import days, planted

WORDS = {"transformer-", "tempflow", "last-7-days", "(reference)", "marginal", "joint"}
"""What names may be broken into, and the words about scenarios."""

COUPLED = [*GROUPS["lines"], *GROUPS["joint"]]


def field(grid: str = "activsg500") -> list[Result]:
    """Joint draws and a marginal fan, of which the lines are in the order of their numbers."""
    lines = {"transformer-tempflow": 4e-3, "ets": 1e-3, "last-7-days": 2e-5, "oracle": 1e-5}
    values = {model: dict.fromkeys(COUPLED, value) for model, value in lines.items()}
    return [
        planted(model, joint=model != "ets", grid=grid, scores=values[model]) for model in lines
    ]


def board(rows: Sequence[Result] | None = None, sort: str = "crps") -> Board:
    (only,) = leaderboard(field() if rows is None else rows, sort=sort)
    return only


def words(sheet: Sheet, width: int = 80) -> Counter[str]:
    """The words of a table in a terminal, which may be broken if it is narrow."""
    text = StringIO()
    Console(file=text, width=width, markup=False).print(sheet.as_table(width))
    assert max(map(len, text.getvalue().splitlines())) <= width
    return Counter(text.getvalue().split())


def test_every_score_is_in_one_group() -> None:
    assert sorted(name for names in GROUPS.values() for name in names) == sorted(SCORES)


@pytest.mark.parametrize("group", GROUPS)
def test_a_table_of_a_group_has_its_scores_alone(group: str) -> None:
    sheet = board_sheet(board(), group)
    titles = tuple(SCORES[name].title for name in GROUPS[group])
    coupled = any(not SCORES[name].pointwise for name in GROUPS[group])
    assert sheet.header == ("model", "seeds", *(COUPLING,) * coupled, *titles)
    paper = [line for lines in sheet.groups for line in lines if "(paper)" in line[0][0]]
    assert bool(paper) == any(SCORES[name].in_paper for name in GROUPS[group])
    assert any("(paper)" in note for note in sheet.below) == bool(paper)


def test_an_unknown_group_raises() -> None:
    with pytest.raises(UnknownName):
        board_sheet(board(), "line")


def test_rows_of_the_first_schema_have_dashes_and_come_last() -> None:
    old = first_schema(model="timemcl", windows=days(10))
    old["by_window"] = {name: [old["scores"][name]] * 10 for name in old["by_window"]}
    old["truth"] = field()[0].truth | {}
    del old["truth"]["overloads"]
    rows = [*field(), Result.from_json(json.dumps(old), "row.json")]
    sheet = board_sheet(board(rows, sort="loading_crps"), "lines")
    cells = {line[0][0]: [text for text, _ in line] for lines in sheet.groups for line in lines}
    assert list(cells)[:4] == [
        "last-7-days (reference)",
        "ets",
        "transformer-tempflow",
        "timemcl †",
    ]
    assert cells["timemcl †"][2:] == [MISSING] * 4
    assert not any(bold for line in sheet.groups[0][3:] for _, bold in line)


@pytest.mark.parametrize("score", COUPLED)
def test_marginal_rows_are_marked_wherever_whole_scenarios_are_compared(score: str) -> None:
    scored = board()
    tables = [*compact_sheets([scored], score), board_sheet(scored, "lines")]
    if not SCORES[score].diagnostic:
        tables += [*standings_sheets([scored], [score]), pairs_sheet(scored, score)]
    for table in tables:
        k = table.header.index(COUPLING)
        marked = [line for lines in table.groups for line in lines if line[k][0] == "marginal"]
        assert all("ets" in " ".join(text for text, _ in line) for line in marked)
        assert len(marked) == 1
        assert any(getattr(note, "columns", ()) == (COUPLING,) for note in table.below)


def test_the_note_on_scenarios_names_the_scores_that_are_shown() -> None:
    whole = {name for name, score in SCORES.items() if not score.pointwise}
    for group, names in GROUPS.items():
        notes = board_sheet(board(), group).below
        assert {name for name in whole for note in notes if SCORES[name].title in note} == (
            whole & {*names}
        )


@pytest.mark.parametrize("group", ["lines", "joint"])
def test_tables_of_lines_are_readable_in_eighty_columns(group: str) -> None:
    scored = board()
    for table in (board_sheet(scored, group), *standings_sheets([scored], GROUPS[group][:1])):
        assert words(table).keys() >= WORDS


def test_six_grids_are_readable_in_eighty_columns() -> None:
    rows = [row for grid in PAPER_GRIDS for row in field(grid)]
    for score, paper in product(("overload_brier", "variogram_v", "crps"), (True, False)):
        (table,) = compact_sheets(leaderboard(rows, paper), score)
        coupled = not SCORES[score].pointwise
        shown = words(table)
        assert shown.keys() >= (WORDS if coupled else WORDS - {"joint", "marginal"})
        assert shown["1.000"] == 6 * coupled  # 10⁻³ in thousandths
        assert bool({"10³", "10³,"} & shown.keys()) == coupled


def test_the_command_shows_a_group_in_the_order_of_its_first_score(tmp_path: Path) -> None:
    for result in field():
        write_result(result, {}, tmp_path)

    def output(*options: str) -> str:
        done = CliRunner().invoke(cli.app, ["leaderboard", str(tmp_path), *options])
        assert done.exit_code == 0, done.output
        return done.stdout

    expected = board_sheet(board(sort="loading_crps"), "lines").as_markdown()
    assert output("--group", "lines", "--format", "markdown") == expected
    tested = output("--group", "joint", "--statistics", "--format", "csv")
    scores = {line["score"] for line in csv.DictReader(StringIO(tested))}
    assert scores == {name for name in GROUPS["joint"] if not SCORES[name].diagnostic}
    for options in (["--group", "line"], ["--group", "lines", "--recompute"]):
        done = CliRunner().invoke(cli.app, ["leaderboard", str(tmp_path), *options])
        assert done.exit_code != 0
