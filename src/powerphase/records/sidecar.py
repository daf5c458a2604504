"""The sidecar of a row: arrays for pages and figures in an `.npz` next to the row's JSON file.

A sidecar holds scores by bus and by step, reliability, scores of the lines that are at risk, and,
for the forecasts that are drawn, the risk at every bus and such line and step and the scenarios of
a few buses. It stays below `LIMIT_BYTES` because numbers are rounded: scores to a relative
precision, scenarios and risks to levels. `compact` takes the finest of `ROUNDINGS` that fits and
notes it in the sidecar, so that a row that is scored again can be compared with what was stored.
`by_bus/safety_mbrier` is never rounded. Lines get the room that buses leave: of those at risk, in
order, the first so many of `LINE_COUNTS` are stored.
"""

import struct
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import astuple, dataclass
from io import BytesIO
from lzma import LZMAError
from math import prod
from pathlib import Path
from tokenize import TokenError

import numpy as np
from jaxtyping import Float, Float32, Int, Shaped, UInt8

from powerphase.errors import ResultError
from powerphase.files import read_regular_file
from powerphase.records.scores import SCORES
from powerphase.schema import fits_axes

Arrays = Mapping[str, Shaped[np.ndarray, "..."]]

LIMIT_BYTES = 150_000
MAX_BYTES = 2**28
"""No sidecar that was ever written comes near this size, packed or unpacked."""

UNREADABLE = (
    EOFError,
    LZMAError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TokenError,
    ValueError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""What the libraries raise for an archive or a header that is damaged."""

SHOWN_WINDOWS = 3

RISK, HAPPENED = "risk/by_bus_step", "risk/happened"
"""Violation probabilities, and whether a voltage left the band, by shown window, bus and step."""

EXCURSION, EXCURSION_HAPPENED = "risk/excursion", "risk/excursion_happened"
"""How far voltages went below and above the band, by shown window, bus and side: the furthest point
of the day, of a forecast on average over the scenarios that go there."""

LINE, LINE_BUSES, LINE_NUMBER = "lines/branch", "lines/bus_id", "lines/number"
"""Of each stored line: its row in the data set's branch matrix, the buses of its ends, and 1, or
more for a further branch between these buses."""

RATING = "lines/rating_mva"

LINE_TOTALS = "lines/total"
"""How many branches are at risk in any window, in the forecast or in what happened; how many have a
rating; and how many are in service."""

LINE_RISK, LINE_HAPPENED = "risk/lines", "risk/lines_happened"
"""Overload probabilities, and whether a line was overloaded, by shown window, stored line and
step."""

LINE_PEAK = "risk/lines_peak"
"""The highest loading that happened, by shown window and stored line."""

BY_BRANCH = (
    *("loading_crps", "overload_brier", "overload_twcrps"),
    *("overload_probability", "overload"),
)
"""The scores of each stored line, and what was forecast and what happened."""

EXCURSION_UNIT_PU = 0.001
"""Excursions are stored in whole units, rounded up and 255 at most."""

RISK_LEVELS = 240
"""Probabilities are stored in steps of 1/240: exact for shares of 8, 10, 12, 16, 20 scenarios."""

SCORES_BY = ("by_bus/", "by_step/", "by_branch/")
"""The arrays whose numbers are rounded to a relative precision."""

LEVELS = 252
"""A series is stored on 253 levels between its extremes: an error below half a pixel."""

FORECASTS = ("risk/", "shown/")
"""The arrays of forecasts that are drawn; a sidecar without forecasts lacks them."""

NOT_DRAWN_SEEDS = (22, 3142)
"""Of the paper's three seeds, 22, 42 and 3142, only 42 keeps forecasts to draw."""

SERIES = ("low", "high", "steps")
"""The parts of a coded series: its extremes, and its differences from level to level."""

ROUNDING_NAME = "rounding"
"""The array that holds the rounding of a sidecar."""


SCHEMA = {
    ROUNDING_NAME: ("i8", "R"),
    "reliability": ("f8", "bins 3"),
    "by_step/": ("f", "H 4"),
    **{f"by_step/{name}": ("f", "H") for name, score in SCORES.items() if not score.has_types},
    "by_bus/": ("f", "N"),
    "by_bus/crps": ("f", "N 4"),
    "risk/": ("u1", "W N H"),
    EXCURSION: ("u1", "W N 2"),
    EXCURSION_HAPPENED: ("u1", "W N 2"),
    LINE: ("i8", "L"),
    LINE_BUSES: ("i8", "L 2"),
    LINE_NUMBER: ("i8", "L"),
    RATING: ("f4", "L"),
    LINE_TOTALS: ("i8", "3"),
    "by_branch/": ("f4", "L"),
    LINE_RISK: ("u1", "W L H"),
    LINE_HAPPENED: ("u1", "W L H"),
    LINE_PEAK: ("f4", "W L"),
    "shown/bus_id": ("i8", "B"),
    "shown/window": ("i8", "W"),
    "shown/weight": ("f4", "W M B 4"),
    "shown/target_low": ("f4", "W B 4"),
    "shown/target_high": ("f4", "W B 4"),
    "shown/target_steps": ("u1", "W B 4 H"),
    "shown/scenario_low": ("f4", "W B 4"),
    "shown/scenario_high": ("f4", "W B 4"),
    "shown/scenario_steps": ("u1", "W B 4 M H"),
    "physical/": ("f8", ""),
}
"""The type and the axes of each array, or of all whose names start like this. An axis has one size
in all arrays of a sidecar; arrays of other names are read by nobody."""


LINE_AXIS = {
    **dict.fromkeys((LINE, LINE_BUSES, LINE_NUMBER, RATING), 0),
    **{f"by_branch/{name}": 0 for name in BY_BRANCH},
    **dict.fromkeys((LINE_RISK, LINE_HAPPENED, LINE_PEAK), 1),
}
"""The axis of the lines in each array that has one."""


def may_lack(schema: int) -> set[str]:
    """Arrays that the sidecar of a row of this schema may lack.

    All others are in every sidecar with forecasts.
    """
    newer = {f"by_step/{name}" for name, score in SCORES.items() if score.since > schema}
    if schema < SCORES["loading_crps"].since:
        newer |= {LINE_TOTALS, *LINE_AXIS}
    risks = {RISK, HAPPENED, EXCURSION, EXCURSION_HAPPENED}
    return newer | risks | {LINE_RISK, LINE_HAPPENED, LINE_PEAK}


@dataclass(frozen=True)
class Rounding:
    """How coarsely a sidecar stores its numbers."""

    buses: int
    """The first so many of the buses to show are stored."""
    level_step: int
    """Scenarios lie on every such level of `LEVELS`."""
    bits: int
    """Of the mantissa of scores, whose relative error is at most 2^-(bits + 1)."""
    risk_step: int
    """Risks lie on every such level of `RISK_LEVELS`."""
    risk_hold: int
    """Of so many steps, the risk of the first is stored for all."""


ROUNDINGS = (
    Rounding(buses=12, level_step=2, bits=8, risk_step=1, risk_hold=1),
    Rounding(buses=12, level_step=2, bits=8, risk_step=10, risk_hold=1),
    Rounding(buses=12, level_step=4, bits=8, risk_step=10, risk_hold=1),
    Rounding(buses=8, level_step=4, bits=8, risk_step=20, risk_hold=1),
    Rounding(buses=8, level_step=4, bits=7, risk_step=20, risk_hold=4),
    Rounding(buses=6, level_step=4, bits=7, risk_step=30, risk_hold=4),
    Rounding(buses=6, level_step=6, bits=6, risk_step=30, risk_hold=4),
    Rounding(buses=4, level_step=6, bits=5, risk_step=60, risk_hold=12),
)
"""From fine to coarse. Most sidecars take the first; a large grid with a forecaster that sees risk
everywhere takes the last."""


LINE_COUNTS = (240, 180, 120, 90, 60, 45, 30, 20, 10, 5, 0)
"""How many lines are stored: the first of these that fits next to the buses."""


def shown_windows(n_windows: int) -> Int[np.ndarray, " shown"]:
    """The windows whose forecasts are kept for pages and figures: evenly spread."""
    spread = np.linspace(0, n_windows - 1, min(SHOWN_WINDOWS, n_windows))
    return np.unique(spread.round().astype(np.int64))


def compact(arrays: Arrays) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The arrays with the finest rounding that keeps the file below the limit.

    Lines get the room that is left: the first so many are kept.
    """
    scores, lines = first_lines(arrays, 0), {n: a for n, a in arrays.items() if n in LINE_AXIS}
    fitting = (entry for entry in ROUNDINGS if _size(scores, entry) <= LIMIT_BYTES)
    rounding = next(fitting, ROUNDINGS[-1])
    # Members of an archive are packed one by one, so that sizes add up.
    room = LIMIT_BYTES - _size(scores, rounding) + _size(first_lines(lines, 0), rounding)
    counts = (n for n in LINE_COUNTS if _size(first_lines(lines, n), rounding) <= room)
    return round_arrays(first_lines(arrays, next(counts, 0)), rounding)


def first_lines(arrays: Arrays, count: int) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The arrays with no more than so many lines."""
    return {
        name: array[(slice(None),) * LINE_AXIS[name] + (slice(count),)]
        if name in LINE_AXIS
        else array
        for name, array in arrays.items()
    }


def _size(arrays: Arrays, rounding: Rounding) -> int:
    return len(to_npz(round_arrays(arrays, rounding)))


def round_arrays(arrays: Arrays, rounding: Rounding) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The arrays as a sidecar with this rounding stores them.

    `shown/target` [W H B 4] and `shown/scenario` [W M H B 4] are replaced by their levels;
    `expand` brings them back.
    """
    rounded = {ROUNDING_NAME: np.array(astuple(rounding), dtype=np.int64)}
    for name, array in arrays.items():
        if name != ROUNDING_NAME:
            rounded |= _round_array(name, array, rounding)
    return rounded


def expand(arrays: Arrays) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The arrays with `shown/target` [W H B 4] and `shown/scenario` [W M H B 4] as numbers."""
    numbers = {name: array for name, array in arrays.items() if not _is_coded(name)}
    for name in ("shown/target", "shown/scenario"):
        parts = [arrays[f"{name}_{part}"] for part in SERIES if f"{name}_{part}" in arrays]
        if len(parts) == len(SERIES):
            numbers[name] = _buses_last(series_of(*parts))
    return numbers


def rounding_of(arrays: Arrays) -> Rounding | None:
    """The rounding that a sidecar notes; None where it notes none that exists."""
    noted = arrays.get(ROUNDING_NAME, np.empty(0)).tolist()
    return next((rounding for rounding in ROUNDINGS if list(astuple(rounding)) == noted), None)


def levels_of(
    series: Float[np.ndarray, "R S"], step: int = 1
) -> tuple[Float32[np.ndarray, " R"], Float32[np.ndarray, " R"], UInt8[np.ndarray, "R S"]]:
    """Minimum and maximum of each row, and its values on the levels between them."""
    low, high = series.min(axis=1), series.max(axis=1)
    span = np.where(high > low, high - low, 1.0)
    levels = np.rint((series - low[:, None]) / span[:, None] * (LEVELS // step)) * step
    return low.astype(np.float32), high.astype(np.float32), levels.astype(np.uint8)


def series_of(
    low: Float32[np.ndarray, "W B K"],
    high: Float32[np.ndarray, "W B K"],
    steps: UInt8[np.ndarray, "W B K *rest"],
) -> Float32[np.ndarray, "W B K *rest"]:
    """The series whose differences from level to level, modulo 256, are `steps`."""
    level = np.cumsum(steps, axis=-1, dtype=np.uint8).astype(np.float32) / LEVELS
    shape = low.shape + (1,) * (steps.ndim - low.ndim)
    return low.reshape(shape) + level * (high - low).reshape(shape)


def read_sidecar(
    path: str | Path, *, expanded: bool = False
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """The arrays in the sidecar of the row whose JSON file is at `path`.

    Args:
        path: the file of the row, or of its sidecar.
        expanded: whether to turn the levels of scenarios and targets into numbers:
            `shown/scenario` (windows, scenarios, steps, buses, 4) and `shown/target` without the
            axis of scenarios.
    """
    file = Path(path).with_suffix(".npz")
    try:
        content = BytesIO(read_regular_file(file, MAX_BYTES))
        with zipfile.ZipFile(content) as archive:
            names = archive.namelist()
            if len(set(names)) < len(names):
                raise ValueError("two arrays have one name")
            arrays = {name.removesuffix(".npy"): _array(archive, name) for name in names}
        _check_axes(arrays)
        return expand(arrays) if expanded else arrays
    except UNREADABLE as error:
        raise ResultError(
            f"{file}: cannot be read ({error}); restore it or score the forecast again"
        ) from error


def to_npz(arrays: Arrays, where: str = "sidecar") -> bytes:
    """The arrays as an `.npz` file: equal arrays give equal bytes."""
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_LZMA) as archive:
        for name in sorted(arrays):
            if arrays[name].dtype.hasobject:
                raise ResultError(f"{where}: array {name!r} holds Python objects, not numbers")
            # Opened by name, a member is dated 1980; of two equal arrays one may lie transposed.
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asarray(arrays[name], order="C"))
    return buffer.getvalue()


def _check_axes(arrays: Arrays) -> None:
    """Raise if an array has another type or shape, or cannot be drawn."""
    sizes: dict[str, int] = {}
    for name, array in arrays.items():
        rule = SCHEMA.get(name) or SCHEMA.get(f"{name.partition('/')[0]}/")
        if rule is None:
            continue
        dtype, axes = rule
        is_typed = array.dtype.isnative and array.dtype.str[1:].startswith(dtype)
        if not is_typed or not fits_axes(array.shape, axes, sizes):
            raise ValueError(f"{name} is {array.dtype} {array.shape}, not {dtype} [{axes}]")
        if name.startswith("shown/") and not np.isfinite(array).all():
            raise ValueError(f"{name} has numbers that are not finite")


def _array(archive: zipfile.ZipFile, name: str) -> Shaped[np.ndarray, "..."]:
    """The array of a member; nothing is allocated for more numbers than the member can hold."""
    info = archive.getinfo(name)
    with archive.open(info) as member:
        version = np.lib.format.read_magic(member)
        if version != (1, 0):
            raise ValueError(f"{info.filename} has version {version} of the format")
        shape, _, dtype = np.lib.format.read_array_header_1_0(member)
    if dtype.kind not in "biuf":
        raise ValueError(f"{info.filename} holds {dtype}, not numbers")
    if prod(shape) * dtype.itemsize > min(info.file_size, MAX_BYTES):
        raise ValueError(f"{info.filename} is too short for {shape}")
    with archive.open(info) as member:
        return np.lib.format.read_array(member, allow_pickle=False)


def _round_array(
    name: str, array: Shaped[np.ndarray, "..."], rounding: Rounding
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """An array as the sidecar stores it; more than one where it is coded."""
    n = rounding.buses
    if name == "shown/bus_id":
        return {name: array[:n]}
    if name == "shown/weight":
        return {name: array[..., :n, :]}
    if name == "shown/target":
        return _encode(name, array[..., :n, :].transpose(0, 2, 3, 1), 1)
    if name == "shown/scenario":
        return _encode(name, array[..., :n, :].transpose(0, 3, 4, 1, 2), rounding.level_step)
    if name in (RISK, LINE_RISK):
        held = array[..., :: rounding.risk_hold].repeat(rounding.risk_hold, axis=-1)
        step = rounding.risk_step
        return {name: (np.rint(held[..., : array.shape[-1]] / step) * step).astype(np.uint8)}
    if name.startswith(SCORES_BY) and not name.endswith("/safety_mbrier"):
        return {name: _round_mantissa(array, rounding.bits)}
    return {name: array}


def _round_mantissa(array: Float[np.ndarray, "..."], bits: int) -> Float32[np.ndarray, "..."]:
    """The numbers with so many bits after the leading one; NaN stays NaN."""
    mantissa, exponent = np.frexp(array.astype(np.float32))
    scale = np.float32(2 ** (bits + 1))
    return np.ldexp(np.rint(mantissa * scale) / scale, exponent)


def _encode(
    name: str, series: Float[np.ndarray, "W B K *rest"], level_step: int
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Levels between the extremes of each bus and variable, as differences in time.

    Smooth series become small numbers, which compress to less.
    """
    each = series.shape[:3]
    low, high, levels = levels_of(series.reshape(int(np.prod(each)), -1), level_step)
    steps = np.diff(levels.reshape(series.shape), axis=-1, prepend=np.uint8(0))
    return {
        f"{name}_low": low.reshape(each),
        f"{name}_high": high.reshape(each),
        f"{name}_steps": steps,
    }


def _is_coded(name: str) -> bool:
    return name.startswith("shown/") and name.endswith(tuple(f"_{part}" for part in SERIES))


def _buses_last(
    series: Shaped[np.ndarray, "W B K *rest"],
) -> Shaped[np.ndarray, "W *rest B K"]:
    return np.moveaxis(series, (1, 2), (-2, -1))
