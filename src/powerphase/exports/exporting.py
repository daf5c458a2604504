"""Export: the scenarios of a forecast as another program reads them, whole or not at all."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from powerphase.axes import UNITS
from powerphase.dataset.store import Store, open_store
from powerphase.errors import ExportError, UnknownName
from powerphase.evaluation.forecasting import Forecast, load_forecast
from powerphase.evaluation.physical import is_physical, join_channels
from powerphase.exports.day import Day
from powerphase.exports.formats import FORMATS
from powerphase.files import appear_whole

COUPLING = "`powerphase forecast … --couple ranked`, or powerphase.couple_forecast"

Writer = Callable[[Path, Iterator[Day], Store], None]


def export(
    forecast: Forecast | str | Path,
    data: Store | str | Path,
    *,
    to: str,
    out: str | Path,
    day: str | None = None,
    actual: bool = False,
) -> Path:
    """Write joint scenarios in another program's format; returns the new file or folder.

    Nothing is written unless everything is. P and Q are net consumption in MW and MVAr, V is in
    p.u., θ in rad; programs with loads and generators get both.

    Args:
        forecast: with joint scenarios, live or in a directory.
        data: the data set that was forecast; a forecast states neither bus numbers nor the network.
        to: the format, such as `parquet` or `pypsa`.
        out: a path that does not exist yet.
        day: only the window that starts on this day, such as `2016-07-01`; all by default.
        actual: write what happened in these windows, as one scenario, instead of the forecast. So
            a decision that was made with scenarios can be tested in the same program.
    """
    if to not in FORMATS:
        raise UnknownName.among("format", to, FORMATS)
    _check_libraries(to)
    path = _new_path(out)
    source = forecast if isinstance(forecast, Forecast) else load_forecast(forecast)
    store = data if isinstance(data, Store) else open_store(data)
    _check_data(source, store)
    skip = _other_windows(source.facts["windows"], day)
    if actual:
        days = _actual_days(source, store, skip)
    else:
        _check_joint(source)
        days = _days(source, skip)
    with _write_errors(path), appear_whole(path) as partial:
        _writer(to)(partial, days, store)
    return path


def facts_of(forecast: Forecast) -> dict[str, Any]:
    """What files say about the scenarios."""
    description = forecast.description
    names = ("grid", "edition", "fingerprint", "task", "task_version", "windows", "step_s", "scale")
    return {
        "model": description.model,
        "variant": description.variant,
        "seed": description.seed,
        **{name: forecast.facts[name] for name in names},
        "solved": is_physical(description.variant),
        "units": UNITS,
        "sign": "P and Q are net consumption: load is positive, generation negative",
        "time": "start of the step, UTC",
    }


def _days(source: Forecast, skip: set[int]) -> Iterator[Day]:
    facts = facts_of(source)
    pieces = join_channels(source.pieces(skip), source.facts["n_channels"])
    for window, values, weights in pieces:
        yield Day.from_forecast(facts, window, values, weights)
        del values, weights


def _actual_days(source: Forecast, store: Store, skip: set[int]) -> Iterator[Day]:
    """What happened in the windows of a forecast."""
    facts = {**facts_of(source), "model": "actual", "variant": None, "seed": 0, "solved": True}
    horizon = source.facts["horizon"]
    for window, start in enumerate(source.facts["windows"]):
        if window not in skip:
            first = int(np.searchsorted(store.time, np.datetime64(start, "s")))
            if first + horizon > len(store.time) or store.time[first] != np.datetime64(start, "s"):
                raise ExportError(f"window {window}, from {start}, is not within the record")
            states = store.read_states(slice(first, first + horizon), slice(None))
            yield Day(start, states[None], np.ones(1), facts)


def _check_data(source: Forecast, store: Store) -> None:
    """Raise unless the forecast is of this data set or what it grew from, and it is undamaged."""
    actual, expected = source.facts["fingerprint"], store.manifest.fingerprint
    if actual != expected and not store.grew_from(actual):
        raise ExportError(
            f"the forecast is of {source.facts['grid']}, data set {actual[:12]}, but {store.path} "
            f"is {store.manifest.grid}, {expected[:12]}; give the data set that was forecast"
        )
    store.verify_files()


def _check_joint(source: Forecast) -> None:
    """Raise unless each scenario is one future of the whole grid."""
    if source.description.joint is None:
        raise ExportError(
            f"{source.name} does not say whether its scenarios are joint; if each is one future of "
            "the whole grid, set joint_scenarios = True in the model and forecast again, else "
            f"couple it ({COUPLING})"
        )
    if not source.description.joint:
        raise ExportError(
            f"the scenarios of {source.name} are marginal: one of them may have the highest "
            "quantile of every bus at once, which is no state that could happen; couple the "
            f"forecast ({COUPLING})"
        )


def _check_libraries(to: str) -> None:
    """Raise if a library that the format needs is not installed."""
    missing = [name for name in FORMATS[to].needs if find_spec(name) is None]
    if missing:
        raise ExportError(
            f"{to} needs {' and '.join(missing)}, not installed here; "
            "pip install 'powerphase[export]'"
        )


def _new_path(out: str | Path) -> Path:
    if "://" in str(out):
        raise ExportError(f"{out}: an export is written to a local path; copy it afterwards")
    path = Path(out)
    if path.exists() or path.is_symlink():
        raise ExportError(f"{path}: exists already; remove it or choose another path")
    return path


def _other_windows(windows: list[str], day: str | None) -> set[int]:
    """The windows that start on other days."""
    if day is None:
        return set()
    other = {k for k, start in enumerate(windows) if start.split("T")[0] != day}
    if len(other) == len(windows):
        days = ", ".join(sorted({start.split("T")[0] for start in windows}))
        raise ExportError(f"no window starts on {day!r}; the forecast has {days}")
    return other


def _writer(to: str) -> Writer:
    module, function = FORMATS[to].writer.split(":")
    writer: Writer = getattr(import_module(f"powerphase.exports.{module}"), function)
    return writer


@contextmanager
def _write_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ExportError(
            f"{path}: cannot be written ({error}); nothing was kept, so check the path and the "
            "free space and try again"
        ) from error
