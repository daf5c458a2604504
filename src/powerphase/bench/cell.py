"""One cell of a bench in a process of its own: `python -m powerphase.bench.cell`.

A job comes in as a line of JSON on standard input; what happens goes out as lines of JSON on
standard output. Whatever a model prints goes to standard error. When standard input ends, whoever
asked is gone, and the process ends with all that it started.
"""

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from time import perf_counter
from typing import Any

from powerphase.bench.budget import measured
from powerphase.bench.entrants import Entrant, entrant
from powerphase.bench.evaluation import score
from powerphase.bench.forecasting import forecast
from powerphase.bench.models import drivers
from powerphase.cost import hardware
from powerphase.errors import PowerphaseError, ResultError
from powerphase.files import disk_errors
from powerphase.models.base import Forecaster
from powerphase.models.device import choose_device
from powerphase.models.trained import with_training
from powerphase.models.training import Progress
from powerphase.task.windows import Task

Job = dict[str, Any]
Talk = Callable[[dict[str, Any]], None]

EVERY_S = 0.5
"""Between two reports of progress."""


def main() -> None:
    """Do the job, and say how it went."""
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def talk(message: dict[str, Any]) -> None:
        lines.write(json.dumps(message) + "\n")
        lines.flush()

    job: Job = json.loads(_line())
    threading.Thread(target=_end_with_the_asker, daemon=True).start()
    try:
        talk({"done": do(job, talk)})
    except PowerphaseError as error:
        talk({"failed": {"kind": type(error).__name__, "sentence": str(error)}})
        sys.exit(1)
    except Exception as error:
        kind = type(error).__name__
        talk({"failed": {"kind": kind, "sentence": f"{kind}: {error}"}})
        raise


def do(job: Job, talk: Talk) -> dict[str, Any]:
    """Measure or make the cell; what came of it."""
    talk({"hardware": hardware(choose_device(job["device"]))})
    task, asked = Task(job["data"], windows=job["windows"]), entrant(job["model"])
    if job["do"] == "measure":
        return measured(asked, task, job["seed"], job["device"], job["seconds"])._asdict()
    model = _fitted(asked, task, job, talk)
    live = forecast(model, task, device=job["device"])
    report = _counting("scoring", talk)
    evaluation = score(live, task, device=job["device"], on_progress=report)
    with disk_errors(Path(job["out"]), ResultError):
        return {"row": str(evaluation.save(job["out"]))}


def _fitted(asked: Entrant, task: Task, job: Job, talk: Talk) -> Forecaster:
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
    model.fit(task.training)
    if hasattr(model, "follow"):
        model.follow(drivers(task))
    loaded: Any = asked.kind.load(job["run"])
    return loaded


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


def _line() -> bytes:
    """The first line of standard input; read by hand, for its end is waited for elsewhere."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(0, 1)
        if not part:
            sys.exit("powerphase.bench.cell takes a job as a line of JSON; use `powerphase bench`")
        line += part
    return line


def _end_with_the_asker() -> None:
    while os.read(0, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
