"""The comparison with the paper: distances by hand, their laws, and the tables."""

import csv
import random
from importlib.resources import files
from io import StringIO
from math import hypot, inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console
from scipy import stats
from typer.testing import CliRunner

from powerphase import cli
from powerphase.axes import VARIABLES
from powerphase.errors import ResultError, UnknownName
from powerphase.grid import PAPER_GRIDS
from powerphase.models.powerforge import ABLATIONS
from powerphase.records import RANKED, SCORES, Result, write_result
from powerphase.report import (
    ABLATION_SCORES,
    MISSING,
    Comparison,
    Pair,
    agreement,
    compare,
    comparison_sheets,
    leaderboard,
    overview,
    overview_sheets,
    paper_ablations,
    paper_entries,
)
from tests.records.rows import row

# The table of the main text, whose digits are fewer than those of the appendix.
MAIN_TEXT = {
    None: ("0.0043", "0.0110"),
    "no-anchor": ("0.0080", "0.0229"),
    "no-quantile-regularisation": ("0.0059", "0.0128"),
    "winner-takes-all": ("0.0055", "0.0155"),
    "no-physics": ("0.0055", "0.0120"),
    "no-bridge": ("0.0053", "0.0120"),
    "no-mixer": ("0.0045", "0.0154"),
}

numbers = st.floats(0, 1)
deviations = st.none() | numbers
often = settings(deadline=None, derandomize=True)


def as_markdown(comparison: Comparison) -> str:
    return "\n".join(sheet.as_markdown() for sheet in comparison_sheets(comparison))


def ours(scores: dict[str, float] | None = None, **changes: Any) -> Result:
    """A row of PowerForge on `opsd-r` with these scores in every variable and window."""
    values: dict[str, Any] = {"edition": "opsd-r", "grid": "pegase1354"} | changes
    result = row(**values)
    # Brier and the bias may not exceed scores that a test sets close to zero.
    for name, value in ({"brier": 0.0, "excursion_bias": 0.0} | (scores or {})).items():
        result.scores[name] = value
        result.by_window[name] = [value] * len(result.windows)
        for kind in VARIABLES:
            if name in result.by_type[kind]:
                result.by_type[kind][name] = value
    return result


def pair(mean: float, std: float | None, paper: tuple[float, float], score: str = "crps") -> Pair:
    return Pair("pegase1354", score, (42,) if std is None else (22, 42), mean, std, *paper)


def by_score(rows: list[Result], grid: str = "pegase1354") -> dict[str, Pair]:
    pairs = compare(rows, "powerforge").pairs
    return {pair.score: pair for pair in pairs if pair.grid == grid}


def test_two_seeds_worked_by_hand() -> None:
    # The paper prints 0.0040 ± 0.0003. Apart: 0.0048 - 0.0040 - 0.00005 = 0.00075. Ours deviates
    # by 0.0004 / √2, the paper by 0.00035 at most: √(8e-8 + 12.25e-8) = 0.00045.
    pair_of_means = by_score([ours({"crps": 0.0046}, seed=22), ours({"crps": 0.0050}, seed=42)])[
        "crps"
    ]
    assert pair_of_means.seeds == (22, 42)
    assert pair_of_means.mean == pytest.approx(0.0048)
    assert pair_of_means.std == pytest.approx(0.0004 / 2**0.5)
    assert (pair_of_means.paper_mean, pair_of_means.paper_std) == (0.0040, 0.0003)
    assert pair_of_means.ratio == pytest.approx(1.2)
    assert pair_of_means.distance == pytest.approx(0.75 / 0.45)
    assert pair_of_means.difference is None


def test_one_seed_worked_by_hand() -> None:
    # The paper prints 0.0030 ± 0.0000, which may be 0.00305 ± 0.00005.
    pair_of_means = by_score([ours({"safety_mbrier": 0.0060})])["safety_mbrier"]
    assert pair_of_means.std is None
    assert pair_of_means.distance == pytest.approx(0.00295 / 0.00005)
    assert pair_of_means.difference == "worse"


@often
@given(numbers, numbers, numbers, deviations)
def test_the_distance_is_at_most_that_of_the_unrounded_numbers(
    mean: float, std: float, ours: float, our_std: float | None
) -> None:
    apart, spread = abs(ours - mean), hypot(std, our_std or 0)
    exact = apart / spread if spread else inf
    distance = pair(ours, our_std, (round(mean, 4), round(std, 4))).distance
    assert distance is not None
    assert distance <= exact * (1 + 1e-9) + 1e-9


@often
@given(numbers, numbers, deviations)
def test_a_mean_that_rounds_to_the_printed_one_has_distance_zero(
    mean: float, std: float, our_std: float | None
) -> None:
    compared = pair(mean, our_std, (round(mean, 4), round(std, 4)))
    assert compared.distance == pytest.approx(0, abs=1e-9)
    assert compared.difference is None


@often
@given(numbers, st.floats(0, 0.4), st.floats(0, 0.4), deviations)
def test_the_distance_increases_with_the_difference(
    std: float, near: float, further: float, our_std: float | None
) -> None:
    distances = [
        pair(0.5 + sign * away, our_std, (0.5, round(std, 4))).distance or 0.0
        for away in sorted((near, near + further))
        for sign in (1, -1)
    ]
    assert distances[0] == pytest.approx(distances[1])
    assert distances[0] <= distances[2] + 1e-12


@pytest.mark.parametrize(
    ("mean", "score", "difference"),
    [
        (0.5 + 0.00005 + 1.999 * 0.1, "crps", None),
        (0.5 + 0.00005 + 2.001 * 0.1, "crps", "worse"),
        (0.5 - 0.00005 - 2.001 * 0.1, "crps", "better"),
        (0.5 - 0.00005 - 1.999 * 0.1, "crps", None),
        (0.1, "cvar_0.1", "better"),  # the paper ranks by it
        (0.1, "necv", "lower"),
        (0.9, "necv", "higher"),
    ],
)
def test_a_difference_beyond_two_deviations_is_named(
    mean: float, score: str, difference: str | None
) -> None:
    assert pair(mean, None, (0.5, 0.09995), score).difference == difference


def test_a_printed_zero_has_no_ratio() -> None:
    assert pair(0.1, None, (0.0, 0.0)).ratio is None


def test_every_number_of_the_paper_has_a_pair() -> None:
    pairs = compare([ours()], "powerforge").pairs
    assert list(dict.fromkeys(pair.grid for pair in pairs)) == list(PAPER_GRIDS)
    in_paper = [name for name, score in SCORES.items() if score.in_paper]
    for grid in PAPER_GRIDS[:5]:
        assert [pair.score for pair in pairs if pair.grid == grid] == in_paper
    assert len(pairs) == 5 * 6 + 4


def test_a_grid_without_a_row_is_missing() -> None:
    available, missing = by_score([ours()])["crps"], by_score([ours()], "polish2383")["crps"]
    assert available.distance is not None
    assert (missing.seeds, missing.mean, missing.std) == ((), None, None)
    assert (missing.ratio, missing.distance, missing.difference) == (None, None, None)
    assert (missing.paper_mean, missing.paper_std) == (0.0042, 0.0019)


def test_only_rows_of_the_model_task_and_edition_count() -> None:
    rows = [ours(seed=seed, draw=seed) for seed in (22, 42)]
    others = [
        ours(model="ets"),
        ours(variant="short"),
        ours(edition="synthetic"),
        ours(task="powerphase-day-ahead-all"),
        ours(grid="ieee14"),
    ]
    alone = compare(rows, "powerforge")
    assert compare([*others, *rows], "powerforge") == alone
    assert alone.pairs[6].mean == leaderboard(rows)[0].entries[0].mean["crps"]


def test_a_smaller_budget_represents_a_model_without_another_row() -> None:
    short = ours({"crps": 0.5}, variant="short")
    for rows, expected in (([short], 0.5), ([short, ours({"crps": 0.25})], 0.25)):
        pairs = compare(rows, "powerforge").pairs
        means = {p.mean for p in pairs if (p.grid, p.score) == ("pegase1354", "crps")}
        assert means == {expected}


def test_the_overview_has_a_line_for_each_row_and_names_what_is_missing() -> None:
    sheet = overview([ours({"crps": 0.125}, variant="short")])
    ((line,),) = sheet.groups
    texts = [text for text, _ in line]
    assert texts[:5] == ["pegase1354", "powerforge+short", "1", "0.1250", "0.0040"]
    assert MISSING not in texts
    note = sheet.below[-1]
    models = {entry.name for grid in PAPER_GRIDS for entry in paper_entries(grid)}
    assert all(note.count(f"{name}") >= 1 for name in (*models, *PAPER_GRIDS[2:]))
    assert "pegase1354" not in note


def test_rows_without_a_counterpart_are_named_in_a_line() -> None:
    (sheet, *_) = comparison_sheets(compare([ours({"crps": 0.125})], "powerforge"))
    assert {line[0][0] for group in sheet.groups for line in group} == {"pegase1354"}
    note = sheet.below[-1]
    assert [grid in note for grid in PAPER_GRIDS] == [grid != "pegase1354" for grid in PAPER_GRIDS]
    (only,) = overview_sheets([ours({"crps": 0.125})])  # one model has no order
    assert only.title == overview([ours({"crps": 0.125})]).title


def agreement_by_grid(rows: list[Result]) -> dict[str, list[str]]:
    """The lines of the table, by grid."""
    (lines,) = agreement(rows).groups
    return {name: cells for (name, *cells) in ([text for text, _ in line] for line in lines)}


def test_the_agreement_of_rankings_is_the_tau_of_scipy() -> None:
    printed = paper_entries("pegase1354")
    rows = [ours(draw=k, model=paper.name) for k, paper in enumerate(printed)]
    taus, ranks = [], [np.zeros((2, len(rows)))]
    for name in RANKED:
        values = [[row.scores[name] for row in rows], [paper.mean[name] for paper in printed]]
        sides = np.array(values, dtype=float)
        taus.append(stats.kendalltau(*sides).statistic)
        ranks.append(np.array([stats.rankdata(side) for side in sides]))
    taus.append(stats.kendalltau(*np.sum(ranks, axis=0)).statistic)
    assert agreement_by_grid(rows)["pegase1354"] == ["9", *(f"{tau:.2f}" for tau in taus)]


def test_rankings_are_compared_over_common_models() -> None:
    best, *_, worst = paper_entries("polish3120")
    for means, tau in (((0.1, 0.2), "1.00"), ((0.2, 0.1), "-1.00")):
        rows = [
            ours(dict.fromkeys(RANKED, mean), model=entry.name, grid="polish3120", variant="short")
            for entry, mean in zip((best, worst), means, strict=True)
        ]
        agreement = agreement_by_grid([*rows, ours(model="last-week", grid="polish3120")])
        assert agreement["polish3120"] == ["2", *5 * [tau]]
        assert "pegase1354" not in agreement


def test_a_model_that_is_not_in_the_paper_raises() -> None:
    with pytest.raises(UnknownName, match=r"'powerforg'.*powerforge"):
        compare([ours()], "powerforg")


def test_nothing_to_compare_raises_and_names_other_editions() -> None:
    with pytest.raises(ResultError, match="ets"):
        compare([ours()], "ets")
    with pytest.raises(ResultError, match=r"'opsd'.*opsd-r"):
        compare([ours()], "powerforge", "opsd")
    with pytest.raises(ResultError):
        overview([ours(model="last-week"), ours(grid="ieee14"), ours(task="mine")])
    with pytest.raises(ResultError, match=r"powerforge.*'opsd-r'"):
        compare([ours(variant="mine")], "powerforge")


@pytest.mark.parametrize("other", [{"fingerprint": "f" * 64}, {"task_version": 2}])
def test_rows_of_different_data_or_task_versions_raise(other: dict[str, Any]) -> None:
    with pytest.raises(ResultError, match=r"pegase1354.*opsd-r"):
        compare([ours(), ours(seed=22, **other)], "powerforge")


def test_a_variant_is_compared_with_the_full_model_of_its_seed() -> None:
    rows = [ours({"crps": 0.004}, seed=42), ours({"crps": 0.008}, seed=22)]
    rows += [ours({"crps": 0.005}, seed=42, variant="no-anchor", config={"anchor": False})]
    (ablation,) = compare(rows, "powerforge").ablations
    assert (ablation.grid, ablation.seed) == ("pegase1354", 42)
    lines = {line.variant: line for line in ablation.lines}
    assert list(lines) == [None, *ABLATIONS.values()]
    assert lines["no-anchor"].change == pytest.approx(0.25)
    assert lines["no-anchor"].ours == rows[2].scores
    assert (lines[None].ours, lines[None].change) == (rows[0].scores, None)
    assert (lines["no-mixer"].ours, lines["no-mixer"].change) == (None, None)


def test_each_seed_is_a_separate_ablation() -> None:
    rows = [ours(variant="no-mixer", seed=seed, draw=seed) for seed in (42, 22)]
    ablations = compare(rows, "powerforge").ablations
    assert [ablation.seed for ablation in ablations] == [22, 42]
    for ablation, result in zip(ablations, reversed(rows), strict=True):
        by_variant = {line.variant: line for line in ablation.lines}
        assert by_variant["no-mixer"].ours == result.scores
        assert by_variant["no-mixer"].change is None  # the full model was not scored


def test_other_variants_are_no_ablation() -> None:
    rows = [ours(), ours(variant="short"), ours(variant="no-mixer-short")]
    rows += [ours(variant="no-mixer", grid="activsg500")]
    assert compare(rows, "powerforge").ablations == ()


def test_the_ablation_of_the_paper_has_our_variants_and_all_its_scores() -> None:
    ablation = paper_ablations("powerforge")
    assert list(ablation) == ["pegase1354"]
    assert list(ablation["pegase1354"]) == [None, *ABLATIONS.values()]
    for variant, printed in ablation["pegase1354"].items():
        assert printed.keys() - {"crps_change"} == set(ABLATION_SCORES)
        assert ("crps_change" in printed) == (variant is not None)
    assert paper_ablations("ets") == {}


def test_the_two_tables_of_the_ablation_in_the_paper_agree() -> None:
    printed = paper_ablations("powerforge")["pegase1354"]
    full = float(printed[None]["crps"])
    for variant, (crps, distortion) in MAIN_TEXT.items():
        scores = printed[variant]
        assert (f"{float(scores['crps']):.4f}", scores["distortion"]) == (crps, distortion)
        if variant is not None:
            assert scores["crps_change"] == f"{float(scores['crps']) / full - 1:+.0%}"


def test_the_file_of_the_ablation_has_known_names_only() -> None:
    text = (files("powerphase.report") / "paper_ablation.csv").read_text()
    lines = list(csv.DictReader(StringIO(text)))
    assert len(lines) == 7 * 5 + 6
    assert {line["metric"] for line in lines} == {*ABLATION_SCORES, "crps_change"}


def scored() -> list[Result]:
    """Three seeds on two grids, and two of six variants."""
    near = {"crps": 0.0040, "safety_mbrier": 0.0060, "necv": 0.00071, "mse": 0.00007}
    rows = [ours(near, seed=seed) for seed in (22, 42, 3142)]
    rows += [ours(draw=seed, grid="activsg500", seed=seed) for seed in (22, 42)]
    rows += [ours(near | {"crps": 0.0050}, variant="no-anchor"), ours(variant="no-bridge")]
    return rows


def test_the_tables_contain_our_numbers_and_those_of_the_paper() -> None:
    text = as_markdown(compare(scored(), "powerforge"))
    for line in (
        "| pegase1354 | CRPS | 3 | 0.004000 ± 0 | 0.0040 ± 0.0003 | 1.00 | 0.0 |",
        "| pegase1354 | MSE | 3 | 0.00007000 ± 0 | 0.0001 ± 0.0000 | 0.7 | 0.0 |",
        "| pegase1354 | Safety_mBrier | 3 | 0.006000 ± 0 | 0.0030 ± 0.0000 | 2.00 "
        "| **59.0 worse** |",
        "| full (paper) | 0.00433 | – | 0.0110 | 0.00301 | 0.000741 | 0.000752 |",
        "| no-anchor (paper) | 0.00797 | +84% | 0.0229 | 0.03042 | 0.000809 | 0.00190 |",
        "| no-mixer | – | – | – | – | – | – |",
    ):
        assert f"\n{line}\n" in f"\n{text}"
    assert "| no-anchor | 0.005000 | +25.0% | " in text
    assert text.endswith("\n")
    assert not text.endswith("\n\n")


def test_every_line_of_a_table_has_every_cell() -> None:
    for sheet in comparison_sheets(compare(scored(), "powerforge")):
        lines = [line for line in sheet.as_markdown().splitlines() if line.startswith("| ")]
        assert {line.count("|") for line in lines} == {len(sheet.header) + 1}
        assert {len(line) for group in sheet.groups for line in group} == {len(sheet.header)}


def test_the_order_of_the_rows_does_not_matter() -> None:
    rows, text = scored(), as_markdown(compare(scored(), "powerforge"))
    for shuffle in range(3):
        again = random.Random(shuffle).sample(rows, k=len(rows))
        assert as_markdown(compare(again, "powerforge")) == text


def test_without_variants_there_is_one_table() -> None:
    assert len(comparison_sheets(compare([ours()], "powerforge"))) == 1


@pytest.mark.parametrize("width", [80, 120])
def test_a_terminal_does_not_break_names(width: int) -> None:
    for sheet in comparison_sheets(compare(scored(), "powerforge")):
        text = StringIO()
        Console(file=text, width=width, markup=False).print(sheet.as_table(width))
        words = text.getvalue().split()
        for line in (line for group in sheet.groups for line in group):
            assert {word for cell, _ in line[: sheet.names] for word in cell.split()} <= {*words}


def test_the_command_shows_the_tables(tmp_path: Path) -> None:
    for result in scored():
        write_result(result, {}, tmp_path)
    arguments = ["compare", "powerforge", str(tmp_path)]
    shown = CliRunner().invoke(cli.app, [*arguments, "--format", "markdown"])
    assert shown.exit_code == 0, shown.output
    assert shown.stdout == as_markdown(compare(scored(), "powerforge"))
    table = CliRunner().invoke(cli.app, arguments, env={"COLUMNS": "120"}).stdout
    assert "no-anchor (paper)" in table
    failed = CliRunner().invoke(cli.app, [*arguments, "--format", "csv"])
    assert isinstance(failed.exception, UnknownName)
