"""Requests of trainings: which model, with which options, and where it stores what it learned."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from powerphase.errors import TrainingError
from powerphase.evaluation.models import ModelSpec, resolve_model, trainable_class
from powerphase.models.framework.neural import NeuralForecaster
from powerphase.models.framework.saved import SavedForecaster
from powerphase.synthesis.signals import SIGNALS
from powerphase.task.windows import Task


@dataclass(frozen=True)
class TrainingRequest:
    """A model to be trained, and how."""

    spec: ModelSpec
    device: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Arguments that only networks take."""

    @property
    def is_network(self) -> bool:
        """Whether it is trained in steps, rather than fitted in a single pass."""
        return self.spec.is_network

    @property
    def label(self) -> str:
        """What a progress bar counts during a fit in a single pass."""
        return f"{self.spec.model_class.name}, {self.spec.model_class.counts}"

    def make(self, task: Task, seed: int, run: Path, report: Callable[..., None]) -> Any:
        """The model, not yet fitted, which saves its state in the folder."""
        callback = {"on_progress" if self.is_network else "on_block": report}
        return self.spec.make(task, seed, self.device, run=run, **self.options, **callback)

    def memory_note(self, network: NeuralForecaster, task: Task) -> str:
        """The memory that the network's training needs with the grid's batch size."""
        network.configure(task.training)
        needed_gib = network.memory_gib(task.training, network.channel_block)
        return (
            f"on {task.layout.n_channels:,} channels in batches of "
            f"{network.config.training.batch_size}: about {needed_gib:.1f} GiB in addition to torch"
        )


def request_training(
    text: str,
    config_file: Path | None = None,
    *,
    device: str = "auto",
    epochs: int | None = None,
    batch_size: int | None = None,
    channel_block: int | None = None,
    backend: str = "auto",
) -> TrainingRequest:
    """The training of a model with variants; raises for options that the model does not have.

    Args:
        text: the name of a built-in model that can be trained, with or without variants.
        config_file: fields of the config that replace the defaults.
        device: cpu, cuda, or auto for a GPU if there is one.
        epochs: of a network, if not those of its config.
        batch_size: of a network, if not that of its config.
        channel_block: how many channels a network processes at a time.
        backend: triton, torch or auto, for networks that have both.
    """
    model_type = trainable_class(text.split("+")[0])
    budget = {"epochs": epochs, "batch_size": batch_size}
    kernels = None if backend == "auto" else backend
    _check_uncoupled(text)
    if not issubclass(model_type, NeuralForecaster):
        chosen = None if model_type.takes_device or device in ("auto", "cpu") else device
        _reject(model_type, **budget, channel_block=channel_block, device=chosen, backend=kernels)
        return TrainingRequest(resolve_model(text, config_file=config_file), device)
    if not model_type.takes_backend:
        _reject(model_type, backend=kernels)
    options = {"channel_block": channel_block, "backend": backend}
    return TrainingRequest(resolve_model(text, budget, config_file), device, options)


def train_model(model: Any, task: Task) -> None:
    """Fit a saved forecaster; FactorForge also notes which signals its factors follow."""
    model.fit(task.training)
    if hasattr(model, "follow"):
        model.follow(driving_signals(task))


def driving_signals(task: Task) -> dict[str, Float[np.ndarray, " S"]]:
    """The signals behind the steps that a model is fitted on; they explain models, no more."""
    if task.store.is_imported:
        return {}
    fitted = slice(task.splits.first, task.splits.fit_stop)
    return dict(zip(SIGNALS, task.store.signals_mw[fitted].T, strict=True))


def _check_uncoupled(text: str) -> None:
    """Raise if the text asks for coupling, which is no matter of a training."""
    spec = resolve_model(text)
    if spec.coupling is not None:
        raise TrainingError(
            f"{text}: a training has no coupling; train {spec.uncoupled.text}, then forecast or "
            f"score it with --couple {spec.coupling}"
        )


def _reject(model_type: type[SavedForecaster], **options: Any) -> None:
    """Raise if any of these options, which the model does not have, is given."""
    names = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if names:
        listed, those = ", ".join(names), "this option" if len(names) == 1 else "these options"
        raise TrainingError(f"{listed}: {model_type.name} does not have {those}; leave it out")
