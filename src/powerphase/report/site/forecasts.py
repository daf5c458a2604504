"""What pages load of a row's sidecar and of a forecast file.

A sidecar has scores by bus and by step, reliability, and all scenarios of a few buses. A forecast
file has every bus, but gigabytes on a large grid. Of it, a page gets three quantiles of each series
in the windows that sidecars show, on 253 levels between the extremes of the series, so that an
error is below half a pixel; and the probability of leaving the band at every bus and step.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float32, Int, Shaped, UInt8

from powerphase.axes import KINDS, VARIABLES, V
from powerphase.dataset.store import Store
from powerphase.errors import ForecastError, UnknownName
from powerphase.records.forecast_file import ForecastFile
from powerphase.records.scores import NORMAL_BAND_PU
from powerphase.records.sidecar import (
    EXCURSION,
    EXCURSION_HAPPENED,
    EXCURSION_UNIT_PU,
    HAPPENED,
    LINE_AXIS,
    LINE_BUSES,
    LINE_HAPPENED,
    LINE_NUMBER,
    LINE_PEAK,
    LINE_RISK,
    LINE_TOTALS,
    RATING,
    RISK,
    RISK_LEVELS,
    SERIES,
    Arrays,
    expand,
    levels_of,
    shown_windows,
)
from powerphase.report.quantiles import LEVELS, first_bus, outside_band, weighted_quantiles
from powerphase.report.site.folder import pack

BUSES_PER_FILE = 128

BY_STEP = ("violation_probability", "violation")

REQUIRED = (
    *("by_bus/brier", "by_bus/violation", "reliability"),
    *(f"by_step/{name}" for name in BY_STEP),
)
"""The arrays of every sidecar."""

SHOWN = (
    *("bus_id", "window", "weight"),
    *(f"{kind}_{part}" for kind in ("target", "scenario") for part in SERIES),
)
"""The arrays of a sidecar with forecasts."""


def missing_array(sidecar: Arrays) -> str | None:
    """The first required array that the sidecar does not have."""
    names = [*REQUIRED]
    if any(name.startswith("shown/") for name in sidecar):
        names += [f"shown/{name}" for name in SHOWN]
    if LINE_TOTALS in sidecar:
        has_steps = LINE_RISK in sidecar
        names += [name for name in LINE_AXIS if has_steps or not name.startswith("risk/")]
    return next((name for name in names if name not in sidecar), None)


def has_forecasts(sidecar: Arrays) -> bool:
    """Whether the sidecar contains forecasts to draw."""
    return "shown/bus_id" in sidecar


def row_content(
    sidecar: Arrays, bus_ids: Int[np.ndarray, " N"], truth_key: str | None
) -> dict[str, Any]:
    """Everything in a sidecar that pages draw, with the numbers as they are stored."""
    content: dict[str, Any] = {
        "by_bus": {
            name.removeprefix("by_bus/"): pack(array)
            for name, array in sidecar.items()
            if name.startswith("by_bus/")
        },
        "by_step": {name: sidecar[f"by_step/{name}"][:, V] for name in BY_STEP},
        "reliability": sidecar["reliability"],
        "shown": _shown_series(sidecar, bus_ids) | {"truth": truth_key} if truth_key else None,
    }
    if RISK in sidecar:
        content["risk"] = risk_content(sidecar[RISK], sidecar[HAPPENED], sidecar["shown/window"])
        if EXCURSION in sidecar:
            sides = (sidecar[EXCURSION], sidecar[EXCURSION_HAPPENED])
            content["risk"] |= excursion_content(*sides)
    if LINE_TOTALS in sidecar:
        content["lines"] = _line_content(sidecar)
    return content


def _line_content(sidecar: Arrays) -> dict[str, Any]:
    """The lines at risk and their scores; where forecasts are drawn, their risk by step."""
    bus_id, number = (sidecar[name].astype(np.int32) for name in (LINE_BUSES, LINE_NUMBER))
    risk = {"probability": LINE_RISK, "happened": LINE_HAPPENED, "peak": LINE_PEAK}
    has_steps = LINE_RISK in sidecar
    return {
        "total": sidecar[LINE_TOTALS],
        "identity": {
            "bus_id": pack(bus_id),
            "number": pack(number),
            "rating_mva": pack(sidecar[RATING]),
        },
        "scores": {
            name.removeprefix("by_branch/"): pack(array)
            for name, array in sidecar.items()
            if name.startswith("by_branch/")
        },
        "windows": sidecar["shown/window"] if has_steps else [],
        "risk": {key: pack(sidecar[name]) for key, name in risk.items()} if has_steps else None,
    }


def excursion_content(
    excursion: UInt8[np.ndarray, "W N side"], happened: UInt8[np.ndarray, "W N side"]
) -> dict[str, Any]:
    """How far the forecast and the truth went below and above the band, in units of 0.001 p.u."""
    return {"excursion": pack(excursion), "excursion_happened": pack(happened)}


def passing_risk(sidecar: Arrays) -> float:
    """The share of voltages outside the band at buses that are not always outside.

    A bus that never comes back is a matter of its set-point; risk that comes and goes is what a
    forecast is for.
    """
    outside = sidecar["by_bus/violation"]
    return float(np.where(outside < 1, outside, 0).mean())


def risk_content(
    probability: Shaped[np.ndarray, "W N H"],
    happened: Shaped[np.ndarray, "W N H"],
    windows: Int[np.ndarray, " W"],
) -> dict[str, Any]:
    """Violation probability in 1/240, and whether a violation occurred, by window, bus and step."""
    return {
        "window": windows,
        "probability": pack(probability),
        "happened": pack(happened.astype(np.uint8)),
    }


def truth_content(sidecar: Arrays) -> tuple[str, dict[str, Any]]:
    """The truth at the shown buses, with a file name from its hash, so that models share it."""
    series = _series(sidecar, "target")
    content = "".join(part["data"] for part in series.values())
    return f"truth-{hashlib.sha256(content.encode()).hexdigest()[:12]}", series


def first_shown_bus(sidecar: Arrays) -> int:
    """The number of the bus that the page shows first."""
    target = expand(sidecar)["shown/target"]
    return int(sidecar["shown/bus_id"][first_bus(target[..., V])])


def _shown_series(sidecar: Arrays, bus_ids: Int[np.ndarray, " N"]) -> dict[str, Any]:
    """The scenarios of the shown buses as levels, the steps of a series adjacent."""
    shown_ids = sidecar["shown/bus_id"]
    position = {int(bus): k for k, bus in enumerate(bus_ids)}
    return {
        "bus_id": shown_ids,
        "position": [position.get(int(bus)) for bus in shown_ids],
        "window": sidecar["shown/window"],
        "weight": pack(sidecar["shown/weight"].transpose(0, 2, 3, 1)),
        **_series(sidecar, "scenario"),
    }


def _series(sidecar: Arrays, kind: str) -> dict[str, Any]:
    return {part: pack(sidecar[f"shown/{kind}_{part}"]) for part in SERIES}


@dataclass(frozen=True, eq=False)
class FullForecast:
    """Bands of the chosen variables and risks of the voltages, at every bus."""

    windows: Int[np.ndarray, " W"]
    bands: Float32[np.ndarray, "N K W L H"]
    probability: UInt8[np.ndarray, "W N H"]
    """The probability of leaving the voltage band, in 1/240."""
    excursion: UInt8[np.ndarray, "W N side"]
    """How far scenarios that leave the band go below and above it, in 0.001 p.u."""


def kinds_of(variables: Sequence[str]) -> list[int]:
    """The positions of the variables among the channels of a bus."""
    for name in variables:
        if name not in VARIABLES:
            raise UnknownName.among("variable", name, VARIABLES)
    return [k for k, name in enumerate(VARIABLES) if name in variables]


def read_full_forecast(file: ForecastFile, kinds: Sequence[int]) -> FullForecast:
    """Read the shown windows of a forecast, block by block."""
    h = file.header
    windows = shown_windows(len(h.windows))
    n_buses = h.n_channels // KINDS
    shape = (n_buses, len(kinds), len(windows), len(LEVELS), h.horizon)
    bands = np.empty(shape, dtype=np.float32)
    probability = np.empty((len(windows), n_buses, h.horizon), dtype=np.uint8)
    excursion = np.empty((len(windows), n_buses, 2), dtype=np.uint8)
    for w, window in enumerate(windows):
        for block in file.blocks():
            values, weights = file.read(int(window), block)
            _check_finite(file, values, int(window), block.start)
            buses = slice(block.start // KINDS, block.stop // KINDS)
            for k, kind in enumerate(kinds):
                fan = weighted_quantiles(values[..., kind::KINDS], weights[..., kind::KINDS])
                bands[buses, k, w] = fan.transpose(2, 0, 1)
            voltage, weight = values[..., V::KINDS], weights[..., V::KINDS]
            probability[w, buses] = _risk(voltage, weight)
            excursion[w, buses] = excursions(voltage, weight)
    return FullForecast(windows, bands, probability, excursion)


def excursions(
    voltage: Float32[np.ndarray, "M H N"], weights: Float32[np.ndarray, "M N"]
) -> UInt8[np.ndarray, "N side"]:
    """How far voltages go below and above the band, in 0.001 p.u., as `evaluation.sidecar` has it.

    The furthest point of each scenario, on average over the scenarios that go there.
    """
    low, high = NORMAL_BAND_PU
    sides = np.stack([low - voltage.min(axis=1), voltage.max(axis=1) - high], axis=-1).clip(0)
    beyond = weights[..., None] * (sides > 0)
    total = beyond.sum(axis=0)
    mean = np.divide((beyond * sides).sum(axis=0), total, out=np.zeros_like(total), where=total > 0)
    return np.ceil(mean / EXCURSION_UNIT_PU - 1e-6).clip(0, 255).astype(np.uint8)


def _check_finite(
    file: ForecastFile, values: Float32[np.ndarray, "M H C"], window: int, start: int
) -> None:
    """Raise if a value is not a number: no band contains it."""
    finite = np.isfinite(values)
    if not finite.all():
        _, step, channel = np.argwhere(~finite)[0].tolist()
        raise ForecastError(
            f"{file.path}: a value is not a finite number; make the forecast again",
            window=window,
            step=step,
            channel=start + channel,
        )


def _risk(
    voltage: Float32[np.ndarray, "M H N"], weights: Float32[np.ndarray, "M N"]
) -> UInt8[np.ndarray, "N H"]:
    share = np.einsum("MHN,MN->NH", outside_band(voltage).astype(np.float32), weights)
    return np.rint(share.clip(0, 1) * RISK_LEVELS).astype(np.uint8)


def read_truth(
    store: Store, starts: Sequence[str], horizon: int, scale: Sequence[float]
) -> Float32[np.ndarray, "N 4 W H"]:
    """The truth in the windows with these starts, normalised by the scales of P and Q."""
    days = []
    for start in starts:
        first = np.datetime64(start, "s")
        steps = slice(str(first), str(first + np.timedelta64(horizon * store.step_s, "s")))
        days.append(store.read(steps))  # H N 4
    return np.stack(days).transpose(2, 3, 0, 1) / np.array([*scale, 1, 1], "f4")[:, None, None]


def bus_contents(series: Float32[np.ndarray, "N K W *rest"]) -> Iterator[dict[str, Any]]:
    """The series of a fixed number of buses at a time, each on levels between its extremes.

    Stored are the differences between successive levels, modulo 256: smooth series become small
    numbers, which compress better.
    """
    for first in range(0, len(series), BUSES_PER_FILE):
        part = series[first : first + BUSES_PER_FILE]
        shape = part.shape[:3]
        low, high, levels = levels_of(part.reshape(int(np.prod(shape)), -1))
        yield {
            "low": pack(low.reshape(shape)),
            "high": pack(high.reshape(shape)),
            "steps": pack(np.diff(levels.reshape(part.shape), axis=-1, prepend=np.uint8(0))),
        }
