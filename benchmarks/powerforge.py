"""Measure PowerForge's speed and memory: fast form, straightforward form, and the floor.

    python benchmarks/powerforge.py steps                   one GPU: 500, 2,383 and 9,241 buses
    python benchmarks/powerforge.py steps --buses 500 --skip compile --json steps.json
    python benchmarks/powerforge.py cpu                     plain torch against straightforward
    python benchmarks/powerforge.py inference --device cpu  ten windows of 9,241 buses
    python benchmarks/powerforge.py scaling --json cost.json     one GPU: 500 to 70,000 buses
    python benchmarks/powerforge.py plot cost.json --out docs/figures/powerforge_cost.svg

A step is everything that a training does for a batch: gather new windows, forward pass, backward
pass, clipping, optimiser. States are random, as many as a training has. The straightforward form is
the oracle of the network's tests, in float32 with TF32 products. Times are medians of consecutive
steps. Peak memory is what torch allocated since the creation of the network, including the training
record on the device. The columns `bandwidth` and `matrix` are the shares of a step's time that its
least bytes and FLOPs would take; the larger is the share of the floor. First losses have the same
weights and windows, so they differ only by dropout and noise.
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
    RandomRecord,
    TimeLimits,
    free_memory,
    measure,
    wait_for,
)
from benchmarks.powerforge_tables import (
    describe_floor,
    form_line,
    growth_exponent,
    memory_beyond_record_gib,
    size_line,
)
from powerphase.axes import KINDS, STEPS_PER_DAY
from powerphase.cost import Stopwatch, hardware, peak_memory_gib, reset_peak_memory
from powerphase.errors import PowerphaseError
from powerphase.models.framework.configuration import (
    BATCH_SIZES,
    DEFAULT_BATCH_SIZE,
    TrainingConfig,
)
from powerphase.models.framework.device import choose_device
from powerphase.models.powerforge import (
    PowerForgeConfig,
    PowerForgeNetwork,
)
from powerphase.scenarios import Batches, Windows

PAPER_BATCH = {
    int("".join(filter(str.isdigit, grid))): batch for grid, batch in BATCH_SIZES.items()
}
"""The paper's batch sizes by number of buses, which each grid's name contains."""

RECORD_STEPS = 547 * STEPS_PER_DAY
"""The steps of the paper's training record."""

RECORD_BYTES = 1.7e9
"""Bytes of the record for `scaling`: more than a cache, and little of a GPU's memory."""

LARGE_BUSES = 2000
"""From this size on, launching kernels does not limit a step's time."""

Report = dict[str, Any]


def main() -> None:
    """Run the mode given on the command line."""
    options = arguments()
    if options.mode == "plot":
        from benchmarks.powerforge_plot import draw  # machines with GPUs may lack matplotlib

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
    """The versions of the libraries that determine speed."""
    try:
        triton = version("triton")
    except PackageNotFoundError:
        triton = "none"
    return {"torch": torch.__version__, "triton": triton}


def steps(options: argparse.Namespace, device: torch.device, report: Report) -> None:
    """Measure every form at every size, with the floor."""
    top = ceilings(device, options.precision)
    report["ceilings"] = top._asdict()
    rates = (top.bytes_per_s / 1e12, top.flops_per_s / 1e12)
    print("a large copy: {:.2f} TB/s; a large product: {:.1f} TFLOP/s".format(*rates))
    for k, n_buses in enumerate(options.buses):
        batch = options.batch[k] if options.batch else PAPER_BATCH.get(n_buses, DEFAULT_BATCH_SIZE)
        size = Size(batch, n_buses, CONTEXT, HORIZON)
        record_steps = options.record_steps or RECORD_STEPS
        batches = random_batches(size, record_steps, device)
        print(f"\n{describe_floor(size, *least_costs(size), top)}")
        print(f"with a training record of {record_steps:,} steps:")
        print(form_line({}), flush=True)
        baseline_ms = None
        for name in (name for name in FORMS if name in set(options.forms) - set(options.skip)):
            row = measure_form(name, size, batches, options, top)
            if name == "straightforward":
                baseline_ms = row.get("ms")
            row["ratio"] = baseline_ms / row["ms"] if baseline_ms and "ms" in row else None
            print(form_line(row), flush=True)
            add_row(report, row, options.json)
        del batches


def measure_form(
    name: str, size: Size, batches: Batches, options: argparse.Namespace, top: Ceilings
) -> dict[str, Any]:
    """A form's costs, and the share of each ceiling that it reaches."""
    training = TrainingConfig(batch_size=size.batch, precision=options.precision)
    limits = TimeLimits(options.limit, options.seconds)
    row = measure(FORMS[name], size, batches, training, choose_device(options.device), limits)
    row = {"form": name, **size._asdict()} | row
    if "ms" in row:
        least = [sum(parts.values()) for parts in least_costs(size)]
        row["least_bytes"], row["least_flops"] = least
        shares = (ms / row["ms"] for ms in top.floor_ms(*least))
        row["of_bandwidth"], row["of_matrix_rate"] = shares
    return row


def scaling(options: argparse.Namespace, device: torch.device, report: Report) -> None:
    """Measure the fast form at one batch size, from small grids to the largest."""
    top = ceilings(device, options.precision)
    report["ceilings"] = top._asdict()
    print(size_line({}), flush=True)
    for n_buses in options.buses:
        size = Size(options.batch[0] if options.batch else 8, n_buses, CONTEXT, HORIZON)
        fitting = int(RECORD_BYTES / (4 * KINDS * n_buses))
        record_steps = options.record_steps or min(RECORD_STEPS, max(1500, fitting))
        batches = random_batches(size, record_steps, device)
        row = measure_form(options.forms[0], size, batches, options, top)
        print(size_line(row), flush=True)
        add_row(report, row, options.json)
        del batches
    for least, words in ((0, "all sizes"), (LARGE_BUSES, f"{LARGE_BUSES:,} buses and more")):
        rows = [row for row in report["rows"] if "ms" in row and row["n_buses"] >= least]
        if len(rows) > 1:
            time = growth_exponent(rows, [row["ms"] for row in rows])
            memory = growth_exponent(rows, [memory_beyond_record_gib(row) for row in rows])
            print(f"{words}: time grows as buses to the power {time:.2f}, memory {memory:.2f}")


def inference(options: argparse.Namespace, device: torch.device, report: Report) -> None:
    """Measure forecasts of single windows from host memory, as in `powerphase forecast`."""
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
    row = {"n_buses": n_buses, "windows": n_windows, "first_s": seconds[0], "s": seconds[1]}
    add_row(report, row | {"peak_gib": peak}, options.json)
    print(f"{n_windows} windows of {n_buses:,} buses, {torch.get_num_threads()} threads")
    print(f"{seconds[0]:.2f} s the first time, compiling included; {seconds[1]:.2f} s after it")
    scope = "this whole process, with its record" if device.type == "cpu" else "allocated"
    print(f"peak memory: {peak:.2f} GiB, {scope}")


@torch.no_grad()
def forecast_s(network: PowerForgeNetwork, windows: Windows, device: torch.device) -> float:
    """Seconds for all windows, including the transfer to the device, excluding reading."""
    watch = Stopwatch()
    for window in range(len(windows)):
        context = windows.context(window)
        with watch.running():
            network.scenarios(context.to(device))  # discarded, so that only one window is in memory
            wait_for(device)
    return watch.seconds


def random_batches(size: Size, record_steps: int, device: torch.device) -> Batches:
    """Batches of random states, after freeing the memory of earlier sizes."""
    free_memory()
    record = RandomRecord(size.n_buses, record_steps, device)
    return Batches(record, size.context, size.horizon, size.batch, seed=0, device=device)


def least_costs(size: Size) -> tuple[dict[str, int], dict[str, int]]:
    """The least bytes and FLOPs of a step, part by part."""
    config = PowerForgeConfig()
    network = PowerForgeNetwork(config, size.n_buses, size.context, size.horizon)
    n_parameters = sum(parameter.numel() for parameter in network.parameters())
    return least_bytes(config, size, n_parameters), least_flops(config, size)


def add_row(report: Report, row: dict[str, Any], file: Path | None) -> None:
    """Add a row to the report, and write all rows so far to the file."""
    report["rows"].append(row)
    if file is not None:
        file.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


MODES = {"steps": steps, "cpu": steps, "inference": inference, "scaling": scaling}


def arguments() -> argparse.Namespace:
    """The mode and its options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    modes = parser.add_subparsers(dest="mode", required=True)
    _add_measuring_mode(modes, "steps", "cuda", [500, 2383, 9241], list(FORMS))
    cpu = _add_measuring_mode(modes, "cpu", "cpu", [118, 500], ["straightforward", "torch"])
    cpu.set_defaults(batch=[8, 4], record_steps=2000, seconds=10)
    sizes = [500, 1354, 2383, 2869, 3120, 9241, 25_000, 70_000]
    _add_measuring_mode(modes, "scaling", "cuda", sizes, ["fast"])
    inference = modes.add_parser("inference", help="seconds and memory of ten windows")
    inference.add_argument("--device", default="auto")
    inference.add_argument("--buses", type=int, nargs=1, default=[9241])
    inference.add_argument("--windows", type=int, default=10)
    inference.add_argument("--channel-block", type=int)
    inference.add_argument("--backend", default="auto", choices=("auto", "triton", "torch"))
    inference.add_argument("--json", type=Path, help="file for all numbers")
    plot = modes.add_parser("plot", help="draw the report of `scaling`")
    plot.add_argument("file", type=Path)
    plot.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    batch_sizes = getattr(options, "batch", None)
    if batch_sizes and options.mode != "scaling" and len(batch_sizes) != len(options.buses):
        parser.error("give as many batch sizes as numbers of buses")
    return options


def _add_measuring_mode(
    modes: Any, name: str, device: str, buses: list[int], forms: list[str]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = modes.add_parser(name, help=MODES[name].__doc__)
    parser.add_argument("--device", default=device)
    parser.add_argument("--buses", type=int, nargs="+", default=buses)
    parser.add_argument("--batch", type=int, nargs="+", help="default: the paper's")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=forms)
    parser.add_argument("--skip", nargs="+", choices=FORMS, default=[])
    parser.add_argument("--precision", default="tf32", choices=("tf32", "bfloat16"))
    parser.add_argument("--record-steps", type=int, help="steps of the training record")
    parser.add_argument("--seconds", type=float, default=2, help="seconds of timed steps per form")
    parser.add_argument("--limit", type=float, default=150, help="most seconds per form")
    parser.add_argument("--json", type=Path, help="file for all numbers")
    return parser


if __name__ == "__main__":
    main()
