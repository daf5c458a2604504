"""Where the forecasts of an informed task come from, and how its name says so."""

import re
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Literal

from powerphase.dataset.store import Store
from powerphase.errors import TaskError, UnknownName
from powerphase.issued import Issued
from powerphase.synthesis.day_ahead import day_ahead_forecasts
from powerphase.synthesis.signals import Signals

Kind = Literal["made", "record", "file"]

MADE, RECORD, FILE = "made", "record", "file"

DIGEST_DIGITS = 8

_OPTION = re.compile(r"made(?::(?P<wind>\d{1,6}(?:\.\d{1,6})?)(?::(?P<seed>\d{1,9}))?)?", re.ASCII)

WORDS = (
    r"-informed(?:-(?P<record>record)|-file-(?P<digest>[0-9a-f]{8})"
    r"|(?:-wind-(?P<wind>\d{1,6}(?:p\d{1,6})?))?(?:-seed-(?P<seed>[1-9]\d{,8}))?)"
)
"""The words of a task's name that say how its forecasts were made."""


@dataclass(frozen=True)
class KnownSource:
    """How the forecasts of load, sun and wind were made that an informed task gives to models."""

    kind: Kind = "made"
    """`made` from the true signals, those of the `record` of OPSD, or of a user's `file`."""
    wind: float = 1.0
    """The error of made forecasts of the wind, in units of a usual one."""
    seed: int = 0
    """Fixes the errors of made forecasts."""
    digest: str = ""
    """The first digits of the content hash of a file's forecasts."""

    def __post_init__(self) -> None:
        if not (isfinite(self.wind) and self.wind >= 0):
            raise TaskError(f"an error of the wind of {self.wind!r} usual ones; give 0 or more")

    @classmethod
    def of_option(cls, text: str) -> "KnownSource | None":
        """What `made`, `made:WIND`, `made:WIND:SEED` or `record` stand for; None for a file."""
        if text == RECORD:
            return cls(RECORD)
        match = _OPTION.fullmatch(text)
        if match is None:
            return None
        return cls(MADE, float(match["wind"] or 1), int(match["seed"] or 0))

    @classmethod
    def of_match(cls, match: re.Match[str]) -> "KnownSource":
        """What the words of a name stand for, which `WORDS` has matched."""
        if match["record"]:
            return cls(RECORD)
        if match["digest"]:
            return cls(FILE, digest=match["digest"])
        return cls(MADE, float((match["wind"] or "1").replace("p", ".")), int(match["seed"] or 0))

    @property
    def words(self) -> str:
        """The words of a task's name: `-informed`, and whatever differs from the default."""
        if self.kind == FILE:
            return f"-informed-file-{self.digest}"
        if self.kind == RECORD:
            return "-informed-record"
        wind = "" if self.wind == 1 else f"-wind-{self.wind:g}".replace(".", "p")
        return f"-informed{wind}" + (f"-seed-{self.seed}" if self.seed else "")


def open_known(
    known: "str | Path | Issued | KnownSource", store: Store, horizon: int
) -> tuple[KnownSource, Issued]:
    """The forecasts for a data set, and where they come from.

    Args:
        known: `made`, `record`, a file, forecasts, or what a task's name says of them.
        store: the data set.
        horizon: for how many steps a window needs them.
    """
    if isinstance(known, Issued):
        return KnownSource(FILE, digest=known.sha256[:DIGEST_DIGITS]), known
    source = known if isinstance(known, KnownSource) else KnownSource.of_option(str(known))
    if source is None or source.kind != MADE:
        raise UnknownName.among("source of forecasts", str(known), [MADE])
    return source, _make(source, store, horizon)


def _make(source: KnownSource, store: Store, horizon: int) -> Issued:
    """Forecasts from the true signals of a generated data set."""
    if store.is_imported:
        raise TaskError(
            f"{store.path}: was imported, so it has no signals from which forecasts could be made; "
            "give a file of forecasts"
        )
    manifest = store.manifest
    signals = Signals(store.time, store.signals_mw, manifest.edition, "")
    return day_ahead_forecasts(signals, horizon, wind=source.wind, seed=source.seed)
