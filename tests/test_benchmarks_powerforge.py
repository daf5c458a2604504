"""What the benchmark of PowerForge counts and draws: the floor under a step, cost against size."""

import json
import re
from pathlib import Path

import pytest
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.powerforge_floor import Ceilings, Size, least_bytes, least_flops
from benchmarks.powerforge_plot import draw
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.network import PowerForgeNetwork
from tests.models.powerforge import context_of, grid_states

CONFIG = PowerForgeConfig()


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
