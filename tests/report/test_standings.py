"""The tables of paired tests and skill."""

import csv
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from powerphase import cli
from powerphase.errors import UnknownName
from powerphase.records import Result, write_result
from powerphase.report import (
    TESTED,
    Board,
    against,
    leaderboard,
    pairs,
    pairs_as_csv,
    pairs_sheet,
    standings,
    standings_as_csv,
    standings_sheets,
)
from tests.report.planted import days, planted

NOISE = np.random.default_rng(5).normal(size=10)


def field() -> list[Result]:
    """A best model, one indistinguishable from it, one with two seeds, and references."""
    crps = {"ets": 0.2 + 0.001 * NOISE, "timemcl": 0.2002 + 0.001 * NOISE[::-1]}
    rows = [planted(model, crps=values.tolist()) for model, values in crps.items()]
    rows += [planted("deepar", crps=0.30 + k / 50, seed=k) for k in (1, 2)]
    rows += [planted("last-7-days", crps=0.4, seed=0), planted("oracle", crps=0.1)]
    rows += [planted("ets", variant="stale", crps=0.15)]
    return rows


def shown(*arguments: Any) -> str:
    return "\n".join(sheet.as_markdown() for sheet in standings_sheets([board()], *arguments))


def board() -> Board:
    return leaderboard(field())[0]


def test_ranked_entries_are_in_order_and_the_oracle_has_no_rank() -> None:
    ordered = standings(board(), "crps")
    assert [s.entry.name for s in ordered] == ["ets", "timemcl", "deepar", "last-7-days", "oracle"]
    assert [s.place for s in ordered] == [1, 2, 3, 4, None]
    assert [s.contrast is None for s in ordered] == [True, False, False, False, True]
    assert [s.contrast.verdict for s in ordered[1:4] if s.contrast] == ["noise", "worse", "worse"]
    assert ordered[-1].skill.value == pytest.approx(0.75)
    assert ordered[-1].reach.value == 1


def test_a_chosen_entry_is_listed_though_it_is_not_ranked() -> None:
    by_name = {s.entry.name: s for s in standings(board(), "crps", "ets+stale")}
    assert set(list(by_name)[-2:]) == {"ets+stale", "oracle"}
    assert by_name["ets+stale"].contrast is None
    assert by_name["ets+stale"].place is None
    assert {s.contrast.other for s in by_name.values() if s.contrast} == {"ets+stale"}


def lines_of(markdown: str) -> dict[tuple[str, str], list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(line[1], line[2].split()[0]): line[1:] for line in cells[2:]}


def test_a_table_shows_differences_skill_and_verdicts() -> None:
    text = shown()
    lines = lines_of(text)
    # Skill is 1 − 0.33 / 0.4, the reach 0.07 / 0.3, the deviation of seeds 0.02 / √2.
    base = 0.2 + 0.001 * NOISE.mean()
    contrast = (f"{0.33 / base - 1:+.1%}", "0.006", f"{(0.33 - base) / 0.02 * 2**0.5:.1f}", "worse")
    assert lines["CRPS", "deepar"][4:] == ["0.3300 ± 0.0141", "3", "17.5%", "23.3%", *contrast]
    assert lines["CRPS", "timemcl"][-1] == "noise"
    assert lines["CRPS", "ets"][4].startswith("**")
    assert lines["Distortion", "deepar"][6:8] == ["–", "–"]
    assert "0.002" in text
    assert "0.0059" in text  # the least p, before and after the correction
    # A reason is given once, with all the scores that it applies to.
    (table,) = standings_sheets([board()])
    reasons = [note for note in table.below if "last-7-days" in note and "Brier" in note]
    assert len(reasons) == 1


def test_a_p_that_rounds_to_0_is_shown_as_a_bound() -> None:
    """Of twelve windows that all agree it is 2 / 2¹², of ten 2 / 2¹⁰."""
    for count, p in ((12, "< 0.001"), (10, "0.002")):
        crps = {"a": 0.1, "b": 0.2}
        rows = [planted(model, crps=values, windows=days(count)) for model, values in crps.items()]
        (sheet,) = standings_sheets(leaderboard(rows), ["crps"])
        assert lines_of(sheet.as_markdown())["CRPS", "b"][8] == p


def test_the_best_is_bold_whatever_the_others_are_compared_with() -> None:
    text = shown(["crps"], "last-7-days")
    assert lines_of(text)["CRPS", "ets"][3].startswith("**")
    assert lines_of(text)["CRPS", "ets"][-1] == "better"


def test_grids_of_an_edition_share_a_table() -> None:
    rows = [
        planted(model, crps=0.1, grid=grid) for model in ("ets", "deepar") for grid in ("a", "b")
    ]
    rows += [planted("ets", edition="opsd")]
    sheets = standings_sheets(leaderboard(rows), ["crps"])
    assert ["synthetic" in sheet.title for sheet in sheets] == [False, True]
    assert [[line[0][0] for line in group] for group in sheets[1].groups] == [["a"] * 2, ["b"] * 2]


def test_the_matrix_of_pairs_is_antisymmetric() -> None:
    table = pairs_sheet(board(), "crps")
    signs = [[cell for cell, _ in line[1:]] for line in table.groups[0]]
    mirrored = {"<": ">", ">": "<", "≈": "≈", "–": "–"}
    assert [[mirrored[sign] for sign in column] for column in zip(*signs, strict=True)] == signs
    assert [line[0][0] for line in table.groups[0]] == [
        "1 ets",
        "2 timemcl",
        "3 deepar",
        "4 last-7-days",
    ]
    assert signs[0] == ["–", "≈", "<", "<"]
    assert " 3 " in table.below[0]  # comparisons of one model with the others


def test_the_csv_file_contains_every_number() -> None:
    scored = board()
    lines = list(csv.DictReader(StringIO(standings_as_csv([scored]))))
    assert len(lines) == len(TESTED) * 5
    contrasts = {c.name: c for c in against(scored.entries, scored.windows, "crps")}
    for line in lines[:5]:
        contrast = contrasts.get(line["model"])
        assert line["verdict"] == (contrast.verdict if contrast else "")
        if contrast:
            assert float(line["p_adjusted"]) == contrast.adjusted
            assert float(line["difference"]) == contrast.difference
    reasons = {line["why_no_skill"] for line in lines if line["score"] == "brier"}
    assert len(reasons) == 1
    assert "last-7-days" in reasons.pop()
    every = list(csv.DictReader(StringIO(pairs_as_csv([scored], ["crps"]))))
    expected = [(c.name, c.other, c.p) for c in pairs(scored.entries, scored.windows, "crps")]
    assert [(line["model"], line["other"], float(line["p"])) for line in every] == expected


def test_windows_in_few_weeks_limit_p() -> None:
    daily = tuple(f"2016-07-{day:02d}" for day in range(4, 14))
    (table,) = standings_sheets([replace(board(), windows=daily)])
    assert "0.5" in " ".join(table.below)


@pytest.mark.parametrize(
    ("days_apart", "n_windows", "words"),
    [
        (21, 10, ["exact", "windows"]),
        (21, 20, ["exact", "windows"]),
        (1, 140, ["exact", "weeks"]),
        (7, 21, ["99,999 random", "windows"]),
        (1, 141, ["99,999 random", "weeks"]),
    ],
)
def test_a_test_is_exact_up_to_twenty_independent_windows(
    days_apart: int, n_windows: int, words: list[str]
) -> None:
    days = np.datetime64("2016-07-04") + days_apart * np.arange(n_windows)
    crps = np.linspace(0.1, 0.2, n_windows)
    entries = [
        replace(entry, by_window={"crps": tuple(crps + (entry.mean["crps"] or 0.0))})
        for entry in board().entries
    ]
    long = replace(board(), windows=tuple(map(str, days)), entries=tuple(entries))
    (table,) = standings_sheets([long], ["crps"])
    assert [word for word in words if word not in " ".join(table.below)] == []


def test_words_are_not_broken_in_eighty_columns() -> None:
    (table,) = standings_sheets([board()])
    text = StringIO()
    Console(file=text, width=80).print(table.as_table(80))
    words = set(text.getvalue().split())
    assert {"activsg500,", "Safety_mBrier", "(reference)", "difference"} <= words


def test_a_table_may_lack_the_chosen_model() -> None:
    text = shown(["crps"], "timegrad")
    assert "timegrad" in text


def test_every_line_has_every_cell_in_any_width() -> None:
    for table in (*standings_sheets([board()]), pairs_sheet(board(), "crps")):
        assert {len(line) for group in table.groups for line in group} == {len(table.header)}
        for width in (80, 160):
            text = StringIO()
            Console(file=text, width=width).print(table.as_table(width))
            words = text.getvalue().split()
            assert {"timemcl", "deepar"} <= set(words)


def run(tmp_path: Path, *options: str) -> Any:
    for result in field():
        write_result(result, {}, tmp_path)
    return CliRunner().invoke(cli.app, ["leaderboard", str(tmp_path), *options])


def test_the_command_shows_the_tables(tmp_path: Path) -> None:
    markdown = ("--statistics", "--format", "markdown")
    assert run(tmp_path, *markdown).stdout == shown()
    single = run(tmp_path, *markdown, "--score", "crps", "--against", "deepar").stdout
    assert single == shown(["crps"], "deepar")
    several = run(tmp_path, *markdown, "--score", "CRPS", "--score", "Energy score").stdout
    assert several == shown(["crps", "energy"])  # by the titles that the tables show
    matrix = run(tmp_path, *markdown, "--pairs", "--score", "crps").stdout
    assert matrix == pairs_sheet(board(), "crps").as_markdown()
    assert run(tmp_path, "--statistics", "--format", "csv").stdout == standings_as_csv([board()])
    assert "timemcl" in run(tmp_path, "--statistics").stdout


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("--statistics", "--score", "necv"), "'necv'"),
        (("--statistics", "--against", "etc"), "ets"),
        (("--statistics", "--format", "html"), "'html'"),
    ],
)
def test_unknown_values_of_options_raise(
    tmp_path: Path, options: tuple[str, ...], fact: str
) -> None:
    error = run(tmp_path, *options).exception
    assert isinstance(error, UnknownName)
    assert fact in str(error)


def test_options_of_the_statistics_need_statistics(tmp_path: Path) -> None:
    assert run(tmp_path, "--pairs").exit_code == 2
