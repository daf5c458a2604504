"""Forecasts of national signals with the times at which they were issued.

An operator has forecasts of tomorrow's load, sun and wind, and receives new ones several times a
day. `Issued` holds them all and answers one question: what was the newest forecast of a time, among
those that had been issued by another time? Nothing else is read from it, so that no window sees a
forecast that was issued after its origin.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float32, Int, Shaped

from powerphase.errors import SignalError

DAY = np.timedelta64(1, "D")

_BITS = 32
"""Holds the seconds from the first time of a table to the issue of a value."""


@dataclass(frozen=True, eq=False)
class IssuedSeries:
    """All forecasts of one quantity: R values, in any order.

    Times of another precision become `datetime64[s]`, other numbers float32.
    """

    name: str
    """Such as `wind`."""
    unit: str
    """Such as `MW`."""
    issued: Shaped[np.ndarray, "..."]
    """When each value was issued, UTC: R times."""
    valid: Shaped[np.ndarray, "..."]
    """Start of the step that each value is for, UTC: R times."""
    values: Shaped[np.ndarray, "..."]
    """R numbers."""

    def __post_init__(self) -> None:
        for column in ("issued", "valid"):
            object.__setattr__(self, column, self._as_seconds(column))
        values = np.asarray(self.values)
        if values.dtype.kind not in "fiu":
            raise SignalError(f"forecasts of {self.name}: values are {values.dtype}; give numbers")
        with np.errstate(over="ignore"):  # what is too large is refused as infinite
            object.__setattr__(self, "values", values.astype(np.float32))
        shapes = {each.shape for each in (self.issued, self.valid, self.values)}
        if shapes != {(self.values.size,)}:
            raise SignalError(
                f"forecasts of {self.name}: issued, valid and values have the shapes "
                f"{self.issued.shape}, {self.valid.shape} and {self.values.shape}; give a time of "
                "issue and a valid time for each value"
            )
        if not self.values.size:
            raise SignalError(f"forecasts of {self.name}: there is no value; give one or more")
        if not np.isfinite(self.values).all():
            first = self.valid[~np.isfinite(self.values)][0]
            raise SignalError(
                f"forecasts of {self.name}: the value for {first}Z is not finite; leave it out"
            )
        late = self.issued > self.valid
        if late.any():
            raise SignalError(
                f"forecasts of {self.name}: the value for {self.valid[late][0]}Z was issued later, "
                f"at {self.issued[late][0]}Z, so it is no forecast; leave it out"
            )
        if self.valid.max() - self._first >= np.timedelta64(2**31, "s"):
            raise SignalError(
                f"forecasts of {self.name}: from {self._first}Z to {self.valid.max()}Z are more "
                "than 68 years; check the times"
            )
        order, key = self._index
        twice = np.flatnonzero(np.diff(key) == 0)
        if twice.size:
            row = order[twice[0]]
            raise SignalError(
                f"forecasts of {self.name} overlap: those issued at {self.issued[row]}Z have two "
                f"values for {self.valid[row]}Z; leave one of them out"
            )

    def newest(
        self, valid: Shaped[np.ndarray, "*S"], by: Shaped[np.ndarray, "*S"]
    ) -> Int[np.ndarray, "*S"]:
        """The rows of the newest values for these times that had been issued by other times.

        -1 where none had been issued.
        """
        order, key = self._index
        # Before the first issue nothing is known: -1 is less than any issue of the same time.
        latest = np.maximum(_seconds(by, self._first), -1)
        position = np.searchsorted(key, self._combine(valid, latest), side="right") - 1
        row = order[np.maximum(position, 0)]
        return np.where((position >= 0) & (self.valid[row] == valid), row, -1)

    def read(
        self, row: Int[np.ndarray, "*S"]
    ) -> tuple[Float32[np.ndarray, "*S"], Shaped[np.ndarray, "*S"]]:
        """The values in these rows and when they were issued; NaN and NaT for -1."""
        values = np.where(row >= 0, self.values[row], np.float32(np.nan))
        return values, np.where(row >= 0, self.issued[row], np.datetime64("NaT", "s"))

    def has_times_of(self, other: "IssuedSeries") -> bool:
        """Whether the rows of another series are for the same times and issued at the same."""
        pairs = ((self.issued, other.issued), (self.valid, other.valid))
        return all(np.array_equal(ours, theirs) for ours, theirs in pairs)

    def check_step(self, step_s: int) -> None:
        """Raise unless the values are for the steps of a record with this step."""
        order = np.lexsort((self.valid, self.issued))
        issued, valid = self.issued[order], self.valid[order]
        apart = _seconds(valid[1:], valid[:-1])[issued[1:] == issued[:-1]]
        # Some may be missing, but those that follow each other say what the step is.
        if apart.size and (apart.min() != step_s or (apart % step_s).any()):
            raise SignalError(
                f"forecasts of {self.name}: their steps have {apart.min() / 60:g} minutes, those "
                f"of the record {step_s / 60:g}; resample the forecasts"
            )
        odd = np.flatnonzero(_seconds(valid, valid.astype("datetime64[D]")) % step_s)
        if odd.size:
            raise SignalError(
                f"forecasts of {self.name}: no step of {step_s / 60:g} minutes starts at "
                f"{valid[odd[0]]}Z; shift or resample the forecasts"
            )

    def why_missing(self, valid: np.datetime64, by: np.datetime64) -> str:
        """Why no value for a time had been issued by another."""
        issued = self.issued[self.valid == valid]
        if issued.size:
            return f"that for {valid}Z was issued at {issued.min()}Z, after the origin {by}Z"
        return f"there is none for {valid}Z; they end at {self.valid.max()}Z"

    def _as_seconds(self, column: str) -> Shaped[np.ndarray, "..."]:
        """These times as `datetime64[s]`; raise if they are others, or have fractions."""
        times = np.asarray(getattr(self, column))
        if times.dtype.kind != "M":
            raise SignalError(
                f"forecasts of {self.name}: {column} has {times.dtype}, must have datetime64, UTC; "
                "convert it"
            )
        seconds = times.astype("datetime64[s]")
        odd = times[np.isnat(times) | (seconds != times)]
        if odd.size:
            raise SignalError(
                f"forecasts of {self.name}: {column} has {odd[0]}, which is no whole second; "
                "correct it or leave it out"
            )
        return seconds

    @cached_property
    def _first(self) -> np.datetime64:
        """The first time in the table."""
        return np.datetime64(self.issued.min())

    @cached_property
    def _index(self) -> tuple[Int[np.ndarray, " R"], Int[np.ndarray, " R"]]:
        """The rows by valid time, then by time of issue, and a number with this order for each."""
        key = self._combine(self.valid, _seconds(self.issued, self._first))
        order = np.argsort(key, kind="stable")
        return order, key[order]

    def _combine(
        self, valid: Shaped[np.ndarray, "*S"], issued_s: Int[np.ndarray, "*S"]
    ) -> Int[np.ndarray, "*S"]:
        return (_seconds(valid, self._first) << _BITS) + issued_s


class IssuedValues(NamedTuple):
    """Values of K quantities and the times at which they were issued; NaN and NaT where missing."""

    values: Float32[np.ndarray, "*S K"]
    issued: Shaped[np.ndarray, "*S K"]


@dataclass(frozen=True, eq=False)
class Issued:
    """Forecasts of K quantities."""

    series: Sequence[IssuedSeries]

    def __post_init__(self) -> None:
        if not self.series:
            raise SignalError("there are no forecasts; give those of one or more quantities")
        twice = next((name for name in self.names if self.names.count(name) > 1), None)
        if twice is not None:
            raise SignalError(f"there are two series of forecasts of {twice}; give one")

    @property
    def names(self) -> tuple[str, ...]:
        """The quantities."""
        return tuple(each.name for each in self.series)

    @property
    def units(self) -> tuple[str, ...]:
        """The unit of each quantity."""
        return tuple(each.unit for each in self.series)

    @cached_property
    def _alike(self) -> list[int]:
        """For each quantity, the first with the same times."""
        return [
            next(k for k, other in enumerate(self.series) if each.has_times_of(other))
            for each in self.series
        ]

    @cached_property
    def sha256(self) -> str:
        """Content hash, which does not depend on the order of rows."""
        return self.sha256_before(None)

    def sha256_before(self, end: np.datetime64 | None) -> str:
        """That of quantities, units and the forecasts for times before this one; None for all."""
        digest = hashlib.sha256()
        for each in sorted(self.series, key=lambda series: series.name):
            order = np.lexsort((each.issued, each.valid))
            if end is not None:
                order = order[each.valid[order] < end]
            digest.update(f"{each.name}\n{each.unit}\n".encode())
            for part, kind in ((each.issued, "<i8"), (each.valid, "<i8"), (each.values, "<f4")):
                digest.update(part[order].astype(kind).tobytes())
        return digest.hexdigest()

    def check_step(self, step_s: int) -> None:
        """Raise unless the values are for the steps of a record with this step."""
        for each in self.series:
            each.check_step(step_s)

    def seen_from(
        self, origin: Shaped[np.ndarray, "*B"], time: Shaped[np.ndarray, "*B S"]
    ) -> IssuedValues:
        """What whoever forecasts at an origin has for these steps.

        From the origin on: the newest forecast that had been issued by the origin. Before: that
        which had been issued by the latest earlier time a whole number of days before the origin,
        so that past steps have what was known a day ahead.

        Args:
            origin: the first step of each window's horizon.
            time: the start of each of its steps.
        """
        ahead = origin[..., None] - time
        days = np.maximum(-(-ahead // DAY), 0)
        by = np.broadcast_to(origin[..., None], time.shape) - days * DAY
        # Mostly all quantities are issued together: then one search, which is slow, is enough.
        rows = {k: self.series[k].newest(time, by) for k in set(self._alike)}
        parts = [each.read(rows[k]) for each, k in zip(self.series, self._alike, strict=True)]
        values, issued = (np.stack(part, axis=-1) for part in zip(*parts, strict=True))
        return IssuedValues(values, issued)


def _seconds(time: Shaped[np.ndarray, "*S"], first: Any) -> Int[np.ndarray, "*S"]:
    """Seconds since another time, or since that of each."""
    return np.asarray((time - first).astype("timedelta64[s]").astype(np.int64))
