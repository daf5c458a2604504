"""The compact table: one score of all ranked forecasters on all grids."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from powerphase import cli
from powerphase.errors import UnknownName
from powerphase.records import Result, write_result
from powerphase.report import MISSING, compact_sheets, leaderboard
from tests.records.rows import row


def scored(crps: float, **changes: Any) -> Result:
    """A row of edition opsd-r with this CRPS in every variable and window."""
    result = row(**{"edition": "opsd-r"} | changes)
    result.scores["crps"] = crps
    result.by_window["crps"] = [crps] * len(result.windows)
    for scores in result.by_type.values():
        scores["crps"] = crps
    return result


ROWS = (
    scored(0.5, grid="activsg500", model="powerforge", variant=None),
    scored(0.25, grid="activsg500", model="ets", variant=None),
    scored(0.125, grid="activsg500", model="oracle", variant=None),
    scored(0.75, grid="activsg500", model="deepar", variant="short"),
    scored(0.0625, grid="activsg500", model="powerforge", variant="no-anchor"),
    scored(0.5, grid="pegase1354", model="climatology", variant=None),
    scored(0.375, grid="pegase1354", model="powerforge", variant=None),
)


def lines(paper: bool = False) -> list[list[tuple[str, bool]]]:
    (sheet,) = compact_sheets(leaderboard(ROWS, paper))
    assert sheet.header == ("model", "activsg500", "pegase1354")
    return [list(line) for group in sheet.groups for line in group]


def test_lines_follow_the_order_of_the_first_grid_and_the_oracle_is_last() -> None:
    assert [line[0][0] for line in lines()] == [
        *("ets", "powerforge", "deepar+short", "climatology (reference)", "oracle (reference)")
    ]


def test_cells_are_means_and_the_best_ranked_one_is_bold() -> None:
    cells = {line[0][0]: line[1:] for line in lines()}
    assert cells["ets"] == [("0.2500", True), (MISSING, False)]
    assert cells["powerforge"] == [("0.5000", False), ("0.3750", True)]
    assert cells["oracle (reference)"] == [("0.1250", False), (MISSING, False)]


def test_a_row_without_the_score_has_a_plain_dash() -> None:
    rows = [row(grid="ieee14", model=model, weighted=True) for model in ("ets", "deepar")]
    (sheet,) = compact_sheets(leaderboard(rows), "fair_crps")
    assert [line[1] for group in sheet.groups for line in group] == [(MISSING, False)] * 2


def test_rows_of_the_paper_without_the_score_have_plain_dashes() -> None:
    """On PEGASE 9241 the paper prints four scores, without MSE."""
    (sheet,) = compact_sheets(leaderboard([row(grid="pegase9241", model="ets")]), "mse")
    ours, paper = sheet.groups
    assert [bold for _, bold in ours[0]] == [False, True]
    assert paper
    assert {line[1] for line in paper} == {(MISSING, False)}


def test_names_of_smaller_budgets_are_explained_below_the_table() -> None:
    def below(*variants: str | None) -> tuple[str, ...]:
        rows = [
            scored(0.5, grid=grid, model="timegrad", variant=variant)
            for grid, variant in zip(("activsg500", "pegase1354"), variants, strict=True)
        ]
        return compact_sheets(leaderboard(rows, paper=False))[0].below

    assert below(None, None) == ()
    (short,) = below("short", None)
    assert "+short" in short
    assert "+subsampled" not in short
    (both,) = below("short", "subsampled-short")
    assert both.index("+short") < both.index("+subsampled")


def test_rows_of_the_paper_are_shown_as_printed() -> None:
    cells = {line[0][0]: [text for text, _ in line[1:]] for line in lines(paper=True)}
    assert cells["powerforge (paper)"] == ["0.0030", "0.0040"]


def test_each_edition_and_task_has_a_table() -> None:
    fields: dict[str, Any] = {"grid": "activsg500", "model": "ets", "variant": None}
    others = [scored(0.5, **fields, edition="synthetic"), scored(0.5, **fields, task="my-task")]
    sheets = compact_sheets(leaderboard([*ROWS, *others], paper=False))
    by_title = {sheet.title: len(sheet.header) for sheet in sheets}
    assert len(by_title) == 3
    (n_columns,) = (count for title, count in by_title.items() if "synthetic" in title)
    assert n_columns == 2
    (n_columns,) = (count for title, count in by_title.items() if "my-task" in title)
    assert n_columns == 2


def test_an_unknown_score_raises() -> None:
    with pytest.raises(UnknownName, match="crps"):
        compact_sheets(leaderboard(ROWS), "crsp")


def test_the_command_shows_the_table(tmp_path: Path) -> None:
    for result in ROWS:
        write_result(result, {}, tmp_path)
    arguments = ["table", str(tmp_path), "--score", "twcrps", "--format", "markdown"]
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    (sheet,) = compact_sheets(leaderboard(ROWS), "twcrps")
    assert done.stdout == sheet.as_markdown()
