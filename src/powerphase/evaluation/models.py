"""Models for a task: by name, or by the folder of their training; and how they are trained."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from powerphase.errors import TrainingError
from powerphase.evaluation.entrants import ModelSpec, entrant
from powerphase.evaluation.forecasting import Forecast, forecast, load_forecast
from powerphase.models.framework.base import Forecaster
from powerphase.models.framework.neural import NeuralForecaster
from powerphase.models.framework.run import RunFolder, is_run
from powerphase.models.framework.saved import SavedForecaster
from powerphase.records.forecast_file import is_forecast
from powerphase.registry import MODELS, model_class
from powerphase.synthesis.signals import SIGNALS
from powerphase.task.windows import Task


def model_for(given: str, task: Task, seed: int, device: str = "auto") -> Forecaster:
    """The model of that name for this task, not yet fitted; or the one trained in that folder.

    A name may be followed by variants, as in `ets+season-24+stale`. A class of the user's own is
    given as `package.module:Class`.
    """
    if is_run(given):
        return load_run(given, task)
    asked = entrant(given, sought="model or training")
    if asked.is_trained and not asked.is_own:
        raise TrainingError(
            f"{given} is trained before it forecasts: `powerphase train {given} --data "
            f"{task.store.path} --out RUN`, then give RUN instead of its name"
        )
    return asked.make(task, seed, device)


def forecast_for(given: str, task: Task, seed: int, device: str = "auto") -> Forecast:
    """The forecast in that directory; or of a model by name or training, made as it is read."""
    if is_forecast(given) or ("/" in given and not is_run(given)):
        return load_forecast(given)
    return forecast(model_for(given, task, seed, device), task, device=device)


@dataclass(frozen=True)
class TrainingRequest:
    """A training as it was asked for."""

    asked: ModelSpec
    device: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """What networks alone are told."""

    @property
    def is_network(self) -> bool:
        """Whether it has steps; else it is fitted in one go."""
        return self.asked.is_trained

    @property
    def label(self) -> str:
        """What is counted while it is fitted in one go."""
        return f"{self.asked.kind.name}, {self.asked.kind.counts}"

    def begin(self, task: Task, seed: int, run: Path, report: Callable[..., None]) -> Any:
        """The model, not yet fitted, which will keep what it learns in the folder."""
        told = {"on_progress" if self.is_network else "on_block": report}
        return self.asked.make(task, seed, self.device, run=run, **self.options, **told)

    def needs(self, network: NeuralForecaster, task: Task) -> str:
        """What the network's training will take, once its batch size is settled."""
        network.settle(task.training)
        needed = network.memory_gib(task.training, network.channel_block)
        size = f"{task.layout.n_channels:,} channels in batches of"
        size = f"{size} {network.config.training.batch_size}"
        return f"on {size}: about {needed:.1f} GiB beside torch itself"


def training_request(
    given: str,
    file: Path | None = None,
    *,
    device: str = "auto",
    epochs: int | None = None,
    batch_size: int | None = None,
    channel_block: int | None = None,
    backend: str = "auto",
) -> TrainingRequest:
    """The training of a model with variants; options that mean nothing to it are refused.

    Args:
        given: the name of a model that can be kept in a folder, with variants.
        file: fields of its config.
        device: cpu, cuda, or auto for a GPU where there is one.
        epochs: of a network, where they are not to be its own.
        batch_size: the same.
        channel_block: how many channels a network works on at a time.
        backend: triton, torch or auto, of networks that have both.
    """
    kind = trainable(given.split("+")[0])
    budget = {"epochs": epochs, "batch_size": batch_size}
    kernels = None if backend == "auto" else backend
    if not issubclass(kind, NeuralForecaster):
        place = None if kind.takes_device or device in ("auto", "cpu") else device
        _refuse(kind, **budget, channel_block=channel_block, device=place, backend=kernels)
        return TrainingRequest(entrant(given, file=file), device)
    if not kind.takes_backend:
        _refuse(kind, backend=kernels)
    options = {"channel_block": channel_block, "backend": backend}
    return TrainingRequest(entrant(given, budget, file), device, options)


def _refuse(kind: type[SavedForecaster], **options: Any) -> None:
    """Options of other models."""
    given = [f"--{name.replace('_', '-')}" for name, one in options.items() if one is not None]
    if given:
        named = ", ".join(given)
        raise TrainingError(f"{named}: {kind.name} has nothing of the kind to choose; leave it out")


def train(model: Any, task: Task) -> None:
    """Fit a model that keeps what it learns; of FactorForge, note what its factors follow."""
    model.fit(task.training)
    if hasattr(model, "follow"):
        model.follow(drivers(task))


def trainable(name: str) -> type[SavedForecaster]:
    """The class of a model that can be kept in a folder; others are fitted when they forecast."""
    if ":" in name:
        raise TrainingError(
            f"{name}: only models that are known by name are trained by themselves; `powerphase "
            f"score {name}` trains and scores it, `powerphase bench --models {name}` in a folder"
        )
    found = model_class(name)
    if not issubclass(found, SavedForecaster):
        others = [model for model in MODELS if issubclass(model_class(model), SavedForecaster)]
        raise TrainingError(
            f"{name} needs no training, `powerphase forecast {name}` fits it; trained are "
            f"{', '.join(others)}"
        )
    return found


def load_run(run: str | Path, task: Task) -> SavedForecaster:
    """The model that was trained in a folder, if it was trained on this task's data."""
    model = trainable(RunFolder.open(run).header.model).load(run)
    model.fit(task.training)  # it is trained already, and refuses other data
    return model


def drivers(task: Task) -> dict[str, Float[np.ndarray, " S"]]:
    """What drove the steps that a model is fitted on; to explain models with, not to fit them."""
    fitted = slice(task.splits.first, task.splits.fit_stop)
    return dict(zip(SIGNALS, task.store.signals_mw[fitted].T, strict=True))
