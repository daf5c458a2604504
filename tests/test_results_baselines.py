"""What the page of results says of the baselines is what their rows say."""

import re

import pytest

from powerphase.report.leaderboard import leaderboard
from tests.page_of_results import PAGE, WORDS, rows, rows_of, score

NAMES = ("crps", "distortion", "mse", "safety_mbrier", "necv", "cvar_0.1")
SECTION = PAGE.split("## ETS: which one is the paper's?")[1].split("\n## ")[0]
LINES = {
    "a day, from the context (our default)": None,
    "a day, from the end of training": "stale",
    "24 steps, from the context": "season-24",
    "24 steps, from the end of training": "season-24-stale",
    "the same with statsmodels' noise in the trend (`reference`)": "reference",
}


def table() -> dict[str, list[str]]:
    found = re.findall(r"^\| ([^|]+) \| (0\.\d{4}[^\n]*) \|$", SECTION, re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in found}


def scores_of(variant: str | None) -> list[float]:
    (row,) = rows_of("activsg500", "ets", variant)
    return [row.scores[name] for name in NAMES]


def papers() -> list[float]:
    (board,) = (b for b in leaderboard(rows()) if b.grid == "activsg500")
    (entry,) = (e for e in board.paper if e.name == "ets")
    return [entry.mean[name] for name in NAMES]


def test_the_table_of_ets_is_what_the_rows_say() -> None:
    wanted = {line: scores_of(variant) for line, variant in LINES.items()}
    wanted["paper"] = papers()
    assert table() == {line: [f"{n:.4f}" for n in found] for line, found in wanted.items()}


def test_the_paper_s_ets_is_nearest_to_the_stale_one_with_24_steps() -> None:
    near = [
        ours / theirs for ours, theirs in zip(scores_of("season-24-stale"), papers(), strict=True)
    ]
    for variant in ("season-24", "reference"):
        others = zip(scores_of(variant), papers(), strict=True)
        assert all(
            1 < one < ours / theirs for one, (ours, theirs) in zip(near, others, strict=True)
        )
    assert f"still {min(near):.1f} to {max(near):.1f} times as high" in WORDS
    for variant in (None, "stale"):
        assert max(scores_of(variant)[3:]) < 1e-6


def test_ets_beside_powerforge() -> None:
    ours = score("activsg500", "ets", "crps")
    share = 1 - ours / score("activsg500", "powerforge", "crps")
    assert f"Our default's lies {100 * share:.0f} % below PowerForge's" in WORDS
    ratio = scores_of(None)[1] / score("activsg500", "powerforge", "distortion")
    assert f"its Distortion is {ratio:.1f} times PowerForge's" in WORDS
    assert scores_of(None)[3] == pytest.approx(4e-7, abs=0.5e-7)
    (board,) = (b for b in leaderboard(rows()) if b.grid == "activsg500")
    ranks = {e.name: e.rank for e in board.entries if e.rank is not None}
    assert max(ranks, key=ranks.__getitem__) == "ets"
    assert scores_of("season-24")[0] / ours == pytest.approx(10, abs=0.5)
