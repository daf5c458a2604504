"""Every error that powerphase raises on purpose, as one tree.

    PowerphaseError
    ├── UnknownName        a grid, model or option that is not in its table
    ├── CaseError          a MATPOWER case that cannot be taken as it is
    ├── SignalError        load, solar and wind that cannot be taken as they are
    ├── DownloadError      a file that could not be fetched whole and unchanged
    ├── RecipeError        options that do not go together or make no data set
    ├── PowerFlowError     a grid that cannot be solved at all
    ├── StoreError         a data set on disk that is missing, broken or in the way
    │   └── StoreBusy      another process is writing it
    ├── TaskError          windows that a record cannot give
    ├── ForecastError      scenarios that cannot be scored, in memory or in a file
    ├── ConfigError        options that a model does not know or cannot take
    ├── TrainingError      a training that cannot begin or go on
    ├── CheckpointError    saved weights that are broken, or of another model or grid
    ├── ResultError        a result row that cannot be trusted
    ├── FigureError        a figure that cannot be drawn or written
    └── ReportError        a report that cannot be made of what was given, or not in its place

A message says where, what was found, what was needed and what to do. The command line prints it as
one sentence; `--debug` shows the traceback.
"""

import sysconfig
import traceback
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path

PACKAGE = Path(__file__).parent
LIBRARIES = [Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")]


def place_in_own_code(error: Exception) -> str | None:
    """The innermost line of neither powerphase nor a library that an error came through, if any.

    It is that of a forecaster of one's own: whoever wrote it has to look there.
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = [PACKAGE in Path(frame.filename).parents for frame in frames]
    for k in reversed(range(ours.index(True) if True in ours else 0, len(frames))):
        file = Path(frames[k].filename)
        if not ours[k] and file.is_file() and not {*LIBRARIES}.intersection(file.parents):
            return f"{file.name}, line {frames[k].lineno}"
    return None


class PowerphaseError(Exception):
    """The root: catch this to catch everything that powerphase reports."""


class UnknownName(PowerphaseError):
    """A name that is not in the table it was looked up in."""

    @classmethod
    def among(cls, kind: str, name: str, known: Iterable[str], also: str = "") -> "UnknownName":
        """The error for `name`, with its near misses (or all of a short table) as advice.

        Args:
            kind: what it should be the name of.
            name: what was asked for.
            known: the table.
            also: what else may be given instead of a name of the table.
        """
        names = sorted(known)
        near = get_close_matches(name.lower(), names, n=3, cutoff=0.5) or names
        more = f", or {also}" if also else ""
        return cls(f"no {kind} {name!r}; did you mean {', '.join(near)}{more}?")


class CaseError(PowerphaseError):
    """A MATPOWER case that cannot be read, or that describes no solvable grid."""


class SignalError(PowerphaseError):
    """A load, solar or wind record that cannot be used without guessing."""


class DownloadError(PowerphaseError):
    """A download that was cut, refused, or is not the file it should be."""


class RecipeError(PowerphaseError):
    """Options from which no data set can be made."""


class PowerFlowError(PowerphaseError):
    """A power flow without a solution where one is indispensable."""


class StoreError(PowerphaseError):
    """A data set on disk that is missing, unfinished, damaged or something else."""


class StoreBusy(StoreError):
    """A data set that another process is writing right now."""


class TaskError(PowerphaseError):
    """A task that does not fit the record it is asked of."""


class ForecastError(PowerphaseError):
    """A forecast that cannot be scored as it is; nothing of it is dropped or mended.

    It says where the first offending value lies, as far as that is known. Who knows more, such as
    which windows a model was asked for, raises it again with `placed`.
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
        places = {"window": window, "step": step, "channel": channel}
        where = ", ".join(
            f"{name} {number}" for name, number in places.items() if number is not None
        )
        super().__init__(f"{where}: {problem}" if where else problem)

    def placed(self, window: int, channel: int = 0) -> "ForecastError":
        """The same error, counted from the given window and channel on."""
        return ForecastError(
            self.problem,
            window=window + (self.window or 0),
            step=self.step,
            channel=None if self.channel is None else channel + self.channel,
        )


class ConfigError(PowerphaseError):
    """A model's options with an unknown field, or a value that the field cannot take."""


class TrainingError(PowerphaseError):
    """A training that cannot begin or cannot go on; what was saved before is kept."""


class CheckpointError(PowerphaseError):
    """Saved weights that are broken, foreign, or made for something else."""


class ResultError(PowerphaseError):
    """A result row or its sidecar that is broken, inconsistent or of another schema."""


class FigureError(PowerphaseError):
    """A figure that cannot be drawn from what is there, or not written."""


class ReportError(PowerphaseError):
    """A report whose parts do not belong together, or whose place holds something else."""
