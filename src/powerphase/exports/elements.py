"""The loads and generators of a grid, and how the net consumption of a bus is split among them.

A data set stores P and Q of each bus as one number, load minus generation. Programs that dispatch
generators need the load by itself. At most buses there is only one of the two. Where there are
both, generation is what the recipe says: r times the case file's, and the load is the rest. The
ratio r of a step is read from the generators at buses without load. So the generation of a scenario
is the schedule of the data set, and `load - generation` is always the net consumption.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Float64, Int

from powerphase.dataset.recipe import Recipe, setpoints_pu
from powerphase.dataset.store import Store
from powerphase.errors import ExportError
from powerphase.grid.case import BASE_KV, PD, PG, PMAX, PQ, QD, QG, SLACK, Grid

PerBus = Float64[np.ndarray, "H N"]


@dataclass(frozen=True, eq=False)
class BusPower:
    """Load and generation of every bus, each positive, in MW and MVAr."""

    load_p: PerBus
    load_q: PerBus
    generation_p: PerBus
    generation_q: PerBus


class Elements:
    """The loads and generators in service of a data set's grid.

    Args:
        store: has the case file's matrices, the power factors and the recipe.
    """

    def __init__(self, store: Store) -> None:
        recipe, grid = _recipe_of(store), store.grid
        self.grid: Grid = grid
        self.setpoint_pu: Float[np.ndarray, " N"] = np.where(
            grid.bus_type == PQ, np.nan, setpoints_pu(recipe, grid)
        )
        """The voltage that the generators of a bus hold; NaN at PQ buses."""
        kv = grid.bus[:, BASE_KV]
        self.base_kv: Float[np.ndarray, " N"] = np.where(kv > 0, kv, 1.0)
        """The nominal voltage; 1 kV where the case file has none, as IEEE 14 and 57."""
        self.unit_row: Int[np.ndarray, " units"] = grid.generator_row[grid.generator_on]
        """The bus of each generator in service, as a position."""
        self.unit: Float[np.ndarray, "units 10"] = grid.gen[grid.generator_on]
        """The case file's data of each generator in service."""
        self.has_unit: Bool[np.ndarray, " N"] = np.isin(np.arange(grid.n_buses), self.unit_row)
        self.has_load: Bool[np.ndarray, " N"] = (grid.bus[:, [PD, QD]] != 0).any(axis=1)
        self.unit_name = numbered_names(grid.bus_id[self.unit_row])
        """The bus number of each generator; the second at a bus is `4/2`."""
        self._is_proportional = recipe.dispatch == "proportional"
        self._scheduled_p, self._scheduled_q = (
            np.bincount(self.unit_row, self.unit[:, column], grid.n_buses) for column in (PG, QG)
        )
        factor = np.asarray(store.array("grid/power_factor")[:])
        self._q_per_p = np.sqrt(1 - factor**2) / factor
        self.unit_share = self._unit_share()
        """The part of its bus's generation that each unit has."""

    @property
    def n_units(self) -> int:
        """Number of generators in service."""
        return len(self.unit_row)

    def load_rows(self, *power: Float[np.ndarray, "... N"]) -> Int[np.ndarray, " loads"]:
        """The buses with a load: in the case file, or in P or Q of some scenarios.

        A model may forecast consumption at a bus that has neither load nor generator.
        """
        consuming = [(part != 0).reshape(-1, part.shape[-1]).any(axis=0) for part in power]
        extra = np.logical_or.reduce(consuming) & ~self.has_unit
        return np.flatnonzero(self.has_load | extra)

    def split(self, p_mw: Float[np.ndarray, "H N"], q_mvar: Float[np.ndarray, "H N"]) -> BusPower:
        """Load and generation behind the net consumption of some steps."""
        p, q = p_mw.astype(np.float64), q_mvar.astype(np.float64)
        ratio, both = self._ratio(p), self.has_load & self.has_unit
        only_unit = self.has_unit & ~self.has_load
        generation_p = np.where(both, ratio * self._scheduled_p, np.where(only_unit, -p, 0.0))
        slack = (self.grid.bus_type == SLACK) & both
        generation_p[:, slack] = ratio * self.grid.bus[slack, PD] - p[:, slack]
        load_p = p + generation_p
        generation_q = np.where(both, ratio * self._scheduled_q, np.where(only_unit, -q, 0.0))
        held = both & (self.grid.bus_type != PQ)
        generation_q[:, held] = (self._nominal_q(load_p, ratio) - q)[:, held]
        return BusPower(load_p, q + generation_q, generation_p, generation_q)

    def _ratio(self, p: PerBus) -> Float64[np.ndarray, "H 1"]:
        """The generation of each step as a multiple of the case file's."""
        if not self._is_proportional:
            return np.ones((len(p), 1))
        not_slack = self.grid.bus_type != SLACK
        nominal = self.grid.bus[:, PD]
        # Generators without load show it exactly; loads without generators on average only.
        for rows, total in (
            (self.has_unit & ~self.has_load & not_slack, -self._scheduled_p),
            (self.has_load & ~self.has_unit, nominal),
        ):
            if abs(total[rows].sum()) > 0:
                return p[:, rows].sum(axis=1, keepdims=True) / total[rows].sum()
        return np.ones((len(p), 1))

    def _nominal_q(self, load_p: PerBus, ratio: Float64[np.ndarray, "H 1"]) -> PerBus:
        """Q of a load by its power factor, or by the case file if it has none."""
        p, q = self.grid.bus[:, PD], self.grid.bus[:, QD]
        fixed = np.where(p < 0, ratio, 1.0) * q
        return np.where(p > 0, load_p * np.nan_to_num(self._q_per_p), fixed)

    def _unit_share(self) -> Float[np.ndarray, " units"]:
        """By scheduled P, else by capacity, else equal."""
        share, buses = np.zeros(self.n_units), self.grid.n_buses
        for size in (self.unit[:, PG], self.unit[:, PMAX], np.ones(self.n_units)):
            positive = np.maximum(size, 0.0)
            total = np.bincount(self.unit_row, positive, buses)[self.unit_row]
            done = np.bincount(self.unit_row, share, buses)[self.unit_row] > 0
            usable = ~done & (total > 0)
            share[usable] = positive[usable] / total[usable]
        return share


def _recipe_of(store: Store) -> Recipe:
    """The recipe of a generated data set, which says how generation follows the load."""
    try:
        return Recipe(**store.manifest.recipe)
    except TypeError as error:
        raise ExportError(
            f"{store.path}: was not generated from a recipe, so nothing says which part of P and Q "
            "is load and which is generation; export a format of buses, such as parquet or netcdf"
        ) from error


def numbered_names(bus_id: Int[np.ndarray, " n"]) -> list[str]:
    """The bus number of each element; the second at a bus is `4/2`."""
    count: dict[int, int] = {}
    names = []
    for bus in bus_id.tolist():
        count[bus] = count.get(bus, 0) + 1
        names.append(f"{bus}/{count[bus]}" if count[bus] > 1 else str(bus))
    return names
