"""Times of a source: in UTC, in order, on a regular axis."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Int, Shaped

from powerphase.errors import RecordError
from powerphase.importing.mapping import SourceMapping
from powerphase.resolution import STEPS_S
from powerphase.schema import MAX_STEPS

_OFFSET = re.compile(r"(?:[Zz]|[+-]\d\d:?\d\d)$")

Locate = Callable[[int], str]
"""The place of a row in its source, for messages."""


def parse_times(
    column: "pd.Series[Any]",
    keys: "Shaped[np.ndarray, ' S'] | None",
    mapping: SourceMapping,
    locate: Locate,
) -> Shaped[np.ndarray, " S"]:
    """The time of each row as `datetime64[s]`, UTC.

    Args:
        column: the times as the source has them: text or timestamps.
        keys: what must differ between rows of one time, such as their buses; None if nothing may.
        mapping: says the zone and the format of times without an offset.
        locate: names a row.
    """
    if pd.api.types.is_datetime64_any_dtype(column):
        parsed = pd.DatetimeIndex(column)
        missing = np.flatnonzero(parsed.isna())
        if missing.size:
            raise RecordError(f"{locate(int(missing[0]))}: the time is missing")
    elif pd.api.types.is_numeric_dtype(column):
        raise RecordError(
            f"{locate(0)}: {column.iloc[0]!r} is a number, not a time; write times by ISO 8601, "
            "such as 2016-07-01T00:15Z"
        )
    else:
        parsed = _parse_text(column, mapping, locate)
    if parsed.tz is None:
        parsed = _localise(parsed, keys, mapping, locate)
    utc = parsed.tz_convert("UTC").tz_localize(None)
    time = utc.to_numpy().astype("datetime64[ns]")
    odd = np.flatnonzero(time != time.astype("datetime64[s]"))
    if odd.size:
        raise RecordError(f"{locate(int(odd[0]))}: {time[odd[0]]} is not a whole second")
    return time.astype("datetime64[s]")


def _parse_text(
    column: "pd.Series[Any]", mapping: SourceMapping, locate: Locate
) -> pd.DatetimeIndex:
    """Times from text; either all have an offset or none."""
    words = column.astype(str).str.strip()
    distinct = words.drop_duplicates()
    has_offset = distinct.map(lambda word: _OFFSET.search(word) is not None)
    if has_offset.any() and not has_offset.all():
        differs = has_offset.to_numpy() != bool(has_offset.iloc[0])
        row = int(np.flatnonzero(words.to_numpy() == distinct.iloc[int(differs.argmax())])[0])
        raise RecordError(
            f"{locate(row)}: {words.iloc[row]!r} and {words.iloc[0]!r}: some times have an offset "
            "and some have none; write all in the same way"
        )
    kind = mapping.time_format or "ISO8601"
    aware = bool(has_offset.all()) and len(distinct) > 0
    times = pd.to_datetime(distinct, format=kind, errors="coerce", utc=aware)
    invalid = times.isna().to_numpy()
    if invalid.any():
        word = distinct.iloc[int(invalid.argmax())]
        row = int(np.flatnonzero(words.to_numpy() == word)[0])
        raise RecordError(
            f"{locate(row)}: {word!r} is not a time; write it as 2016-07-01T00:15Z, or give "
            'a time_format in the mapping, such as "%d.%m.%Y %H:%M"'
        )
    place = pd.Index(distinct.to_numpy()).get_indexer(pd.Index(words.to_numpy()))
    return pd.DatetimeIndex(times).take(place)


def _localise(
    wall: pd.DatetimeIndex,
    keys: "Shaped[np.ndarray, ' S'] | None",
    mapping: SourceMapping,
    locate: Locate,
) -> pd.DatetimeIndex:
    """Times on a wall clock as times with a zone.

    In the hour that occurs twice in October, the first row of a time is the earlier one.
    """
    if mapping.zone is None:
        raise RecordError(
            f"{locate(0)}: {wall[0]} has no offset; write times with one, such as "
            '2016-07-01T00:15Z, or give their `zone` in the mapping, such as zone = "UTC"'
        )
    table = pd.DataFrame({"wall": wall, "key": 0 if keys is None else keys})
    groups = table.groupby(["wall", "key"], sort=False)
    is_first = (groups.cumcount() == 0).to_numpy()
    is_pair = (groups["wall"].transform("size") == 2).to_numpy()
    try:
        aware = wall.tz_localize(mapping.zone, ambiguous=is_first, nonexistent="NaT")
        both = [
            wall.tz_localize(mapping.zone, ambiguous=np.full(len(wall), flag), nonexistent="NaT")
            for flag in (True, False)
        ]
    except (ValueError, OverflowError) as error:
        raise RecordError(f"{locate(0)}: {error}") from error
    gap = np.flatnonzero(aware.isna())
    if gap.size:
        raise RecordError(
            f"{locate(int(gap[0]))}: {wall[gap[0]]} does not exist in {mapping.zone}, where the "
            "clock skips an hour; check the zone, or write times with their offset"
        )
    unclear = np.flatnonzero((both[0] != both[1]) & ~is_pair)
    if unclear.size:
        raise RecordError(
            f"{locate(int(unclear[0]))}: {wall[unclear[0]]} occurs twice in {mapping.zone}, but "
            "not in the record; write times with their offset"
        )
    return aware


def step_of(time: Shaped[np.ndarray, " S"], source: str) -> int:
    """The step of ascending times in seconds: their most common difference, which all must fit."""
    if len(time) < 3:
        raise RecordError(f"{source}: {len(time)} times are too few to know their step")
    seconds = np.diff(time).astype(np.int64)
    sizes, counts = np.unique(seconds, return_counts=True)
    step = int(sizes[counts.argmax()])
    phase = (time - time[0]).astype(np.int64) % step
    odd = np.flatnonzero(phase)
    if odd.size:
        raise RecordError(
            f"{source}: times are {step} s apart, but {time[odd[0]]} is not a whole number of "
            f"steps after {time[0]} ({odd.size} such times); give a regular record"
        )
    return step


def regular_axis(
    time: Shaped[np.ndarray, " S"], step_s: int, source: str
) -> tuple[Shaped[np.ndarray, " T"], Int[np.ndarray, " S"]]:
    """All times from the first to the last, and the position of each time of the source."""
    since_midnight = int(
        (time[0] - time[0].astype("datetime64[D]")).astype("timedelta64[s]").astype(int)
    )
    if step_s not in STEPS_S:
        known = ", ".join(f"{size // 60}" for size in STEPS_S)
        raise RecordError(
            f"{source}: its times are {step_s} s apart; a record has steps of {known} minutes, so "
            "average it"
        )
    if since_midnight % step_s:
        raise RecordError(
            f"{source}: steps of {step_s} s from {time[0]} on do not start at the hour; give steps "
            "that do"
        )
    place = (time - time[0]).astype(np.int64) // step_s
    if place[-1] >= MAX_STEPS:
        raise RecordError(
            f"{source}: from {time[0]} to {time[-1]} there are more than {MAX_STEPS:,} steps of "
            f"{step_s} s; check the times"
        )
    return time[0] + np.arange(place[-1] + 1) * np.timedelta64(step_s, "s"), place
