"""Rows with sidecars of random numbers, so that whatever a page shows is known beforehand."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from powerphase.grid import Grid
from powerphase.records import (
    FORECASTS,
    NOT_DRAWN_SEEDS,
    RISK_LEVELS,
    SCORES,
    Result,
    compact,
    write_result,
)
from powerphase.report import Drawing
from tests.records.rows import WINDOWS, row

GRID, N_BUSES, N_SHOWN, STEPS = "polish2383", 30, 6, 96
SAMPLES = 10
"""So many scenarios weigh the same, and split exactly at a tenth and at a half."""

NASTY = "</script><script>window.stolen = true</script>"
VOLTAGE_SCORES = ("safety_mbrier", "necv", "cvar_0.1", "brier", "twcrps")

Arrays = dict[str, NDArray[Any]]


def drawing(grid: str) -> Drawing | None:
    """A ring of buses with numbers from 101 on, for the made-up grid alone."""
    if grid != GRID:
        return None
    angle = 2 * np.pi * np.arange(N_BUSES) / N_BUSES
    x, y = (0.5 + 0.5 * f(angle) for f in (np.cos, np.sin))
    ends = np.stack([np.arange(N_BUSES), (np.arange(N_BUSES) + 1) % N_BUSES], axis=1)
    ids = np.arange(101, 101 + N_BUSES)
    return Drawing(grid, ids, x.astype("f4"), y.astype("f4"), ends)


def of_another_grid(grid: Grid) -> Drawing:
    """A drawing that no page can use."""
    found = drawing(GRID)
    assert found is not None
    return found


def target() -> NDArray[np.float32]:
    """What happened at the shown buses; the fourth is at times outside the band, others are not."""
    random = np.random.default_rng(5)
    values = random.normal(0, 0.01, (3, STEPS, N_SHOWN, 4))
    values[..., 2] = 1.0 + random.normal(0, 0.005, (3, STEPS, N_SHOWN))
    values[:, 60:84, 3, 2] = 0.93
    return values.astype(np.float32)


def sidecar(draw: int, scenarios: int, *, risk: bool, shown: bool = True) -> Arrays:
    """Arrays of the shapes that a sidecar has."""
    random = np.random.default_rng(draw)
    weight = random.uniform(0.1, 1, (3, scenarios, N_SHOWN, 4))
    if scenarios == SAMPLES:
        weight = np.ones_like(weight)
    found: Arrays = {
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
        found[f"by_bus/{name}"] = (random.uniform(size=N_BUSES) ** 3).astype("f4")
    for name in (*SCORES, "violation_probability", "violation"):
        found[f"by_step/{name}"] = random.uniform(size=(STEPS, 4)).astype("f4")
    found["by_step/violation"] = np.full((STEPS, 4), 0.25, "f4")
    if not shown:
        found = {name: array for name, array in found.items() if not name.startswith(FORECASTS)}
    if risk:
        levels = random.integers(0, RISK_LEVELS + 1, (3, N_BUSES, STEPS))
        found["risk/by_bus_step"] = levels.astype(np.uint8)
        found["risk/happened"] = (levels > RISK_LEVELS // 2).astype(np.uint8)
    return compact(found)


def _reliability(random: np.random.Generator) -> NDArray[np.float64]:
    bins = random.uniform(size=(21, 3))
    bins[:, 0] = random.integers(1, 1000, 21)
    bins[7] = 0, np.nan, np.nan
    return bins


def field() -> list[tuple[Result, Arrays]]:
    """Rows of five forecasters: two seeds of one, a variant, two references."""
    who: list[tuple[str, str | None, int]] = [
        ("powerforge", None, 42),
        ("powerforge", None, 22),
        ("ets", None, 42),
        ("ets", "stale", 42),
        ("last-7-days", None, 0),
        ("oracle", None, 42),
    ]
    rows = []
    for k, (model, variant, seed) in enumerate(who):
        cost = row().cost | {"hardware": NASTY}
        made = row(model=model, variant=variant, seed=seed, draw=k, grid=GRID, cost=cost)
        scenarios = SAMPLES if model == "last-7-days" else 4 + k
        arrays = sidecar(k, scenarios, risk=model == "ets", shown=seed not in NOT_DRAWN_SEEDS)
        rows.append((made, arrays))
    return rows


def write(root: Path) -> dict[str, tuple[Result, Arrays]]:
    """Write the field into a tree of results; returns it by the names that pages use."""
    found = {}
    for made, arrays in field():
        write_result(made, arrays, root)
        found[f"{made.name}-{made.seed}"] = (made, arrays)
    assert all(made.windows == WINDOWS for made, _ in found.values())
    return found
