"""Net consumption of every bus at every step: shapes, noise, power factors and dispatch."""

from typing import Literal

import numpy as np
from jaxtyping import Float

from powerphase.axes import STEPS_PER_DAY
from powerphase.grid.case import PD, PG, PQ, QD, QG, Grid
from powerphase.seeds import stream
from powerphase.synthesis.archetypes import N_REGIONS, Roles, assign_roles, shapes
from powerphase.synthesis.signals import Signals

Dispatch = Literal["proportional", "slack"]
Block = tuple[Float[np.ndarray, "S N"], Float[np.ndarray, "S N"]]
"""P [MW] and Q [MVAr], net consumption: loads count positive, generation negative."""

REGION_SIGMA = 0.03
HV_SIGMA, LV_SIGMA = 0.02, 0.08


class Injections:
    """What the power flow is asked for, made day by day; any day can be made alone.

    Args:
        grid: nominal loads and generation.
        signals: the whole signal record; shapes are normalised over all of it.
        seed: fixes archetypes, power factors and noise.
        dispatch: `proportional` scales all generation with the total load, so that the slack bus
            covers only losses; `slack` leaves generation as the case file has it.
    """

    def __init__(
        self, grid: Grid, signals: Signals, seed: int, dispatch: Dispatch = "proportional"
    ) -> None:
        self.signals = signals
        self.seed = seed
        self.dispatch = dispatch
        self.roles: Roles = assign_roles(grid, seed)
        self._shapes = np.maximum(shapes(signals), 0.0)

        p_nominal, q_nominal = grid.bus[:, PD], grid.bus[:, QD]
        self._load = np.flatnonzero(p_nominal > 0)
        self._p_nominal = p_nominal[self._load]
        factor = self.roles.power_factor[self._load]
        # Not tan(arccos(φ)), whose last bits differ between processors.
        self._q_per_p = np.sqrt(1 - factor**2) / factor
        self._sigma = np.where(self.roles.high_voltage[self._load], HV_SIGMA, LV_SIGMA)
        self._fixed_q = np.where(p_nominal == 0, q_nominal, 0.0)
        self._scaled_p, self._scaled_q = _dispatched(grid)

    def mean(self) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """Noise-free mean net consumption over the whole signal record, P [MW] and Q [MVAr]."""
        level = self._shapes.mean(axis=0)[self.roles.archetype[self._load]]
        p_mw, q_mvar = self._net((self._p_nominal * level)[None])
        return p_mw[0], q_mvar[0]

    def steps(self, first: int, last: int, draw: tuple[str | int, ...] = ()) -> Block:
        """Net consumption in steps `first` to `last` (excluded) of the signal record.

        The record itself is the empty draw; any other labels give the same days other noise.
        """
        days = range(first // STEPS_PER_DAY, -(-last // STEPS_PER_DAY))
        blocks = [self._day(day, draw) for day in days]
        skip = first - days[0] * STEPS_PER_DAY
        p_mw, q_mvar = (np.concatenate(part) for part in zip(*blocks, strict=True))
        return p_mw[skip : skip + last - first], q_mvar[skip : skip + last - first]

    def _day(self, day: int, draw: tuple[str | int, ...]) -> Block:
        first = day * STEPS_PER_DAY
        shape = self._shapes[first : first + STEPS_PER_DAY]
        # Addressed by date, not by position: a record that starts later holds the same noise.
        date = str(self.signals.time[first].astype("datetime64[D]"))
        regional = stream(self.seed, "regional noise", date, *draw).standard_normal(
            (STEPS_PER_DAY, N_REGIONS)
        )
        factor = stream(self.seed, "bus noise", date, *draw).standard_normal(
            (STEPS_PER_DAY, len(self._load))
        )
        factor *= self._sigma
        factor += (1 + REGION_SIGMA * regional)[:, self.roles.region[self._load]]
        factor *= self._p_nominal * shape[:, self.roles.archetype[self._load]]
        return self._net(np.maximum(factor, 0.0, out=factor))

    def _net(self, load_mw: Float[np.ndarray, "S loads"]) -> Block:
        """Loads of the given size, their reactive part, and the generation that goes with them."""
        ratio = np.ones((len(load_mw), 1))
        if self.dispatch == "proportional":
            ratio = load_mw.sum(axis=1, keepdims=True) / self._p_nominal.sum()
        p_mw = ratio * self._scaled_p
        q_mvar = ratio * self._scaled_q + self._fixed_q
        p_mw[:, self._load] += load_mw
        q_mvar[:, self._load] += load_mw * self._q_per_p
        return p_mw, q_mvar


def _dispatched(grid: Grid) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Net consumption P, Q of all that follows the dispatch: generators and negative loads.

    A generator at a PQ bus controls no voltage; there, as in MATPOWER, its Q is specified too.
    """
    static = grid.bus[:, PD] < 0
    p_mw = np.where(static, grid.bus[:, PD], 0.0)
    q_mvar = np.where(static, grid.bus[:, QD], 0.0)
    on, row = grid.generator_on, grid.generator_row
    np.subtract.at(p_mw, row[on], grid.gen[on, PG])
    fixed = on & (grid.bus_type[row] == PQ)
    np.subtract.at(q_mvar, row[fixed], grid.gen[fixed, QG])
    return p_mw, q_mvar
