"""The edition of the rows that a command shows: one rule for all commands."""

from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from powerphase import cli
from powerphase.errors import ResultError
from powerphase.records import find_results, write_result
from powerphase.report import compare, edition_of, overview, rows_on, safety
from tests.records.rows import row


@pytest.mark.parametrize(
    ("editions", "expected"),
    [
        (["synthetic"], "synthetic"),
        (["opsd-r"], "opsd-r"),
        (["opsd", "opsd-r", "synthetic"], "opsd-r"),
    ],
)
def test_the_default_is_the_only_edition_or_opsd_r(editions: list[str], expected: str) -> None:
    rows = [row(edition=edition, seed=seed) for edition in editions for seed in (1, 2)]
    assert edition_of(rows, None, "on ieee14") == expected
    assert [edition_of(rows, edition, "on ieee14") for edition in editions] == editions


def test_an_error_names_the_available_editions() -> None:
    rows = [row(edition="synthetic"), row(edition="mine")]
    with pytest.raises(ResultError, match=r"--edition.*mine, synthetic"):
        edition_of(rows, None, "on ieee14")
    for unknown in ("opsd-r", "synthetik", ""):
        with pytest.raises(ResultError, match=f"'{unknown}'.*mine, synthetic"):
            edition_of(rows, unknown, "on ieee14")
    with pytest.raises(ResultError, match="on ieee14"):
        edition_of([], None, "on ieee14")


def test_every_table_and_figure_considers_only_rows_that_it_can_show(tmp_path: Path) -> None:
    for edition, grid, model in (
        ("synthetic", "activsg500", "powerforge"),
        ("opsd-r", "pegase1354", "ets"),
        ("mine", "pegase1354", "ets"),
        ("mine", "ieee14", "ets"),
    ):
        write_result(row(edition=edition, grid=grid, model=model), {}, tmp_path)
    rows = find_results([tmp_path])
    assert compare(rows.values(), "powerforge").edition == "synthetic"
    assert compare(rows.values(), "ets").edition == "opsd-r"
    assert compare(rows.values(), "ets", "mine").edition == "mine"
    assert "opsd-r" in overview(rows.values()).title
    (grid_tables,) = safety(rows)
    assert (grid_tables.board.grid, grid_tables.board.edition) == ("pegase1354", "opsd-r")
    chosen = {"activsg500": "synthetic", "pegase1354": "opsd-r", "ieee14": "mine"}
    for grid, edition in chosen.items():
        assert [shown.row.edition for shown in rows_on([tmp_path], grid)] == [edition]
    days = row(edition="opsd-r", grid="pegase1354", model="ets", task="powerphase-day-ahead-all")
    write_result(days, {}, tmp_path)
    (shown,) = rows_on([tmp_path], "pegase1354")
    assert shown.row.task == "powerphase-day-ahead"
    (shown,) = rows_on([tmp_path / days.task], "pegase1354")
    assert shown.row.task == days.task
    write_result(replace(days, edition="yours"), {}, tmp_path)
    (shown,) = rows_on([tmp_path], "pegase1354", "yours")
    assert shown.row.edition == "yours"


@pytest.mark.parametrize(
    "command",
    [
        ["compare", "powerforge", "{tree}"],
        ["compare", "all", "{tree}"],
        ["safety", "{tree}"],
        [
            "figure",
            "safety-fidelity",
            "--grid",
            "activsg500",
            "--results",
            "{tree}",
            "--out",
            "{out}",
            "--format",
            "svg",
        ],
    ],
    ids=" ".join,
)
def test_the_commands_name_the_edition_or_the_choices(command: list[str], tmp_path: Path) -> None:
    arguments = [word.format(tree=tmp_path / "rows", out=tmp_path / "figures") for word in command]
    for edition, expected, options in (
        ("synthetic", "edition synthetic", []),
        ("mine", "mine, synthetic", []),
        ("mine", "edition mine", ["--edition", "mine"]),
        ("mine", "mine, synthetic", ["--edition", "opsd"]),
        ("opsd-r", "edition opsd-r", []),
    ):
        write_result(row(edition=edition), {}, tmp_path / "rows")
        done = CliRunner().invoke(cli.app, [*arguments, *options], env={"COLUMNS": "400"})
        text = done.output if done.exception is None else str(done.exception)
        assert expected in text, text
