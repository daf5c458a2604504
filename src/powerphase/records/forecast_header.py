"""What a forecast file says of itself: its header, and in `forecast.json` how far it has come."""

import json
import re
from dataclasses import asdict, dataclass, fields
from math import inf
from pathlib import Path
from typing import Any

from powerphase.axes import VARIABLES
from powerphase.errors import ForecastError
from powerphase.records.plain import are_window_starts, is_plain
from powerphase.records.row_key import RowKey

RECORD = "forecast.json"
FORMAT = 1
"""Raised whenever a reader of older forecasts would misread or refuse a newer one."""

CHUNK_BYTES = 2**24
TEXTS = ("task", "grid", "edition", "model", "version")
COUNTS = ("task_version", "context", "horizon", "n_channels", "scenarios")
ADVICE = "restore it, or remove the directory and run the same `powerphase forecast` again"


@dataclass(frozen=True)
class ForecastHeader:
    """What a forecast is of, and what made it: all that tells one forecast from another."""

    task: str
    task_version: int
    context: int
    horizon: int
    windows: list[str]
    """UTC start of each window's first forecast step, such as `2016-07-01T00:00`."""
    grid: str
    edition: str
    fingerprint: str
    n_channels: int
    scenarios: int
    scale: list[float]
    """The P [MW] and Q [MVAr] by which values were divided."""
    model: str
    variant: str | None
    config: dict[str, Any]
    parameters: int | None
    seed: int
    version: str
    """Of powerphase."""

    def __post_init__(self) -> None:
        problems = _problems(self)
        if problems:
            raise ForecastError(f"not the header of a forecast: {'; '.join(problems)}")

    @property
    def key(self) -> RowKey:
        """The key of the row that the forecast gets when it is scored."""
        return RowKey(self.task, self.edition, self.grid, self.model, self.variant, self.seed)

    def blocks(self) -> list[slice]:
        """The channels of each chunk; together they are all channels, in order."""
        per_bus = len(VARIABLES)
        buses = CHUNK_BYTES // (4 * per_bus * self.scenarios * self.horizon)
        width = min(per_bus * max(buses, 1), self.n_channels)
        starts = range(0, self.n_channels, width)
        return [slice(start, min(start + width, self.n_channels)) for start in starts]


@dataclass(frozen=True)
class Record:
    """What `forecast.json` says."""

    header: ForecastHeader
    finished: frozenset[int] = frozenset()
    cost: dict[str, Any] | None = None
    complete: bool = False

    def __post_init__(self) -> None:
        every = set(range(len(self.header.windows)))
        if not self.finished <= every:
            raise ForecastError(f"windows {set(self.finished - every)} are finished but not listed")
        if self.cost is not None and not is_plain(self.cost):
            raise ForecastError(f"cost must be what JSON can hold, found {self.cost!r}")
        if self.complete and (self.cost is None or self.finished != every):
            raise ForecastError("marked as complete, but windows or cost are missing")

    def to_json(self) -> str:
        """The record as text; equal records give equal text."""
        progress = {"cost": self.cost, "finished": sorted(self.finished), "complete": self.complete}
        values = {"format": FORMAT, **asdict(self.header), **progress}
        return json.dumps(values, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def of(cls, values: dict[str, Any]) -> "Record":
        """The record that was written as `values`."""
        names = ("format", "cost", "finished", "complete")
        _, cost, finished, complete = (values.pop(name) for name in names)
        return cls(ForecastHeader(**values), frozenset(finished), cost, complete is True)


def read_record(path: Path) -> Record | None:
    """What the forecast at `path` says of itself, or None where there is none."""
    where = path / RECORD
    try:
        values = json.loads(where.read_bytes())
        if values["format"] == FORMAT:
            return Record.of(values)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ForecastError, OSError, ValueError, KeyError, TypeError) as error:
        raise ForecastError(f"{where}: not a forecast of powerphase ({error}); {ADVICE}") from error
    raise ForecastError(
        f"{where}: written in format {values['format']!r}, this version reads format {FORMAT}; "
        "install the powerphase that wrote it"
    )


def check_same(path: Path, found: ForecastHeader, wanted: ForecastHeader) -> None:
    """Refuse to mix two forecasts in one place."""
    names = [field.name for field in fields(ForecastHeader)]
    differing = [name for name in names if getattr(found, name) != getattr(wanted, name)]
    if differing:
        raise ForecastError(
            f"{path}: holds another forecast (it differs in {', '.join(differing)}); choose "
            "another place or remove it"
        )


def _problems(h: ForecastHeader) -> list[str]:
    """What is wrong with a header, field by field."""
    claims = {name: (_is_text(getattr(h, name)), "text") for name in TEXTS}
    claims |= {name: (_is_count(getattr(h, name)), "a positive integer") for name in COUNTS}
    if claims["n_channels"][0]:
        claims["n_channels"] = (h.n_channels % len(VARIABLES) == 0, "four per bus")
    is_hash = _is_text(h.fingerprint) and re.fullmatch("[0-9a-f]{64}", h.fingerprint) is not None
    is_scale = isinstance(h.scale, list) and [type(value) for value in h.scale] == [float, float]
    claims |= {
        "windows": (are_window_starts(h.windows), "ascending UTC times such as 2016-07-01T00:00"),
        "fingerprint": (is_hash, "64 hexadecimal digits"),
        "scale": (is_scale and all(0 < value < inf for value in h.scale), "two positive numbers"),
        "variant": (h.variant is None or _is_text(h.variant), "text or None"),
        "config": (is_plain(h.config), "a dictionary that JSON can hold"),
        "parameters": (h.parameters in (None, 0) or _is_count(h.parameters), "a count or None"),
        "seed": (type(h.seed) is int, "an integer"),
    }
    return [
        f"{name} must be {needed}, found {getattr(h, name)!r}"
        for name, (good, needed) in claims.items()
        if not good
    ]


def _is_text(value: object) -> bool:
    return isinstance(value, str) and value != ""


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0
