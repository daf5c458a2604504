"""Forecasts of every bus: bands and risks from forecast files, cut into files by bus.

A forecast file of a large grid has gigabytes. The page gets three quantiles of each series in the
windows that sidecars show, on 253 levels between the series' extremes, so that an error is below
half a pixel; and the probability of leaving the band at every bus and step.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int, UInt8

from powerphase.axes import KINDS, STEP_S, VARIABLES, V
from powerphase.dataset.store import Store
from powerphase.errors import UnknownName
from powerphase.records.forecast_file import ForecastFile
from powerphase.records.sidecar import RISK_LEVELS, levels_of, shown_windows
from powerphase.report.quantiles import LEVELS, outside_band, weighted_quantiles
from powerphase.report.site.packing import packed

BUSES_PER_FILE = 128


@dataclass(frozen=True, eq=False)
class WholeForecast:
    """Bands of the chosen variables and risks of the voltages, at every bus."""

    windows: Int[np.ndarray, " W"]
    bands: Float32[np.ndarray, "N K W L H"]
    probability: UInt8[np.ndarray, "W N H"]
    """Of leaving the voltage band, in 1/240."""


def kinds_of(variables: Sequence[str]) -> list[int]:
    """The positions of the variables among a bus's channels."""
    for name in variables:
        if name not in VARIABLES:
            raise UnknownName.among("variable", name, VARIABLES)
    return [k for k, name in enumerate(VARIABLES) if name in variables]


def read_whole(file: ForecastFile, kinds: Sequence[int]) -> WholeForecast:
    """Read the shown windows of a forecast, block by block."""
    h = file.header
    windows = shown_windows(len(h.windows))
    n_buses = h.n_channels // KINDS
    shape = (n_buses, len(kinds), len(windows), len(LEVELS), h.horizon)
    bands = np.empty(shape, dtype=np.float32)
    probability = np.empty((len(windows), n_buses, h.horizon), dtype=np.uint8)
    for w, window in enumerate(windows):
        for block in file.blocks():
            values, weights = file.read(int(window), block)
            buses = slice(block.start // KINDS, block.stop // KINDS)
            for k, kind in enumerate(kinds):
                fan = weighted_quantiles(values[..., kind::KINDS], weights[..., kind::KINDS])
                bands[buses, k, w] = fan.transpose(2, 0, 1)
            probability[w, buses] = _risk(values[..., V::KINDS], weights[..., V::KINDS])
    return WholeForecast(windows, bands, probability)


def _risk(
    voltage: Float32[np.ndarray, "M H N"], weights: Float32[np.ndarray, "M N"]
) -> UInt8[np.ndarray, "N H"]:
    found = np.einsum("MHN,MN->NH", outside_band(voltage).astype(np.float32), weights)
    return np.rint(found.clip(0, 1) * RISK_LEVELS).astype(np.uint8)


def truth_in(
    store: Store, starts: Sequence[str], horizon: int, scale: Sequence[float]
) -> Float32[np.ndarray, "N 4 W H"]:
    """What happened in the windows that begin so, normalised by the P and Q scales."""
    days = []
    for start in starts:
        begin = np.datetime64(start, "s")
        chosen = slice(str(begin), str(begin + np.timedelta64(horizon * STEP_S, "s")))
        days.append(store.read(chosen))  # H N 4
    return np.stack(days).transpose(2, 3, 0, 1) / np.array([*scale, 1, 1], "f4")[:, None, None]


def bus_files(series: Float32[np.ndarray, "N K W *rest"]) -> Iterator[dict[str, Any]]:
    """The series of so many buses at a time; each has its own levels.

    What is stored are steps from level to level, modulo 256: smooth series become small numbers,
    which deflate to less.
    """
    for first in range(0, len(series), BUSES_PER_FILE):
        here = series[first : first + BUSES_PER_FILE]
        each = here.shape[:3]
        low, high, levels = levels_of(here.reshape(int(np.prod(each)), -1))
        yield {
            "low": packed(low.reshape(each)),
            "high": packed(high.reshape(each)),
            "steps": packed(np.diff(levels.reshape(here.shape), axis=-1, prepend=np.uint8(0))),
        }
