"""The regular step of a record, and durations and times of day in it.

A record has one step throughout, of 5, 15, 30 or 60 minutes. Generated records have 15 minutes, and
so has the paper's task. Whoever needs the step of something takes it from the times: two steps that
follow each other say what it is.
"""

import re
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from powerphase.errors import TaskError

DAY_S, HOUR_S, MINUTE_S = 86_400, 3_600, 60

PAPER_STEP_S = 900
"""The step of the paper, in which configs of models count: their steps are quarter-hours."""

STEPS_S = (300, 900, 1800, 3600)
"""The steps that a record may have, in seconds."""

UNITS_S = {"d": DAY_S, "h": HOUR_S, "m": MINUTE_S, "min": MINUTE_S}

_DURATION = re.compile(r"(?P<count>\d{1,9})(?P<unit>[a-z]*)", re.ASCII)
_TIME_OF_DAY = re.compile(r"(?P<hour>[01]\d|2[0-3]):(?P<minute>[0-5]\d)", re.ASCII)

Duration = int | str
"""A number of steps, or text such as `7d`, `24h` or `90min`."""


def steps_per_day(step_s: int) -> int:
    """How many steps a day has."""
    return DAY_S // step_s


def step_of(time: Shaped[np.ndarray, "*any steps"]) -> int:
    """Seconds from one step to the next; times along the last axis must be a step apart."""
    if time.shape[-1] < 2 or not time.size:
        raise TaskError(f"{time.shape[-1]} times do not tell their step; give two or more")
    first, second = time.reshape(-1, time.shape[-1])[0, :2].astype("datetime64[s]")
    step_s = int((second - first).astype(np.int64))
    if step_s not in STEPS_S:
        raise TaskError(f"{second} is {step_s} s after {first}; a step has {_step_names()}")
    return step_s


def check_step(step_s: int) -> None:
    """Raise unless a record may have this step."""
    if isinstance(step_s, bool) or step_s not in STEPS_S:
        raise TaskError(f"a step of {step_s!r} s is not possible; a step has {_step_names()}")


def uneven_steps(time: Shaped[np.ndarray, " S"], step_s: int) -> Int[np.ndarray, " uneven"]:
    """The steps that do not follow the one before them by the step."""
    return np.flatnonzero(np.diff(time) != np.timedelta64(step_s, "s")) + 1


def count_steps(duration: Any, step_s: int, what: str) -> int:
    """The number of steps in a duration: of steps, or text such as `24h`; raise if it is none.

    Args:
        duration: a whole number of steps, also as text, or whole days, hours or minutes.
        step_s: the step of the record.
        what: what the duration is of, for the error.
    """
    text = str(duration)
    match = None if isinstance(duration, bool | float) else _DURATION.fullmatch(text)
    unit = match["unit"] if match else ""
    if match is None or (unit and unit not in UNITS_S):
        raise TaskError(
            f"{what} {text!r} is not a duration; write whole steps, days, hours or minutes, such "
            "as 96, 7d, 24h or 90min"
        )
    count, seconds = int(match["count"]), int(match["count"]) * UNITS_S.get(unit, step_s)
    if count < 1:
        raise TaskError(f"{what} {text!r} must be 1 step or more")
    if seconds % step_s:
        raise TaskError(
            f"{what} {text!r} is not a whole number of the record's steps of "
            f"{step_s // MINUTE_S} minutes"
        )
    return seconds // step_s


def parse_time_of_day(text: str, step_s: int) -> int:
    """Seconds after midnight of a time such as `12:00`, at which a step must start."""
    match = _TIME_OF_DAY.fullmatch(text)
    if match is None:
        raise TaskError(f"origin {text!r} is not a time of day; write it as 12:00 (UTC)")
    seconds = int(match["hour"]) * HOUR_S + int(match["minute"]) * MINUTE_S
    if seconds % step_s:
        raise TaskError(
            f"origin {text!r}: no step of {step_s // MINUTE_S} minutes starts then; choose a "
            "multiple of the step"
        )
    return seconds


def time_of_day(moment: np.datetime64) -> int:
    """Seconds since midnight UTC."""
    return int((moment - moment.astype("datetime64[D]")) / np.timedelta64(1, "s"))


def rescale_steps(steps: int, step_s: int) -> int:
    """A number of quarter-hours in steps of this length, rounded; 1 or more."""
    return max(1, round(steps * PAPER_STEP_S / step_s))


def _step_names() -> str:
    *most, last = (str(step_s // MINUTE_S) for step_s in STEPS_S)
    return f"{', '.join(most)} or {last} minutes"
