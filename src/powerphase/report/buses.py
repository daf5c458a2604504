"""Safety by bus: how many buses are hard to forecast, how hard, and for which models."""

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
"""The numbers of buses that the paper counts as hard and as the worst."""

NEGLIGIBLE = 1e-6
"""The score that rounding alone can cause: single-precision weights do not sum to 1 exactly.

One of a hundred scenarios that is wrong in one step of ten windows scores ten times as much.
"""

THRESHOLDS: Float[np.ndarray, " x"] = np.logspace(-6, 0, 121)
"""The thresholds of a survival function: twenty per power of ten."""


@dataclass(frozen=True)
class HardBuses:
    """The overlap of the hard buses of two forecasters."""

    n: int
    """The requested number; a forecaster has fewer if fewer of its buses score above 0."""
    shared: int
    overlap: float | None
    """The shared part of the larger of the two sets; None if both are empty."""
    spearman: float | None
    """Over all buses; ties share the mean of their ranks."""
    spearman_scoring: float | None
    """Over the buses where at least one of the two scores above 0.

    Most buses never come near the limits of the band and tie at 0, so ρ over all buses shows little
    more than whether the same buses score above 0.
    """


def by_bus(rows: Mapping[Path, Result], score: str = PER_BUS) -> dict[str, Float[np.ndarray, " N"]]:
    """The score of every bus in the order of the case file, by entry: the mean over its seeds.

    Args:
        rows: rows of one data set and task, by file.
        score: a score that sidecars have by bus; for CRPS, the mean over the variables.
    """
    conditions = {(row.task, row.task_version, row.fingerprint) for row in rows.values()}
    if len(conditions) > 1:
        raise ResultError(f"rows of {len(conditions)} tasks or data sets; pass rows of one")
    by_name = group_by(rows.items(), lambda item: item[1].name)
    return {
        name: np.mean([_read_score(path, score) for path, _ in seeds], axis=0)
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
    """Positions and values of the n highest, in descending order; ties in the order of buses."""
    order = np.argsort(-per_bus, kind="stable")[:n]
    return order, per_bus[order]


def hard_buses(a: Real[np.ndarray, " N"], b: Real[np.ndarray, " N"], n: int = HARD) -> HardBuses:
    """Compare the hard buses of two forecasters.

    The hard buses have the n highest scores, if these are not negligible; negligible scores count
    as 0. If buses tie for the last ranks, those earlier in the case file are used for both
    forecasters.
    """
    a, b = (np.where(values > NEGLIGIBLE, values, 0) for values in (a, b))
    hard_a, hard_b = _hard(a, n), _hard(b, n)
    shared, most = int((hard_a & hard_b).sum()), max(int(hard_a.sum()), int(hard_b.sum()))
    scoring = (a > 0) | (b > 0)
    return HardBuses(
        n=n,
        shared=shared,
        overlap=shared / most if most else None,
        spearman=spearman(a, b),
        spearman_scoring=spearman(a[scoring], b[scoring]),
    )


def _hard(per_bus: Real[np.ndarray, " N"], n: int) -> Bool[np.ndarray, " N"]:
    hard = np.zeros(len(per_bus), dtype=bool)
    hard[worst(per_bus, n)[0]] = True
    return hard & (per_bus > 0)


def _read_score(path: Path, score: str) -> Float[np.ndarray, " N"]:
    arrays = read_sidecar(path)
    if f"by_bus/{score}" not in arrays:
        raise ResultError(
            f"{path.with_suffix('.npz')}: has no {score} by bus; score the forecast again"
        )
    values = arrays[f"by_bus/{score}"].astype(float)
    return values if values.ndim == 1 else values.mean(axis=1)
