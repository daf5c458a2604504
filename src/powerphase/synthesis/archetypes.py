"""The five load shapes, and which bus follows which (the paper's appendix A.1)."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from powerphase.errors import SignalError
from powerphase.grid.case import BASE_KV, PD, Grid
from powerphase.seeds import stream
from powerphase.synthesis.signals import Signals

ARCHETYPES = ("baseline", "industrial", "pv", "wind", "ev")
BASELINE, INDUSTRIAL, PV, WIND, EV = range(5)
NO_LOAD = -1
"""Stands in the archetype column of a bus that has no load to shape."""

INDUSTRIAL_SWING = 0.3
PV_GAIN, WIND_GAIN = 3.0, 2.0
EV_BOOST, EV_FIRST_HOUR, EV_LAST_HOUR = 1.4, 18, 22
HV_KV, HV_MW = 110.0, 10.0
HV_INDUSTRIAL_SHARE = 0.8
LV_WEIGHTS = {BASELINE: 0.4, PV: 0.3, EV: 0.2, WIND: 0.1}
N_REGIONS = 3
REGION_DOUBLES = {0: PV, 1: WIND}
HV_POWER_FACTOR, LV_POWER_FACTOR = (0.96, 0.99), (0.90, 0.99)


@dataclass(frozen=True, eq=False)
class Roles:
    """What each bus's load does: its shape, power factor, region and voltage class."""

    archetype: Int[np.ndarray, " N"]
    """Index into `ARCHETYPES`, or -1 at a bus without a load (P_nom <= 0)."""
    power_factor: Float[np.ndarray, " N"]
    """cos φ, fixed over the record; NaN without a load."""
    region: Int[np.ndarray, " N"]
    high_voltage: Bool[np.ndarray, " N"]


def shapes(signals: Signals) -> Float[np.ndarray, "S 5"]:
    """The shapes in the order of `ARCHETYPES`, each divided by its mean over the whole record.

    Where renewables exceed the load a shape is negative; whoever forms injections clips it.
    """
    load, solar, wind = signals.values_mw.T
    hour = (signals.time - signals.time.astype("datetime64[D]")) / np.timedelta64(1, "h")
    evening = (hour >= EV_FIRST_HOUR) & (hour < EV_LAST_HOUR)
    mean = load.mean()
    columns = {
        BASELINE: load,
        INDUSTRIAL: mean + INDUSTRIAL_SWING * (load - mean),
        PV: load - PV_GAIN * solar,
        WIND: load - WIND_GAIN * wind,
        EV: np.where(evening, EV_BOOST * load, load),
    }
    stacked = np.stack([columns[index] for index in range(len(ARCHETYPES))], axis=1)
    means_mw = stacked.mean(axis=0)
    if (means_mw <= 0).any():
        worst = int(means_mw.argmin())
        raise SignalError(
            f"signals {signals.edition!r}: the {ARCHETYPES[worst]} shape has a mean of "
            f"{means_mw[worst]:,.0f} MW, it must be positive; too much solar or wind for this load"
        )
    return stacked / means_mw


def assign_roles(grid: Grid, seed: int) -> Roles:
    """Draw every load's shape and power factor; a bus's draw does not depend on other buses."""
    p_nominal = grid.bus[:, PD]
    loaded = p_nominal > 0
    high_voltage = loaded & ((grid.bus[:, BASE_KV] > HV_KV) | (p_nominal > HV_MW))
    region = np.arange(grid.n_buses) % N_REGIONS

    draw = stream(seed, "archetype").random(grid.n_buses)
    archetype = np.where(draw < HV_INDUSTRIAL_SHARE, INDUSTRIAL, BASELINE)
    for index in range(N_REGIONS):
        here = ~high_voltage & (region == index)
        archetype[here] = _low_voltage_archetype(draw[here], index)

    low, high = np.where(high_voltage[:, None], HV_POWER_FACTOR, LV_POWER_FACTOR).T
    factor = low + (high - low) * stream(seed, "power factor").random(grid.n_buses)
    return Roles(
        archetype=np.where(loaded, archetype, NO_LOAD),
        power_factor=np.where(loaded, factor, np.nan),
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
