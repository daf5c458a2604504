"""The benchmark of PowerForge: its floor, its figure, and the measured numbers on the pages."""

import json
import re
from collections.abc import Iterable, Mapping
from operator import itemgetter
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.powerforge_floor import Ceilings, Size, least_bytes, least_flops
from benchmarks.powerforge_plot import draw, spaced_labels
from benchmarks.powerforge_tables import growth_exponent, memory_beyond_record_gib
from powerphase.axes import KINDS
from powerphase.grid import CATALOG, PAPER_GRIDS
from powerphase.models.powerforge import (
    BATCH_SIZES,
    PowerForgeConfig,
    PowerForgeNetwork,
    memory_gib,
)
from powerphase.records import read_results
from tests.models.powerforge import context_of, grid_states

CONFIG = PowerForgeConfig()
ROOT = Path(__file__).parents[1]
MEASURED, DOCS = ROOT / "benchmarks" / "measured", ROOT / "docs"


def page(name: str) -> str:
    """A page of the documentation in one line."""
    return " ".join((DOCS / f"{name}.md").read_text(encoding="utf-8").split())


def report(name: str) -> Any:
    """A report that the benchmark wrote."""
    return json.loads((MEASURED / f"powerforge_{name}.json").read_text(encoding="utf-8"))


def trainings() -> list[dict[str, Any]]:
    """The trainings behind the result rows."""
    rows: list[dict[str, Any]] = report("trainings")["trainings"]
    return rows


def step_ms(training: Mapping[str, Any]) -> float:
    """The mean over all epochs but the first, which compiles or loads."""
    steps = (training["epochs"] - 1) * CONFIG.training.batches_per_epoch
    return 1000 * float(training["train_s"] - training["first_epoch_s"]) / steps


def span(values: Iterable[float], decimals: int) -> str:
    """From the least to the largest, or one number if both read the same."""
    ordered = sorted(values)
    return " to ".join(dict.fromkeys(f"{x:.{decimals}f}" for x in (ordered[0], ordered[-1])))


def listed(values: Iterable[float], decimals: int) -> str:
    """Three numbers as a page lists them."""
    first, second, third = (f"{value:.{decimals}f}" for value in values)
    return f"{first}, {second} and {third}"


def flops_of_a_step(size: Size) -> int:
    """The FLOPs of all matrix products that torch computes, forward and backward."""
    network = PowerForgeNetwork(CONFIG, size.n_buses, size.context, size.horizon)
    steps = size.context + size.horizon
    states = grid_states(steps, size.n_buses, size.batch).float()
    with FlopCounterMode(display=False) as counter:
        past, target = states[:, : size.context], states[:, size.context :]
        network(context_of(past, size.horizon), target).loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("horizon", [96, 48])
def test_the_least_flops_are_nearly_those_of_the_network(horizon: int) -> None:
    sizes = [Size(2, n_buses, 672, horizon) for n_buses in (10, 30)]
    small, large = (flops_of_a_step(size) for size in sizes)
    least = [sum(least_flops(CONFIG, size).values()) for size in sizes]
    # The difference of two sizes is free of what does not grow with the grid.
    assert 0.9 * (large - small) <= least[1] - least[0] <= large - small
    assert least[1] < large


def test_the_bridge_has_half_of_the_flops() -> None:
    flops = least_flops(CONFIG, Size(8, 9241, 672, 96))
    assert flops["bridge"] / sum(flops.values()) == pytest.approx(0.5, abs=0.05)


def test_the_least_bytes_are_mostly_those_of_windows() -> None:
    size = Size(8, 9241, 672, 96)
    n_bytes = least_bytes(CONFIG, size, n_parameters=600_000)
    numbers = 8 * 4 * 9241 * (2 * 672 + 96 + 2 * 96 + 4 * 128) + 9 * 600_000
    assert sum(n_bytes.values()) == 4 * numbers


@pytest.mark.parametrize("name", ["n_buses", "batch"])
def test_the_floor_grows_with_the_grid_and_the_batch(name: str) -> None:
    size = Size(8, 1000, 672, 96)
    double = size._replace(**{name: 2 * getattr(size, name)})
    n_bytes, twice = (sum(least_bytes(CONFIG, s, 0).values()) for s in (size, double))
    assert twice == 2 * n_bytes
    growth = sum(least_flops(CONFIG, double).values()) / sum(least_flops(CONFIG, size).values())
    assert growth == pytest.approx(2, rel=1e-2)


def test_the_ceilings_give_the_time_of_bytes_and_flops() -> None:
    assert Ceilings(4e12, 4e14).floor_ms(8_000_000_000, 10**12) == pytest.approx((2, 2.5))


def test_the_figure_has_both_panels_and_omits_missing_sizes(tmp_path: Path) -> None:
    rows = [
        {"n_buses": n, "batch": 8, "ms": n / 500, "peak_gib": 1 + n / 700, "held_gib": 1.0}
        for n in (9241, 500, 2383)
    ]
    missing = {"n_buses": 70_000, "batch": 8, "held_gib": 1.0, "missing": "OutOfMemoryError: full"}
    example = {"hardware": "a made-up GPU", "rows": [*rows, missing]}
    draw(json.loads(json.dumps(example)), tmp_path / "cost.svg")
    text = (tmp_path / "cost.svg").read_text(encoding="utf-8")
    assert {"1 ms", "18.5 ms", "0.714 GiB", "13.2 GiB"} <= set(re.findall(r">([^<]+)</text>", text))
    assert "a made-up GPU" in text
    assert "dc:date" not in text


def test_labels_of_sizes_do_not_overlap() -> None:
    sizes = [500, 1354, 2383, 2869, 3120, 9241, 25_000, 70_000]
    assert spaced_labels(sizes) == [70_000, 9241, 2869, 500]


def test_the_committed_figure_is_drawn_from_the_measurements(tmp_path: Path) -> None:
    committed = (DOCS / "figures" / "powerforge_cost.svg").read_bytes()
    assert len(committed) < 40_000
    assert page("powerforge").count("](figures/powerforge_cost.svg)") == 1
    draw(report("scaling"), tmp_path / "cost.svg")
    if f"Matplotlib v{matplotlib.__version__}," in committed.decode():
        assert (tmp_path / "cost.svg").read_bytes() == committed


def test_the_page_has_the_measured_steps() -> None:
    steps = report("steps")
    top = Ceilings(**steps["ceilings"])
    forms = {(row["form"], row["n_buses"]): row for row in steps["rows"]}
    for n_buses in (500, 2383, 9241):
        slow, fast = forms["straightforward", n_buses], forms["fast", n_buses]
        cells = f"{slow['ms']:.1f} ms, {slow['peak_gib']:.1f} GiB"
        cells += f" | {fast['ms']:.2f} ms, {fast['peak_gib']:.1f} GiB | {fast['ratio']:.1f}x |"
        _, floor = top.floor_ms(fast["least_bytes"], fast["least_flops"])
        cells += f" {floor:.2f} ms | {100 * floor / fast['ms']:.1f} % |"
        assert f"| {n_buses:,} | {fast['batch']} | {cells}" in page("powerforge")
    least = [top.floor_ms(forms["fast", n]["least_bytes"], 0)[0] for n in (500, 2383, 9241)]
    assert f"{listed(least, 2)} ms" in page("powerforge")
    assert f"{top.flops_per_s / 1e12:.0f} TFLOP/s" in page("powerforge")
    assert f"{top.bytes_per_s / 1e12:.2f} TB/s" in page("powerforge")


def test_the_page_has_the_compiled_step_of_every_size() -> None:
    rows = {(row["form"], row["n_buses"]): row for row in report("steps_compiled")["rows"]}
    sizes = sorted({n_buses for _, n_buses in rows})
    assert sizes == [500, 2383, 9241]
    for size in sizes:
        slow, compiled, fast = (rows[form, size] for form in ("straightforward", "compile", "fast"))
        plain, short = (f"{r['ms']:.1f} ms, {r['peak_gib']:.1f} GiB" for r in (slow, compiled))
        cells = f"| {size:,} | {plain} | {short} | {compiled['ratio']:.1f}x |"
        cells += f" {compiled['warm_up_s']:.0f} s | {fast['ms']:.2f} ms | {fast['ratio']:.1f}x |"
        assert cells in page("powerforge")


def test_the_page_has_the_steps_in_half_precision() -> None:
    half = report("steps_bfloat16")["rows"]
    full = [row for row in report("steps")["rows"] if row["form"] == "fast"]
    less = [100 * (1 - a["ms"] / b["ms"]) for a, b in zip(half, full, strict=True)]
    assert f"{listed((row['ms'] for row in half), 2)} ms" in page("powerforge")
    assert f"{listed((row['peak_gib'] for row in half), 1)} GiB" in page("powerforge")
    assert f"{span(less, 0)} %" in page("powerforge")


def test_the_page_has_the_cost_of_every_size() -> None:
    rows = {row["n_buses"]: row for row in report("scaling")["rows"]}
    for n in (500, 9241, 70_000):
        ns = rows[n]["ms"] * 1e6 / (rows[n]["batch"] * KINDS * n)
        assert re.search(rf"\b{ns:.0f} ns at {n:,}\b", page("powerforge"))
    large = [row for n, row in rows.items() if n >= 9241]
    assert 0.9 < growth_exponent(large, [row["ms"] for row in large]) < 1
    kib = [
        memory_beyond_record_gib(row) * 2**20 / (row["batch"] * KINDS * n)
        for n, row in rows.items()
        if n > 500
    ]
    assert f"{span(kib, 1)} KiB" in page("powerforge")
    largest = rows[70_000]
    cost = f"{largest['ms']:.0f} ms and {memory_beyond_record_gib(largest):.1f} GiB"
    assert cost in page("powerforge")


def test_the_page_has_the_measured_forecasts() -> None:
    (row,) = report("inference")["rows"]
    for text in (f"{row['s']:.2f} s", f"{row['peak_gib']:.2f} GiB", f"{row['first_s']:.2f} s"):
        assert text in page("powerforge")


@pytest.mark.parametrize("grid", PAPER_GRIDS)
def test_the_page_has_the_trainings_of_the_rows(grid: str) -> None:
    runs = [t for t in trainings() if (t["grid"], t["variant"]) == (grid, None)]
    assert [t["seed"] for t in runs] == [22, 42, 3142]
    seconds, first = ([t[name] for t in runs] for name in ("train_s", "first_epoch_s"))
    times = (f"{span(seconds, 0)} s", f"{span(first, 1)} s", f"{span(map(step_ms, runs), 1)} ms")
    title = CATALOG[grid].title
    assert f"| {title} | {BATCH_SIZES[grid]} | {' | '.join(times)} |" in page("powerforge")


def test_the_pages_have_the_shortest_and_longest_training_and_the_slowest_variant() -> None:
    full = sorted((t for t in trainings() if t["variant"] is None), key=itemgetter("train_s"))
    for training in (full[0], full[-1]):
        title = CATALOG[training["grid"]].title
        assert re.search(rf"\b{training['train_s']:.0f} s[, ]+on {title}\b", page("training"))
    slowest = max(trainings(), key=itemgetter("train_s"))
    assert slowest["variant"] == "winner-takes-all"
    assert f"{slowest['train_s']:.0f} s on PEGASE 1354" in page("powerforge")
    assert f"{step_ms(slowest):.1f} ms a step" in page("powerforge")


def test_trainings_stay_below_the_memory_estimate_as_the_page_says() -> None:
    shares = []
    for row in read_results([ROOT / "results"]):
        key = (row.model, row.variant, row.edition)
        if key == ("powerforge", None, "opsd-r") and row.grid != "activsg500":
            n_buses = int("".join(filter(str.isdigit, row.grid)))
            size = (BATCH_SIZES[row.grid], n_buses, 51_552, 10, (672, 96), None, True)
            peak: Any = row.cost["peak_memory_gib"]
            shares.append(100 * (1 - peak / memory_gib(CONFIG, *size)))
    assert f"{span(shares, 0)} % below" in page("training")
