"""Make and verify data sets with the command; print a table of their costs and contents.

    python benchmarks/data_sets.py --signals FILE --edition opsd-r --out data/opsd-r

A separate `powerphase generate` makes each grid, so that its time includes the start of the
interpreter and its peak memory is that of one grid. Truth NECV is the mean distance of the true
voltages from the band [0.95, 1.05] p.u. over the ten test windows of the paper's protocol.
"""

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

from powerphase.dataset import Store, open_store, verify
from powerphase.grid import PAPER_GRIDS

PAPER_NECV = {
    "activsg500": "0",
    "pegase1354": "0.0007",
    "polish2383": "0.0004",
    "pegase2869": "0.0002",
    "polish3120": "0.0025",
    "pegase9241": "not given",
}
"""NECV of the paper's best forecaster, which indicates that of the paper's data."""

FIRST_TEST_DAY = np.datetime64("2016-07-01")
TEST_DAYS = (0, 20, 41, 61, 81, 102, 122, 142, 163, 183)
BAND_PU = (0.95, 1.05)


def main() -> None:
    """Make, verify and measure each grid in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grids", nargs="*", default=PAPER_GRIDS)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--signals", default="synthetic")
    parser.add_argument("--edition")
    parser.add_argument("--seed")
    options = parser.parse_args()
    print(
        "| grid | time [s] | memory [GiB] | size [GB] | newton | iwamoto | backed off | carried"
        " | P mismatch [MW] | Q mismatch [MVAr] | share of rounding bound | verify [s] | truth NECV"
        " | paper's NECV | fingerprint |"
    )
    print("|" + "---|" * 15)
    for name in options.grids:
        out = options.out / name
        if out.exists():
            sys.exit(f"{out} exists already; remove it, because the time must include everything")
        extra = [
            f"--{key}={value}" for key in ("edition", "seed") if (value := getattr(options, key))
        ]
        command = ["generate", name, f"--out={out}", f"--signals={options.signals}", *extra]
        seconds, peak_gib = run(command)
        print(row(name, out, seconds, peak_gib), flush=True)


def row(name: str, out: Path, seconds: float, peak_gib: float) -> str:
    """One line of the table."""
    start = time.perf_counter()
    certificate = verify(out)
    verify_seconds = time.perf_counter() - start
    store = open_store(out)
    if not certificate.valid:
        sys.exit(f"{out} is not valid: run `powerphase verify {out}`")
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file()) / 1e9
    cells = [name, f"{seconds:.0f}", f"{peak_gib:.2f}", f"{size:.2f}"]
    cells += [f"{count:,}" for count in certificate.provenance]
    cells += [f"{mismatch.largest:.3f}" for mismatch in (certificate.p_mw, certificate.q_mvar)]
    cells += [
        f"{certificate.largest_share:.0%}",
        f"{verify_seconds:.0f}",
        f"{truth_necv(store):.4f}",
    ]
    cells += [PAPER_NECV.get(name, ""), f"`{store.manifest.fingerprint[:12]}`"]
    return f"| {' | '.join(cells)} |"


def truth_necv(store: Store) -> float:
    """Mean distance [p.u.] of the true voltages from the band, over the ten test windows."""
    low, high = BAND_PU
    outside = []
    for day in TEST_DAYS:
        v = store.read(str(FIRST_TEST_DAY + day), variable="V").astype(float)
        outside.append(np.maximum(low - v, 0) + np.maximum(v - high, 0))
    return float(np.mean(outside))


def run(arguments: list[str]) -> tuple[float, float]:
    """Seconds and peak memory [GiB] of one `powerphase` command."""
    code = "from powerphase.cli import main; main()"
    start = time.perf_counter()
    child = os.posix_spawn(
        sys.executable,
        [sys.executable, "-c", code, *arguments],
        os.environ,
        file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)],
    )
    _, status, usage = os.wait4(child, 0)
    if status:
        sys.exit(f"powerphase {' '.join(arguments)} failed")
    return time.perf_counter() - start, usage.ru_maxrss / 2**20


if __name__ == "__main__":
    main()
