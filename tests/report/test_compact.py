"""One score of all on all grids: nothing is left out that competes, and nothing added."""

from typing import Any

import pytest
from typer.testing import CliRunner

from powerphase import cli
from powerphase.errors import UnknownName
from powerphase.records import Result
from powerphase.report import MISSING, compact_sheets, leaderboard
from tests.records.rows import row


def scored(crps: float, **changes: Any) -> Result:
    """A row on the real signals with this CRPS in every type and window."""
    like = row(**{"edition": "opsd-r"} | changes)
    like.scores["crps"] = crps
    like.by_window["crps"] = [crps] * len(like.windows)
    for kind in like.by_type.values():
        kind["crps"] = crps
    return like


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


def test_lines_are_in_the_order_of_the_first_grid_then_of_the_next_and_the_oracle_is_last() -> None:
    assert [line[0][0] for line in lines()] == [
        *("ets", "powerforge", "deepar+short", "climatology (reference)", "oracle (reference)")
    ]


def test_cells_are_the_means_and_the_best_that_competes_stands_out() -> None:
    cells = {line[0][0]: line[1:] for line in lines()}
    assert cells["ets"] == [("0.2500", True), (MISSING, False)]
    assert cells["powerforge"] == [("0.5000", False), ("0.3750", True)]
    assert cells["oracle (reference)"] == [("0.1250", False), (MISSING, False)]


def test_words_of_less_training_are_explained_where_they_stand() -> None:
    def below(*variants: str | None) -> tuple[str, ...]:
        rows = [
            scored(0.5, grid=grid, model="timegrad", variant=variant)
            for grid, variant in zip(("activsg500", "pegase1354"), variants, strict=True)
        ]
        return compact_sheets(leaderboard(rows, paper=False))[0].below

    assert below(None, None) == ()
    assert below("short", None) == ("+short is a smaller budget than the reference's.",)
    (both,) = below("short", "subsampled-short")
    assert both.startswith("+short is a smaller budget than the reference's; +subsampled is a loss")


def test_the_paper_s_rows_are_apart_and_as_printed() -> None:
    cells = {line[0][0]: [text for text, _ in line[1:]] for line in lines(paper=True)}
    assert cells["powerforge (paper)"] == ["0.0030", "0.0040"]


def test_editions_and_tasks_have_tables_of_their_own_and_scores_must_be_known() -> None:
    one = {"grid": "activsg500", "model": "ets", "variant": None}
    others = [scored(0.5, **one, edition="synthetic"), scored(0.5, **one, task="my-task")]
    found = compact_sheets(leaderboard([*ROWS, *others], paper=False))
    assert {sheet.title for sheet in found} == {
        f"CRPS, edition {name}" for name in ("opsd-r", "synthetic", "opsd-r, my-task")
    }
    assert sorted(len(sheet.header) for sheet in found) == [2, 2, 3]
    with pytest.raises(UnknownName, match="crps"):
        compact_sheets(leaderboard(ROWS), "crsp")


def test_the_command_shows_it() -> None:
    done = CliRunner().invoke(cli.app, ["table", "results", "--score", "twcrps"])
    assert done.exit_code == 0, done.output
    assert "twCRPS, edition opsd-r" in done.output
