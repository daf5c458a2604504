"""Safety bus by bus: how many buses are hard, how hard, and whether they are hard for everyone."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int, Real

from powerphase.errors import ResultError
from powerphase.records.result import Result
from powerphase.records.sidecar import read_sidecar
from powerphase.report.entries import group_by
from powerphase.report.statistics import spearman

PER_BUS = "safety_mbrier"
HARD, WORST = 50, 200
"""How many buses the paper takes for the hard ones, and for the worst."""

NEGLIGIBLE = 1e-6
"""What a bus may score by rounding alone: in single precision weights sum to 1 only so far.

One of a hundred scenarios that is wrong in one step of ten windows is ten times as much.
"""

THRESHOLDS: Float[np.ndarray, " x"] = np.logspace(-6, 0, 121)
"""Where a survival function is told: twenty places to a power of ten."""


@dataclass(frozen=True)
class HardBuses:
    """What the hard buses of two forecasters have in common."""

    n: int
    """How many were asked for; a forecaster has fewer if fewer of its buses score at all."""
    shared: int
    overlap: float | None
    """What they share of the larger of the two sets; none where both are empty."""
    spearman: float | None
    """Over all buses, where ties share the mean of their places."""
    spearman_scoring: float | None
    """Over the buses where at least one of the two scores at all.

    Most buses never come near the band's limits and tie at nothing, so that ρ over all buses tells
    little more than whether the same ones score at all.
    """


def by_bus(rows: Mapping[Path, Result], score: str = PER_BUS) -> dict[str, Float[np.ndarray, " N"]]:
    """The score of every bus in the case file's order, by entry: the mean over its seeds.

    Args:
        rows: of one data set and task, by the file that each was read from.
        score: one that sidecars hold by bus; of CRPS the mean over the variables.
    """
    places = {(row.task, row.task_version, row.fingerprint) for row in rows.values()}
    if len(places) > 1:
        raise ResultError(f"rows of {len(places)} tasks or data sets; give those of one")
    by_name = group_by(rows.items(), lambda item: item[1].name)
    return {
        name: np.mean([_read(path, score) for path, _ in seeds], axis=0)
        for name, seeds in by_name.items()
    }


def survival(
    per_bus: Real[np.ndarray, " N"], thresholds: Float[np.ndarray, " x"] = THRESHOLDS
) -> tuple[Float[np.ndarray, " x"], Float[np.ndarray, " x"]]:
    """Thresholds x, and the share of buses whose value exceeds each."""
    above = len(per_bus) - np.searchsorted(np.sort(per_bus), thresholds, side="right")
    return thresholds, above / len(per_bus)


def worst(
    per_bus: Real[np.ndarray, " N"], n: int = WORST
) -> tuple[Int[np.ndarray, " n"], Real[np.ndarray, " n"]]:
    """Positions and values of the n highest, from the highest on; of ties the earlier bus first."""
    order = np.argsort(-per_bus, kind="stable")[:n]
    return order, per_bus[order]


def hard_buses(a: Real[np.ndarray, " N"], b: Real[np.ndarray, " N"], n: int = HARD) -> HardBuses:
    """How far two forecasters find the same buses hard.

    Hard are the n highest, if they are more than negligible; what is negligible counts as 0. Where
    buses tie for the last places, those that come earlier in the case file are taken, for both
    forecasters alike.
    """
    a, b = (np.where(values > NEGLIGIBLE, values, 0) for values in (a, b))
    one, other = _hard(a, n), _hard(b, n)
    shared, most = int((one & other).sum()), max(int(one.sum()), int(other.sum()))
    scoring = (a > 0) | (b > 0)
    return HardBuses(
        n=n,
        shared=shared,
        overlap=shared / most if most else None,
        spearman=spearman(a, b),
        spearman_scoring=spearman(a[scoring], b[scoring]),
    )


def _hard(per_bus: Real[np.ndarray, " N"], n: int) -> Bool[np.ndarray, " N"]:
    chosen = np.zeros(len(per_bus), dtype=bool)
    chosen[worst(per_bus, n)[0]] = True
    return chosen & (per_bus > 0)


def _read(path: Path, score: str) -> Float[np.ndarray, " N"]:
    arrays = read_sidecar(path)
    if f"by_bus/{score}" not in arrays:
        raise ResultError(
            f"{path.with_suffix('.npz')}: no {score} by bus in it; score the forecast again"
        )
    found = arrays[f"by_bus/{score}"].astype(float)
    return found if found.ndim == 1 else found.mean(axis=1)
