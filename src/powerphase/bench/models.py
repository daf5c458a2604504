"""Models for a task: by name, or by the folder of their training."""

from pathlib import Path

import numpy as np
from jaxtyping import Float

from powerphase.bench.entrants import ORACLE, entrant
from powerphase.errors import TrainingError, UnknownName
from powerphase.models.base import Forecaster
from powerphase.models.kept import Kept
from powerphase.models.registry import MODELS, model_class
from powerphase.models.run import RunFolder, is_run
from powerphase.synthesis.signals import SIGNALS
from powerphase.task.windows import Task


def model_for(given: str, task: Task, seed: int, device: str = "auto") -> Forecaster:
    """The model of that name for this task, not yet fitted; or the one trained in that folder.

    A name may be followed by variants, as in `ets+season-24+stale`. A class of the user's own is
    given as `package.module:Class`.
    """
    if is_run(given):
        return load_run(given, task)
    name = given.split("+")[0]
    if ":" not in name and name not in [*MODELS, ORACLE]:
        raise UnknownName.among("model or training", name, [*MODELS, ORACLE])
    asked = entrant(given)
    if asked.is_trained and not asked.is_own:
        raise TrainingError(
            f"{given} is trained before it forecasts: `powerphase train {given} --data "
            f"{task.store.path} --out RUN`, then give RUN instead of its name"
        )
    return asked.make(task, seed, device)


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
