"""The lines that the benchmark of PowerForge prints, one for each form or size."""

from typing import Any

import numpy as np

from benchmarks.powerforge_floor import Ceilings, Size
from benchmarks.powerforge_forms import FORMS
from powerphase.axes import KINDS

Row = dict[str, Any]
"""The costs of one form at one size, or the reason why they are missing."""


def growth_exponent(rows: list[Row], costs: list[float]) -> float:
    """The exponent of a power law of the costs in the number of buses."""
    buses = [row["n_buses"] for row in rows]
    return float(np.polyfit(np.log(buses), np.log(costs), deg=1)[0])


def memory_beyond_record_gib(row: Row) -> float:
    """Peak memory beyond the training record."""
    return row["peak_gib"] - row["held_gib"]


def describe_floor(
    size: Size, n_bytes: dict[str, int], n_flops: dict[str, int], top: Ceilings
) -> str:
    """The least bytes and FLOPs of a step of this size, part by part."""
    bytes_ms, flops_ms = top.floor_ms(sum(n_bytes.values()), sum(n_flops.values()))
    lines = [f"{size.n_buses:,} buses, batch {size.batch}; a step needs at least"]
    for parts, ms, unit in ((n_bytes, bytes_ms, "GB"), (n_flops, flops_ms, "GFLOP")):
        total = sum(parts.values()) / 1e9
        details = ", ".join(f"{name} {n / 1e9:.2f}" for name, n in parts.items())
        lines.append(f"  {ms:.2f} ms for {total:.2f} {unit}: {details}")
    return "\n".join(lines)


def form_line(row: Row) -> str:
    """One line of the table of forms; for an empty row, the header."""
    line = "{:<28}{:>10}{:>8}{:>11}{:>9}{:>11}{:>13}{:>11}{:>12}"
    if not row:
        titles = ("ms/step", "ratio", "bandwidth", "matrix", "peak GiB", "less record", "warm-up s")
        return line.format("", *titles, "first loss")
    title = FORMS[row["form"]].title
    if "missing" in row:
        return f"{title:<28}{'–':>10}  {row['missing']}"
    ratio = f"{row['ratio']:.1f}x" if row["ratio"] else "–"
    end = (f"{row['warm_up_s']:.1f}", f"{row['first_loss']:.5f}")
    return line.format(title, f"{row['ms']:.2f}", ratio, *_shares_and_memory(row), *end)


def size_line(row: Row) -> str:
    """One line of the table of sizes; for an empty row, the header."""
    line = "{:>8}{:>7}{:>10}{:>12}{:>11}{:>9}{:>11}{:>13}"
    if not row:
        titles = ("buses", "batch", "ms/step", "ns/channel", "bandwidth", "matrix", "peak GiB")
        return line.format(*titles, "less record")
    size = (f"{row['n_buses']:,}", row["batch"])
    if "missing" in row:
        return f"{size[0]:>8}{size[1]:>7}{'–':>10}  {row['missing']}"
    details = 1e6 * row["ms"] / (row["batch"] * KINDS * row["n_buses"])
    return line.format(*size, f"{row['ms']:.2f}", f"{details:.1f}", *_shares_and_memory(row))


def _shares_and_memory(row: Row) -> tuple[str, ...]:
    shares = (f"{row[name]:.1%}" for name in ("of_bandwidth", "of_matrix_rate"))
    return (*shares, f"{row['peak_gib']:.2f}", f"{memory_beyond_record_gib(row):.2f}")
