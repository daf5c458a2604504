"""Forecasts: a model's scenarios for all windows of a task, made on demand or read from a file."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from powerphase.adapters.forecaster import SeriesForecaster
from powerphase.cost import UNKNOWN, Stopwatch, hardware, peak_memory_gib, reset_peak_memory
from powerphase.errors import ForecastError
from powerphase.models.framework.base import (
    Description,
    Forecaster,
    Prediction,
    Wrapper,
    describe,
    unwrap,
)
from powerphase.models.framework.device import choose_device
from powerphase.models.framework.neural import NeuralForecaster
from powerphase.models.framework.saved import SavedForecaster
from powerphase.records.forecast_file import (
    ForecastFile,
    forecast_writer,
    open_forecast,
    read_values,
)
from powerphase.records.forecast_format import ForecastHeader
from powerphase.records.row_key import full_name
from powerphase.registry import MODELS, model_class
from powerphase.scenarios import Context, Scenarios
from powerphase.task.windows import Task

Progress = Callable[[int, int], None]
Piece = tuple[int, slice, Scenarios]
"""A window, a block of its channels, and their scenarios."""


@dataclass(frozen=True, eq=False)
class Forecast:
    """The scenarios of one model for all windows of one task, in pieces.

    A forecast of a large grid does not fit into memory. Unless it was written to a file, it is
    therefore made again each time its pieces are iterated:

        for window, channels, scenarios in forecast.pieces(()):
            scenarios.values  # (1, scenarios, steps, channels of the block), normalised
    """

    facts: dict[str, Any]
    """Which task, on which data; see `task_facts`."""
    description: Description
    cost: dict[str, Any]
    pieces: Callable[[Collection[int]], Iterator[Piece]]
    """Iterates over all windows except the given ones, in order."""
    balance: dict[str, Any] | None = None
    """The fields of `evaluation.physical.Balance`, if the scenarios were made physical."""
    training: dict[str, Any] | None = None
    """How the network was trained, if it is one; see `NeuralForecaster.training`."""
    reduction: dict[str, Any] | None = None
    """The fields of `evaluation.reduction.Reduction`, if only some scenarios were kept."""
    failed: dict[str, Any] | None = None
    """Which series a model of single series could not forecast, see `Result.failed`."""

    @property
    def name(self) -> str:
        """The model, and its variant if it has one: `last-week`, `powerforge+wta`."""
        return full_name(self.description.model, self.description.variant)

    def __repr__(self) -> str:
        f = self.facts
        return (
            f"<powerphase.Forecast {self.name} of {f['grid']} {f['edition']}, {f['task']}, "
            f"{len(f['windows'])} windows>"
        )


def forecast(
    model: Forecaster,
    task: Task,
    *,
    out: str | Path | None = None,
    device: str = "auto",
    on_progress: Progress | None = None,
) -> Forecast:
    """Fit the model and forecast the task's windows.

    Args:
        model: any object with `fit` and `predict`.
        task: what to forecast.
        out: a directory for the scenarios; an interrupted forecast in it is continued. Without
            one, scenarios are made when they are needed, for example to be scored.
        device: cpu, cuda, or auto for a GPU if there is one.
        on_progress: called with the number of windows written, and the number of all.
    """
    torch_device = choose_device(device)
    check_forecaster(model)
    task.test.check_known()  # raises before the fit if a window lacks forecasts
    if "://" in str(out):
        raise ForecastError(
            f"{out}: a forecast can only be written to a local directory; copy it afterwards"
        )
    description = describe(model)  # raises before the fit if a row could not hold it
    inner = unwrap(model)
    check_model_name(type(inner), description.model)
    reset_peak_memory()
    watch = Stopwatch()
    with watch.running():
        model.fit(task.training)
    cost = _fit_cost(model, watch.seconds, torch_device)
    live = Forecast(
        task_facts(task),
        describe(model),
        cost,
        lambda skip: _predict(model, task, torch_device, cost, skip),
        training=inner.training if isinstance(inner, NeuralForecaster) else None,
        failed=inner.failed if isinstance(inner, SeriesForecaster) else None,
    )
    return live if out is None else write_forecast(live, out, on_progress)


def check_forecaster(model: object) -> None:
    """Raise unless it is an object with `fit` and `predict`; a class is not."""
    if isinstance(model, type) or not isinstance(model, Forecaster):
        raise ForecastError(f"{model!r} is not a forecaster; give an object with fit and predict")


def check_model_name(model_type: type, name: str) -> None:
    """Raise if another class has the name of a built-in model: their rows would be mixed."""
    if name in MODELS and model_type is not model_class(name):
        raise ForecastError(
            f"{model_type.__name__} has the name of the built-in model {name}; give it another name"
        )


def _fit_cost(model: Forecaster, seconds: float, device: torch.device) -> dict[str, Any]:
    """The cost of the fit; for a model that was trained before, the cost of its training."""
    current, inner = hardware(device), unwrap(model)
    own_s = model.own_fit_s if isinstance(model, Wrapper) else 0.0
    training = inner.outcome if isinstance(inner, SavedForecaster) else None
    training = training or {"train_s": seconds - own_s, "hardware": current}
    trained_on = training["hardware"]
    return {
        "train_s": training["train_s"] + own_s,
        "predict_s": None,
        "steps": getattr(inner, "n_steps", None),
        "peak_memory_gib": None,
        "hardware": current if trained_on == current else f"{trained_on}; prediction: {current}",
    }


def load_forecast(path: str | Path) -> Forecast:
    """The forecast in a directory."""
    file = open_forecast(path)
    h = file.header
    facts = {name: getattr(h, name) for name in FACTS}
    identity = (h.model, h.variant, h.config, h.parameters, h.seed)
    description = Description(*identity, h.joint, h.model_version)
    extras = {name: file.cost.get(name) for name in EXTRAS}
    cost = UNKNOWN_COST | {name: value for name, value in file.cost.items() if name not in EXTRAS}
    return Forecast(facts, description, cost, lambda skip: _read(file, skip), **extras)


UNKNOWN_COST: dict[str, Any] = {
    **dict.fromkeys(("train_s", "predict_s", "steps", "peak_memory_gib")),
    "hardware": UNKNOWN,
}
"""The cost of a file that does not state it."""

EXTRAS = ("balance", "training", "reduction", "failed")
"""The attributes of a forecast that a file keeps within its cost, unless they are None."""


FACTS = (
    *("grid", "edition", "fingerprint", "n_channels", "scale"),
    *("task", "task_version", "context", "horizon", "step_s", "windows"),
)


def task_facts(task: Task) -> dict[str, Any]:
    """What must agree between a forecast and the task by which it is scored."""
    manifest, protocol = task.store.manifest, task.protocol
    return {
        "grid": manifest.grid,
        "edition": manifest.edition,
        "fingerprint": task.fingerprint,
        "n_channels": task.layout.n_channels,
        "scale": [task.layout.p_scale_mw, task.layout.q_scale_mvar],
        "task": protocol.forecast_name,
        "task_version": protocol.version,
        "context": protocol.context,
        "horizon": protocol.horizon,
        "step_s": protocol.step_s,
        "windows": [task.test.start(window) for window in range(len(task.test))],
    }


def _predict(
    model: Forecaster,
    task: Task,
    device: torch.device,
    cost: dict[str, Any],
    skip: Collection[int],
) -> Iterator[Piece]:
    """Predict one window after another; errors name the window."""
    watch = Stopwatch()
    for window in range(len(task.test)):
        if window not in skip:
            context = task.test.context(window).to(device)
            for channels, scenarios in predict_blocks(model, context, watch, window):
                cost["predict_s"] = watch.seconds
                cost["peak_memory_gib"] = _peak_memory(model, device)
                yield window, channels, scenarios
                del scenarios


def _peak_memory(model: Forecaster, device: torch.device) -> float | None:
    """The peak memory since the fit started, or of the training if that was larger."""
    current, inner = peak_memory_gib(device), unwrap(model)
    if not isinstance(inner, SavedForecaster) or inner.outcome is None:
        return current
    in_training = inner.outcome["peak_memory_gib"]
    return None if current is None or in_training is None else max(current, in_training)


def predict_blocks(
    model: Forecaster, context: Context, watch: Stopwatch, window: int = 0
) -> Iterator[tuple[slice, Scenarios]]:
    """The model's prediction for one window as blocks of channels, whichever form it has.

    The watch counts the model's time; errors name the window.
    """
    n_done = 0
    try:
        with watch.running(), torch.no_grad():
            blocks = as_blocks(model.predict(context))
        while True:
            with watch.running(), torch.no_grad():
                block = next(blocks, None)
            if block is None:
                return
            yield (channels := check_block(block, context)), block[1]
            n_done = channels.stop
            del block
    except ForecastError as error:
        raise error.with_offset(window, n_done) from error


def as_blocks(prediction: Prediction) -> Iterator[tuple[slice, Scenarios]]:
    """A prediction as blocks of channels, not checked yet; raises if it is neither form."""
    if isinstance(prediction, Scenarios):
        return iter([(slice(None), prediction)])
    if not isinstance(prediction, Iterator):
        kind = type(prediction).__name__
        raise ForecastError(
            f"predict returned {kind}; it must return Scenarios, or an iterator of blocks"
        )
    return prediction


def check_block(block: object, context: Context) -> slice:
    """The channels of a block; raises unless it has consecutive channels and the right shape."""
    match block:
        case (slice() as part, Scenarios() as scenarios):
            channels = slice(*part.indices(context.layout.n_channels))
        case _:
            kind = type(block).__name__
            raise ForecastError(f"a block must be (slice of channels, Scenarios), found {kind}")
    if channels.step != 1:
        raise ForecastError(f"a block must have consecutive channels, found {part}")
    n_windows, n_scenarios, horizon, n_channels = scenarios.values.shape
    expected = (len(context.past), context.horizon, channels.stop - channels.start)
    if (n_windows, horizon, n_channels) != expected:
        raise ForecastError(
            f"predict returned {n_windows} windows, {n_scenarios} scenarios, {horizon} steps and "
            f"{n_channels} channels; expected {expected[0]} windows, any number of scenarios, "
            f"{expected[1]} steps and {expected[2]} channels ({channels.start} to {channels.stop})"
        )
    return channels


def _read(file: ForecastFile, skip: Collection[int]) -> Iterator[Piece]:
    for window in range(len(file.header.windows)):
        if window in skip:
            continue
        for channels in file.blocks():
            values, weights = (torch.from_numpy(part[None]) for part in file.read(window, channels))
            try:
                scenarios = Scenarios(values, weights)
            except ForecastError as error:
                raise error.with_offset(window, channels.start) from error
            yield window, channels, scenarios


def write_forecast(
    live: Forecast, out: str | Path, on_progress: Progress | None = None
) -> Forecast:
    """Write a forecast to a directory, or the part that is missing there; returns the file's."""
    _write(live, Path(out), on_progress or (lambda done, total: None))
    return load_forecast(out)


def _write(live: Forecast, out: Path, report: Progress) -> None:
    pieces, n_windows = live.pieces(()), len(live.facts["windows"])
    first = next(pieces, None)  # to know the number of scenarios
    if first is None:
        raise ForecastError("the model returned no scenarios", window=0)
    with forecast_writer(out, _header(live, first[2])) as writer:
        report(len(writer.finished), n_windows)
        before = [live.facts["windows"][window] for window in writer.finished]
        if first[0] in writer.finished:
            _check_same_scenarios(out, *first)
        n_written, n_channels = 0, live.facts["n_channels"]
        remaining = live.pieces(writer.finished) if before else chain([first], pieces)
        del first
        for window, channels, scenarios in remaining:
            writer.write(window, channels, *_as_arrays(scenarios))
            del scenarios  # or two windows would be in memory at the same time
            n_written += channels.stop - channels.start
            if n_written == n_channels:
                writer.finish_window(window)
                report(len(writer.finished), n_windows)
                n_written = 0
        # What the windows before an interruption cost is unknown, and what failed in them.
        extras = {name: getattr(live, name) for name in EXTRAS}
        if live.failed is not None:
            series = live.failed["series"] | dict.fromkeys(before)
            extras["failed"] = {**live.failed, "series": dict(sorted(series.items()))}
        cost = {**live.cost, **{name: v for name, v in extras.items() if v is not None}}
        unknown = (
            {"predict_s", "peak_memory_gib", "balance", "reduction"} & cost.keys() if before else ()
        )
        writer.close({**cost, **dict.fromkeys(unknown)})


def _check_same_scenarios(out: Path, window: int, channels: slice, scenarios: Scenarios) -> None:
    """Raise if the model no longer gives the scenarios of the unfinished forecast."""
    stored = torch.from_numpy(read_values(out, window, channels))
    if not torch.allclose(stored, scenarios.values[0].float().cpu(), rtol=1e-4, atol=1e-6):
        raise ForecastError(
            f"{out}: holds an unfinished forecast of this name, but the model now gives other "
            "scenarios; remove it or choose another directory (models that differ need a different "
            "name, variant, config or seed)",
            window=window,
        )


def _as_arrays(scenarios: Scenarios) -> Iterator[np.ndarray]:
    for part in (scenarios.values, scenarios.weights):
        yield np.ascontiguousarray(part[0].float().cpu().numpy())


def _header(live: Forecast, scenarios: Scenarios) -> ForecastHeader:
    description = live.description
    return ForecastHeader(
        **live.facts,
        scenarios=scenarios.values.shape[1],
        model=description.model,
        variant=description.variant,
        config=description.config,
        parameters=description.parameters,
        seed=description.seed,
        joint=description.joint,
        model_version=description.version,
        version=version("powerphase"),
    )
