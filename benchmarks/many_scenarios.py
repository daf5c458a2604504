"""Time and memory of a thousand scenarios of a large grid: forecast, written, reduced and read.

    python benchmarks/many_scenarios.py data/pegase9241

Each stage is a process of its own, so that its peak memory is known. FactorForge is fitted before.
The day is the first validation day. A forecast takes about 12 GB of the folder `--scratch` while
the benchmark runs. With `--out` it writes the numbers to a file.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from tempfile import TemporaryDirectory
from time import perf_counter, process_time
from typing import Any

from powerphase import Context, Task, Training, forecast, load_forecast, reduce
from powerphase.models import FactorForge
from powerphase.models.framework import Prediction

STAGES = {"draws": ("forecast", "reduce", "read"), "ranked": ("forecast",)}
"""The stages of each coupling; reducing and reading take the same time for both."""


def main() -> None:
    """Measure every stage, or be one of them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--scenarios", type=int, default=1000)
    parser.add_argument("--to", type=int, default=10)
    parser.add_argument("--scratch", type=Path, default=Path())
    parser.add_argument("--out", type=Path)
    parser.add_argument("--stage", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stage:
        print(json.dumps(measure(options, *options.stage)))
        return
    with TemporaryDirectory(dir=options.scratch) as folder:
        rows = list(all_stages(Path(folder)))
    task = Task(options.data, windows=1)
    size = {"grid": task.layout.grid, "channels": task.layout.n_channels}
    size |= {"scenarios": options.scenarios, "to": options.to, "horizon": task.protocol.horizon}
    window_gib = 4 * options.scenarios * task.protocol.horizon * task.layout.n_channels / 2**30
    result = {**size, "window_gib": window_gib, "rows": rows}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def all_stages(folder: Path) -> Iterator[dict[str, Any]]:
    """The rows of all stages, which are also printed."""
    yield measured_apart(folder, "fit", "draws")
    for form, stages in STAGES.items():
        for stage in stages:
            yield measured_apart(folder, stage, form)
        rmtree(folder / form)


def measured_apart(folder: Path, stage: str, form: str) -> dict[str, Any]:
    """The row of a stage, measured in another process."""
    command = [sys.executable, *sys.argv, "--stage", str(folder), stage, form]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    row: dict[str, Any] = json.loads(output.splitlines()[-1])
    print(json.dumps(row), flush=True)
    return row


def measure(options: argparse.Namespace, folder: str, stage: str, form: str) -> dict[str, Any]:
    """Time, memory and what else is worth knowing of a stage in this process."""
    run, full, few = (Path(folder, name) for name in ("run", form, f"{form}-{options.to}"))
    start, cpu = perf_counter(), process_time()
    facts: dict[str, Any] = {}
    if stage == "fit":
        FactorForge(run=run).fit(Task(options.data, windows=1).training)
    elif stage == "forecast":
        task = Task(options.data, windows=1)
        forecast(FirstValidationDay(task, run, form, options.scenarios), task, out=full)
        files = [file for file in full.rglob("*") if file.is_file()]
        facts["file_gib"] = sum(file.stat().st_size for file in files) / 2**30
    elif stage == "reduce":
        facts = dict(reduce(full, options.to, out=few).reduction or {})
        del facts["kept"], facts["seconds"]
    else:
        for _, _, scenarios in load_forecast(full).pieces(()):
            del scenarios
    return {
        **{"stage": stage, "coupling": form, "seconds": perf_counter() - start},
        **{"cpu_seconds": process_time() - cpu},
        "peak_gib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20,
        **facts,
    }


class FirstValidationDay:
    """A fitted FactorForge that forecasts the first validation day, whatever it is asked for."""

    name, joint_scenarios = "first-validation-day", True

    def __init__(self, task: Task, run: Path, form: str, count: int) -> None:
        self.model = FactorForge.load(run)
        self.model.config = replace(self.model.config, coupling=form, scenarios=count)
        self.context = task.training.validation.context(0)

    def fit(self, train: Training) -> None:
        """Do nothing: it is fitted."""

    def predict(self, context: Context) -> Prediction:
        """The scenarios of the first validation day."""
        return self.model.predict(self.context)


if __name__ == "__main__":
    main()
