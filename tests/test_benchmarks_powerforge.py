"""The benchmark of PowerForge: its floor, its figure, and what its measurements show."""

import json
import re
from collections.abc import Iterable
from operator import itemgetter
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.powerforge_floor import Ceilings, Size, least_bytes, least_flops
from benchmarks.powerforge_plot import draw, spaced_labels
from benchmarks.powerforge_tables import growth_exponent
from docs.measurements import trainings
from powerphase.grid import CATALOG
from powerphase.models.framework import BATCH_SIZES
from powerphase.models.powerforge import (
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


def span(values: Iterable[float], decimals: int) -> str:
    """From the least to the largest, or one number if both read the same."""
    ordered = sorted(values)
    return " to ".join(dict.fromkeys(f"{x:.{decimals}f}" for x in (ordered[0], ordered[-1])))


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


def test_a_step_takes_time_nearly_proportional_to_a_large_grid() -> None:
    large = [row for row in report("scaling")["rows"] if row["n_buses"] >= 9241]
    assert 0.9 < growth_exponent(large, [row["ms"] for row in large]) < 1


def test_the_floor_of_a_step_is_that_of_its_flops() -> None:
    top = Ceilings(**report("steps")["ceilings"])
    for row in report("steps")["rows"]:
        bytes_ms, flops_ms = top.floor_ms(row["least_bytes"], row["least_flops"])
        assert bytes_ms < flops_ms < row["ms"]


def test_the_slowest_training_is_that_of_winner_takes_all() -> None:
    assert max(trainings(), key=itemgetter("train_s"))["variant"] == "winner-takes-all"


def test_the_page_on_training_has_the_shortest_and_the_longest_training() -> None:
    full = sorted(trainings(variant=None), key=itemgetter("train_s"))
    for training in (full[0], full[-1]):
        title = CATALOG[training["grid"]].title
        assert re.search(rf"\b{training['train_s']:.0f} s[, ]+on {title}\b", page("training"))


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
