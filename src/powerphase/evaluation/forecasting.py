"""From a model and a task to a forecast: scenarios that arrive window by window, or from a file."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from powerphase.cost import UNKNOWN, Stopwatch, hardware, peak_memory_gib, reset_peak_memory
from powerphase.errors import ForecastError
from powerphase.models.framework.base import Description, Forecaster, describe
from powerphase.models.framework.device import choose_device
from powerphase.models.framework.saved import SavedForecaster
from powerphase.records.forecast_file import (
    ForecastFile,
    forecast_writer,
    open_forecast,
    read_values,
)
from powerphase.records.forecast_format import ForecastHeader
from powerphase.scenarios import Context, Scenarios
from powerphase.task.windows import Task

Progress = Callable[[int, int], None]
Piece = tuple[int, slice, Scenarios]
"""A window, a block of its channels, and their scenarios."""


@dataclass(frozen=True, eq=False)
class Forecast:
    """The scenarios of one model for all windows of one task, given piece by piece.

    A forecast of a large grid does not fit into memory. So one that was not written to a file is
    made anew each time it is gone through.
    """

    facts: dict[str, Any]
    """Which task, on which data; see `task_facts`."""
    description: Description
    cost: dict[str, Any]
    pieces: Callable[[Collection[int]], Iterator[Piece]]
    """Goes through all windows but the given ones, in order."""
    balance: dict[str, Any] | None = None
    """Of scenarios that were made physical, what `bench.physical.Balance` tells of them."""


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
        out: a directory for the scenarios. An interrupted forecast that is there is continued.
            Without one, scenarios are made when they are asked for, to be scored as they come.
        device: cpu, cuda, or auto for a GPU where there is one.
        on_progress: called with the number of windows written, and of all.
    """
    place = choose_device(device)
    check_forecaster(model)
    if "://" in str(out):
        raise ForecastError(
            f"{out}: forecasts are written to a local directory; copy it afterwards"
        )
    describe(model)  # what cannot be written in a row should not cost a training first
    reset_peak_memory()
    watch = Stopwatch()
    with watch.running():
        model.fit(task.training)
    cost = _cost_of_fit(model, watch.seconds, place)
    live = Forecast(
        task_facts(task),
        describe(model),
        cost,
        lambda skip: _predicted(model, task, place, cost, skip),
    )
    return live if out is None else write_forecast(live, out, on_progress)


def check_forecaster(model: object) -> None:
    """Refuse what cannot be fitted and asked, such as a class instead of an object of it."""
    if isinstance(model, type) or not isinstance(model, Forecaster):
        raise ForecastError(f"{model!r} is no forecaster; give an object with fit and predict")


def _cost_of_fit(model: Forecaster, seconds: float, device: torch.device) -> dict[str, Any]:
    """What the fit took; of a model that was trained elsewhere, what that took."""
    here = hardware(device)
    trained = model.outcome if isinstance(model, SavedForecaster) else None
    trained = trained or {"train_s": seconds, "hardware": here}
    there = trained["hardware"]
    return {
        "train_s": trained["train_s"],
        "predict_s": None,
        "steps": getattr(model, "n_steps", None),
        "peak_memory_gib": None,
        "hardware": here if there == here else f"{there}; prediction: {here}",
    }


def load_forecast(path: str | Path) -> Forecast:
    """The forecast in a directory."""
    file = open_forecast(path)
    h = file.header
    facts = {name: getattr(h, name) for name in FACTS}
    description = Description(h.model, h.variant, h.config, h.parameters, h.seed)
    cost = UNKNOWN_COST | {name: value for name, value in file.cost.items() if name != BALANCE}
    balance = file.cost.get(BALANCE)
    return Forecast(facts, description, cost, lambda skip: _stored(file, skip), balance)


UNKNOWN_COST: dict[str, Any] = {
    **dict.fromkeys(("train_s", "predict_s", "steps", "peak_memory_gib")),
    "hardware": UNKNOWN,
}
"""What a file that was made elsewhere need not tell."""

BALANCE = "balance"
"""Where the cost in a file holds a forecast's balance."""


FACTS = (
    *("grid", "edition", "fingerprint", "n_channels", "scale"),
    *("task", "task_version", "context", "horizon", "windows"),
)


def task_facts(task: Task) -> dict[str, Any]:
    """All that must agree between a forecast and the task by which it is scored."""
    manifest, protocol = task.store.manifest, task.protocol
    return {
        "grid": manifest.grid,
        "edition": manifest.edition,
        "fingerprint": manifest.fingerprint,
        "n_channels": task.layout.n_channels,
        "scale": [task.layout.p_scale_mw, task.layout.q_scale_mvar],
        "task": task.name,
        "task_version": protocol.version,
        "context": protocol.context,
        "horizon": protocol.horizon,
        "windows": [task.test.start(window) for window in range(len(task.test))],
    }


def _predicted(
    model: Forecaster,
    task: Task,
    device: torch.device,
    cost: dict[str, Any],
    skip: Collection[int],
) -> Iterator[Piece]:
    """Ask the model for one window after another; what it does wrong is told with the window."""
    watch = Stopwatch()
    for window in range(len(task.test)):
        if window not in skip:
            context = task.test.context(window).to(device)
            for channels, scenarios in blocks_of(model, context, watch, window):
                cost["predict_s"] = watch.seconds
                cost["peak_memory_gib"] = _peak(model, device)
                yield window, channels, scenarios
                del scenarios


def _peak(model: Forecaster, device: torch.device) -> float | None:
    """Largest memory held since the fit began, here or where the model was trained."""
    here = peak_memory_gib(device)
    if not isinstance(model, SavedForecaster) or model.outcome is None:
        return here
    there = model.outcome["peak_memory_gib"]
    return None if here is None or there is None else max(here, there)


def blocks_of(
    model: Forecaster, context: Context, watch: Stopwatch, window: int = 0
) -> Iterator[tuple[slice, Scenarios]]:
    """The model's answer for one window, whatever its form, as blocks of channels.

    The watch runs while the model does; an error is told with the window's number.
    """
    begun = 0
    try:
        with watch.running(), torch.no_grad():
            answer = model.predict(context)
        blocks = iter([(slice(None), answer)]) if isinstance(answer, Scenarios) else answer
        if not isinstance(blocks, Iterator):
            kind = type(answer).__name__
            raise ForecastError(f"predict gave {kind}; it must give Scenarios, whole or by block")
        while True:
            with watch.running(), torch.no_grad():
                block = next(blocks, None)
            if block is None:
                return
            yield (channels := _channels(block, context)), block[1]
            begun = channels.stop
            del block
    except ForecastError as error:
        raise error.with_offset(window, begun) from error


def _channels(block: object, context: Context) -> slice:
    """The channels of a block, if it is one, of one window, of consecutive channels."""
    match block:
        case (slice() as given, Scenarios() as scenarios):
            channels = slice(*given.indices(context.layout.n_channels))
        case _:
            kind = type(block).__name__
            raise ForecastError(f"a block must be (slice of channels, Scenarios), found {kind}")
    if channels.step != 1:
        raise ForecastError(f"the channels {given} make no block; give consecutive ones")
    n_windows, n_scenarios, horizon, n_channels = scenarios.values.shape
    wanted = (len(context.past), context.horizon, channels.stop - channels.start)
    if (n_windows, horizon, n_channels) != wanted:
        raise ForecastError(
            f"predict gave windows {n_windows}, scenarios {n_scenarios}, steps {horizon}, channels "
            f"{n_channels}; needed are windows {wanted[0]}, scenarios any number, steps "
            f"{wanted[1]}, channels {wanted[2]} ({channels.start} to {channels.stop})"
        )
    return channels


def _stored(file: ForecastFile, skip: Collection[int]) -> Iterator[Piece]:
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
    """Write a forecast to a directory, or what is missing of it there; returns the written one."""
    _write(live, Path(out), on_progress or (lambda done, total: None))
    return load_forecast(out)


def _write(live: Forecast, out: Path, report: Progress) -> None:
    pieces, n_windows = live.pieces(()), len(live.facts["windows"])
    first = next(pieces, None)  # it tells how many scenarios there are
    if first is None:
        raise ForecastError("the model gives no scenarios", window=0)
    with forecast_writer(out, _header(live, first[2])) as writer:
        report(len(writer.finished), n_windows)
        continued = bool(writer.finished)
        if first[0] in writer.finished:
            _check_repeated(out, *first)
        n_written, n_channels = 0, live.facts["n_channels"]
        rest = live.pieces(writer.finished) if continued else chain([first], pieces)
        del first
        for window, channels, scenarios in rest:
            writer.write(window, channels, *_as_arrays(scenarios))
            del scenarios  # or a window and the next one would be in memory together
            n_written += channels.stop - channels.start
            if n_written == n_channels:
                writer.finish_window(window)
                report(len(writer.finished), n_windows)
                n_written = 0
        # Of a forecast made in two goes, nobody knows what one would have taken.
        cost = live.cost if live.balance is None else {**live.cost, BALANCE: live.balance}
        unknown = {"predict_s", "peak_memory_gib", BALANCE} & cost.keys() if continued else ()
        writer.close({**cost, **dict.fromkeys(unknown)})


def _check_repeated(out: Path, window: int, channels: slice, scenarios: Scenarios) -> None:
    """Refuse to finish one model's forecast with another's, though they bear the same name."""
    stored = torch.from_numpy(read_values(out, window, channels))
    if not torch.allclose(stored, scenarios.values[0].float().cpu(), rtol=1e-4, atol=1e-6):
        raise ForecastError(
            f"{out}: holds a forecast of this name, but the model now forecasts something else; "
            "remove it or choose another place (a model is told apart by name, variant, config "
            "and seed)",
            window=window,
        )


def _as_arrays(scenarios: Scenarios) -> Iterator[np.ndarray]:
    for part in (scenarios.values, scenarios.weights):
        yield np.ascontiguousarray(part[0].float().cpu().numpy())


def _header(live: Forecast, scenarios: Scenarios) -> ForecastHeader:
    d = live.description
    return ForecastHeader(
        **live.facts,
        scenarios=scenarios.values.shape[1],
        model=d.model,
        variant=d.variant,
        config=d.config,
        parameters=d.parameters,
        seed=d.seed,
        version=version("powerphase"),
    )
