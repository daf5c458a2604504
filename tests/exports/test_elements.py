"""Loads and generators: their difference is the net consumption, and the recipe's loads return."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from powerphase import Store
from powerphase.errors import ExportError
from powerphase.exports import Elements
from powerphase.grid import Grid
from powerphase.synthesis import Injections, Signals

GRIDS = ["ieee24", "ieee30", "pegase89", "ieee118"]
"""With several units at a bus, with shunts, with negative loads, and with many condensers."""


@pytest.mark.parametrize("grid", GRIDS)
def test_load_less_generation_is_the_net_consumption(
    grid: str, store_of: Callable[[str], Store]
) -> None:
    store = store_of(grid)
    state = store.read("2015-01-05")
    power = Elements(store).split(state[..., 0], state[..., 1])
    for load, generation, net in (
        (power.load_p, power.generation_p, state[..., 0]),
        (power.load_q, power.generation_q, state[..., 1]),
    ):
        np.testing.assert_allclose(load - generation, net, rtol=1e-6, atol=1e-5)
    elements = Elements(store)
    assert not power.load_p[:, ~elements.has_load].any()
    assert not power.generation_p[:, ~elements.has_unit].any()


@pytest.mark.parametrize("grid", ["ieee24", "ieee118"])
def test_the_recipe_s_loads_are_recovered(grid: str, store_of: Callable[[str], Store]) -> None:
    store = store_of(grid)
    recipe = store.manifest.recipe
    signals = Signals(store.time, store.signals_mw, "exact", "")
    injections = Injections(store.grid, signals, recipe["seed"], recipe["dispatch"])
    steps = slice(4 * 96, 5 * 96)
    net_p, net_q = injections.steps(steps.start, steps.stop)
    scheduled = net_p - _loads_only(store.grid, injections, steps)
    state = store.read(steps)
    elements = Elements(store)
    power = elements.split(state[..., 0], state[..., 1])
    not_slack = store.grid.bus_type != 3
    np.testing.assert_allclose(
        power.generation_p[:, not_slack], -scheduled[:, not_slack], rtol=2e-5, atol=2e-4
    )
    loads = net_p - scheduled
    known = not_slack | (store.grid.bus[:, 2] == 0)
    np.testing.assert_allclose(power.load_p[:, known], loads[:, known], rtol=2e-5, atol=2e-3)
    has_p = known & (store.grid.bus[:, 2] > 0)
    np.testing.assert_allclose(power.load_q[:, has_p], net_q[:, has_p], rtol=2e-5, atol=2e-3)


def _loads_only(grid: Grid, injections: Injections, steps: slice) -> np.ndarray:
    """P of the loads: what remains of the injections if no generator is dispatched."""
    idle = grid.gen.copy()
    idle[:, 1] = 0.0
    without = Grid(grid.name, grid.base_mva, grid.bus, idle, grid.branch)
    seed, dispatch = injections.seed, injections.dispatch
    p_mw, _ = Injections(without, injections.signals, seed, dispatch).steps(steps.start, steps.stop)
    return p_mw


def test_units_at_one_bus_share_its_generation(store_of: Callable[[str], Store]) -> None:
    store = store_of("ieee24")
    elements = Elements(store)
    total = np.bincount(elements.unit_row, elements.unit_share, store.grid.n_buses)
    np.testing.assert_allclose(total[elements.has_unit], 1)
    assert len(set(elements.unit_name)) == elements.n_units
    at_first = [name for name in elements.unit_name if name.split("/")[0] == "1"]
    assert at_first == ["1", "1/2", "1/3", "1/4"]


def test_consumption_without_a_load_in_the_case_file_gets_one(
    store_of: Callable[[str], Store],
) -> None:
    elements = Elements(store_of("ieee30"))
    p_mw = np.zeros((2, 30))
    empty = np.flatnonzero(~elements.has_load & ~elements.has_unit)[0]
    assert empty not in elements.load_rows(p_mw)
    p_mw[1, empty] = 3.0
    assert empty in elements.load_rows(p_mw)
    power = elements.split(p_mw, np.zeros_like(p_mw))
    np.testing.assert_allclose(power.load_p - power.generation_p, p_mw)


def test_records_of_other_origin_are_not_split(store_of: Callable[[str], Store]) -> None:
    store = store_of("ieee30")
    imported = Store(store.path, replace(store.manifest, recipe={"kind": "measured"}))
    with pytest.raises(ExportError, match="recipe"):
        Elements(imported)
