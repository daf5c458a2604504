"""Networks of PyPSA with snapshots, read by attributes or from their NetCDF files.

PyPSA is no dependency: a network is read by the names of its tables. Powers of buses are injections
in PyPSA, and are turned into consumption.
"""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from powerphase.axes import VARIABLES
from powerphase.errors import CaseError, RecordError
from powerphase.grid.case import PQ, PV, SLACK, Grid
from powerphase.importing.mapping import SourceMapping
from powerphase.importing.networks import Network, as_frame, column, number_buses, plain_name
from powerphase.importing.readings import Readings
from powerphase.importing.tables import missing_package, unchanged
from powerphase.importing.times import parse_times

BASE_MVA = 100.0

RESULTS = {"p": ("P", -1.0), "q": ("Q", -1.0), "v_mag_pu": ("V", 1.0), "v_ang": ("theta", 1.0)}
"""The series of buses, and what turns them into consumption, p.u. and rad."""

TABLES = ("buses", "lines", "transformers", "generators", "loads", "shunt_impedances")


def is_network(value: object) -> bool:
    """Whether the value is a network of PyPSA."""
    return hasattr(value, "snapshots") and hasattr(value, "buses_t") and hasattr(value, "lines")


def load(path: str | Path) -> Any:
    """The tables and bus series of the network in a NetCDF file that PyPSA exported."""
    try:
        import xarray
    except ImportError as error:
        raise missing_package("a PyPSA file", "xarray and h5netcdf") from error
    file = Path(path)
    with unchanged(file):
        try:
            with xarray.open_dataset(file) as opened:
                dataset = opened.load()
        except Exception as error:  # the engines have no common error
            reason = " ".join(str(error).split())
            raise CaseError(f"{path}: cannot be read as NetCDF ({reason})") from error
    net = SimpleNamespace(name=dataset.attrs.get("network_name", ""), buses_t=SimpleNamespace())
    for table in TABLES:
        index = dataset.coords.get(f"{table}_i")
        labels = [] if index is None else [str(label) for label in index.values]
        columns = {
            str(key).removeprefix(f"{table}_"): array.values
            for key, array in dataset.data_vars.items()
            if str(key).startswith(f"{table}_") and array.dims == (f"{table}_i",)
        }
        setattr(net, table, pd.DataFrame(columns, index=pd.Index(labels)))
    if not len(net.buses):
        raise CaseError(f"{path}: is no network of PyPSA: it has no buses")
    net.snapshots = dataset.indexes.get("snapshots", pd.DatetimeIndex([]))
    for name in RESULTS:
        series = pd.DataFrame(index=net.snapshots)
        if f"buses_t_{name}" in dataset:
            array = dataset[f"buses_t_{name}"].transpose("snapshots", ...)
            labels = [str(label) for label in array.coords[array.dims[1]].values]
            series = pd.DataFrame(array.values, index=net.snapshots, columns=labels)
        setattr(net.buses_t, name, series)
    return net


def read_grid(net: Any) -> Network:
    """The grid of a network, with the names of its buses."""
    buses = as_frame(net.buses, "PyPSA's buses")
    labels = [str(label) for label in buses.index]
    numbers = number_buses(labels)
    number_of = dict(zip(labels, numbers.tolist(), strict=True))
    kv = dict(zip(labels, column(buses, "v_nom", 1.0).tolist(), strict=True))
    bus = np.zeros((len(buses), 13))
    bus[:, 0], bus[:, 1], bus[:, 6] = numbers, PQ, 1.0
    bus[:, 7], bus[:, 9], bus[:, 10] = 1.0, list(kv.values()), 1.0
    bus[:, 11], bus[:, 12] = _limits(buses)
    row_of = {label: row for row, label in enumerate(labels)}
    for sign, table in ((1.0, net.loads), (0.0, net.generators)):
        for label, power in zip(table.get("bus", []), column(table, "p_set", 0.0), strict=True):
            bus[row_of[_known(str(label), row_of)], 2] += sign * power
    if not (bus[:, 2] > 0).any():  # loads may have series only
        for label in net.loads.get("bus", []):
            bus[row_of[_known(str(label), row_of)], 2] += 1.0
    gen = _generators(net, row_of, number_of, bus)
    transformers = _transformers(net, number_of)
    branch = np.concatenate([_lines(net, kv, number_of), transformers.real])
    shunts = net.shunt_impedances
    pairs = zip(
        shunts.get("bus", []), column(shunts, "g", 0.0), column(shunts, "b", 0.0), strict=True
    )
    for label, conductance, susceptance in pairs:
        square = kv[_known(str(label), row_of)] ** 2
        bus[row_of[str(label)], 4] += conductance * square
        bus[row_of[str(label)], 5] += susceptance * square
    _add_line_losses(net, kv, row_of, bus)
    place = {number: row for row, number in enumerate(numbers.tolist())}
    for transformer in transformers[transformers[:, 10] != 0]:
        loss, ratio = 0.5 * BASE_MVA * transformer[4].imag, transformer[8].real
        bus[place[int(transformer[0].real)], 4] += loss / ratio**2
        bus[place[int(transformer[1].real)], 4] += loss
    grid = Grid(plain_name(str(net.name or ""), "pypsa"), BASE_MVA, bus, gen, branch)
    names = {row: label for row, label in enumerate(labels) if label != str(numbers[row])}
    return Network(grid, row_of, names)


def _limits(buses: pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """The voltage limits of the buses; PyPSA's own defaults, 0 and infinity, are none."""
    high, low = column(buses, "v_mag_pu_max", 1.1), column(buses, "v_mag_pu_min", 0.9)
    return np.where(np.isfinite(high), high, 1.1), np.where(low > 0, low, 0.9)


def _known(label: str, known: dict[str, Any]) -> str:
    if label not in known:
        raise CaseError(f"the PyPSA network has no bus {label!r}, to which an element is connected")
    return label


def _generators(
    net: Any, row_of: dict[str, int], number_of: dict[str, int], bus: np.ndarray
) -> np.ndarray:
    """The generators, and the types of their buses; the first one is the slack if none is."""
    table = net.generators
    if not len(table):
        raise CaseError("the PyPSA network has no generator, so no bus holds its voltage")
    control = table["control"].astype(str) if "control" in table else pd.Series("PQ", table.index)
    if not (control == "Slack").any():
        control = control.copy()
        control.iloc[0] = "Slack"
    gen = np.zeros((len(table), 10))
    voltage = dict(
        zip(net.buses.index.astype(str), column(net.buses, "v_mag_pu_set", 1.0), strict=True)
    )
    has_slack = False
    for k, (label, kind) in enumerate(zip(table["bus"].astype(str), control, strict=True)):
        row = row_of[_known(label, row_of)]
        gen[k, [0, 3, 4, 5, 6, 7, 8]] = (
            *(number_of[label], 1e9, -1e9),
            *(voltage[label] or 1.0, BASE_MVA, 1.0, 1e9),
        )
        if kind == "Slack" and not has_slack:
            bus[row, 1], has_slack = SLACK, True
        elif kind in ("PV", "Slack") and bus[row, 1] == PQ:
            bus[row, 1] = PV
    gen[:, 1] = column(table, "p_set", 0.0)
    return gen


def _lines(net: Any, kv: dict[str, float], number_of: dict[str, int]) -> np.ndarray:
    """The lines, whose impedances are in ohms."""
    table = net.lines
    branch = np.zeros((len(table), 11))
    if not len(table):
        return branch
    start, end = (table[name].astype(str) for name in ("bus0", "bus1"))
    square = np.array([kv[_known(label, kv)] for label in start]) ** 2
    branch[:, 0] = [number_of[label] for label in start]
    branch[:, 1] = [number_of[_known(label, number_of)] for label in end]
    branch[:, 2] = column(table, "r", 0.0) * BASE_MVA / square
    branch[:, 3] = column(table, "x", 0.0) * BASE_MVA / square
    branch[:, 4] = column(table, "b", 0.0) * square / BASE_MVA
    branch[:, 5] = column(table, "s_nom", 0.0) * column(table, "s_max_pu", 1.0)
    branch[:, 10] = column(table, "active", 1.0)
    return branch


def _transformers(net: Any, number_of: dict[str, int]) -> np.ndarray:
    """The transformers, whose impedances are in p.u. of their own power.

    The imaginary part of the column of charging is the loss of the shunt, which a branch lacks.
    """
    table = net.transformers
    branch = np.zeros((len(table), 11), dtype=np.complex128)
    if not len(table):
        return branch
    size = column(table, "s_nom", 1.0)
    impedance = (column(table, "r", 0.0) + 1j * column(table, "x", 0.0)) * BASE_MVA / size
    shunt = (column(table, "g", 0.0) + 1j * column(table, "b", 0.0)) * size / BASE_MVA
    is_t = table["model"].astype(str) == "t" if "model" in table else pd.Series(True, table.index)
    with np.errstate(divide="ignore", invalid="ignore"):
        # The star of a T model as a triangle: half of the series impedance at each side.
        converted = is_t.to_numpy() & (shunt != 0)
        half, middle = impedance / 2, 1 / np.where(converted, shunt, 1.0)
        total = half * half + 2 * half * middle
        impedance = np.where(converted, total / middle, impedance)
        shunt = np.where(converted, 2 * half / total, shunt)
    ends = [
        [number_of[_known(str(label), number_of)] for label in table[n]] for n in ("bus0", "bus1")
    ]
    at_end = column(table, "tap_side", 0.0) == 1
    branch[:, 0] = np.where(at_end, ends[1], ends[0])
    branch[:, 1] = np.where(at_end, ends[0], ends[1])
    branch[:, 2], branch[:, 3] = impedance.real, impedance.imag
    branch[:, 4] = shunt.imag + 1j * shunt.real
    branch[:, 5] = size * column(table, "s_max_pu", 1.0)
    branch[:, 8] = column(table, "tap_ratio", 1.0)
    branch[:, 9] = column(table, "phase_shift", 0.0) * np.where(at_end, -1.0, 1.0)
    branch[:, 10] = column(table, "active", 1.0)
    return branch


def _add_line_losses(
    net: Any, kv: dict[str, float], row_of: dict[str, int], bus: np.ndarray
) -> None:
    """Count the shunt losses of lines as shunts of their buses, half at each end."""
    table = net.lines
    loss = column(table, "g", 0.0) * column(table, "active", 1.0)
    for name in ("bus0", "bus1"):
        for label, conductance in zip(table.get(name, []), loss, strict=True):
            square = kv[str(label)] ** 2
            bus[row_of[str(label)], 4] += 0.5 * conductance * square


def read_results(net: Any, mapping: SourceMapping) -> Readings:
    """The readings in the snapshots of a network whose power flow was run."""
    source = "the PyPSA network"
    labels = [str(label) for label in net.buses.index]
    index = pd.Index(net.snapshots)
    if not len(index):
        raise RecordError(f"{source}: has no snapshots")
    column_of_times = pd.Series(index)
    if column_of_times.dtype.kind == "M" and column_of_times.dt.tz is None and not mapping.zone:
        column_of_times = column_of_times.dt.tz_localize("UTC")  # as PyPSA's users mean it
    time = parse_times(column_of_times, None, mapping, lambda row: f"{source}, snapshot {row}")
    values: dict[str, np.ndarray] = {}
    for name, (kind, factor) in RESULTS.items():
        series = getattr(net.buses_t, name, None)
        if series is None or not len(getattr(series, "columns", ())):
            continue
        table = as_frame(series, f"{source}, buses_t.{name}").set_axis(
            [str(label) for label in series.columns], axis=1
        )
        values[kind] = factor * table.reindex(columns=labels).to_numpy(dtype=np.float64)
    if not values:
        raise RecordError(f"{source}: buses_t has no p, q, v_mag_pu or v_ang; run its power flow")
    order = np.argsort(time, kind="stable")
    ordered = {kind: values[kind][order] for kind in VARIABLES if kind in values}
    return Readings(source, time[order], tuple(labels), ordered)
