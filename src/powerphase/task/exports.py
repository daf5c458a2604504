"""A task in the formats of other libraries: GluonTS, Nixtla, Darts, Hugging Face datasets and fev.

What a model may be fitted on and what it sees before each test window goes out; what happened in
the test windows goes out only where it is asked for. Values are normalised, as models see them, and
series are named after their channels, such as `V of bus 104`. Times are UTC, without a zone. The
libraries are imported when they are needed.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float32, Int

from powerphase.errors import TaskError
from powerphase.graph import import_module
from powerphase.resolution import MINUTE_S
from powerphase.scenarios import READ_STEPS, Layout, Record, Windows

if TYPE_CHECKING:
    from powerphase.task.windows import Task

Channels = Sequence[int] | None
"""Numbers of channels; None for all of them."""

FEV_DATA, FEV_TASKS = "data.parquet", "tasks.yaml"


class LongFrames(NamedTuple):
    """Tables in Nixtla's long format, with a row for each series and time."""

    train: pd.DataFrame
    """`unique_id`, `ds` and `y` of the training record."""
    contexts: pd.DataFrame
    """The same before each test window, whose last time is in the column `cutoff`."""
    targets: pd.DataFrame | None
    """What happened in the test windows, if it was asked for."""


class DartsSeries(NamedTuple):
    """Multivariate `darts.TimeSeries`, with a component for each channel."""

    train: Any
    contexts: list[Any]
    """What comes before each test window."""
    targets: list[Any] | None
    """What happened in the test windows, if it was asked for."""


def to_gluonts(task: "Task", channels: Channels = None, targets: bool = False) -> Any:
    """The task as GluonTS's `TrainDatasets`: see `Task.to_gluonts`."""
    common = import_module("gluonts.dataset.common", "to_gluonts")
    chosen, freq = _channels(task.layout, channels), frequency(task)

    def entries(record: Record, steps: slice) -> list[dict[str, Any]]:
        start = pd.Period(pd.Timestamp(record.time[steps.start]), freq=freq)
        values = read_channels(record, steps, chosen)
        return [
            {"item_id": name, "start": start, "target": column}
            for name, column in zip(_names(task.layout, chosen), values.T, strict=True)
        ]

    record, test = task.training.record, task.test
    ahead = test.horizon if targets else 0
    seen = [
        entry
        for origin in test.origins.tolist()
        for entry in entries(test.record, slice(origin - test.context_steps, origin + ahead))
    ]
    return common.TrainDatasets(
        metadata=common.MetaData(freq=freq, prediction_length=test.horizon),
        train=common.ListDataset(entries(record, slice(0, len(record))), freq=freq),
        test=common.ListDataset(seen, freq=freq),
    )


def to_nixtla(task: "Task", channels: Channels = None, targets: bool = False) -> LongFrames:
    """The task as tables in Nixtla's long format: see `Task.to_nixtla`."""
    chosen = _channels(task.layout, channels)
    names = np.array(_names(task.layout, chosen))

    def table(record: Record, steps: slice, **columns: Any) -> pd.DataFrame:
        values = read_channels(record, steps, chosen)
        part = {
            "unique_id": np.repeat(names, len(values)),
            "ds": np.tile(record.time[steps].astype("datetime64[ns]"), len(names)),
            "y": values.T.ravel(),
        }
        return pd.DataFrame({**part, **columns})

    record, test = task.training.record, task.test
    parts: tuple[list[pd.DataFrame], ...] = ([], [])
    for origin in test.origins.tolist():
        cutoff = pd.Timestamp(test.record.time[origin - 1])
        ranges = (slice(origin - test.context_steps, origin), slice(origin, origin + test.horizon))
        for part, steps in zip(parts, ranges[: 1 + targets], strict=False):
            part.append(table(test.record, steps, cutoff=cutoff))
    contexts, ahead = parts
    return LongFrames(
        table(record, slice(0, len(record))),
        pd.concat(contexts, ignore_index=True),
        pd.concat(ahead, ignore_index=True) if targets else None,
    )


def to_darts(task: "Task", channels: Channels = None, targets: bool = False) -> DartsSeries:
    """The task as `darts.TimeSeries`: see `Task.to_darts`."""
    darts = import_module("darts", "to_darts")
    chosen = _channels(task.layout, channels)
    names, freq = _names(task.layout, chosen), frequency(task)

    def series(record: Record, steps: slice) -> Any:
        time = pd.DatetimeIndex(record.time[steps].astype("datetime64[ns]"), freq=freq)
        values = read_channels(record, steps, chosen)
        return darts.TimeSeries.from_times_and_values(time, values, columns=names)

    record, test = task.training.record, task.test
    origins = test.origins.tolist()
    return DartsSeries(
        series(record, slice(0, len(record))),
        [series(test.record, slice(k - test.context_steps, k)) for k in origins],
        [series(test.record, slice(k, k + test.horizon)) for k in origins] if targets else None,
    )


def to_datasets(task: "Task", channels: Channels = None, targets: bool = False) -> Any:
    """The task as a `datasets.DatasetDict` of windows: see `Task.to_datasets`."""
    datasets = import_module("datasets", "to_datasets")
    chosen, training, test = _channels(task.layout, channels), task.training, task.test
    record, per_day = training.record, training.steps_per_day
    validation = training.validation
    offset = int(test.origins[0]) - task.splits.first
    first = offset - (offset - test.context_steps) // per_day * per_day
    origins = np.arange(first, len(record) - test.horizon + 1, per_day)
    windows = Windows(record, origins, test.context_steps, test.horizon)
    parts = {"train": (windows, True), "validation": (validation, True), "test": (test, targets)}
    return datasets.DatasetDict(
        {
            name: _window_rows(datasets, part, chosen, with_target)
            for name, (part, with_target) in parts.items()
        }
    )


def to_fev(
    task: "Task", folder: str | Path, channels: Sequence[int], targets: bool = False
) -> Path:
    """Write the task for fev, and return the file of its tasks: see `Task.to_fev`."""
    chosen, freq = _channels(task.layout, channels), frequency(task)
    test, splits = task.test, task.splits
    stop = int(test.origins[-1]) + test.horizon if targets else splits.train_stop
    if targets:
        starts = [(int(origin) - splits.first, 1) for origin in test.origins]
    else:
        validation = task.training.validation.origins - splits.first
        starts = [(int(validation[0]), len(validation))]
    values = read_channels(test.record, slice(splits.first, stop), chosen)
    time = list(pd.DatetimeIndex(test.record.time[splits.first : stop].astype("datetime64[ns]")))
    rows = pd.DataFrame(
        {
            "id": _names(task.layout, chosen),
            "timestamp": [time] * len(chosen),
            "target": [column.tolist() for column in values.T],
        }
    )
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    import_module("pyarrow", "to_fev")
    rows.to_parquet(path / FEV_DATA, index=False)
    common = {
        "dataset_path": str(path / FEV_DATA),
        "horizon": test.horizon,
        "window_step_size": task.training.steps_per_day,
        "min_context_length": test.context_steps,
        "max_context_length": test.context_steps,
        "seasonality": task.training.steps_per_day,
        "quantile_levels": [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9],
        "eval_metric": "WQL",
    }
    tasks = [
        {
            **common,
            "task_name": f"{task.name}-{task.layout.grid}-{freq}-{number}",
            "initial_cutoff": start,
            "num_windows": count,
        }
        for number, (start, count) in enumerate(starts)
    ]
    # JSON is YAML, too.
    (path / FEV_TASKS).write_text(json.dumps({"tasks": tasks}, indent=1), encoding="utf-8")
    return path / FEV_TASKS


def frequency(task: "Task") -> str:
    """The step of the record as pandas writes it, such as `15min`."""
    return f"{task.training.step_s // MINUTE_S}min"


def read_channels(
    record: Record, steps: slice, channels: Int[np.ndarray, " chosen"]
) -> Float32[np.ndarray, "S chosen"]:
    """Normalised states of some steps and channels, in any order; all others are not kept."""
    values = np.empty((steps.stop - steps.start, len(channels)), dtype=np.float32)
    low, high = int(channels.min()), int(channels.max()) + 1
    for first in range(steps.start, steps.stop, READ_STEPS):
        part = slice(first, min(first + READ_STEPS, steps.stop))
        block = record.read(part, slice(low, high)).numpy()
        values[first - steps.start : part.stop - steps.start] = block[:, channels - low]
    return values


def _window_rows(
    datasets: Any, windows: Windows, chosen: Int[np.ndarray, " chosen"], with_target: bool
) -> Any:
    """A row for each window: its start, what comes before, and what happened if that may go out."""
    size = {"past": windows.context_steps, **({"target": windows.horizon} if with_target else {})}
    columns: dict[str, list[Any]] = {"start": [], **{name: [] for name in size}}
    for number, origin in enumerate(windows.origins.tolist()):
        columns["start"].append(windows.start(number))
        steps = slice(origin - windows.context_steps, origin + size.get("target", 0))
        values = read_channels(windows.record, steps, chosen)
        columns["past"].append(values[: windows.context_steps])
        if with_target:
            columns["target"].append(values[windows.context_steps :])
    features: dict[str, Any] = {"start": datasets.Value("string")}
    for name, n_steps in size.items():
        features[name] = datasets.Array2D((n_steps, len(chosen)), dtype="float32")
    return datasets.Dataset.from_dict(columns, features=datasets.Features(features))


def _channels(layout: Layout, channels: Any) -> Int[np.ndarray, " chosen"]:
    """The numbers of the chosen channels; raise if there is none, or not each of them once."""
    count = layout.n_channels
    chosen = np.arange(count) if channels is None else np.asarray(channels)
    if not chosen.size or chosen.ndim != 1 or chosen.dtype.kind not in "iu":
        raise TaskError(f"channels must be whole numbers, one or more, found {channels!r}")
    outside = chosen[(chosen < 0) | (chosen >= count)]
    if outside.size:
        raise TaskError(f"there is no channel {outside[0]}; the grid has {count}, from 0 on")
    if len(np.unique(chosen)) < len(chosen):
        raise TaskError(f"each channel can be chosen once, found {chosen.tolist()}")
    return chosen.astype(np.int64)


def _names(layout: Layout, channels: Int[np.ndarray, " chosen"]) -> list[str]:
    return [layout.name_of(int(channel)) for channel in channels]
