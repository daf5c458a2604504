"""Models for a task: by name, or by the folder of their training."""

from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from powerphase.bench.oracle import Oracle
from powerphase.errors import TrainingError, UnknownName
from powerphase.models.base import Forecaster
from powerphase.models.kept import Kept
from powerphase.models.registry import MODELS, make_model, model_class
from powerphase.models.run import RunFolder, is_run
from powerphase.models.trained import Trained
from powerphase.models.variants import with_variants
from powerphase.synthesis.signals import SIGNALS
from powerphase.task.windows import Task


def model_for(given: str, task: Task, seed: int, device: str = "auto") -> Forecaster:
    """The model of that name for this task, not yet fitted; or the one trained in that folder.

    A name may be followed by variants, as in `ets+season-24+stale`.
    """
    if is_run(given):
        return load_run(given, task)
    name, *words = given.split("+")
    if name not in [*MODELS, Oracle.name]:
        raise UnknownName.among("model or training", name, [*MODELS, Oracle.name])
    kind: type[Any] = Oracle if name == Oracle.name else model_class(name)
    if not issubclass(kind, Kept):
        if words:
            raise UnknownName(f"{name} has no variants, and {given!r} asks for one; leave it out")
        return Oracle(task.store, seed) if kind is Oracle else make_model(name)
    config = with_variants(kind.config_type(), words, kind.config_type.VARIANTS)
    if issubclass(kind, Trained):
        raise TrainingError(
            f"{given} is trained before it forecasts: `powerphase train {given} --data "
            f"{task.store.path} --out RUN`, then give RUN instead of its name"
        )
    made: Forecaster = kind(config, seed=seed, **({"device": device} if kind.takes_device else {}))
    return made


def trainable(name: str) -> type[Kept]:
    """The class of a model that can be kept in a folder; others are fitted when they forecast."""
    found = model_class(name)
    if not issubclass(found, Kept):
        others = [model for model in MODELS if issubclass(model_class(model), Kept)]
        raise TrainingError(
            f"{name} needs no training, `powerphase forecast {name}` fits it; trained are "
            f"{', '.join(others)}"
        )
    return found


def load_run(run: str | Path, task: Task) -> Kept:
    """The model that was trained in a folder, if it was trained on this task's data."""
    model = trainable(RunFolder.open(run).header.model).load(run)
    model.fit(task.training)  # it is trained already, and refuses other data
    return model


def drivers(task: Task) -> dict[str, Float[np.ndarray, " S"]]:
    """What drove the steps that a model is fitted on; to explain models with, not to fit them."""
    fitted = slice(task.splits.first, task.splits.fit_stop)
    return dict(zip(SIGNALS, task.store.signals_mw[fitted].T, strict=True))
