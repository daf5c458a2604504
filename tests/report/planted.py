"""Rows with chosen scores, the same in every variable."""

from collections.abc import Sequence
from datetime import date, timedelta
from typing import Any

from powerphase.axes import VARIABLES
from powerphase.records import Result
from tests.records.rows import row

N_WINDOWS = 10


def days(count: int, apart: int = 20) -> list[str]:
    """The starts of `count` windows, `apart` days apart."""
    first = date(2016, 7, 1)
    return [f"{first + timedelta(days=apart * k)}T00:00" for k in range(count)]


def planted(
    model: str, *, windows: list[str] | None = None, scores: Any = None, **changes: Any
) -> Result:
    """A row of the model; a score is one number for all windows, or one number per window.

    Args:
        model: name of the model.
        windows: starts of the windows; ten windows by default.
        scores: scores whose names are not valid keywords.
        changes: scores, or other fields of the row.
    """
    starts = windows or days(N_WINDOWS)
    base = row(model=model)
    chosen = dict(scores or {})
    chosen |= {name: changes.pop(name) for name in list(changes) if name in base.scores}
    # Brier and the bias may not exceed scores that a test sets close to zero.
    values = {name: 0.5 for name in base.scores} | {"brier": 0.0, "excursion_bias": 0.0} | chosen
    by_window = {
        name: list(value) if isinstance(value, Sequence) else [float(value)] * len(starts)
        for name, value in values.items()
    }
    means = {name: sum(values) / len(values) for name, values in by_window.items()}
    by_type = {kind: {n: means[n] for n in base.by_type[kind]} for kind in VARIABLES}
    facts: dict[str, Any] = {
        "windows": starts,
        "scores": means,
        "by_window": by_window,
        "by_type": by_type,
    }
    return row(model=model, **facts, **changes)
