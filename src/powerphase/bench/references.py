"""Models by name, for the command line: forecasters, and the oracle, which needs the data set."""

from powerphase.bench.oracle import Oracle
from powerphase.errors import UnknownName
from powerphase.models.base import Forecaster
from powerphase.models.registry import MODELS, make_model
from powerphase.task.windows import Task


def model_for(name: str, task: Task, seed: int) -> Forecaster:
    """The model of that name for this task, not yet fitted."""
    if name == Oracle.name:
        return Oracle(task.store, seed)
    if name not in MODELS:
        raise UnknownName.among("model", name, [*MODELS, Oracle.name])
    return make_model(name)
