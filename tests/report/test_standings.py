"""The statistics of a board as tables: all that was found, and what is missing with its reason."""

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
    """Two models with two seeds, one that cannot be told from the best, and references."""
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


def test_competitors_stand_in_order_and_the_oracle_without_a_place() -> None:
    found = standings(board(), "crps")
    assert [s.entry.name for s in found] == ["ets", "timemcl", "deepar", "last-7-days", "oracle"]
    assert [s.place for s in found] == [1, 2, 3, 4, None]
    assert [s.contrast is None for s in found] == [True, False, False, False, True]
    assert [s.contrast.verdict for s in found[1:4] if s.contrast] == ["noise", "worse", "worse"]
    assert found[-1].skill.value == pytest.approx(0.75)
    assert found[-1].reach.value == 1


def test_whoever_all_are_laid_beside_is_there_though_it_does_not_compete() -> None:
    found = {s.entry.name: s for s in standings(board(), "crps", "ets+stale")}
    assert list(found)[-2:] == ["ets+stale", "oracle"] or list(found)[-2:] == [
        "oracle",
        "ets+stale",
    ]
    assert found["ets+stale"].contrast is None
    assert found["ets+stale"].place is None
    assert {s.contrast.other for s in found.values() if s.contrast} == {"ets+stale"}


def lines_of(markdown: str) -> dict[tuple[str, str], list[str]]:
    lines = [line for line in markdown.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(line[1], line[2].split()[0]): line[1:] for line in cells[2:]}


def test_a_table_shows_differences_skill_and_verdicts() -> None:
    text = shown()
    lines = lines_of(text)
    # Skill is 1 − 0.33 / 0.4, the way to the oracle 0.07 / 0.3; 0.02 / √2 is the deviation.
    base = 0.2 + 0.001 * NOISE.mean()
    beside = (f"{0.33 / base - 1:+.1%}", "0.006", f"{(0.33 - base) / 0.02 * 2**0.5:.1f}", "worse")
    assert lines["CRPS", "deepar"][3:] == ["0.3300 ± 0.0141", "3", "17.5%", "23.3%", *beside]
    assert lines["CRPS", "timemcl"][-1] == "noise"
    assert lines["CRPS", "ets"][3].startswith("**")
    assert lines["Distortion", "deepar"][5:7] == ["–", "–"]
    assert "no p below 0.002, or 0.0059 after" in text
    # A reason is given once, with all the scores that it applies to.
    assert text.count("last-7-days scores 0") == 1


def test_a_p_that_rounds_to_0_is_shown_as_a_bound() -> None:
    """Of twelve windows that all agree it is 2 / 2¹², of ten 2 / 2¹⁰."""
    for count, p in ((12, "< 0.001"), (10, "0.002")):
        crps = {"a": 0.1, "b": 0.2}
        rows = [planted(model, crps=own, windows=days(count)) for model, own in crps.items()]
        (sheet,) = standings_sheets(leaderboard(rows), ["crps"])
        assert lines_of(sheet.as_markdown())["CRPS", "b"][8] == p


def test_beside_another_the_note_and_the_best_stay_true() -> None:
    text = shown(["crps"], "last-7-days")
    assert lines_of(text)["CRPS", "ets"][3].startswith("**")
    assert lines_of(text)["CRPS", "ets"][-1] == "better"
    assert "not proper" not in text


def test_grids_of_an_edition_share_a_table_and_editions_do_not() -> None:
    rows = [
        planted(model, crps=0.1, grid=grid) for model in ("ets", "deepar") for grid in ("a", "b")
    ]
    rows += [planted("ets", edition="opsd")]
    found = standings_sheets(leaderboard(rows), ["crps"])
    assert [sheet.title for sheet in found] == [
        "What differs, activsg500, edition opsd",
        "What differs, edition synthetic",
    ]
    assert [[line[0][0] for line in group] for group in found[1].groups] == [["a"] * 2, ["b"] * 2]


def test_a_matrix_mirrors_itself() -> None:
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
    assert "6 comparisons" in table.below[0]


def test_a_csv_file_holds_every_number() -> None:
    found = board()
    lines = list(csv.DictReader(StringIO(standings_as_csv([found]))))
    assert len(lines) == len(TESTED) * 5
    contrasts = {c.name: c for c in against(found.entries, found.windows, "crps")}
    for line in lines[:5]:
        contrast = contrasts.get(line["model"])
        assert line["verdict"] == (contrast.verdict if contrast else "")
        if contrast:
            assert float(line["p_holm"]) == contrast.adjusted
            assert float(line["difference"]) == contrast.difference
    assert {line["why_no_skill"] for line in lines if line["score"] == "brier"} == {
        "last-7-days scores 0"
    }
    every = list(csv.DictReader(StringIO(pairs_as_csv([found], ["crps"]))))
    expected = [(c.name, c.other, c.p) for c in pairs(found.entries, found.windows, "crps")]
    assert [(line["model"], line["other"], float(line["p"])) for line in every] == expected


def test_windows_of_few_weeks_come_with_their_least_p() -> None:
    daily = tuple(f"2016-07-{day:02d}" for day in range(4, 14))
    (table,) = standings_sheets([replace(board(), windows=daily)])
    assert "no p below 0.5" in table.as_markdown()


@pytest.mark.parametrize(
    ("days_apart", "n_windows", "test"),
    [
        (21, 10, "an exact sign-flip test over windows"),
        (21, 20, "an exact sign-flip test over windows"),
        (1, 140, "an exact sign-flip test over weeks"),
        (7, 21, "sign-flip test over windows by 99,999 random"),
        (1, 141, "sign-flip test over weeks by 99,999 random"),
    ],
)
def test_a_test_is_called_exact_where_it_goes_through_all_flips(
    days_apart: int, n_windows: int, test: str
) -> None:
    days = np.datetime64("2016-07-04") + days_apart * np.arange(n_windows)
    crps = np.linspace(0.1, 0.2, n_windows)
    entries = [
        replace(entry, by_window={"crps": tuple(crps + (entry.mean["crps"] or 0))})
        for entry in board().entries
    ]
    long = replace(board(), windows=tuple(map(str, days)), entries=tuple(entries))
    (table,) = standings_sheets([long], ["crps"])
    assert test in table.as_markdown()


def test_no_word_is_broken_in_eighty_columns() -> None:
    (table,) = standings_sheets([board()])
    text = StringIO()
    Console(file=text, width=80).print(table.as_table(80))
    words = set(text.getvalue().split())
    assert {"activsg500,", "Safety_mBrier", "(reference)", "difference"} <= words


def test_a_table_where_the_other_has_no_row_says_so() -> None:
    text = shown(["crps"], "timegrad")
    assert "timegrad" in text
    assert "0 comparisons" not in text


def test_every_line_has_every_cell_in_any_width() -> None:
    for table in (*standings_sheets([board()]), pairs_sheet(board(), "crps")):
        assert {len(line) for group in table.groups for line in group} == {len(table.header)}
        for width in (80, 160):
            text = StringIO()
            Console(file=text, width=width).print(table.as_table(width))
            words = text.getvalue().split()
            assert {"timemcl", "deepar"} <= set(words)


def here(tmp_path: Path, *options: str) -> Any:
    for result in field():
        write_result(result, {}, tmp_path)
    return CliRunner().invoke(cli.app, ["leaderboard", str(tmp_path), *options])


def test_the_command_shows_what_the_module_says(tmp_path: Path) -> None:
    markdown = ("--statistics", "--format", "markdown")
    assert here(tmp_path, *markdown).stdout == shown()
    one = here(tmp_path, *markdown, "--score", "crps", "--against", "deepar").stdout
    assert one == shown(["crps"], "deepar")
    several = here(tmp_path, *markdown, "--score", "CRPS", "--score", "Energy score").stdout
    assert several == shown(["crps", "energy"])  # by the titles that the tables show
    matrix = here(tmp_path, *markdown, "--pairs", "--score", "crps").stdout
    assert matrix == pairs_sheet(board(), "crps").as_markdown()
    assert here(tmp_path, "--statistics", "--format", "csv").stdout == standings_as_csv([board()])
    assert "What differs" in here(tmp_path, "--statistics").stdout


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--statistics", "--score", "necv"), "no score that orders forecasts 'necv'"),
        (("--statistics", "--against", "etc"), "no model with a row 'etc'; did you mean ets"),
        (("--statistics", "--format", "html"), "no format 'html'"),
    ],
)
def test_what_the_command_does_not_know_is_refused(
    tmp_path: Path, options: tuple[str, ...], problem: str
) -> None:
    found = here(tmp_path, *options).exception
    assert isinstance(found, UnknownName)
    assert str(found).startswith(problem)


def test_options_of_the_statistics_are_refused_without_them(tmp_path: Path) -> None:
    assert here(tmp_path, "--pairs").exit_code == 2
