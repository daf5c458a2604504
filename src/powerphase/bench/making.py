"""What is done in the process of a cell: measure a training, or make a row."""

from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from powerphase.bench.budget import measured
from powerphase.cost import hardware
from powerphase.errors import ForecastError, ResultError
from powerphase.evaluation.entrants import ModelSpec, entrant
from powerphase.evaluation.forecasting import forecast
from powerphase.evaluation.models import train
from powerphase.evaluation.scoring import score
from powerphase.files import disk_errors
from powerphase.models.framework.base import Description, Forecaster
from powerphase.models.framework.device import choose_device
from powerphase.models.framework.neural import with_training
from powerphase.models.framework.training import Progress
from powerphase.task.windows import Task

Job = dict[str, Any]
Talk = Callable[[dict[str, Any]], None]

EVERY_S = 0.5
"""Between two reports of progress."""


def do(job: Job, talk: Talk) -> dict[str, Any]:
    """Measure or make the cell; what came of it."""
    talk({"hardware": hardware(choose_device(job["device"]))})
    task = Task(job["data"], windows=job["windows"])
    asked = entrant(job["model"], job["training"])
    if job["do"] == "measure":
        return measured(asked, task, job["seed"], job["device"], job["seconds"])._asdict()
    model = _fitted(asked, task, job, talk)
    live = forecast(model, task, device=job["device"])
    if not asked.is_kept:
        _check_told(asked, task.layout.grid, live.description)
    report = _counting("scoring", talk)
    evaluation = score(live, task, device=job["device"], on_progress=report)
    with disk_errors(Path(job["out"]), ResultError):
        return {"row": str(evaluation.save(job["out"]))}


def _fitted(asked: ModelSpec, task: Task, job: Job, talk: Talk) -> Forecaster:
    """The model; one that can be kept is trained in its folder and loaded from it, as a user would.

    So its row is that of `powerphase train` and `powerphase score`.
    """
    if not asked.is_kept:
        return asked.make(task, job["seed"], job["device"])
    config = asked.config
    more: dict[str, Any] = {"run": job["run"]}
    if asked.is_trained:
        budget = {name: job[name] for name in ("epochs", "batch_size")}
        config = with_training(config, budget)
        more["on_progress"] = _training(talk)
    elif asked.takes("on_block"):
        more["on_block"] = _counting("fitting", talk)
    model: Any = asked.make(task, job["seed"], job["device"], config=config, **more)
    train(model, task)
    loaded: Any = asked.kind.load(job["run"])
    return loaded


def _check_told(asked: ModelSpec, grid: str, found: Description) -> None:
    """Refuse a row that no bench would find again."""
    planned = asked.description(grid, found.seed)
    for name in ("model", "variant", "config"):
        if getattr(found, name) != getattr(planned, name):
            raise ForecastError(
                f"{asked.given} tells another {name} once it is fitted, by which its row would not "
                "be found again; settle it in the constructor"
            )


def _training(talk: Talk) -> Callable[[Progress], None]:
    told = -EVERY_S

    def report(now: Progress) -> None:
        nonlocal told
        if perf_counter() - told >= EVERY_S or now.step == now.steps:
            told = perf_counter()
            counts = {"step": now.step, "steps": now.steps}
            talk({"at": "training", **counts, "validation": now.validation})

    return report


def _counting(what: str, talk: Talk) -> Callable[[int, int], None]:
    told = -EVERY_S

    def report(done: int, total: int) -> None:
        nonlocal told
        if perf_counter() - told >= EVERY_S or done == total:
            told = perf_counter()
            talk({"at": what, "step": done, "steps": total})

    return report
