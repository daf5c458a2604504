"""Net consumption of every bus at every step: load shapes, noise, power factors and dispatch.

Each load follows one of five shapes, its archetype (the paper's appendix A.1).
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from powerphase.axes import STEPS_PER_DAY
from powerphase.errors import SignalError
from powerphase.grid.case import BASE_KV, PD, PG, PQ, QD, QG, Grid
from powerphase.seeds import stream
from powerphase.synthesis.signals import Signals

Dispatch = Literal["proportional", "slack"]
Power = tuple[Float[np.ndarray, "S N"], Float[np.ndarray, "S N"]]
"""P [MW] and Q [MVAr], net consumption: loads count positive, generation negative."""

ARCHETYPES = ("baseline", "industrial", "pv", "wind", "ev")
BASELINE, INDUSTRIAL, PV, WIND, EV = range(5)
NO_LOAD = -1
"""The archetype of a bus without a load."""

INDUSTRIAL_SWING = 0.3
PV_GAIN, WIND_GAIN = 3.0, 2.0
EV_BOOST, EV_FIRST_HOUR, EV_LAST_HOUR = 1.4, 18, 22
HV_KV, HV_MW = 110.0, 10.0
HV_INDUSTRIAL_SHARE = 0.8
LV_WEIGHTS = {BASELINE: 0.4, PV: 0.3, EV: 0.2, WIND: 0.1}
N_REGIONS = 3
REGION_DOUBLES = {0: PV, 1: WIND}
HV_POWER_FACTOR, LV_POWER_FACTOR = (0.96, 0.99), (0.90, 0.99)

REGION_SIGMA = 0.03
HV_SIGMA, LV_SIGMA = 0.02, 0.08


@dataclass(frozen=True, eq=False)
class Roles:
    """How the load of each bus behaves: its shape, power factor, region and voltage class."""

    archetype: Int[np.ndarray, " N"]
    """Index into `ARCHETYPES`, or -1 at a bus without a load (P_nom <= 0)."""
    power_factor: Float[np.ndarray, " N"]
    """cos φ, constant over the record; NaN without a load."""
    region: Int[np.ndarray, " N"]
    high_voltage: Bool[np.ndarray, " N"]


def load_shapes(signals: Signals) -> Float[np.ndarray, "S 5"]:
    """The shapes in the order of `ARCHETYPES`, each divided by its mean over the whole record.

    Where renewables exceed the load a shape is negative; `Injections` clips it at zero.
    """
    load, solar, wind = signals.values_mw.T
    hour = (signals.time - signals.time.astype("datetime64[D]")) / np.timedelta64(1, "h")
    is_evening = (hour >= EV_FIRST_HOUR) & (hour < EV_LAST_HOUR)
    mean = load.mean()
    columns = {
        BASELINE: load,
        INDUSTRIAL: mean + INDUSTRIAL_SWING * (load - mean),
        PV: load - PV_GAIN * solar,
        WIND: load - WIND_GAIN * wind,
        EV: np.where(is_evening, EV_BOOST * load, load),
    }
    stacked = np.stack([columns[index] for index in range(len(ARCHETYPES))], axis=1)
    means_mw = stacked.mean(axis=0)
    if (means_mw <= 0).any():
        worst = int(means_mw.argmin())
        raise SignalError(
            f"signals {signals.edition!r}: the {ARCHETYPES[worst]} shape has a mean of "
            f"{means_mw[worst]:,.0f} MW; it must be positive, so reduce solar or wind"
        )
    return stacked / means_mw


def assign_roles(grid: Grid, seed: int) -> Roles:
    """Draw the shape and power factor of every load, each independently of the other buses."""
    p_nominal = grid.bus[:, PD]
    has_load = p_nominal > 0
    high_voltage = has_load & ((grid.bus[:, BASE_KV] > HV_KV) | (p_nominal > HV_MW))
    region = np.arange(grid.n_buses) % N_REGIONS

    draw = stream(seed, "archetype").random(grid.n_buses)
    archetype = np.where(draw < HV_INDUSTRIAL_SHARE, INDUSTRIAL, BASELINE)
    for index in range(N_REGIONS):
        rows = ~high_voltage & (region == index)
        archetype[rows] = _low_voltage_archetype(draw[rows], index)

    low, high = np.where(high_voltage[:, None], HV_POWER_FACTOR, LV_POWER_FACTOR).T
    factor = low + (high - low) * stream(seed, "power factor").random(grid.n_buses)
    return Roles(
        archetype=np.where(has_load, archetype, NO_LOAD),
        power_factor=np.where(has_load, factor, np.nan),
        region=region,
        high_voltage=high_voltage,
    )


def _low_voltage_archetype(draw: Float[np.ndarray, " n"], region: int) -> Int[np.ndarray, " n"]:
    """The archetype at each quantile `draw` of the region's low-voltage mix."""
    weights = dict(LV_WEIGHTS)
    if region in REGION_DOUBLES:
        weights[REGION_DOUBLES[region]] *= 2
    edges = np.cumsum(list(weights.values())) / sum(weights.values())
    return np.array(list(weights))[np.searchsorted(edges[:-1], draw, side="right")]


class Injections:
    """The injections of each step, computed day by day; any day can be computed by itself.

    Args:
        grid: gives nominal loads and generation.
        signals: the whole signal record, over which shapes are normalised.
        seed: determines archetypes, power factors and noise.
        dispatch: `proportional` scales all generation with the total load, so that the slack bus
            covers only losses; `slack` keeps the generation of the case file.
    """

    def __init__(self, grid: Grid, signals: Signals, seed: int, dispatch: Dispatch) -> None:
        self.signals = signals
        self.seed = seed
        self.dispatch = dispatch
        self.roles: Roles = assign_roles(grid, seed)
        self._shapes = np.maximum(load_shapes(signals), 0.0)

        p_nominal, q_nominal = grid.bus[:, PD], grid.bus[:, QD]
        self._loads = np.flatnonzero(p_nominal > 0)
        self._p_nominal = p_nominal[self._loads]
        factor = self.roles.power_factor[self._loads]
        # tan(arccos(φ)) would differ in its last bits between processors.
        self._q_per_p = np.sqrt(1 - factor**2) / factor
        self._sigma = np.where(self.roles.high_voltage[self._loads], HV_SIGMA, LV_SIGMA)
        self._fixed_q = np.where(p_nominal == 0, q_nominal, 0.0)
        self._scaled_p, self._scaled_q = _dispatched_power(grid)

    def mean(self) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
        """Noise-free mean net consumption over the whole signal record, P [MW] and Q [MVAr]."""
        level = self._shapes.mean(axis=0)[self.roles.archetype[self._loads]]
        p_mw, q_mvar = self._net((self._p_nominal * level)[None])
        return p_mw[0], q_mvar[0]

    def steps(self, first: int, last: int, draw: tuple[str | int, ...] = ()) -> Power:
        """Net consumption in steps `first` to `last` (excluded) of the signal record.

        The record itself has the empty `draw`; other labels give the same days with other noise.
        """
        days = range(first // STEPS_PER_DAY, -(-last // STEPS_PER_DAY))
        by_day = [self._day(day, draw) for day in days]
        skip = first - days[0] * STEPS_PER_DAY
        p_mw, q_mvar = (np.concatenate(part) for part in zip(*by_day, strict=True))
        return p_mw[skip : skip + last - first], q_mvar[skip : skip + last - first]

    def _day(self, day: int, draw: tuple[str | int, ...]) -> Power:
        first = day * STEPS_PER_DAY
        shape = self._shapes[first : first + STEPS_PER_DAY]
        # Keyed by date, not by position: a record that starts later has the same noise.
        date = str(self.signals.time[first].astype("datetime64[D]"))
        regional = stream(self.seed, "regional noise", date, *draw).standard_normal(
            (STEPS_PER_DAY, N_REGIONS)
        )
        factor = stream(self.seed, "bus noise", date, *draw).standard_normal(
            (STEPS_PER_DAY, len(self._loads))
        )
        factor *= self._sigma
        factor += (1 + REGION_SIGMA * regional)[:, self.roles.region[self._loads]]
        factor *= self._p_nominal * shape[:, self.roles.archetype[self._loads]]
        return self._net(np.maximum(factor, 0.0, out=factor))

    def _net(self, load_mw: Float[np.ndarray, "S loads"]) -> Power:
        """Net consumption for these loads, with reactive power and the dispatched generation."""
        ratio = np.ones((len(load_mw), 1))
        if self.dispatch == "proportional":
            ratio = load_mw.sum(axis=1, keepdims=True) / self._p_nominal.sum()
        p_mw = ratio * self._scaled_p
        q_mvar = ratio * self._scaled_q + self._fixed_q
        p_mw[:, self._loads] += load_mw
        q_mvar[:, self._loads] += load_mw * self._q_per_p
        return p_mw, q_mvar


def _dispatched_power(grid: Grid) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Net consumption P, Q of everything that the dispatch scales: generators, negative loads.

    A generator at a PQ bus controls no voltage, so its Q is specified too, as in MATPOWER.
    """
    is_negative = grid.bus[:, PD] < 0
    p_mw = np.where(is_negative, grid.bus[:, PD], 0.0)
    q_mvar = np.where(is_negative, grid.bus[:, QD], 0.0)
    on, row = grid.generator_on, grid.generator_row
    np.subtract.at(p_mw, row[on], grid.gen[on, PG])
    at_pq = on & (grid.bus_type[row] == PQ)
    np.subtract.at(q_mvar, row[at_pq], grid.gen[at_pq, QG])
    return p_mw, q_mvar
