"""The leaderboard: statistics and ranks against independent oracles, and its tables."""

import csv
import json
import random
import re
from importlib.resources import files
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy.stats import rankdata
from typer.testing import CliRunner

from powerphase import cli
from powerphase.axes import VARIABLES
from powerphase.errors import ResultError, UnknownName
from powerphase.grid import PAPER_GRIDS
from powerphase.records import RANKED, SCORES, Result, read_results, write_result
from powerphase.registry import results_version
from powerphase.report import (
    COLUMNS,
    COSTS,
    COUPLING,
    FAILED_NOTE,
    FLAT,
    FLAT_NOTE,
    LEGEND,
    MISSING,
    OUTDATED,
    OUTDATED_NOTE,
    TUNED_NOTE,
    Board,
    Entry,
    board_sheet,
    boards_as_csv,
    compact_sheets,
    leaderboard,
    paper_entries,
    representative,
    standings_sheets,
)
from powerphase.report.site import table_groups
from tests.records.rows import first_schema, row
from tests.report.planted import planted

# As printed in the paper's main table; no other table of it has ranks.
PRINTED_RANKS = {
    "activsg500": {
        "deepar": "8.8",
        "ets": "4.2",
        "timemcl": "3.2",
        "timeprism": "5.5",
        "tactis-2": "2.2",
        "tempflow": "5.5",
        "transformer-tempflow": "6.5",
        "timegrad": "7.8",
        "powerforge": "1.2",
    },
    "polish2383": {
        "deepar": "8.2",
        "ets": "6.5",
        "timemcl": "4.5",
        "timeprism": "6.8",
        "tactis-2": "3.5",
        "tempflow": "2.8",
        "transformer-tempflow": "3.2",
        "timegrad": "8.2",
        "powerforge": "1.2",
    },
    "polish3120": {
        "deepar": "8.8",
        "ets": "6.8",
        "timemcl": "5.2",
        "timeprism": "6.0",
        "tactis-2": "4.0",
        "tempflow": "3.5",
        "transformer-tempflow": "2.5",
        "timegrad": "7.2",
        "powerforge": "1.0",
    },
}


def as_markdown(boards: list[Board]) -> str:
    return "\n".join(board_sheet(board).as_markdown() for board in boards)


def entry(name: str = "powerforge", **changes: Any) -> Entry:
    """An entry without scores, except for the changes."""
    empty: dict[str, float | None] = dict.fromkeys(SCORES)
    values: dict[str, Any] = {"kind": "model", "seeds": (22, 42), "rank": None}
    values |= {"mean": empty, "std": empty, "cost": dict.fromkeys(COSTS)} | changes
    return Entry(name=name, **values)


def board(*entries: Entry, paper: tuple[Entry, ...] = ()) -> Board:
    return Board("day-ahead", 1, "synthetic", "ieee14", "0" * 64, entries, paper)


def field() -> list[Result]:
    """Three seeds of five forecasters, of which three are ranked."""
    forecasters: list[tuple[str, str | None]] = [
        *(("powerforge", None), ("last-week", None), ("ets", None)),
        *(("oracle", None), ("powerforge", "wta")),
    ]
    return [
        row(model=model, variant=variant, seed=seed, draw=10 * k + seed)
        for k, (model, variant) in enumerate(forecasters)
        for seed in (22, 42, 3142)
    ]


def cells_of(markdown: str) -> list[list[str]]:
    """The rows of the tables, without the headers and the lines below them."""
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [cells for cells in rows if cells[0] not in ("model", ":--")]


def test_mean_and_deviation_match_numpy() -> None:
    rows = [row(seed=seed, draw=seed) for seed in (3142, 22, 42)]
    (only,) = leaderboard(rows)[0].entries
    assert only.seeds == (22, 42, 3142)
    for name in SCORES:
        values = np.array([result.scores[name] for result in rows], dtype=float)
        assert only.mean[name] == pytest.approx(np.mean(values), rel=1e-14)
        assert only.std[name] == pytest.approx(np.std(values, ddof=1), rel=1e-12)


def test_costs_are_averaged_if_every_seed_has_them() -> None:
    cost = row().cost
    rows = [row(seed=s, cost=cost | {"train_s": t}) for s, t in ((1, 10.0), (2, 20))]
    (only,) = leaderboard(rows)[0].entries
    assert (only.cost["train_s"], only.cost["steps"]) == (15, 6000)
    assert only.cost["peak_memory_gib"] is None
    partly = [row(seed=1), row(seed=2, cost=cost | {"steps": None})]
    assert leaderboard(partly)[0].entries[0].cost["steps"] is None


def test_one_seed_has_no_deviation() -> None:
    (only,) = leaderboard([row()])[0].entries
    assert set(only.std.values()) == {None}
    assert only.mean == row().scores


def test_a_score_that_one_seed_lacks_is_missing() -> None:
    rows = [row(seed=1), row(seed=2, weighted=True)]
    (only,) = leaderboard(rows)[0].entries
    assert (only.mean["fair_crps"], only.std["fair_crps"]) == (None, None)


def test_ties_share_ranks_as_in_scipy() -> None:
    # Few draws for many models, so that there are ties of two, three and four.
    draws = random.Random(0).choices(range(5), k=12)
    rows = [row(model=f"model-{k}", draw=draw) for k, draw in enumerate(draws)]
    ranks = [rankdata([r.scores[name] for r in rows], method="average") for name in RANKED]
    expected = dict(zip((r.name for r in rows), np.mean(ranks, axis=0), strict=True))
    entries = leaderboard(rows)[0].entries
    assert {entry.name: entry.rank for entry in entries} == expected
    by_rank = leaderboard(rows, sort="rank")[0].entries
    assert [entry.rank for entry in by_rank] == sorted(expected.values())


@pytest.mark.parametrize("grid", PRINTED_RANKS)
def test_the_printed_ranks_of_the_paper_are_reproduced(grid: str) -> None:
    # Ranks are multiples of 1/8; the paper prints one digit and rounds 1.25 to 1.2, as Python does.
    ranks = {entry.name: f"{entry.rank:.1f}" for entry in paper_entries(grid)}
    assert ranks == PRINTED_RANKS[grid]


def test_the_paper_has_nine_models_on_five_grids_and_five_on_the_largest() -> None:
    names = {entry.name for entry in paper_entries("activsg500")}
    assert names == PRINTED_RANKS["activsg500"].keys()
    for grid in PAPER_GRIDS[:5]:
        assert {entry.name for entry in paper_entries(grid)} == names
        for entry in paper_entries(grid):
            assert {name for name in SCORES if entry.mean[name] is not None} == {
                name for name, score in SCORES.items() if score.in_paper
            }
    largest = paper_entries(PAPER_GRIDS[5])
    assert len(largest) == 5
    assert largest[0].name == "powerforge"
    assert largest[0].rank == 1
    assert {name for name in SCORES if largest[0].mean[name] is not None} == set(RANKED)


def test_other_grids_have_no_rows_of_the_paper() -> None:
    assert paper_entries("ieee14") == ()
    (only,) = leaderboard([row(grid="ieee14")])
    assert only.paper == ()
    assert "(paper)" not in as_markdown([only])


def test_rows_of_the_paper_appear_with_its_task_alone() -> None:
    """Numbers on other windows are not comparable."""
    papers, other = leaderboard([row(), row(task="powerphase-day-ahead-all")])
    assert "powerphase-day-ahead-all" in other.title
    assert papers.title in other.title
    assert papers.paper == paper_entries(papers.grid)
    assert papers.paper
    assert other.paper == ()


def test_oracle_and_variants_are_not_ranked() -> None:
    rows = field()
    entries = leaderboard(rows)[0].entries
    ranked = [entry for entry in entries if entry.rank is not None]
    assert {entry.name for entry in ranked} == {"powerforge", "last-week", "ets"}
    assert [entry.name for entry in entries[3:]] == ["powerforge+wta", "oracle"]
    alone = [r for r in rows if r.name in {entry.name for entry in ranked}]
    assert list(leaderboard(alone)[0].entries) == ranked


def test_an_ablation_is_a_separate_entry_and_no_seed_of_the_model() -> None:
    variants = ("no-anchor", "winner-takes-all")
    rows = [row(seed=seed, draw=seed) for seed in (22, 42)]
    alone = leaderboard(rows)[0]
    rows += [row(variant=name, config={"off": name}, draw=k) for k, name in enumerate(variants)]
    board = leaderboard(rows)[0]
    assert board.entries[0] == alone.entries[0]
    assert {entry.label: entry.seeds for entry in board.entries[1:]} == {
        f"powerforge+{name}": (42,) for name in variants
    }
    assert len(board.notes) == len(alone.notes) + 1


def test_a_smaller_budget_is_ranked_if_the_model_has_no_other_row() -> None:
    short, full = row(variant="short", draw=1), row(draw=2)
    rest = [row(model="ets", draw=3), row(model="ets", variant="stale", draw=4)]
    alone = leaderboard([short, *rest])[0]
    assert {entry.name for entry in alone.entries if entry.rank is not None} == {
        "powerforge+short",
        "ets",
    }
    assert re.search(r"powerforge\+short.*6,000", alone.notes[1])
    assert len(alone.notes) == 4
    both = leaderboard([short, full, *rest])[0]
    assert {entry.name for entry in both.entries if entry.rank is not None} == {"powerforge", "ets"}
    assert len(both.notes) == 3


@pytest.mark.parametrize(
    ("variants", "expected"),
    [
        (["short"], "short"),
        (["subsampled-short"], "subsampled-short"),
        (["subsampled-short", "short"], "short"),
        (["short", "subsampled", "subsampled-short"], "subsampled"),
        (["reference-subsampled", "subsampled-short"], "subsampled-short"),
    ],
)
def test_the_largest_budget_represents_a_model_regardless_of_scores(
    variants: list[str], expected: str
) -> None:
    for order in (variants, variants[::-1]):
        names = [f"timegrad+{variant}" for variant in order]
        assert representative("timegrad", names) == f"timegrad+{expected}"
        short = [row(model="timegrad", variant=name, draw=k) for k, name in enumerate(order)]
        rest = row(model="ets", draw=9)
        board = leaderboard([*short, rest])[0]
        ranked = {entry.name for entry in board.entries if entry.rank is not None}
        assert ranked == {f"timegrad+{expected}", "ets"}
        for word in ("subsampled", "short"):
            assert (f" +{word} is" in f" {board.notes[1]}") == (word in expected)
        full = leaderboard([*short, rest, row(model="timegrad", draw=10)])[0]
        assert {e.name for e in full.entries if e.rank is not None} == {"timegrad", "ets"}


@pytest.mark.parametrize("variant", ["short-stale", "shorter", "no-anchor-short", "reference"])
def test_only_a_smaller_budget_represents_its_model(variant: str) -> None:
    board = leaderboard([row(variant=variant), row(model="ets", draw=1)])[0]
    assert [entry.name for entry in board.entries if entry.rank is not None] == ["ets"]


def test_a_smaller_budget_may_have_an_unknown_number_of_steps() -> None:
    cost = row().cost | {"steps": None}
    board = leaderboard([row(variant="short", cost=cost), row(model="oracle", variant="short")])[0]
    assert [entry.rank for entry in board.entries] == [1, None]
    assert "powerforge+short" in board.notes[1]


def test_a_lone_oracle_is_shown_without_rank() -> None:
    (only,) = leaderboard([row(model="oracle")])[0].entries
    assert only.rank is None


def test_references_are_labelled() -> None:
    models = ("powerforge", "last-week", "last-7-days", "climatology", "oracle")
    rows = [row(model=model, draw=k) for k, model in enumerate(models)]
    entries = {entry.name: entry for entry in leaderboard(rows)[0].entries}
    assert entries["powerforge"].label == "powerforge"
    assert {entries[model].kind for model in models[1:4]} == {"reference"}
    assert entries["oracle"].kind == "oracle"
    assert {entries[model].label for model in models[1:]} == {
        f"{model} (reference)" for model in models[1:]
    }


@pytest.mark.parametrize(
    ("field_name", "other"),
    [
        ("task", "powerphase-week-ahead"),
        ("task_version", 2),
        ("edition", "opsd"),
        ("grid", "ieee14"),
        ("fingerprint", "f" * 64),
    ],
)
def test_incomparable_rows_have_separate_boards(field_name: str, other: Any) -> None:
    boards = leaderboard([row(), row(**{field_name: other})], paper=False)
    assert [len(board.entries) for board in boards] == [1, 1]
    texts = [as_markdown([board]) for board in boards]
    assert texts[0] != texts[1]
    assert sum(str(other)[:12] in text for text in texts) >= 1


def test_the_same_seed_twice_raises() -> None:
    with pytest.raises(ResultError, match=r"powerforge-42\.json"):
        leaderboard([row(draw=1), row(draw=2)])


def test_seeds_with_different_options_raise() -> None:
    rows = [row(seed=22), row(seed=42, config={"width": 128})]
    with pytest.raises(ResultError, match=r"-42\.json.* 22"):
        leaderboard(rows)


def test_rows_on_different_windows_raise() -> None:
    windows = ["2016-07-02T00:00", *row().windows[1:]]
    with pytest.raises(ResultError, match=r"ets-42\.json.*powerforge-42\.json"):
        leaderboard([row(), row(model="ets", windows=windows)])


@pytest.mark.parametrize("name", ["necv", "violations"])
def test_rows_that_disagree_on_what_happened_raise(name: str) -> None:
    truth = {key: value for key, value in row().truth.items() if value is not None}
    with pytest.raises(ResultError, match=rf"ets-42\.json.*{name}.*powerforge-42\.json"):
        leaderboard([row(), row(model="ets", truth={**truth, name: truth[name] / 2})])
    rounded = {key: value * (1 + 1e-6) for key, value in truth.items()}
    assert len(leaderboard([row(), row(model="ets", truth=rounded)])) == 1


def test_grids_have_the_order_of_the_paper_then_by_name() -> None:
    grids = [*PAPER_GRIDS, "activsg200", "ieee14", "zealand"]
    shuffled = random.Random(1).sample(grids, k=len(grids))
    assert [board.grid for board in leaderboard([row(grid=grid) for grid in shuffled])] == grids


def test_tables_do_not_depend_on_the_order_of_the_rows() -> None:
    rows = [*field(), row(grid="ieee14"), row(edition="opsd")]
    boards = leaderboard(rows)
    for shuffle in range(3):
        again = leaderboard(random.Random(shuffle).sample(rows, k=len(rows)))
        assert again == boards
        assert as_markdown(again) == as_markdown(boards)
        assert boards_as_csv(again) == boards_as_csv(boards)


def test_every_line_of_a_markdown_table_has_every_cell() -> None:
    text = as_markdown(leaderboard([*field(), row(grid="ieee14")]))
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {len(COLUMNS) + 4 + 1}
    assert text.count("\n\n| model |") == 2  # a table needs an empty line above it
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_rows_of_the_paper_come_after_ours_with_a_note() -> None:
    text = as_markdown(leaderboard(field()))
    names = [cells[0] for cells in cells_of(text)]
    assert len(names) == 5 + 9
    assert names[4:6] == ["oracle (reference)", "powerforge (paper)"]
    assert "edition paper" in text
    without = as_markdown(leaderboard(field(), paper=False))
    assert "paper" not in without


def test_the_best_ranked_entry_is_bold_if_the_score_orders_forecasts() -> None:
    board = leaderboard(field(), paper=False)[0]
    rows = cells_of(as_markdown([board]))
    ranked = [entry for entry in board.entries if entry.rank is not None]
    for column, name in enumerate(COLUMNS, start=3):
        bold = [cells[0].split()[0] for cells in rows if cells[column].startswith("**")]
        lowest = min(ranked, key=lambda entry: entry.mean[name] or 0.0)
        assert bold == ([] if name in ("necv", "coverage_80") else [lowest.name])
    first = min(entry.rank or 0.0 for entry in ranked)
    assert [cells[-1].strip("*") for cells in rows if cells[-1].startswith("**")] == [
        f"{first:.2f}"
    ]


def test_entries_indistinguishable_from_the_best_are_marked_with_a_legend() -> None:
    # DeepAR loses nine windows and wins one by far: its mean is worse, but only by noise.
    crps = {"ets": 1.0, "deepar": [1.1] * 9 + [0.3], "timemcl": 1.5, "oracle": 0.9}
    rows = [planted(model, crps=values) for model, values in crps.items()]
    rows.append(planted("ets", variant="stale", crps=1.0))
    boards = leaderboard(rows, paper=False)
    by_name = {cells[0].split()[0]: cells for cells in cells_of(as_markdown(boards))}
    assert {name: cells[3] for name, cells in by_name.items()} == {
        "ets": "**1.000**",
        "deepar": "≈1.020",
        "timemcl": "1.500",
        "oracle": "0.9000",
        "ets+stale": "1.000",
    }
    assert [cells[4] for cells in by_name.values()][:3] == ["**0.5000**"] * 3  # all the same
    assert LEGEND in as_markdown(boards)
    assert LEGEND not in as_markdown(leaderboard(rows[2:], paper=False))


def test_all_entries_that_tie_for_the_best_are_bold() -> None:
    rows = [row(model="ets"), row(model="deepar"), row(model="oracle")]
    cells = cells_of(as_markdown(leaderboard(rows, paper=False)))
    assert [line[-1] for line in cells] == ["**1.50**", "**1.50**", "–"]
    assert [line[3].startswith("**") for line in cells] == [True, True, False]


@pytest.mark.parametrize(
    ("mean", "std", "shown"),
    [
        (0.0027312, None, "0.002731"),
        (0.0027312, 0.0000118, "0.002731 ± 0.000012"),
        (0.0027, None, "0.002700"),
        (0.81234, 0.01, "0.8123 ± 0.0100"),
        (2.9950, None, "2.995"),
        (12345.6, None, "12346"),
        (0.000012345, None, "0.00001234"),
        (3.2111e-7, 1.2e-8, "3.211e-07 ± 1.200e-08"),
        (1.5e38, None, "1.500e+38"),
        (0.0, 0.0, "0"),
        (0.0027312, 0.0, "0.002731 ± 0"),
        (0.0027312, 1e-9, "0.002731 ± 0"),
        (None, None, "–"),
    ],
)
def test_numbers_have_four_significant_digits(
    mean: float | None, std: float | None, shown: str
) -> None:
    blank: dict[str, float | None] = dict.fromkeys(SCORES)
    only = entry(mean=blank | {"crps": mean}, std=blank | {"crps": std})
    assert cells_of(as_markdown([board(only)]))[0][2] == shown


def test_numbers_of_the_paper_are_shown_as_printed() -> None:
    cells = cells_of(as_markdown([board(paper=paper_entries("activsg500"))]))
    first = [cell.strip("*") for cell in cells[0]]
    assert first[:4] == ["powerforge (paper)", "3", "0.0030 ± 0.0008", "0.0072 ± 0.0019"]
    assert first[-5:] == [*["–"] * 4, "1.25"]


NEWEST = results_version("factorforge")
OLD_ROW = Result.from_json(json.dumps(first_schema(model="factorforge")), "row.json")


@pytest.mark.parametrize(
    ("result", "is_outdated"),
    [
        (OLD_ROW, True),
        (row(model="factorforge", model_version=NEWEST - 1), True),
        (row(model="factorforge", model_version=NEWEST), False),
        (Result.from_json(json.dumps(first_schema(model="last-week")), "row.json"), True),
    ],
)
def test_rows_of_an_older_or_unknown_version_are_marked(result: Result, is_outdated: bool) -> None:
    (table,) = leaderboard([result, row(model="ets")])
    marked = {entry.name: OUTDATED in entry.label for entry in table.entries}
    assert marked == {result.model: is_outdated, "ets": False}
    sheets = [board_sheet(table), *compact_sheets([table])]
    assert [OUTDATED_NOTE in sheet.below for sheet in sheets] == [is_outdated] * 2
    lines = [line for group in table_groups(table, {}) for line in group.lines]
    assert [line.name for line in lines if line.is_outdated] == [result.model] * is_outdated


@pytest.mark.parametrize(
    ("template", "is_outdated"),
    [
        ({"model": "factorforge", "version": NEWEST - 1}, True),
        ({"model": "factorforge", "version": NEWEST}, False),
        ({"model": "past-days", "version": 1}, False),
        (None, False),
        ("what a user wrote", False),
    ],
)
def test_a_coupled_row_is_as_old_as_its_template(template: Any, is_outdated: bool) -> None:
    config = {"coupled": {"template": template}}
    (table,) = leaderboard([row(model="climatology", variant="ranked", config=config)])
    assert [entry.is_outdated for entry in table.entries] == [is_outdated]


def test_a_tuned_row_is_ranked_next_to_its_model() -> None:
    variants: dict[str, tuple[str | None, ...]] = {
        "timemcl": (None, "tuned", "no-lags"), "deepar": ("tuned",), "ets": ("tuned-stale",),
    }  # fmt: skip
    rows = [row(model=m, variant=v, draw=k) for m in variants for k, v in enumerate(variants[m])]
    (table,) = leaderboard(rows)
    ranked = {entry.name for entry in table.entries if entry.rank is not None}
    assert ranked == {"timemcl", "timemcl+tuned", "deepar+tuned"}
    assert TUNED_NOTE in board_sheet(table).below
    (sheet,) = compact_sheets([table])
    assert {line[0][0] for line in sheet.groups[0]} == ranked
    assert not any("budget" in note for note in board_sheet(table).below)


def slopes(*values: float | None) -> dict[str, float | None]:
    return dict(zip(VARIABLES, values, strict=True))


@pytest.mark.parametrize(
    ("daily_slope", "is_flat"),
    [
        (slopes(0.0, -0.1, 0.19, None), True),
        (slopes(0.0, 0.0, 0.0, 0.2), False),  # one variable is enough
        (slopes(None, None, None, None), None),
        (None, None),
    ],
)
def test_rows_that_did_not_learn_the_day_are_marked(daily_slope: Any, is_flat: bool | None) -> None:
    flat = row(model="ets", seed=1, daily_slope=daily_slope)
    assert flat.is_flat == is_flat
    (table,) = leaderboard([flat, row(model="ets", seed=2), row(model="last-week")], False)
    marked = {entry.name: entry.label for entry in table.entries}
    label = f"ets ({FLAT})" if is_flat else "ets"
    assert marked == {"ets": label, "last-week": "last-week (reference)"}
    for sheet in [board_sheet(table), *compact_sheets([table]), *standings_sheets([table])]:
        cells = [text for lines in sheet.groups for line in lines for text, _ in line]
        assert label in cells
        assert (FLAT_NOTE in sheet.below) == (is_flat is True)


def test_rows_with_series_that_failed_are_marked() -> None:
    failed = {"instead": "the last days", "series": {"2016-07-01T00:00": {"P of bus 7": "why"}}}
    unknown = {"instead": "the last days", "series": {"2016-07-01T00:00": None}}
    for value, is_marked in ((failed, True), (unknown, False), (None, False)):
        (table,) = leaderboard([row(model="ets", failed=value), row(model="timemcl")], False)
        labels = {entry.name: entry.label for entry in table.entries}
        assert (labels["ets"] != "ets", labels["timemcl"]) == (is_marked, "timemcl")
        assert (FAILED_NOTE in board_sheet(table).below) == is_marked


def test_of_the_golden_rows_only_flat_week_is_flat() -> None:
    rows = read_results(Path(__file__).parents[1] / "golden" / "rows")
    assert {row.model for row in rows if row.is_flat} == {"flat-week"}


def test_the_csv_file_contains_every_number() -> None:
    rows = [*field(), row(model="timemcl", weighted=True)]
    boards = leaderboard(rows)
    lines = list(csv.DictReader(StringIO(boards_as_csv(boards))))
    assert len(lines) == 6 + 9
    for line, entry in zip(lines, (*boards[0].entries, *boards[0].paper), strict=True):
        assert (line["model"], line["kind"]) == (entry.name, entry.kind)
        assert line["edition"] == ("paper" if entry.kind == "paper" else "synthetic")
        assert int(line["seeds"]) == len(entry.seeds)
        values = {"rank": entry.rank} | {name: entry.mean[name] for name in SCORES}
        values |= {f"{name}_std": entry.std[name] for name in SCORES}
        for column, value in values.items():
            assert (float(line[column]) if line[column] else None) == value
    by_name = {line["model"]: line for line in lines if line["kind"] == "model"}
    assert by_name["timemcl"]["fair_crps"] == by_name["timemcl"]["crps_std"] == ""


def test_the_table_has_a_line_for_each_entry() -> None:
    boards = leaderboard(field())
    table = boards.to_pandas()
    assert len(table) == len(boards[0].entries) + len(boards[0].paper)
    ours = table[table["edition"] == "synthetic"].set_index("model")
    for ranked in boards[0].entries:
        assert ours.loc[ranked.name, "crps"] == ranked.mean["crps"]


def test_the_csv_file_contains_the_rows_of_the_paper_once() -> None:
    boards = leaderboard([row(edition="opsd"), row(edition="synthetic")])
    lines = list(csv.DictReader(StringIO(boards_as_csv(boards))))
    assert [line["edition"] for line in lines] == ["opsd"] + ["paper"] * 9 + ["synthetic"]


def test_a_terminal_shows_the_same_as_markdown() -> None:
    board = leaderboard(field())[0]
    text = StringIO()
    Console(file=text, width=250, markup=False).print(board_sheet(board).as_table(250))
    shown = text.getvalue()
    for cells in cells_of(as_markdown([board])):
        assert re.search(r"\s+".join(re.escape(c.strip("*")) for c in cells), shown)
    for note in board.notes:
        assert note in " ".join(shown.split())


@pytest.mark.parametrize("width", [120, 170])
def test_a_narrow_terminal_shows_fewer_columns(width: int) -> None:
    board, text = leaderboard(field())[0], StringIO()
    Console(file=text, width=width, markup=False).print(board_sheet(board).as_table(width))
    shown = text.getvalue()
    for name in ("crps", "distortion", "safety_mbrier", "cvar_0.1"):
        assert SCORES[name].title in shown
    assert SCORES["coverage_80"].title not in shown
    for entry in (*board.entries, *board.paper):
        lines = [line.strip() for line in shown.splitlines()]
        assert sum(line.startswith(f"{entry.label}  ") for line in lines) == 1
    assert len(shown.splitlines()) < len(board.entries) + len(board.paper) + 14


def test_a_table_is_in_order_of_crps_though_rank_orders_otherwise() -> None:
    # Rank rewards forecasts that stay in the band whatever happens; CRPS cannot be won that way.
    safe = {"distortion": 0.1, "safety_mbrier": 0.0}
    rows = [
        planted("deepar", crps=0.4, scores=safe | {"cvar_0.1": 0.0}),
        planted("ets", crps=0.3),
        planted("climatology", crps=0.35),
        planted("ets", variant="stale", crps=0.1),
        planted("oracle", crps=0.2),
    ]
    orders = {
        sort: [entry.name for entry in leaderboard(rows, False, sort=sort)[0].entries]
        for sort in ("crps", "CRPS", "rank", "Safety_mBrier")
    }
    unranked = ["ets+stale", "oracle"]
    assert orders["crps"] == orders["CRPS"] == ["ets", "climatology", "deepar", *unranked]
    assert orders["rank"] == ["deepar", "ets", "climatology", *unranked]
    assert orders["Safety_mBrier"] == ["deepar", "climatology", "ets", *unranked]
    with pytest.raises(UnknownName):
        leaderboard(rows, sort="coverage_80")


def test_the_paper_is_in_the_same_order_as_our_rows() -> None:
    for sort in ("crps", "mse"):
        means = [entry.mean[sort] or 0.0 for entry in leaderboard([row()], sort=sort)[0].paper]
        assert means == sorted(means)
    ranks = [entry.rank or 0.0 for entry in leaderboard([row()], sort="rank")[0].paper]
    assert ranks == sorted(ranks)


def test_the_command_shows_one_grid_in_a_chosen_order(tmp_path: Path) -> None:
    rows = [planted("ets", crps=0.3, mse=0.2), planted("deepar", crps=0.4, mse=0.1)]
    for result in (*rows, row(grid="ieee14", model="ets")):
        write_result(result, {}, tmp_path)

    def lines(*options: str) -> list[list[str]]:
        arguments = ["leaderboard", str(tmp_path), "--format", "csv", "--no-paper", *options]
        shown = CliRunner().invoke(cli.app, arguments)
        assert shown.exit_code == 0, shown.output
        return [[line["grid"], line["model"]] for line in csv.DictReader(StringIO(shown.stdout))]

    grid = row().grid
    assert {grid, "ieee14"} == {line[0] for line in lines()}
    assert lines("--grid", grid) == [[grid, "ets"], [grid, "deepar"]]
    assert lines("--grid", grid, "--sort", "MSE") == [[grid, "deepar"], [grid, "ets"]]
    for options in (
        ["--grid", "ieee118"],
        ["--sort", "coverage_80"],
        ["--sort", "mse", "--statistics"],
    ):
        assert CliRunner().invoke(cli.app, ["leaderboard", str(tmp_path), *options]).exit_code != 0


def test_notes_on_columns_are_shown_with_their_columns_only() -> None:
    crps = {"ets": 1.0, "deepar": [1.1] * 9 + [0.3]}
    rows = [planted(model, energy=values) for model, values in crps.items()]
    sheet = board_sheet(leaderboard(rows, False)[0])
    for width, is_shown in ((60, False), (250, True)):
        text = StringIO()
        Console(file=text, width=width, markup=False).print(sheet.as_table(width))
        shown = " ".join(text.getvalue().split())
        assert (SCORES["energy"].title in shown) == is_shown
        assert (LEGEND in shown) == is_shown


def test_joint_or_marginal_is_a_fact_of_a_row_where_whole_scenarios_are_compared() -> None:
    kinds = {"ets": False, "deepar": True, "timemcl": None}
    rows = [planted(model, joint=joint) for model, joint in kinds.items()]
    sheet = board_sheet(leaderboard(rows, False)[0])
    column = sheet.header.index(COUPLING)
    coupling = {line[0][0]: line[column][0] for group in sheet.groups for line in group}
    assert coupling == {"ets": "marginal", "deepar": "joint", "timemcl": MISSING}
    for score, is_told in (("energy", True), ("crps", False)):
        (table,) = compact_sheets(leaderboard(rows, False), score)
        assert (COUPLING in table.header) == is_told
    older = [planted(model, joint=None) for model in kinds]
    assert COUPLING not in board_sheet(leaderboard(older, False)[0]).header
    assert (
        leaderboard([planted("ets", joint=True, seed=1), planted("ets", joint=None, seed=2)])[0]
        .entries[0]
        .joint
        is None
    )


def test_no_results_give_no_boards() -> None:
    assert leaderboard([]) == []
    assert as_markdown([]) == ""
    assert len(boards_as_csv([]).splitlines()) == 1


def test_the_file_of_the_paper_has_known_names_only() -> None:
    text = (files("powerphase.report") / "paper_results.csv").read_text()
    lines = list(csv.DictReader(StringIO(text)))
    assert len(lines) == 5 * 9 * 6 + 5 * 4
    assert {line["grid"] for line in lines} == set(PAPER_GRIDS)
    assert {line["metric"] for line in lines} <= SCORES.keys()
