"""Signals in whole numbers, which give small data sets with reproducible bits."""

import hashlib
from dataclasses import replace
from pathlib import Path

import numpy as np

from powerphase.synthesis import Signals


def exact_signals(days: int = 30) -> Signals:
    """Triangular load, midday solar and stepped wind in whole MW: the same bits everywhere."""
    step = np.arange(96 * days)
    of_day = step % 96
    load = 50_000 + 250 * np.minimum(of_day, 96 - of_day) + 400 * (step // 96 % 7)
    solar = np.maximum(0, 16 - abs(of_day - 46)) * 500
    wind = 1_000 * (3 + step // 32 % 5)
    return Signals(
        time=np.datetime64("2015-01-01", "s") + 900 * step,
        values_mw=np.stack([load, solar, wind], axis=1).astype(float),
        edition="exact",
        attribution="made by the tests",
    )


UNSOLVABLE, HEAVY = [0, 1, 959, 960, 961, 1500], [1200]
"""Steps of `stressed_signals` that no back-off solves, and one that a back-off solves."""


def stressed_signals() -> Signals:
    """A record for 14 buses and seed 0 with unsolvable steps at its start and across two blocks."""
    signals = exact_signals(25)
    values = signals.values_mw.copy()
    values[UNSOLVABLE, 0] *= 40
    values[HEAVY, 0] *= 6
    return replace(signals, values_mw=values)


def files_of(store: Path) -> dict[str, str]:
    """Every file of a directory with the hash of its bytes."""
    return {
        str(path.relative_to(store)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }
