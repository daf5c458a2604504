"""Which edition of rows is looked at: one rule for all commands that look at one."""

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
    ("there", "chosen"),
    [
        (["synthetic"], "synthetic"),
        (["opsd-r"], "opsd-r"),
        (["opsd", "opsd-r", "synthetic"], "opsd-r"),
    ],
)
def test_unless_asked_for_it_is_the_only_one_or_our_own(there: list[str], chosen: str) -> None:
    rows = [row(edition=edition, seed=seed) for edition in there for seed in (1, 2)]
    assert edition_of(rows, None, "here") == chosen
    assert [edition_of(rows, edition, "here") for edition in there] == there


def test_what_is_there_is_named_where_there_is_nothing_to_choose() -> None:
    rows = [row(edition="synthetic"), row(edition="mine")]
    with pytest.raises(ResultError, match="--edition: mine, synthetic"):
        edition_of(rows, None, "here")
    for asked in ("opsd-r", "synthetik", ""):
        with pytest.raises(ResultError, match=f"'{asked}'.*mine, synthetic"):
            edition_of(rows, asked, "here")
    with pytest.raises(ResultError, match="here"):
        edition_of([], None, "here")


def test_every_command_goes_by_the_rows_that_it_could_show(tmp_path: Path) -> None:
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
    assert overview(rows.values()).title.endswith("edition opsd-r")
    assert [found.board.title for found in safety(rows)] == ["pegase1354, edition opsd-r"]
    chosen = {"activsg500": "synthetic", "pegase1354": "opsd-r", "ieee14": "mine"}
    for grid, edition in chosen.items():
        assert [one.row.edition for one in rows_on([tmp_path], grid)] == [edition]
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
        ],
    ],
    ids=" ".join,
)
def test_the_commands_name_the_edition_or_the_choices(command: list[str], tmp_path: Path) -> None:
    given = [word.format(tree=tmp_path / "rows", out=tmp_path / "figures") for word in command]
    for edition, told, asked in (
        ("synthetic", "edition synthetic", []),
        ("mine", "--edition: mine, synthetic", []),
        ("mine", "edition mine", ["--edition", "mine"]),
        ("mine", "mine, synthetic", ["--edition", "opsd"]),
        ("opsd-r", "edition opsd-r", []),
    ):
        write_result(row(edition=edition), {}, tmp_path / "rows")
        done = CliRunner().invoke(cli.app, [*given, *asked], env={"COLUMNS": "400"})
        said = done.output if done.exception is None else str(done.exception)
        assert told in said, said
