"""Rows with sidecars of known random numbers, to compare with what a page shows."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerphase.grid import Grid
from powerphase.records import (
    BY_BRANCH,
    FORECASTS,
    LINE,
    LINE_BUSES,
    LINE_HAPPENED,
    LINE_NUMBER,
    LINE_PEAK,
    LINE_RISK,
    LINE_TOTALS,
    NOT_DRAWN_SEEDS,
    RATING,
    RISK_LEVELS,
    SCORES,
    Result,
    compact,
    write_result,
)
from powerphase.report import Drawing
from tests.records.rows import WINDOWS, row

GRID, N_BUSES, N_SHOWN, STEPS = "polish2383", 30, 6, 96
N_LINES = 6
SAMPLES = 10
"""Scenarios of equal weight whose quantiles split exactly at a tenth and at a half."""

NASTY = "</script><script>window.stolen = true</script>"
VOLTAGE_SCORES = ("safety_mbrier", "necv", "cvar_0.1", "brier", "twcrps")

Arrays = dict[str, NDArray[Any]]


def drawing(grid: str) -> Drawing | None:
    """A ring of buses numbered from 101, for the invented grid alone."""
    if grid != GRID:
        return None
    angle = 2 * np.pi * np.arange(N_BUSES) / N_BUSES
    x, y = (0.5 + 0.5 * f(angle) for f in (np.cos, np.sin))
    ends = np.stack([np.arange(N_BUSES), (np.arange(N_BUSES) + 1) % N_BUSES], axis=1)
    ids = np.arange(101, 101 + N_BUSES)
    return Drawing(grid, ids, x.astype("f4"), y.astype("f4"), ends)


def of_another_grid(grid: Grid) -> Drawing:
    """A drawing of another grid, which no page can use."""
    ring = drawing(GRID)
    assert ring is not None
    return ring


def target() -> NDArray[np.float32]:
    """The truth at the shown buses; only the fourth is outside the band at times."""
    random = np.random.default_rng(5)
    values = random.normal(0, 0.01, (3, STEPS, N_SHOWN, 4))
    values[..., 2] = 1.0 + random.normal(0, 0.005, (3, STEPS, N_SHOWN))
    values[:, 60:84, 3, 2] = 0.93
    return values.astype(np.float32)


def sidecar(
    draw: int, scenarios: int, *, risk: bool, shown: bool = True, more: Arrays | None = None
) -> Arrays:
    """Arrays of the shapes that a sidecar has, and more."""
    random = np.random.default_rng(draw)
    weight = random.uniform(0.1, 1, (3, scenarios, N_SHOWN, 4))
    if scenarios == SAMPLES:
        weight = np.ones_like(weight)
    arrays: Arrays = {
        "shown/bus_id": np.array([101, 105, 110, 117, 124, 130]),
        "shown/window": np.array([0, 1, 2]),
        "shown/target": target(),
        "shown/scenario": target()[:, None]
        + random.normal(0, 0.02, (3, scenarios, STEPS, N_SHOWN, 4)).astype("f4"),
        "shown/weight": (weight / weight.sum(1, keepdims=True)).astype("f4"),
        "reliability": _reliability(random),
        "by_bus/crps": random.uniform(size=(N_BUSES, 4)).astype("f4"),
    }
    for name in (*VOLTAGE_SCORES, "violation_probability", "violation"):
        arrays[f"by_bus/{name}"] = (random.uniform(size=N_BUSES) ** 3).astype("f4")
    for name in (*SCORES, "violation_probability", "violation"):
        size = (STEPS, 4) if name not in SCORES or SCORES[name].has_types else (STEPS,)
        arrays[f"by_step/{name}"] = random.uniform(size=size).astype("f4")
    arrays["by_step/violation"] = np.full((STEPS, 4), 0.25, "f4")
    if not shown:
        arrays = {name: array for name, array in arrays.items() if not name.startswith(FORECASTS)}
    if risk:
        levels = random.integers(0, RISK_LEVELS + 1, (3, N_BUSES, STEPS))
        arrays["risk/by_bus_step"] = levels.astype(np.uint8)
        arrays["risk/happened"] = (levels > RISK_LEVELS // 2).astype(np.uint8)
        arrays["risk/excursion"] = random.integers(0, 30, (3, N_BUSES, 2)).astype(np.uint8)
        arrays["risk/excursion_happened"] = random.integers(0, 30, (3, N_BUSES, 2)).astype(np.uint8)
    return compact({**arrays, **(more or {})})


def lines(n_lines: int, n_rated: int = N_BUSES) -> Arrays:
    """The arrays of lines: two parallel ones between buses 101 and 102, others along the ring."""
    random = np.random.default_rng(n_lines)
    start = 101 + np.maximum(np.arange(n_lines) - 1, 0)
    risk = random.integers(1, RISK_LEVELS + 1, (3, n_lines, STEPS)).astype(np.uint8)
    scores = {f"by_branch/{name}": random.uniform(size=n_lines).astype("f4") for name in BY_BRANCH}
    return {
        LINE: np.arange(n_lines),
        LINE_BUSES: np.stack([start, start + 1], axis=1),
        LINE_NUMBER: 1 + (np.arange(n_lines) == 1),
        RATING: random.uniform(100, 900, n_lines).astype("f4"),
        LINE_TOTALS: np.array([2 * n_lines, n_rated, N_BUSES + 1]),
        LINE_RISK: risk,
        LINE_HAPPENED: (risk > RISK_LEVELS // 2).astype(np.uint8),
        LINE_PEAK: random.uniform(1.01, 1.5, (3, n_lines)).astype("f4"),
        **scores,
    }


def _reliability(random: np.random.Generator) -> NDArray[np.float64]:
    bins = random.uniform(size=(21, 3))
    bins[:, 0] = random.integers(1, 1000, 21)
    bins[7] = 0, np.nan, np.nan
    return bins


def field() -> list[tuple[Result, Arrays]]:
    """Rows of five forecasters: two seeds of one, a variant, two references.

    The variant has lines, the oracle none with a rating, and the others are of an older schema.
    """
    forecasters: list[tuple[str, str | None, int]] = [
        ("powerforge", None, 42),
        ("powerforge", None, 22),
        ("ets", None, 42),
        ("ets", "stale", 42),
        ("last-7-days", None, 0),
        ("oracle", None, 42),
    ]
    rows = []
    for k, (model, variant, seed) in enumerate(forecasters):
        cost = row().cost | {"hardware": NASTY}
        result = row(model=model, variant=variant, seed=seed, draw=k, grid=GRID, cost=cost)
        scenarios = SAMPLES if model == "last-7-days" else 4 + k
        has_lines = {"ets+stale": lines(N_LINES), "oracle": lines(0, n_rated=0)}
        is_shown = seed not in NOT_DRAWN_SEEDS
        more = has_lines.get(result.name)
        arrays = sidecar(k, scenarios, risk=model == "ets", shown=is_shown, more=more)
        rows.append((result, arrays))
    return rows


def write(root: Path) -> dict[str, tuple[Result, Arrays]]:
    """Write the field into a tree of results; returns it by the names that pages use."""
    rows = {}
    for result, arrays in field():
        write_result(result, arrays, root)
        rows[f"{result.name}-{result.seed}"] = (result, arrays)
    assert all(result.windows == WINDOWS for result, _ in rows.values())
    return rows
