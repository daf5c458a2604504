"""The job of one process: measure how long a training takes, time a part of it, or make a row."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from powerphase.bench.budget import measure_budget, time_cell
from powerphase.cost import hardware
from powerphase.errors import ForecastError, ResultError, TaskError
from powerphase.evaluation.forecasting import forecast
from powerphase.evaluation.models import ModelSpec, resolve_model
from powerphase.evaluation.scoring import score
from powerphase.evaluation.trainings import train_model
from powerphase.files import disk_errors
from powerphase.models.framework.base import Description, Forecaster
from powerphase.models.framework.device import choose_device
from powerphase.models.framework.neural import with_training
from powerphase.models.framework.training import Progress
from powerphase.task.known import read_known
from powerphase.task.protocol import PAPER_TASK, Protocol
from powerphase.task.windows import Task

Send = Callable[[dict[str, Any]], None]
"""Sends a message to the process that started this one."""

REPORT_EVERY_S = 0.5


@dataclass(frozen=True)
class Job:
    """One cell, with absolute paths, since a model may change its process's folder."""

    model: str
    """As the user wrote it."""
    seed: int
    data: str
    out: str
    """The tree of results."""
    run: str
    """The folder of its training."""
    task: str = PAPER_TASK
    """The name of the task, which contains all of its options."""
    known: str | None = None
    """The file of the task's forecasts, if they come from one."""
    device: str = "auto"
    epochs: int | None = None
    """The epochs requested for all networks."""
    batch_size: int | None = None
    """The batch size requested for all networks."""
    budget: int | None = None
    """The epochs that the seeds of a network share."""
    measure_s: float | None = None
    """If given, measure how many epochs fit into so many seconds, instead of making the row."""
    is_timing: bool = False
    """Whether to time a part of the work instead of making the row."""

    def to_json(self) -> str:
        """The job as one line."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str | bytes) -> "Job":
        """The job that `to_json` wrote."""
        return cls(**json.loads(text))


def run_job(job: Job, send: Send) -> dict[str, Any]:
    """Measure or make the cell; returns the epochs or the path of the row."""
    send({"hardware": hardware(choose_device(job.device))})
    task = Task.of_protocol(job.data, _protocol(job))
    spec = resolve_model(job.model, {"epochs": job.epochs, "batch_size": job.batch_size})
    if job.measure_s is not None:
        return {"epochs": measure_budget(spec, task, job.seed, job.device, job.measure_s)}
    if job.is_timing:
        return asdict(time_cell(spec, task, job.seed, job.device))
    live = forecast(_make_model(spec, task, job, send), task, device=job.device)
    if not spec.is_saved:
        _check_description(spec, task.layout.grid, live.description)
    report = _count_reporter("scoring", send)
    evaluation = score(live, task, device=job.device, on_progress=report)
    with disk_errors(Path(job.out), ResultError):
        return {"row": str(evaluation.save(job.out))}


def _protocol(job: Job) -> Protocol:
    """The task of the job, with its forecasts if they come from a file."""
    protocol = Protocol.of_name(job.task)
    if job.known is None:
        return protocol
    informed = replace(protocol, known=read_known(job.known))
    if informed != protocol:
        raise TaskError(f"{job.known}: has changed since the bench started; start it again")
    return informed


def _make_model(spec: ModelSpec, task: Task, job: Job, send: Send) -> Forecaster:
    """The model; a saved forecaster is trained in its folder and then loaded from there.

    So its row equals that of `powerphase train` followed by `powerphase score`.
    """
    if not spec.is_saved:
        return spec.make(task, job.seed, job.device)
    plain = spec.uncoupled
    config, options = spec.config, dict[str, Any](run=job.run)
    if spec.is_network:
        config = with_training(config, {"epochs": job.budget})
        options["on_progress"] = _training_reporter(send)
    elif spec.accepts("on_block"):
        options["on_block"] = _count_reporter("fitting", send)
    train_model(plain.make(task, job.seed, job.device, config=config, **options), task)
    return spec.couple(spec.model_class.load(job.run), job.seed)


def _check_description(spec: ModelSpec, grid: str, fitted: Description) -> None:
    """Raise if a later bench would not recognise the row as that of this model."""
    planned = spec.description(grid, fitted.seed)
    for name in ("model", "variant", "config"):
        if getattr(fitted, name) != getattr(planned, name):
            raise ForecastError(
                f"{spec.text} changes its {name} when it is fitted, so its row would not be "
                "recognised as done; set it in the constructor"
            )


def _training_reporter(send: Send) -> Callable[[Progress], None]:
    last_report = -REPORT_EVERY_S

    def report(now: Progress) -> None:
        nonlocal last_report
        if perf_counter() - last_report >= REPORT_EVERY_S or now.step == now.steps:
            last_report = perf_counter()
            counts = {"step": now.step, "steps": now.steps}
            send({"phase": "training", **counts, "validation": now.validation})

    return report


def _count_reporter(phase: str, send: Send) -> Callable[[int, int], None]:
    last_report = -REPORT_EVERY_S

    def report(done: int, total: int) -> None:
        nonlocal last_report
        if perf_counter() - last_report >= REPORT_EVERY_S or done == total:
            last_report = perf_counter()
            send({"phase": phase, "step": done, "steps": total})

    return report
