"""The numbers on the page about physical scenarios are those of the rows."""

from pathlib import Path

import pytest

from powerphase.records import SCORES, read_result, read_sidecar
from powerphase.report import number

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "physical.md").read_text(encoding="utf-8")
ROWS = ROOT / "results" / "powerphase-day-ahead" / "opsd-r"
GRIDS = ("activsg500", "pegase1354")
SEEDS = {"last-week": 0, "last-7-days": 0, "climatology": 0, "factorforge": 42}
HEADING = next(row for row in PAGE.splitlines() if row.startswith("| forecaster | CRPS"))
ORDER = HEADING.strip("| ").split(" | ")[1:]
BALANCE = (
    *("before_largest_mva", "before_rms_mva", "after_largest_mva", "after_rms_mva"),
    *("rounding_share", "steps", "backed_off", "unsolved", "seconds"),
)
BY_TITLE = {score.title: name for name, score in SCORES.items()}


def line(grid: str, name: str, seed: int) -> str:
    """A row of the table of scores."""
    scores = read_result(ROWS / grid / f"{name}-{seed}.json").scores
    return f"| {name} | {' | '.join(number(scores[BY_TITLE[title]]) for title in ORDER)} |"


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", [*SEEDS, "factorforge+draws"])
def test_scores_before_and_after_are_those_of_the_rows(grid: str, name: str) -> None:
    seed = SEEDS[name.partition("+")[0]]
    physical = f"{name}-physical" if "+" in name else f"{name}+physical"
    assert line(grid, name, seed) in PAGE
    assert line(grid, physical, seed) in PAGE


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", ["factorforge+physical", "factorforge+draws-physical"])
def test_the_balance_of_factorforge_is_that_of_its_rows(grid: str, name: str) -> None:
    facts = read_sidecar(ROWS / grid / f"{name}-42.json")
    balance = {key: float(facts[f"physical/{key}"]) for key in BALANCE}
    before = [balance[f"before_{size}_mva"] for size in ("largest", "rms")]
    after = [balance[f"after_{size}_mva"] for size in ("largest", "rms")]
    cells = [f"{value:.2g}" if value < 10 else f"{value:,.0f}" for value in (*before, *after)]
    share, steps = f"{balance['rounding_share']:.0%}".replace("%", " %"), f"{balance['steps']:,.0f}"
    counts = [f"{balance[key]:.0f}" for key in ("backed_off", "unsolved")]
    model = name.replace("-physical", "").replace("+physical", "")
    row = " | ".join([grid, model, *cells, share, steps, *counts, f"{balance['seconds']:.0f}"])
    assert f"| {row} |" in PAGE
