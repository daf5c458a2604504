"""Where the forecasts of an informed task come from, and how its name says so."""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np

from powerphase.axes import STEP_S
from powerphase.dataset.store import Store
from powerphase.errors import TaskError, UnknownName
from powerphase.importing.forecasts import read_forecasts
from powerphase.issued import Issued
from powerphase.synthesis.day_ahead import day_ahead_forecasts
from powerphase.synthesis.opsd_forecasts import load_opsd_forecasts
from powerphase.synthesis.signals import Signals

Kind = Literal["made", "record", "file"]

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
        match = re.fullmatch(WORDS, self.words)
        if match is None or _facts(match) != (self.kind, self.wind, self.seed, self.digest):
            raise TaskError(
                f"no task name says {self!r}; give made forecasts an error of the wind from 0 to "
                "999999 with at most six decimals and a seed of at most nine digits, and those of "
                "a file eight digits of its content hash"
            )

    @classmethod
    def of_option(cls, text: str) -> "KnownSource | None":
        """What `made`, `made:WIND`, `made:WIND:SEED` or `record` stand for; None for a file."""
        if text == "record":
            return cls("record")
        match = _OPTION.fullmatch(text)
        if match is None:
            return None
        return cls("made", float(match["wind"] or 1), int(match["seed"] or 0))

    @classmethod
    def of_match(cls, match: re.Match[str]) -> "KnownSource":
        """What the words of a name stand for, which `WORDS` has matched."""
        return cls(*_facts(match))

    @classmethod
    def of_table(cls, table: Issued) -> "KnownSource":
        """The source of a user's forecasts."""
        return replace(cls.of_sha256(table.sha256), table=table)

    @classmethod
    def of_sha256(cls, sha256: str) -> "KnownSource":
        """That of forecasts with this content hash, which are not at hand."""
        return cls("file", digest=sha256[:DIGEST_DIGITS])

    @property
    def words(self) -> str:
        """The words of a task's name: `-informed`, and whatever differs from the default."""
        if self.kind == "file":
            return f"-informed-file-{self.digest}"
        if self.kind == "record":
            return "-informed-record"
        number = np.format_float_positional(self.wind, trim="-").replace(".", "p")
        wind = "" if self.wind == 1 else f"-wind-{number}"
        return f"-informed{wind}" + (f"-seed-{self.seed}" if self.seed else "")

    def forecasts(self, store: Store, horizon: int) -> Issued:
        """The forecasts for a data set.

        Args:
            store: the data set.
            horizon: for how many steps a window needs them.
        """
        if self.kind == "made":
            return _make(self, store, horizon)
        table = _read_record(store) if self.kind == "record" else self.table
        if table is None:
            raise TaskError(
                f"the task has forecasts from a file (content {self.digest}…), which its name does "
                "not have; give the file"
            )
        table.check_step(store.step_s)
        return table


def _facts(match: re.Match[str]) -> tuple[Kind, float, int, str]:
    """Kind, error of the wind, seed and digest in the words of a name, which `WORDS` matched."""
    kind: Kind = "record" if match["record"] else "file" if match["digest"] else "made"
    wind = float((match["wind"] or "1").replace("p", "."))
    return kind, wind, int(match["seed"] or 0), match["digest"] or ""


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
            f"no forecasts {path!r}; give made, made:WIND, made:WIND:SEED, record or a file, WIND "
            "with at most six decimals"
        )
    return read_forecasts(path)


def _read_record(store: Store) -> Issued:
    """Those of OPSD, for a data set that was made from its signals."""
    if store.manifest.edition != OPSD:
        raise TaskError(
            f"{store.path}: edition {store.manifest.edition} has no forecasts of its own, only "
            f"{OPSD} has; give made or a file of forecasts"
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
