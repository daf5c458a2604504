"""The numbers on the page of FactorForge equal those of the rows."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from powerphase import Result, leaderboard, read_results
from powerphase.grid import CATALOG
from powerphase.report import Board

ROOT = Path(__file__).parents[1]
PAGE = " ".join((ROOT / "docs" / "factorforge.md").read_text(encoding="utf-8").split())
RESULTS = PAGE.split("## Results")[1]
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
    folder = ROOT / "results" / "powerphase-day-ahead"
    return [row for row in read_results([folder]) if row.edition == "opsd-r"]


@cache
def boards() -> list[Board]:
    return leaderboard(rows())


def board_of(grid: str) -> Board:
    return next(board for board in boards() if board.grid == grid)


def row_of(grid: str) -> Result:
    key = (grid, "factorforge", None)
    (result,) = [row for row in rows() if (row.grid, row.model, row.variant) == key]
    return result


def scores(grid: str, model: str) -> Mapping[str, float | None]:
    return next(entry.mean for entry in board_of(grid).entries if entry.name == model)


def ratio(grid: str, score: str, reference: str) -> float | None:
    value, divisor = (scores(grid, model)[score] for model in ("factorforge", reference))
    return value / divisor if divisor and value is not None else None


@pytest.mark.parametrize("grid", GRIDS)
def test_the_table_of_ratios_equals_the_rows(grid: str) -> None:
    ratios = [ratio(grid, score, "powerforge") for score in TARGETS]
    cells = []
    for value, target in zip(ratios, TARGETS.values(), strict=True):
        text = "–" if value is None else f"{value:.2f}"
        cells.append(text if value is None or value <= target else f"*{text}*")
    to_oracle = ratio(grid, "crps", "oracle")
    assert to_oracle is not None
    line = f"| {CATALOG[grid].title} | {' | '.join(cells)} | {to_oracle:.2f} |"
    assert line in PAGE


@pytest.mark.parametrize("grid", GRIDS)
def test_factorforge_has_the_best_rank_on_every_grid(grid: str) -> None:
    ranked = [entry for entry in board_of(grid).entries if entry.rank is not None]
    assert min(ranked, key=lambda entry: entry.rank or 0).name == "factorforge"


@pytest.mark.parametrize("grid", GRIDS)
def test_the_table_of_costs_equals_the_rows(grid: str) -> None:
    row = row_of(grid)
    cost = row.cost
    predict_s = cost["predict_s"]
    assert isinstance(predict_s, float)
    seconds = f"{cost['train_s']:.0f} s | {predict_s / len(row.windows):.2f} s"
    assert f"| {CATALOG[grid].title} | {seconds} | {cost['peak_memory_gib']:.1f} GiB |" in PAGE


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("score", ["crps", "distortion", "brier", "twcrps"])
def test_no_ranked_model_beats_factorforge(grid: str, score: str) -> None:
    ranked = [entry for entry in board_of(grid).entries if entry.rank is not None]
    values = [entry.mean[score] for entry in ranked]
    assert scores(grid, "factorforge")[score] == min(value for value in values if value is not None)


def test_the_page_states_the_ratios_of_the_oracle_to_powerforge() -> None:
    for grid in ("pegase2869", "pegase1354"):
        values = [scores(grid, model)["crps"] or 0 for model in ("oracle", "powerforge")]
        assert f"{values[0] / values[1]:.2f}" in RESULTS
    missing = {grid for grid in GRIDS if (ratio(grid, "distortion", "powerforge") or 0) > 0.75}
    assert missing == {"pegase1354", "pegase2869"}
    assert all((ratio(grid, "distortion", "oracle") or 1) < 1 for grid in missing)
    oracle, powerforge = (
        [scores(grid, model)["cvar_0.1"] or 0 for grid in ("pegase2869", "pegase1354")]
        for model in ("oracle", "powerforge")
    )
    first, second = (f"{a / b:.2f}" for a, b in zip(oracle, powerforge, strict=True))
    assert f"{first} and {second}" in RESULTS
