"""What the benchmark of PowerForge prints: one line for each form or size that was measured."""

from typing import Any

import numpy as np

from benchmarks.powerforge_floor import Ceilings, Size
from benchmarks.powerforge_forms import FORMS
from powerphase.axes import KINDS

Row = dict[str, Any]
"""The costs of one form at one size, or why there are none."""


def slope(rows: list[Row], costs: list[float]) -> float:
    """The exponent of the power of the number of buses that the costs follow."""
    buses = [row["n_buses"] for row in rows]
    return float(np.polyfit(np.log(buses), np.log(costs), deg=1)[0])


def beyond_gib(row: Row) -> float:
    """Peak memory beyond what was held before, which is the record."""
    return row["peak_gib"] - row["held_gib"]


def floor_in_words(
    size: Size, of_bytes: dict[str, int], of_flops: dict[str, int], top: Ceilings
) -> str:
    """What a step of this size needs at least, part by part."""
    by_bytes, by_flops = top.floor_ms(sum(of_bytes.values()), sum(of_flops.values()))
    lines = [f"{size.n_buses:,} buses, batch {size.batch}; a step needs at least"]
    for parts, ms, unit in ((of_bytes, by_bytes, "GB"), (of_flops, by_flops, "GFLOP")):
        total = sum(parts.values()) / 1e9
        each = ", ".join(f"{name} {n / 1e9:.2f}" for name, n in parts.items())
        lines.append(f"  {ms:.2f} ms for {total:.2f} {unit}: {each}")
    return "\n".join(lines)


def line_of_form(row: Row) -> str:
    """One line of the table of forms; of nothing, its head."""
    line = "{:<28}{:>10}{:>8}{:>11}{:>9}{:>11}{:>13}{:>11}{:>12}"
    if not row:
        heads = ("ms/step", "ratio", "bandwidth", "matrix", "peak GiB", "less record", "warm-up s")
        return line.format("", *heads, "first loss")
    title = FORMS[row["form"]].title
    if "missing" in row:
        return f"{title:<28}{'–':>10}  {row['missing']}"
    ratio = f"{row['ratio']:.1f}x" if row["ratio"] else "–"
    last = (f"{row['warm_up_s']:.1f}", f"{row['first_loss']:.5f}")
    return line.format(title, f"{row['ms']:.2f}", ratio, *_shares_and_memory(row), *last)


def line_of_size(row: Row) -> str:
    """One line of the table of sizes; of nothing, its head."""
    line = "{:>8}{:>7}{:>10}{:>12}{:>11}{:>9}{:>11}{:>13}"
    if not row:
        heads = ("buses", "batch", "ms/step", "ns/channel", "bandwidth", "matrix", "peak GiB")
        return line.format(*heads, "less record")
    size = (f"{row['n_buses']:,}", row["batch"])
    if "missing" in row:
        return f"{size[0]:>8}{size[1]:>7}{'–':>10}  {row['missing']}"
    each = 1e6 * row["ms"] / (row["batch"] * KINDS * row["n_buses"])
    return line.format(*size, f"{row['ms']:.2f}", f"{each:.1f}", *_shares_and_memory(row))


def _shares_and_memory(row: Row) -> tuple[str, ...]:
    shares = (f"{row[name]:.1%}" for name in ("of_bandwidth", "of_matrix_rate"))
    return (*shares, f"{row['peak_gib']:.2f}", f"{beyond_gib(row):.2f}")
