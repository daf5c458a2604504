"""The cost of a training step and of a forecast for each network, and its growth with the grid.

    python benchmarks/networks.py data/activsg500 data/pegase1354 --json networks.json
    python benchmarks/networks.py data/activsg500 --models deepar timegrad --steps 60

Each network runs in a separate process, at the grid's batch size. Steps are timed to their end on
the device; reported is the median after the first ten, in which kernels are compiled and a step is
captured. Memory is the peak of the training, next to its estimate. The forecast is that of one
validation window with all scenarios, after a warm-up. Growth is the exponent b of
cost ~ channels^b between the smallest and the largest grid.
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
    """Records when each step ended on the device."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.ends = device, list[float]()

    def __call__(self, progress: Progress) -> None:
        """Record the time."""
        wait_for(self.device)
        self.ends.append(time.perf_counter())

    @property
    def step_ms(self) -> float:
        """The median step after the warm-up."""
        ends = self.ends[WARM_UP - 1 :]
        return 1e3 * median(after - before for before, after in pairwise(ends))


def wait_for(device: torch.device) -> None:
    """Wait until the device is idle."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure(model_name: str, data: str, steps: int, batch_size: int | None) -> dict[str, Any]:
    """Step, forecast and memory of one network on one grid."""
    device, task = choose_device("auto"), Task(data, windows=1)
    name, *words = model_name.split("+")
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
    forecast_s = [seconds_of(partial(predict_all, model, context), device) for context in contexts]
    return {
        "model": model_name,
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


def predict_all(model: Any, context: Any) -> None:
    """Compute all scenarios of a window, at once or in blocks."""
    prediction = model.predict(context)
    if isinstance(prediction, Iterator):
        for _ in prediction:
            pass


def seconds_of(function: Callable[[], None], device: torch.device) -> float:
    """The time of a call, to its end on the device."""
    wait_for(device)
    start = time.perf_counter()
    function()
    wait_for(device)
    return time.perf_counter() - start


def measure_in_process(name: str, data: str, options: argparse.Namespace) -> dict[str, Any]:
    """The measurement of a separate process, or its error."""
    command = [sys.executable, __file__, data, "--models", name, "--steps", str(options.steps)]
    command += ["--batch-size", str(options.batch_size)] if options.batch_size else []
    command, limit = [*command, "--child"], options.limit
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired:
        return {"model": name, "grid": Path(data).name, "failed": f"longer than {limit:.0f} s"}
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        return {"model": name, "grid": Path(data).name, "failed": last[0]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


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
    """The exponents of the cost per window, for each model with two grids or more."""
    lines = []
    for name in dict.fromkeys(row["model"] for row in rows):
        measured = sorted(
            (r for r in rows if r["model"] == name and "failed" not in r), key=by_size
        )
        if len(measured) > 1:
            small, large = measured[0], measured[-1]
            width = log(large["channels"] / small["channels"])
            step = log(per_window(large) / per_window(small)) / width
            forecast = log(large["forecast_s"] / small["forecast_s"]) / width
            lines.append(f"{name}: step per window {step:.2f}, forecast {forecast:.2f}")
    return lines


def by_size(row: dict[str, Any]) -> int:
    """The number of channels."""
    return int(row["channels"])


def per_window(row: dict[str, Any]) -> float:
    """The time of a step per window, since batch sizes differ between grids."""
    return float(row["step_ms"] / row["batch_size"])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("data", nargs="+", help="folders of data sets")
    parser.add_argument("--models", nargs="+", default=NETWORKS)
    parser.add_argument("--steps", type=int, default=30, help="steps to time")
    parser.add_argument("--batch-size", type=int, help="default: the model chooses")
    parser.add_argument("--limit", type=float, default=300, help="seconds for each measurement")
    parser.add_argument("--json", type=Path, help="also write the measurements to this file")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(
            json.dumps(
                measure(options.models[0], options.data[0], options.steps, options.batch_size)
            )
        )
        return
    rows: list[dict[str, Any]] = []
    print("| model | channels | batch | step [ms] | GiB (estimate) | forecast [s] | GiB |")
    for data in options.data:
        for name in options.models:
            rows.append(measure_in_process(name, data, options))
            print(line(rows[-1]), flush=True)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
    print(*growth(rows), sep="\n")


if __name__ == "__main__":
    main()
