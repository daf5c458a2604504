"""PowerForge's speed and memory: the fast form against the straightforward one, and the floor.

    python benchmarks/powerforge.py steps                   one GPU: 500, 2,383 and 9,241 buses
    python benchmarks/powerforge.py steps --buses 500 --skip compile --json steps.json
    python benchmarks/powerforge.py cpu                     folded against straightforward
    python benchmarks/powerforge.py inference --device cpu  ten windows of 9,241 buses
    python benchmarks/powerforge.py scaling --json cost.json     one GPU: 500 to 70,000 buses
    python benchmarks/powerforge.py plot cost.json --out docs/figures/powerforge_cost.svg

A step is all that a training does between two batches: gather windows that were not used before,
forward, backward, clip, optimiser. States are random, as many as a training has. The
straightforward version is the oracle of the network's tests, in float32 with TF32 products. Times
are medians of steps taken back to back. Peak memory is what torch allocated from the making of the
network on, with the record that is on the device. The columns `bandwidth` and `matrix` say how much
of a step's time its least bytes and FLOPs would take; the larger is the share of the floor. First
losses are of the same weights and windows, so they differ by dropout and noise alone.
"""

import argparse
import json
import resource
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))  # the straightforward version is in the tests

from benchmarks.powerforge_floor import Ceilings, Size, ceilings, least_bytes, least_flops
from benchmarks.powerforge_forms import (
    CONTEXT,
    FORMS,
    HORIZON,
    Patience,
    RandomRecord,
    free_memory,
    measure,
    wait_for,
)
from benchmarks.powerforge_tables import (
    beyond_gib,
    floor_in_words,
    line_of_form,
    line_of_size,
    slope,
)
from powerphase.axes import KINDS, STEPS_PER_DAY
from powerphase.cost import Stopwatch, hardware, peak_memory_gib, reset_peak_memory
from powerphase.errors import PowerphaseError
from powerphase.models.framework.configuration import TrainingConfig
from powerphase.models.framework.device import choose_device
from powerphase.models.powerforge.config import BATCH_SIZES, DEFAULT_BATCH_SIZE, PowerForgeConfig
from powerphase.models.powerforge.network import PowerForgeNetwork
from powerphase.scenarios import Batches, Windows

PAPER_BATCH = {
    int("".join(filter(str.isdigit, grid))): batch for grid, batch in BATCH_SIZES.items()
}
"""The paper's batch sizes by number of buses, which is in each grid's name."""

RECORD_STEPS = 547 * STEPS_PER_DAY
"""As many as the paper trains on."""

RECORD_BYTES = 1.7e9
"""Of a record where cost is measured against size: more than a cache holds, little of a GPU."""

LARGE_BUSES = 2000
"""From here on, launching is no part of a step's time."""

Report = dict[str, Any]


def main() -> None:
    """Do what is asked."""
    options = arguments()
    if options.mode == "plot":
        from benchmarks.powerforge_plot import draw  # matplotlib is not everywhere where GPUs are

        draw(json.loads(options.file.read_text(encoding="utf-8")), options.out)
        return
    try:
        device = choose_device(options.device)
    except PowerphaseError as error:
        sys.exit(str(error))
    torch.set_float32_matmul_precision("high")  # as trainings do; a CPU has no TF32
    report = {"mode": options.mode, "hardware": hardware(device), **versions(), "rows": []}
    print(f"{report['hardware']}; torch {report['torch']}, triton {report['triton']}", flush=True)
    MODES[options.mode](options, device, report)


def versions() -> dict[str, str]:
    """What the numbers depend on."""
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    return {"torch": torch.__version__, "triton": triton}


def steps(options: argparse.Namespace, device: torch.device, report: Report) -> None:
    """Every form at every size, beside the floor."""
    top = ceilings(device, options.precision)
    report["ceilings"] = top._asdict()
    rates = (top.bytes_per_s / 1e12, top.flops_per_s / 1e12)
    print("a large copy: {:.2f} TB/s; a large product: {:.1f} TFLOP/s".format(*rates))
    for k, n_buses in enumerate(options.buses):
        batch = options.batch[k] if options.batch else PAPER_BATCH.get(n_buses, DEFAULT_BATCH_SIZE)
        size = Size(batch, n_buses, CONTEXT, HORIZON)
        record_steps = options.record_steps or RECORD_STEPS
        batches = random_batches(size, record_steps, device)
        print(f"\n{floor_in_words(size, *least_of(size), top)}")
        print(f"beside a record of {record_steps:,} steps:")
        print(line_of_form({}), flush=True)
        slowest_ms = None
        for name in (name for name in FORMS if name in set(options.forms) - set(options.skip)):
            found = measured_form(name, size, batches, options, top)
            if name == "straightforward":
                slowest_ms = found.get("ms")
            found["ratio"] = slowest_ms / found["ms"] if slowest_ms and "ms" in found else None
            print(line_of_form(found), flush=True)
            keep(report, found, options.json)
        del batches


def measured_form(
    name: str, size: Size, batches: Batches, options: argparse.Namespace, top: Ceilings
) -> dict[str, Any]:
    """A form's costs, with the share of each ceiling that it reaches."""
    training = TrainingConfig(batch_size=size.batch, precision=options.precision)
    patience = Patience(options.limit, options.seconds)
    found = measure(FORMS[name], size, batches, training, choose_device(options.device), patience)
    found = {"form": name, **size._asdict()} | found
    if "ms" in found:
        least = [sum(parts.values()) for parts in least_of(size)]
        found["least_bytes"], found["least_flops"] = least
        shares = (ms / found["ms"] for ms in top.floor_ms(*least))
        found["of_bandwidth"], found["of_matrix_rate"] = shares
    return found


def scaling(options: argparse.Namespace, device: torch.device, report: Report) -> None:
    """The fast form at one batch size, from small grids to the largest there is."""
    top = ceilings(device, options.precision)
    report["ceilings"] = top._asdict()
    print(line_of_size({}), flush=True)
    for n_buses in options.buses:
        size = Size(options.batch[0] if options.batch else 8, n_buses, CONTEXT, HORIZON)
        fitting = int(RECORD_BYTES / (4 * KINDS * n_buses))
        record_steps = options.record_steps or min(RECORD_STEPS, max(1500, fitting))
        batches = random_batches(size, record_steps, device)
        found = measured_form(options.forms[0], size, batches, options, top)
        print(line_of_size(found), flush=True)
        keep(report, found, options.json)
        del batches
    for least, words in ((0, "all sizes"), (LARGE_BUSES, f"{LARGE_BUSES:,} buses and more")):
        rows = [row for row in report["rows"] if "ms" in row and row["n_buses"] >= least]
        if len(rows) > 1:
            time = slope(rows, [row["ms"] for row in rows])
            memory = slope(rows, [beyond_gib(row) for row in rows])
            print(f"{words}: time grows as buses to the power {time:.2f}, memory {memory:.2f}")


def inference(options: argparse.Namespace, device: torch.device, report: Report) -> None:
    """Windows one at a time, from host memory, as `powerphase forecast` asks for them."""
    n_windows, n_buses = options.windows, options.buses[0]
    n_steps = CONTEXT + n_windows * HORIZON
    record = RandomRecord(n_buses, n_steps, torch.device("cpu"))
    origins = np.arange(CONTEXT, n_steps, HORIZON)
    windows = Windows(record, origins, CONTEXT, HORIZON)
    size = (n_buses, CONTEXT, HORIZON, options.channel_block)
    torch.manual_seed(0)
    network = PowerForgeNetwork(PowerForgeConfig(), *size, backend=options.backend).to(device)
    reset_peak_memory()
    seconds = [forecast_s(network.eval(), windows, device) for _ in range(2)]
    peak = peak_memory_gib(device)
    if device.type == "cpu":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    found = {"n_buses": n_buses, "windows": n_windows, "first_s": seconds[0], "s": seconds[1]}
    keep(report, found | {"peak_gib": peak}, options.json)
    print(f"{n_windows} windows of {n_buses:,} buses, {torch.get_num_threads()} threads")
    print(f"{seconds[0]:.2f} s the first time, compiling included; {seconds[1]:.2f} s after it")
    whose = "this whole process, with its record" if device.type == "cpu" else "allocated"
    print(f"peak memory: {peak:.2f} GiB, {whose}")


@torch.no_grad()
def forecast_s(network: PowerForgeNetwork, windows: Windows, device: torch.device) -> float:
    """Seconds for all windows, their way to the device included, their reading not."""
    watch = Stopwatch()
    for window in range(len(windows)):
        context = windows.context(window)
        with watch.running():
            network.scenarios(context.to(device))  # not kept: no two windows are held together
            wait_for(device)
    return watch.seconds


def random_batches(size: Size, record_steps: int, device: torch.device) -> Batches:
    """Batches of random states, with nothing of earlier sizes left."""
    free_memory()
    record = RandomRecord(size.n_buses, record_steps, device)
    return Batches(record, size.context, size.horizon, size.batch, seed=0, device=device)


def least_of(size: Size) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes and FLOPs that a step cannot avoid, part by part."""
    config = PowerForgeConfig()
    network = PowerForgeNetwork(config, size.n_buses, size.context, size.horizon)
    n_parameters = sum(parameter.numel() for parameter in network.parameters())
    return least_bytes(config, size, n_parameters), least_flops(config, size)


def keep(report: Report, row: dict[str, Any], file: Path | None) -> None:
    """Add a row; the file has all rows so far, whatever happens later."""
    report["rows"].append(row)
    if file is not None:
        file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


MODES = {"steps": steps, "cpu": steps, "inference": inference, "scaling": scaling}


def arguments() -> argparse.Namespace:
    """The mode and its options; modes differ in their defaults more than in what they take."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    _measuring(modes, "steps", "cuda", [500, 2383, 9241], list(FORMS))
    cpu = _measuring(modes, "cpu", "cpu", [118, 500], ["straightforward", "torch"])
    cpu.set_defaults(batch=[8, 4], record_steps=2000, seconds=10)
    sizes = [500, 1354, 2383, 2869, 3120, 9241, 25_000, 70_000]
    _measuring(modes, "scaling", "cuda", sizes, ["fast"])
    inference = modes.add_parser("inference", help="seconds and memory of ten windows")
    inference.add_argument("--device", default="auto")
    inference.add_argument("--buses", type=int, nargs=1, default=[9241])
    inference.add_argument("--windows", type=int, default=10)
    inference.add_argument("--channel-block", type=int)
    inference.add_argument("--backend", default="auto", choices=("auto", "triton", "torch"))
    inference.add_argument("--json", type=Path, help="a file for all numbers")
    plot = modes.add_parser("plot", help="draw what `scaling` wrote")
    plot.add_argument("file", type=Path)
    plot.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    given = getattr(options, "batch", None)
    if given and options.mode != "scaling" and len(given) != len(options.buses):
        parser.error("give as many batch sizes as numbers of buses")
    return options


def _measuring(
    modes: Any, name: str, device: str, buses: list[int], forms: list[str]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = modes.add_parser(name, help=MODES[name].__doc__)
    parser.add_argument("--device", default=device)
    parser.add_argument("--buses", type=int, nargs="+", default=buses)
    parser.add_argument("--batch", type=int, nargs="+", help="the paper's where none is given")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=forms)
    parser.add_argument("--skip", nargs="+", choices=FORMS, default=[])
    parser.add_argument("--precision", default="tf32", choices=("tf32", "bfloat16"))
    parser.add_argument("--record-steps", type=int, help="steps of states beside the network")
    parser.add_argument("--seconds", type=float, default=2, help="for which a form is timed")
    parser.add_argument("--limit", type=float, default=150, help="seconds that a form may take")
    parser.add_argument("--json", type=Path, help="a file for all numbers")
    return parser


if __name__ == "__main__":
    main()
