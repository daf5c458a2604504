"""How long a day's run takes on a large record: with a saved fit, and with a new one.

    python benchmarks/day_run.py build/day_run --out benchmarks/measured/day_run.json

The folder gets an imported record of Polish 2383 (9,532 channels) and a training, unless it has
them. Each command is a process of its own, as cron starts it, with two cores; the fastest of some
runs counts. Of lightsim2grid's companions grid2op and pandapower, which it imports where they are
installed and powerphase does not need, nothing is imported.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from shutil import rmtree
from typing import Any

from powerphase import generate, import_states, open

GRID, END = "polish2383", "2015-03-31"
CORES = 2
COMMAND = (
    "import sys; sys.modules['grid2op'] = sys.modules['pandapower'] = None; "
    "from powerphase.cli import main; main()"
)


def main() -> None:
    """Make what is missing, and time the commands."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    data, training = make_record(options.folder)
    days = options.folder / "days"
    outlook = ("--data", str(data), "--format", "csv")
    commands = {
        "saved": ("tomorrow", str(training), *outlook),
        "saved and written": ("tomorrow", str(training), *outlook, "--out", str(days)),
        "new fit": ("tomorrow", "factorforge", *outlook),
    }
    result: dict[str, Any] = {"grid": GRID, "end": END, "cores": CORES}
    result["channels"] = 4 * open(data).manifest.n_buses
    result["rows"] = []
    for name, arguments in commands.items():
        runs: list[dict[str, float]] = []
        for _ in range(options.runs):
            rmtree(days, ignore_errors=True)
            runs.append(timed(arguments))
        fastest = min(runs, key=lambda run: run["wall_s"])
        result["rows"].append({"run": name, **fastest})
        print(json.dumps(result["rows"][-1]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def make_record(folder: Path) -> tuple[Path, Path]:
    """The imported record and the training in the folder."""
    data, training = folder / "record", folder / "training"
    if not data.exists():
        source = generate(GRID, folder / "generated", end=END)
        import_states(source.to_xarray(), data, grid=GRID)
    if not training.exists():
        timed(("train", "factorforge", "--data", str(data), "--out", str(training)))
    return data, training


def timed(arguments: tuple[str, ...]) -> dict[str, float]:
    """Seconds of a command and of the processor, and how busy the machine was before."""
    busy, before = os.getloadavg()[0], resource.getrusage(resource.RUSAGE_CHILDREN)
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", COMMAND, *arguments],
        check=True,
        stdout=subprocess.DEVNULL,
        preexec_fn=lambda: os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:CORES]),
    )
    seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"wall_s": seconds, "cpu_s": used, "load_before": busy}


if __name__ == "__main__":
    main()
