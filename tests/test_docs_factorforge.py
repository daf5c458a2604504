"""What is said of FactorForge's results is what the rows say."""

from functools import cache
from pathlib import Path

import pytest

from powerphase.grid import CATALOG
from powerphase.records.result import Result, read_results
from powerphase.report.leaderboard import Board, leaderboard

ROOT = Path(__file__).parents[1]
PAGE = " ".join((ROOT / "docs" / "factorforge.md").read_text(encoding="utf-8").split())
TARGETS = {
    "crps": 0.6,
    "distortion": 0.75,
    "brier": 0.6,
    "twcrps": 0.6,
    "safety_mbrier": 1.0,
    "cvar_0.1": 1.3,
}
GRIDS = ("activsg500", "pegase1354", "polish2383", "pegase2869", "polish3120", "pegase9241")


@cache
def rows() -> list[Result]:
    place = ROOT / "results" / "powerphase-day-ahead"
    return [row for row in read_results([place]) if row.edition == "opsd-r"]


@cache
def boards() -> list[Board]:
    return leaderboard(rows())


def board_of(grid: str) -> Board:
    return next(board for board in boards() if board.grid == grid)


def row_of(grid: str) -> Result:
    place = (grid, "factorforge", None)
    (found,) = [row for row in rows() if (row.grid, row.model, row.variant) == place]
    return found


def scores(grid: str, model: str) -> dict[str, float | None]:
    return next(entry.mean for entry in board_of(grid).entries if entry.name == model)


def ratio(grid: str, score: str, other: str) -> float | None:
    ours, theirs = (scores(grid, model)[score] for model in ("factorforge", other))
    return ours / theirs if theirs and ours is not None else None


@pytest.mark.parametrize("grid", GRIDS)
def test_the_table_of_ratios_is_that_of_the_rows(grid: str) -> None:
    found = [ratio(grid, score, "powerforge") for score in TARGETS]
    cells = []
    for value, target in zip(found, TARGETS.values(), strict=True):
        text = "–" if value is None else f"{value:.2f}"
        cells.append(text if value is None or value <= target else f"*{text}*")
    above = ratio(grid, "crps", "oracle")
    assert above is not None
    line = f"| {CATALOG[grid].title} | {' | '.join(cells)} | {above:.2f} |"
    assert line in PAGE


@pytest.mark.parametrize("grid", GRIDS)
def test_its_rank_is_the_best_on_every_grid(grid: str) -> None:
    ranked = [entry for entry in board_of(grid).entries if entry.rank is not None]
    assert min(ranked, key=lambda entry: entry.rank or 0).name == "factorforge"


@pytest.mark.parametrize("grid", GRIDS)
def test_the_table_of_costs_is_that_of_the_rows(grid: str) -> None:
    row = row_of(grid)
    cost = row.cost
    seconds = f"{cost['train_s']:.0f} s | {cost['predict_s'] / len(row.windows):.2f} s"
    assert f"| {CATALOG[grid].title} | {seconds} | {cost['peak_memory_gib']:.1f} GiB |" in PAGE


def test_what_the_results_say_of_it_is_so() -> None:
    words = " ".join((ROOT / "docs/results.md").read_text().split())
    above = [ratio(grid, "crps", "oracle") or 0 for grid in GRIDS]
    assert f"a CRPS of {min(above):.2f} to {max(above):.2f} times the oracle's" in words


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("score", ["crps", "distortion", "brier", "twcrps"])
def test_no_ranked_model_is_ahead_of_it(grid: str, score: str) -> None:
    ranked = [entry for entry in board_of(grid).entries if entry.rank is not None]
    found = [entry.mean[score] for entry in ranked]
    assert scores(grid, "factorforge")[score] == min(value for value in found if value is not None)


def test_what_the_oracle_would_miss_is_so() -> None:
    for grid, words in (("pegase2869", "{} of PowerForge's"), ("pegase1354", "1354 it is {}, so")):
        values = [scores(grid, model)["crps"] or 0 for model in ("oracle", "powerforge")]
        assert words.format(f"{values[0] / values[1]:.2f}") in PAGE
    missing = {grid for grid in GRIDS if (ratio(grid, "distortion", "powerforge") or 0) > 0.75}
    assert missing == {"pegase1354", "pegase2869"}
    assert all((ratio(grid, "distortion", "oracle") or 1) < 1 for grid in missing)
    oracle, powerforge = (
        [scores(grid, model)["cvar_0.1"] or 0 for grid in ("pegase2869", "pegase1354")]
        for model in ("oracle", "powerforge")
    )
    first, second = (f"{a / b:.2f}" for a, b in zip(oracle, powerforge, strict=True))
    assert f"would miss 1.3 on these two as well, with {first} and {second}:" in PAGE
