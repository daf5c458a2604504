"""What a training step and a forecast of each network take, and how both grow with the grid.

    python benchmarks/networks.py data/activsg500 data/pegase1354 --json networks.json
    python benchmarks/networks.py data/activsg500 --models deepar timegrad --steps 60

Each network runs in a process of its own, at the batch size that it takes on this machine. A step
is timed to its end on the device: the median of those after the first ten, in which kernels are
chosen and a step is recorded. Memory is the peak of the training beside what was estimated before
it; a forecast is that of one validation window after one that does not count, in all scenarios.
Growth is the exponent b of cost ~ channels^b between the smallest and the largest grid.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from math import log
from pathlib import Path
from statistics import median
from typing import Any

import torch

from powerphase.cost import commit, hardware, peak_memory_gib, reset_peak_memory
from powerphase.models.framework.configuration import apply_variants
from powerphase.models.framework.device import choose_device
from powerphase.models.framework.neural import with_training
from powerphase.models.framework.training import Progress
from powerphase.registry import model_class
from powerphase.task.windows import Task

NETWORKS = (
    *("powerforge", "deepar", "timemcl", "timeprism"),
    *("tempflow", "transformer-tempflow", "timegrad", "tactis-2"),
)
WARM_UP = 10


class Clock:
    """Notes when each step ended on the device."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.ends = device, list[float]()

    def __call__(self, progress: Progress) -> None:
        """Note it."""
        wait_for(self.device)
        self.ends.append(time.perf_counter())

    @property
    def step_ms(self) -> float:
        """The median step after the warm-up."""
        ends = self.ends[WARM_UP - 1 :]
        return 1e3 * median(after - before for before, after in pairwise(ends))


def wait_for(device: torch.device) -> None:
    """Until the device has done all that it was told."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measured(given: str, data: str, steps: int, batch_size: int | None) -> dict[str, Any]:
    """Step, forecast and memory of one network on one grid."""
    device, task = choose_device("auto"), Task(data, windows=1)
    name, *words = given.split("+")
    kind: Any = model_class(name)
    clock = Clock(device)
    config = apply_variants(kind.config_type(), words, kind.config_type.VARIANTS)
    config = with_training(
        config, {"epochs": 1, "batches_per_epoch": WARM_UP + steps, "batch_size": batch_size}
    )
    model = kind(config, seed=42, device="auto", on_progress=clock)
    model.configure(task.training)
    estimate = model.memory_gib(task.training)
    model.fit(task.training)
    contexts = [context for context, _ in task.training.validation.load(1, device)[:2]]
    reset_peak_memory()
    forecast_s = [seconds_of(partial(answered, model, context), device) for context in contexts]
    return {
        "model": given,
        "grid": task.layout.grid,
        "channels": task.layout.n_channels,
        "batch_size": model.config.training.batch_size,
        "parameters": model.n_parameters,
        "step_ms": clock.step_ms,
        "train_gib": model.outcome["peak_memory_gib"],
        "estimated_gib": estimate,
        "forecast_s": forecast_s[-1],
        "forecast_gib": peak_memory_gib(device),
        "hardware": hardware(device),
        "torch": torch.__version__,
        "commit": commit(),
    }


def answered(model: Any, context: Any) -> None:
    """Ask for all scenarios of a window, whether they come whole or in blocks."""
    found = model.predict(context)
    if isinstance(found, Iterator):
        for _ in found:
            pass


def seconds_of(do: Callable[[], None], device: torch.device) -> float:
    """How long it takes, to its end on the device."""
    wait_for(device)
    start = time.perf_counter()
    do()
    wait_for(device)
    return time.perf_counter() - start


def in_own_process(name: str, data: str, given: argparse.Namespace) -> dict[str, Any]:
    """The measurement, or what went wrong with it."""
    command = [sys.executable, __file__, data, "--models", name, "--steps", str(given.steps)]
    command += ["--batch-size", str(given.batch_size)] if given.batch_size else []
    command, limit = [*command, "--child"], given.limit
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"model": name, "grid": Path(data).name, "failed": f"longer than {limit:.0f} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no word"]
        return {"model": name, "grid": Path(data).name, "failed": last[0]}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def line(row: dict[str, Any]) -> str:
    """The measurement as a line of a table."""
    if "failed" in row:
        return f"| {row['model']} | {row['grid']} | {row['failed']} |"
    memory = f"{row['train_gib']:.1f} ({row['estimated_gib']:.1f})"
    cells = (
        row["model"],
        f"{row['channels']:,}",
        row["batch_size"],
        f"{row['step_ms']:.1f}",
        memory,
    )
    forecast = (f"{row['forecast_s']:.2f}", f"{row['forecast_gib']:.1f}")
    return f"| {' | '.join(map(str, (*cells, *forecast)))} |"


def growth(rows: list[dict[str, Any]]) -> list[str]:
    """Of each model on two grids or more, the exponents of its cost per window."""
    lines = []
    for name in dict.fromkeys(row["model"] for row in rows):
        own = sorted((r for r in rows if r["model"] == name and "failed" not in r), key=by_size)
        if len(own) > 1:
            small, large = own[0], own[-1]
            width = log(large["channels"] / small["channels"])
            step = log(per_window(large) / per_window(small)) / width
            forecast = log(large["forecast_s"] / small["forecast_s"]) / width
            lines.append(f"{name}: step per window {step:.2f}, forecast {forecast:.2f}")
    return lines


def by_size(row: dict[str, Any]) -> int:
    """The number of channels."""
    return int(row["channels"])


def per_window(row: dict[str, Any]) -> float:
    """Batches shrink where memory ends; a window's share of a step can be compared."""
    return float(row["step_ms"] / row["batch_size"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", nargs="+", help="folders of data sets")
    parser.add_argument("--models", nargs="+", default=NETWORKS)
    parser.add_argument("--steps", type=int, default=30, help="that are timed")
    parser.add_argument("--batch-size", type=int, help="instead of the model's own")
    parser.add_argument("--limit", type=float, default=300, help="seconds for each measurement")
    parser.add_argument("--json", type=Path, help="also write the measurements there")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(measured(given.models[0], given.data[0], given.steps, given.batch_size)))
        return
    rows: list[dict[str, Any]] = []
    print("| model | channels | batch | step [ms] | GiB (estimate) | forecast [s] | GiB |")
    for data in given.data:
        for name in given.models:
            rows.append(in_own_process(name, data, given))
            print(line(rows[-1]), flush=True)
            if given.json:
                given.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(*growth(rows), sep="\n")


if __name__ == "__main__":
    main()
