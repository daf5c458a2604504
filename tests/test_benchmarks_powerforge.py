"""What the benchmark of PowerForge counts, draws and found: the floor, cost against size, pages."""

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
from benchmarks.powerforge_plot import apart, draw
from benchmarks.powerforge_tables import beyond_gib, slope
from powerphase.axes import KINDS
from powerphase.grid import CATALOG, PAPER_GRIDS
from powerphase.models.powerforge.config import BATCH_SIZES, PowerForgeConfig
from powerphase.models.powerforge.model import memory_gib
from powerphase.models.powerforge.network import PowerForgeNetwork
from powerphase.records.result import read_results
from tests.models.powerforge import context_of, grid_states

CONFIG = PowerForgeConfig()
ROOT = Path(__file__).parents[1]
MEASURED, DOCS = ROOT / "benchmarks" / "measured", ROOT / "docs"
PAGE = (DOCS / "powerforge.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())


def measured(name: str) -> Any:
    """A report as the benchmark wrote it."""
    return json.loads((MEASURED / f"powerforge_{name}.json").read_text(encoding="utf-8"))


def trainings() -> list[dict[str, Any]]:
    """Those behind the rows."""
    found: list[dict[str, Any]] = measured("trainings")["trainings"]
    return found


def step_ms(training: Mapping[str, Any]) -> float:
    """The mean over all epochs but the first, which compiles or loads."""
    steps = (training["epochs"] - 1) * CONFIG.training.batches_per_epoch
    return 1000 * float(training["train_s"] - training["first_epoch_s"]) / steps


def span(values: Iterable[float], decimals: int) -> str:
    """From the least to the largest, or one number where both read the same."""
    found = sorted(values)
    return " to ".join(dict.fromkeys(f"{x:.{decimals}f}" for x in (found[0], found[-1])))


def flops_of_a_step(size: Size) -> int:
    """Of all matrix products that torch is asked for, forward and backward."""
    network = PowerForgeNetwork(CONFIG, size.n_buses, size.context, size.horizon)
    steps = size.context + size.horizon
    states = grid_states(steps, size.n_buses, size.batch).float()
    with FlopCounterMode(display=False) as counter:
        past, target = states[:, : size.context], states[:, size.context :]
        network(context_of(past, size.horizon), target).loss.backward()
    return counter.get_total_flops()


@pytest.mark.parametrize("horizon", [96, 48])
def test_counted_flops_are_those_of_the_network_and_no_more(horizon: int) -> None:
    sizes = [Size(2, n_buses, 672, horizon) for n_buses in (10, 30)]
    small, large = (flops_of_a_step(size) for size in sizes)
    counted = [sum(least_flops(CONFIG, size).values()) for size in sizes]
    # The difference of two sizes is free of what does not grow with the grid.
    assert 0.9 * (large - small) <= counted[1] - counted[0] <= large - small
    assert counted[1] < large


def test_half_of_the_products_are_the_bridge_s() -> None:
    found = least_flops(CONFIG, Size(8, 9241, 672, 96))
    assert found["bridge"] / sum(found.values()) == pytest.approx(0.5, abs=0.05)


def test_a_step_moves_its_windows_and_little_else() -> None:
    size = Size(8, 9241, 672, 96)
    found = least_bytes(CONFIG, size, n_parameters=600_000)
    numbers = 8 * 4 * 9241 * (2 * 672 + 96 + 2 * 96 + 4 * 128) + 9 * 600_000
    assert sum(found.values()) == 4 * numbers


@pytest.mark.parametrize("name", ["n_buses", "batch"])
def test_the_floor_grows_with_the_grid_and_the_batch(name: str) -> None:
    one = Size(8, 1000, 672, 96)
    two = one._replace(**{name: 2 * getattr(one, name)})
    assert sum(least_bytes(CONFIG, two, 0).values()) == 2 * sum(
        least_bytes(CONFIG, one, 0).values()
    )
    growth = sum(least_flops(CONFIG, two).values()) / sum(least_flops(CONFIG, one).values())
    assert growth == pytest.approx(2, rel=1e-2)


def test_bytes_and_flops_take_their_time_at_the_ceilings() -> None:
    assert Ceilings(4e12, 4e14).floor_ms(8_000_000_000, 10**12) == pytest.approx((2, 2.5))


def test_the_picture_has_both_panels_and_leaves_out_what_is_missing(tmp_path: Path) -> None:
    rows = [
        {"n_buses": n, "batch": 8, "ms": n / 500, "peak_gib": 1 + n / 700, "held_gib": 1.0}
        for n in (9241, 500, 2383)
    ]
    missing = {"n_buses": 70_000, "batch": 8, "held_gib": 1.0, "missing": "OutOfMemoryError: full"}
    report = {"hardware": "a made-up GPU", "rows": [*rows, missing]}
    draw(json.loads(json.dumps(report)), tmp_path / "cost.svg")
    text = (tmp_path / "cost.svg").read_text(encoding="utf-8")
    assert {"1 ms", "18.5 ms", "0.714 GiB", "13.2 GiB"} <= set(re.findall(r">([^<]+)</text>", text))
    assert "a made-up GPU" in text
    assert "dc:date" not in text


def test_labels_of_sizes_do_not_run_into_each_other() -> None:
    sizes = [500, 1354, 2383, 2869, 3120, 9241, 25_000, 70_000]
    assert apart(sizes) == [70_000, 9241, 2869, 500]


def test_the_picture_of_cost_is_drawn_from_what_was_measured(tmp_path: Path) -> None:
    kept = (DOCS / "figures" / "powerforge_cost.svg").read_bytes()
    assert len(kept) < 40_000
    assert PAGE.count("](figures/powerforge_cost.svg)") == 1
    draw(measured("scaling"), tmp_path / "cost.svg")
    if f"Matplotlib v{matplotlib.__version__}," in kept.decode():
        assert (tmp_path / "cost.svg").read_bytes() == kept


def test_the_pages_have_the_steps_that_were_measured() -> None:
    report = measured("steps")
    top = Ceilings(**report["ceilings"])
    forms = {(row["form"], row["n_buses"]): row for row in report["rows"]}
    for n_buses in (500, 2383, 9241):
        slow, fast = forms["straightforward", n_buses], forms["fast", n_buses]
        texts = f"{slow['ms']:.1f} ms, {slow['peak_gib']:.1f} GiB"
        texts += f" | {fast['ms']:.2f} ms, {fast['peak_gib']:.1f} GiB | {fast['ratio']:.1f}x |"
        _, floor = top.floor_ms(fast["least_bytes"], fast["least_flops"])
        texts += f" {floor:.2f} ms | {100 * floor / fast['ms']:.1f} % |"
        assert f"| {n_buses:,} | {fast['batch']} | {texts}\n" in PAGE
    least = [top.floor_ms(forms["fast", n]["least_bytes"], 0)[0] for n in (500, 2383, 9241)]
    assert "take less, {:.2f}, {:.2f} and {:.2f} ms at the".format(*least) in WORDS
    rates = (report["ceilings"]["flops_per_s"] / 1e12, report["ceilings"]["bytes_per_s"] / 1e12)
    assert f"{rates[0]:.0f} TFLOP/s, measured" in WORDS
    assert f"the {rates[1]:.2f} TB/s of a large copy" in WORDS


def test_the_page_has_the_compiled_step_of_every_size() -> None:
    rows = {(row["form"], row["n_buses"]): row for row in measured("steps_compiled")["rows"]}
    sizes = sorted({n_buses for _, n_buses in rows})
    assert sizes == [500, 2383, 9241]
    for size in sizes:
        slow, compiled, fast = (rows[form, size] for form in ("straightforward", "compile", "fast"))
        plain, short = (f"{r['ms']:.1f} ms, {r['peak_gib']:.1f} GiB" for r in (slow, compiled))
        words = f"| {size:,} | {plain} | {short} | {compiled['ratio']:.1f}x |"
        words += f" {compiled['warm_up_s']:.0f} s | {fast['ms']:.2f} ms | {fast['ratio']:.1f}x |"
        assert words in WORDS


def test_the_page_has_the_steps_in_half_precision() -> None:
    half = measured("steps_bfloat16")["rows"]
    whole = [row for row in measured("steps")["rows"] if row["form"] == "fast"]
    words = "takes {:.2f}, {:.2f} and {:.2f} ms, with".format(*(row["ms"] for row in half))
    words += " {:.1f}, {:.1f} and {:.1f} GiB.".format(*(row["peak_gib"] for row in half))
    less = sorted(1 - a["ms"] / b["ms"] for a, b in zip(half, whole, strict=True))
    assert f"{words} That is {100 * less[0]:.0f} to {100 * less[-1]:.0f} % less time" in WORDS


def test_the_page_has_the_cost_of_every_size() -> None:
    rows = {row["n_buses"]: row for row in measured("scaling")["rows"]}
    each = {n: row["ms"] * 1e6 / (row["batch"] * KINDS * n) for n, row in rows.items()}
    words = f"takes {each[500]:.0f} ns at 500 buses, {each[9241]:.0f} at 9,241 and"
    assert f"{words} {each[70_000]:.0f} at 70,000" in WORDS
    large = [row for n, row in rows.items() if n >= 9241]
    assert 0.9 < slope(large, [row["ms"] for row in large]) < 1
    kib = [
        beyond_gib(row) * 2**20 / (row["batch"] * KINDS * n) for n, row in rows.items() if n > 500
    ]
    assert f"with {min(kib):.1f} to {max(kib):.1f} KiB for each channel" in WORDS
    most = rows[70_000]
    assert f"takes {most['ms']:.0f} ms and {beyond_gib(most):.1f} GiB" in WORDS


def test_the_pages_have_the_forecasts_that_were_measured() -> None:
    (row,) = measured("inference")["rows"]
    words = f"take {row['s']:.2f} s and {row['peak_gib']:.2f} GiB; the first time"
    assert f"{words} {row['first_s']:.2f} s" in WORDS


@pytest.mark.parametrize("grid", PAPER_GRIDS)
def test_the_pages_have_the_trainings_of_the_rows(grid: str) -> None:
    found = [t for t in trainings() if (t["grid"], t["variant"]) == (grid, None)]
    assert [t["seed"] for t in found] == [22, 42, 3142]
    whole, first = ([t[name] for t in found] for name in ("train_s", "first_epoch_s"))
    times = (f"{span(whole, 0)} s", f"{span(first, 1)} s", f"{span(map(step_ms, found), 1)} ms")
    title = CATALOG[grid].title
    assert f"| {title} | {BATCH_SIZES[grid]} | {' | '.join(times)} |" in PAGE


def test_the_pages_have_the_shortest_and_longest_training_and_the_slowest_variant() -> None:
    full = sorted((t for t in trainings() if t["variant"] is None), key=itemgetter("train_s"))
    words = ", and ".join(
        f"{t['train_s']:.0f} s, on {CATALOG[t['grid']].title}" for t in (full[0], full[-1])
    )
    page = " ".join((DOCS / "training.md").read_text(encoding="utf-8").split())
    assert f"take between {words}, on an H200" in page
    slowest = max(trainings(), key=itemgetter("train_s"))
    assert slowest["variant"] == "winner-takes-all"
    words = f"Winner-takes-all took {slowest['train_s']:.0f} s on PEGASE 1354"
    assert f"{words}, {step_ms(slowest):.1f} ms a step" in WORDS


def test_trainings_stay_below_the_estimate_of_their_memory_as_the_page_says() -> None:
    shares = []
    for row in read_results([ROOT / "results"]):
        place = (row.model, row.variant, row.edition)
        if place == ("powerforge", None, "opsd-r") and row.grid != "activsg500":
            n_buses = int("".join(filter(str.isdigit, row.grid)))
            size = (BATCH_SIZES[row.grid], n_buses, 51_552, 10, (672, 96), None, True)
            shares.append(1 - row.cost["peak_memory_gib"] / memory_gib(CONFIG, *size))
    words = f"stayed {100 * min(shares):.0f} to {100 * max(shares):.0f} % below the estimate"
    assert words in " ".join((DOCS / "training.md").read_text(encoding="utf-8").split())
