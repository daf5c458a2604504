"""Every error that powerphase raises on purpose, as one tree.

    PowerphaseError
    ├── UnknownName        an unknown grid, model, option or other name
    ├── MissingLibrary     an optional library that is not installed
    ├── CaseError          a MATPOWER case that cannot be used
    ├── SignalError        load, solar and wind records that cannot be used
    ├── DownloadError      a file that could not be downloaded intact
    ├── RecipeError        options that are inconsistent or describe no data set
    ├── PowerFlowError     a grid without a power flow solution
    ├── StoreError         a data set on disk that is missing, damaged or in the way
    │   └── StoreBusy      another process is writing it
    ├── RecordError        states from elsewhere that cannot be imported
    ├── TaskError          windows that do not fit a record
    ├── CalendarError      an unknown country or time zone
    ├── ForecastError      scenarios that cannot be scored, in memory or in a file
    ├── ConfigError        model options that are unknown or invalid
    ├── TrainingError      a training that cannot start or continue
    ├── CheckpointError    saved weights that are damaged, or of another model or grid
    ├── ResultError        a result row that is damaged or inconsistent
    ├── ExportError        scenarios that cannot be exported, or not to this path
    ├── FigureError        a figure that cannot be drawn or written
    └── ReportError        a report that cannot be built or written

A message says where the problem is, what was found, what is needed and what to do. The command line
prints it as one line; `--debug` shows the traceback.
"""

import sysconfig
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

PACKAGE = Path(__file__).parent
LIBRARIES = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]


def user_code_location(error: Exception) -> str | None:
    """File and line of the innermost frame outside powerphase and all libraries, or None.

    For an error in a user's own forecaster, this is the line to look at.
    """
    frames = traceback.extract_tb(error.__traceback__)
    in_package = [PACKAGE in Path(frame.filename).parents for frame in frames]
    first = in_package.index(True) if True in in_package else 0
    for k in reversed(range(first, len(frames))):
        file = Path(frames[k].filename)
        if not in_package[k] and file.is_file() and not {*LIBRARIES}.intersection(file.parents):
            return f"{file.name}, line {frames[k].lineno}"
    return None


class PowerphaseError(Exception):
    """The root: catch this to catch everything that powerphase reports."""


class UnknownName(PowerphaseError):
    """A name that is not among the known ones."""

    @classmethod
    def among(cls, kind: str, name: str, known: Iterable[str], also: str = "") -> "UnknownName":
        """The error for `name`, which suggests similar names, or all known ones.

        Args:
            kind: what the name should refer to, such as "grid".
            name: the unknown name.
            known: the known names.
            also: what else is accepted instead of a known name.
        """
        names = sorted(known)
        near = get_close_matches(name.lower(), names, n=3, cutoff=0.5) or names
        more = f", or {also}" if also else ""
        return cls(f"no {kind} {name!r}; did you mean {', '.join(near)}{more}?")


class MissingLibrary(PowerphaseError):
    """An optional library that is not installed, or cannot be imported."""


class CaseError(PowerphaseError):
    """A MATPOWER case that cannot be read or whose grid cannot be solved."""


class SignalError(PowerphaseError):
    """A load, solar or wind record that cannot be used without guessing."""


class DownloadError(PowerphaseError):
    """A download that failed, was cut off, or has a wrong checksum."""


class RecordError(PowerphaseError):
    """A record from outside that cannot be imported without guessing."""


class RecipeError(PowerphaseError):
    """Options from which no data set can be made."""


class PowerFlowError(PowerphaseError):
    """A power flow without a solution where one is needed."""


class StoreError(PowerphaseError):
    """A data set on disk that is missing, unfinished or damaged, or is not a data set."""


class StoreBusy(StoreError):
    """A data set that another process is writing."""


class TaskError(PowerphaseError):
    """A task whose windows do not fit the record."""


class CalendarError(PowerphaseError):
    """A country or a time zone that is unknown or ambiguous."""


class ForecastError(PowerphaseError):
    """A forecast that cannot be scored; no part of it is dropped or fixed.

    It holds the location of the first invalid value, as far as it is known. A caller that knows
    which windows and channels a block contains raises the error again `with_offset`.
    """

    def __init__(
        self,
        problem: str,
        *,
        window: int | None = None,
        step: int | None = None,
        channel: int | None = None,
    ) -> None:
        self.problem, self.window, self.step, self.channel = problem, window, step, channel
        location = {"window": window, "step": step, "channel": channel}
        where = ", ".join(
            f"{name} {number}" for name, number in location.items() if number is not None
        )
        super().__init__(f"{where}: {problem}" if where else problem)

    def with_offset(self, window: int, channel: int = 0) -> "ForecastError":
        """The same error, with its location counted from the given window and channel."""
        return ForecastError(
            self.problem,
            window=window + (self.window or 0),
            step=self.step,
            channel=None if self.channel is None else channel + self.channel,
        )


class ConfigError(PowerphaseError):
    """Options of a model with an unknown field or an invalid value."""


class TrainingError(PowerphaseError):
    """A training that cannot start or continue; checkpoints written before are kept."""


class CheckpointError(PowerphaseError):
    """Saved weights that are damaged, or of another model, configuration or grid."""


class ResultError(PowerphaseError):
    """A result row or sidecar that is damaged, inconsistent or of another schema."""


class ExportError(PowerphaseError):
    """Scenarios that another program cannot take, or that cannot be written for it."""


class FigureError(PowerphaseError):
    """A figure that cannot be drawn from the available rows, or not written."""


class ReportError(PowerphaseError):
    """A report whose parts do not belong together, or whose folder holds other files."""
