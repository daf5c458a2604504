"""Where the forecasts of an informed task come from, and how its name says so."""

import re
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Final, Literal

from powerphase.axes import STEP_S
from powerphase.dataset.store import Store
from powerphase.errors import TaskError, UnknownName
from powerphase.importing.forecasts import read_forecasts
from powerphase.issued import Issued
from powerphase.synthesis.day_ahead import day_ahead_forecasts
from powerphase.synthesis.opsd_forecasts import load_opsd_forecasts
from powerphase.synthesis.signals import Signals

Kind = Literal["made", "record", "file"]

MADE: Final = "made"
RECORD: Final = "record"
FILE: Final = "file"

OPSD = "opsd"
"""The edition whose file has forecasts of its own."""

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
    table: Issued | None = field(default=None, compare=False, repr=False)
    """The forecasts of a file, if it is at hand."""

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

    @classmethod
    def of_table(cls, table: Issued) -> "KnownSource":
        """The source of a user's forecasts."""
        return cls(FILE, digest=table.sha256[:DIGEST_DIGITS], table=table)

    @property
    def words(self) -> str:
        """The words of a task's name: `-informed`, and whatever differs from the default."""
        if self.kind == FILE:
            return f"-informed-file-{self.digest}"
        if self.kind == RECORD:
            return "-informed-record"
        wind = "" if self.wind == 1 else f"-wind-{self.wind:g}".replace(".", "p")
        return f"-informed{wind}" + (f"-seed-{self.seed}" if self.seed else "")

    def forecasts(self, store: Store, horizon: int) -> Issued:
        """The forecasts for a data set.

        Args:
            store: the data set.
            horizon: for how many steps a window needs them.
        """
        if self.kind == MADE:
            return _make(self, store, horizon)
        table = _read_record(store) if self.kind == RECORD else self.table
        if table is None:
            raise TaskError(
                f"the task has forecasts from a file (content {self.digest}…), which its name does "
                "not have; give the file"
            )
        table.check_step(store.step_s)
        return table


KnownInput = str | Path | Issued | KnownSource | None
"""Forecasts for a task: `made`, `record`, a file, a table, what a name says of them, or none."""


def read_known(known: KnownInput) -> KnownSource | None:
    """The forecasts that are meant; a file is read, others are made when they are needed."""
    if known is None or isinstance(known, KnownSource):
        return known
    if isinstance(known, Issued):
        return KnownSource.of_table(known)
    return KnownSource.of_option(str(known)) or KnownSource.of_table(_read_file(str(known)))


def _read_file(path: str) -> Issued:
    if not Path(path).exists():
        raise UnknownName(
            f"no forecasts {path!r}; give {MADE}, {MADE}:WIND, {MADE}:WIND:SEED, {RECORD} or a file"
        )
    return read_forecasts(path)


def _read_record(store: Store) -> Issued:
    """Those of OPSD, for a data set that was made from its signals."""
    if store.manifest.edition != OPSD:
        raise TaskError(
            f"{store.path}: edition {store.manifest.edition} has no forecasts of its own, only "
            f"{OPSD} has; give {MADE} or a file of forecasts"
        )
    return load_opsd_forecasts()


def _make(source: KnownSource, store: Store, horizon: int) -> Issued:
    """Forecasts from the true signals of a generated data set."""
    if store.is_imported or store.step_s != STEP_S:
        raise TaskError(
            f"{store.path}: forecasts are made from the signals of a generated data set, which it "
            "is not; give a file of forecasts"
        )
    signals = Signals(store.time, store.signals_mw, store.manifest.edition, "")
    return day_ahead_forecasts(signals, horizon, wind=source.wind, seed=source.seed)
