"""Rows with the scores that a test plants, the same in every type."""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from powerphase.axes import VARIABLES
from powerphase.records import Result
from tests.records.rows import row

N_WINDOWS = 10


def days(count: int, apart: int = 20) -> list[str]:
    """Starts of so many windows, so many days apart."""
    first = date(2016, 7, 1)
    return [f"{first + timedelta(days=apart * k)}T00:00" for k in range(count)]


def planted(
    model: str, *, windows: list[str] | None = None, scores: Any = None, **changes: Any
) -> Result:
    """A row of the model; scores are given for all windows at once or one by one.

    Args:
        model: its name.
        windows: their starts; ten windows by default.
        scores: of names that are no keywords.
        changes: scores, or other fields of the row.
    """
    starts = windows or days(N_WINDOWS)
    base = row(model=model)
    given = dict(scores or {})
    given |= {name: changes.pop(name) for name in list(changes) if name in base.scores}
    # Brier and the bias may not exceed scores that a test sets to next to nothing.
    values = {name: 0.5 for name in base.scores} | {"brier": 0.0, "excursion_bias": 0.0} | given
    by_window = {
        name: list(value) if isinstance(value, Sequence) else [float(value)] * len(starts)
        for name, value in values.items()
    }
    means = {name: sum(own) / len(own) for name, own in by_window.items()}
    by_type = {kind: {n: means[n] for n in base.by_type[kind]} for kind in VARIABLES}
    scored: dict[str, Any] = {"scores": means, "by_window": by_window, "by_type": by_type}
    return row(model=model, windows=starts, **scored, **changes)
