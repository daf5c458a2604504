"""Networks of pandapower and their time series, read by attributes; pandapower is no dependency.

pandapower turns a network into branches and shunts (`net._ppc`) when it runs a power flow; those
are read, so that lines, transformers, closed switches and shunts are what pandapower makes of them.
Buses that closed switches join are one bus here.
"""

import json
from collections.abc import Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pandas as pd
from jaxtyping import Float

from powerphase.errors import CaseError, RecordError
from powerphase.grid.case import (
    BS,
    BUS_I,
    BUS_TYPE,
    GS,
    PV,
    RATINGS_MVA,
    SLACK,
    VMAX,
    VMIN,
    Grid,
)
from powerphase.importing.mapping import SourceMapping, parse_step
from powerphase.importing.networks import Network, column, number_buses, plain_name
from powerphase.importing.readings import Readings
from powerphase.importing.tables import bus_name, missing_package, unchanged
from powerphase.importing.times import parse_times

# Columns of pandapower's branches beyond MATPOWER's.
BR_R_ASYM, BR_X_ASYM, BR_G, BR_G_ASYM, BR_B_ASYM = 21, 22, 23, 24, 25
ISOLATED = 4

RESULTS = MappingProxyType(
    {
        "p_mw": ("P", 1.0),
        "q_mvar": ("Q", 1.0),
        "vm_pu": ("V", 1.0),
        "va_degree": ("theta", np.pi / 180),
    }
)
"""The columns of `res_bus`; powers are consumption."""


def is_network(value: object) -> bool:
    """Whether the value is a network of pandapower."""
    return hasattr(value, "ext_grid") and hasattr(value, "res_bus") and hasattr(value, "trafo")


def load(path: str | Path) -> Any:
    """The network in a JSON file, which pandapower itself must read."""
    try:
        import pandapower
    except ImportError as error:
        raise missing_package("a pandapower file", "pandapower") from error
    with unchanged(Path(path)):
        try:
            return pandapower.from_json(str(path))
        except Exception as error:  # it has no common error for broken files
            reason = " ".join(str(error).split())
            raise CaseError(f"{path}: pandapower cannot read it ({reason})") from error


def read_grid(net: Any) -> Network:
    """The grid of a network, with the names and numbers of its buses."""
    ppc, lookup = _solved_case(net)
    bus = np.real(np.asarray(ppc["bus"]))[:, :13].astype(np.float64)
    branch = np.real(np.asarray(ppc["branch"])).astype(np.float64)
    members = {int(index): int(lookup[index]) for index in net.bus.index if lookup[index] >= 0}
    used = np.flatnonzero(bus[:, BUS_TYPE] != ISOLATED)
    first_member: dict[int, int] = {}
    for index, row in members.items():
        first_member.setdefault(row, index)
    numbers = _numbers(used, first_member, [int(index) for index in net.bus.index])
    _move_branch_shunts(bus, branch, float(ppc["baseMVA"]))
    position = {int(row): k for k, row in enumerate(used)}
    grid = _make_grid(net, ppc, bus[used], branch, numbers, position)
    rows: dict[str, int] = {}
    names: dict[int, str] = {}
    for index, row in members.items():
        if row not in position:
            continue
        name = bus_name(net.bus["name"].get(index)) if "name" in net.bus else ""
        rows[str(index)] = position[row]
        if name and index == first_member[row]:
            names[position[row]] = name
    repeated = pd.Series(list(names.values()), dtype=object)
    unique = set(repeated[~repeated.duplicated(keep=False)])
    rows |= {name: row for row, name in names.items() if name in unique and name not in rows}
    return Network(grid, rows, names, _shunts(net, lookup))


def _solved_case(net: Any) -> tuple[Mapping[str, Any], np.ndarray]:
    """The branches and shunts of the network, and the position of each of its buses."""
    ppc, lookups = getattr(net, "_ppc", None), getattr(net, "_pd2ppc_lookups", None)
    if not ppc or not lookups or lookups.get("bus") is None:
        try:
            import pandapower
        except ImportError as error:
            raise missing_package("a network without results", "pandapower") from error
        net = deepcopy(net)
        try:
            pandapower.runpp(net)
        except Exception as error:
            raise CaseError(
                f"the pandapower network has no power flow ({error}); run pandapower.runpp first"
            ) from error
        ppc, lookups = net._ppc, net._pd2ppc_lookups
    return ppc, np.asarray(lookups["bus"])


def _numbers(used: np.ndarray, first_member: Mapping[int, int], indices: list[int]) -> np.ndarray:
    """The number of each bus: that of its first member; inner ones of transformers come last."""
    given = dict(zip(indices, number_buses(indices).tolist(), strict=True))
    numbers, following = [], max(given.values()) + 1
    for row in used.tolist():
        if row in first_member:
            numbers.append(given[first_member[row]])
        else:
            numbers.append(following)
            following += 1
    return np.array(numbers, dtype=np.float64)


def _move_branch_shunts(
    bus: Float[np.ndarray, "N 13"], branch: Float[np.ndarray, "L 26"], base_mva: float
) -> None:
    """Count losses and asymmetric charging of branches as shunts of their buses, which is exact."""
    if branch.shape[1] <= BR_B_ASYM:
        return
    on = branch[:, 10] > 0
    if (branch[on][:, [BR_R_ASYM, BR_X_ASYM]] != 0).any():
        raise CaseError(
            "the pandapower network has an impedance that differs by direction, which a MATPOWER "
            "case cannot hold; replace it with a line"
        )
    ratio = np.where(branch[:, 8] == 0, 1.0, branch[:, 8])
    start = 0.5 * branch[:, BR_G] / ratio**2
    end = 0.5 * (branch[:, BR_G] + branch[:, BR_G_ASYM])
    charging = 0.5 * branch[:, BR_B_ASYM]
    ends = branch[:, :2].astype(np.int64)
    np.add.at(bus[:, GS], ends[on, 0], base_mva * start[on])
    np.add.at(bus[:, GS], ends[on, 1], base_mva * end[on])
    np.add.at(bus[:, BS], ends[on, 1], base_mva * charging[on])


def _make_grid(
    net: Any,
    ppc: Mapping[str, Any],
    bus: Float[np.ndarray, "N 13"],
    branch: Float[np.ndarray, "L 26"],
    numbers: np.ndarray,
    position: Mapping[int, int],
) -> Grid:
    """The MATPOWER matrices of the network."""
    number_of = {row: numbers[k] for row, k in position.items()}
    bus[:, BUS_I] = numbers
    slack = np.flatnonzero(bus[:, BUS_TYPE] == SLACK)
    bus[slack[1:], BUS_TYPE] = PV  # other external grids hold their voltage and give known power
    for limit, usual in ((VMAX, 1.1), (VMIN, 0.9)):
        bus[:, limit] = np.where(np.isfinite(bus[:, limit]), bus[:, limit], usual)
        bus[:, limit] = np.where(
            (bus[:, limit] > 0.1) & (bus[:, limit] < 1.9), bus[:, limit], usual
        )
    kept = [k for k, ends in enumerate(branch[:, :2]) if {*map(int, ends)} <= position.keys()]
    matrix = branch[kept, :11].copy()
    matrix[:, :2] = [[number_of[int(end)] for end in row] for row in matrix[:, :2]]
    is_rating = np.isfinite(matrix[:, 5:8]) & (matrix[:, 5:8] <= RATINGS_MVA[1])
    matrix[:, 5:8] = np.where(is_rating, matrix[:, 5:8], 0.0)
    gen = np.real(np.asarray(ppc["gen"])).astype(np.float64)[:, :10]
    gen = gen[[int(row) in position for row in gen[:, 0]]].copy()
    gen[:, 0] = [number_of[int(row)] for row in gen[:, 0]]
    gen[:, 3:5] = np.where(np.isfinite(gen[:, 3:5]), gen[:, 3:5], [1e9, -1e9])
    return Grid(
        plain_name(str(net.name or ""), "pandapower"), float(ppc["baseMVA"]), bus, gen, matrix
    )


def _shunts(net: Any, lookup: np.ndarray) -> dict[str, complex]:
    """What `res_bus` counts as consumption of a bus at 1 p.u., and the grid as a shunt [MVA]."""
    total: dict[str, complex] = {}
    for table, p, q in ((net.shunt, "p_mw", "q_mvar"), (net.ward, "pz_mw", "qz_mvar")):
        if not len(table):
            continue
        on = column(table, "in_service", 1.0) * column(table, "step", 1.0)
        ratio = np.ones(len(table))
        if "vn_kv" in table:
            ratio = (net.bus["vn_kv"].loc[table["bus"]].to_numpy() / table["vn_kv"].to_numpy()) ** 2
        power = (column(table, p, 0.0) + 1j * column(table, q, 0.0)) * on * ratio
        for index, value in zip(table["bus"], power, strict=True):
            total[str(int(index))] = total.get(str(int(index)), 0j) + complex(value)
    if len(net.xward):
        raise CaseError("the pandapower network has an extended ward, which has an inner bus")
    return total


def read_results(source: Any, net: Any, mapping: SourceMapping) -> Readings:
    """The readings in the time series of a network.

    Args:
        source: a folder of pandapower's output writer, which has `res_bus/vm_pu.csv` and others, or
            a dictionary of tables by name, such as `{"res_bus.vm_pu": table}`, as in its `output`.
        net: the network.
        mapping: has `start` and `step` if the tables only number their steps.
    """
    name, tables = ("the results", source) if isinstance(source, Mapping) else _read_folder(source)
    found: dict[str, pd.DataFrame] = {}
    for key, table in tables.items():
        if (variable := str(key).rpartition(".")[2]) in RESULTS and isinstance(table, pd.DataFrame):
            found[variable] = table
    if not found:
        raise RecordError(f"{name}: no tables res_bus.p_mw, q_mvar, vm_pu or va_degree")
    first = next(iter(found.values()))
    for variable, table in found.items():
        if len(table) != len(first) or not table.index.equals(first.index):
            raise RecordError(f"{name}: {variable} has other times than the other tables")
    time = _times(first.index, mapping, name)
    buses = [bus_name(label) for label in first.columns]
    values = {}
    for variable, table in found.items():
        labels = [bus_name(label) for label in table.columns]
        if sorted(labels) != sorted(buses):
            raise RecordError(f"{name}: {variable} has other buses than the other tables")
        try:
            numbers = table.set_axis(labels, axis=1)[buses].to_numpy(dtype=np.float64)
        except ValueError as error:
            raise RecordError(f"{name}: {variable} holds text ({error})") from error
        kind, factor = RESULTS[variable]
        values[kind] = factor * numbers
    order = np.argsort(time, kind="stable")
    ordered = {kind: numbers[order] for kind, numbers in values.items()}
    network = read_grid(net)
    return join_members(Readings(name, time[order], tuple(buses), ordered), network)


def join_members(readings: Readings, network: Network) -> Readings:
    """The readings with one bus for all that closed switches join, without what shunts consume.

    The powers of members add up; their voltages are the same.
    """
    known = [k for k, bus in enumerate(readings.buses) if bus in network.rows]
    rows = np.array([network.rows[readings.buses[k]] for k in known])
    _, first, group = np.unique(rows, return_index=True, return_inverse=True)
    buses = tuple(readings.buses[known[k]] for k in first)
    size = (len(readings.time), len(first))
    values = {}
    for kind, numbers in readings.values.items():
        part = numbers[:, known]
        if kind in ("P", "Q"):
            joined = np.zeros(size)
            np.add.at(joined.T, group, part.T)
            values[kind] = joined
        else:
            values[kind] = part[:, first]
    if "V" in values:
        for bus, power in network.shunt_mva.items():
            if bus in readings.buses and bus in network.rows:
                place = int(group[known.index(readings.buses.index(bus))])
                for kind, shunt in (("P", power.real), ("Q", power.imag)):
                    if kind in values:
                        values[kind][:, place] -= shunt * values["V"][:, place] ** 2
    n_joined = len(known) - len(first)
    result = replace(readings, buses=buses, values=values)
    if n_joined:
        result = result.with_note(f"{n_joined:,} buses joined to others by closed switches")
    return result


def _read_folder(folder: str | Path) -> tuple[str, dict[str, pd.DataFrame]]:
    """The tables that pandapower's output writer wrote."""
    root = Path(folder)
    place = root / "res_bus" if (root / "res_bus").is_dir() else root
    tables = {}
    for variable in RESULTS:
        for file in (place / f"{variable}.csv", place / f"{variable}.json"):
            if file.is_file():
                tables[variable] = _read_table(file)
                break
    if not tables and any(place.glob("*.p")):
        raise RecordError(
            f"{place}: has pickles, which could run code; let the output writer write .csv or .json"
        )
    return str(folder), tables


def _read_table(file: Path) -> pd.DataFrame:
    with unchanged(file):
        try:
            if file.suffix == ".csv":
                return pd.read_csv(file, sep=";", index_col=0)
            content = json.loads(file.read_text())
            table = pd.DataFrame(content)
            table.index = pd.Index([int(k) if str(k).isdecimal() else k for k in table.index])
            return table.sort_index()
        except (ValueError, OSError, pd.errors.ParserError) as error:
            reason = " ".join(str(error).split())
            raise RecordError(f"{file}: cannot be read as a table ({reason})") from error


def _times(index: "pd.Index[Any]", mapping: SourceMapping, name: str) -> np.ndarray:
    """The time of each step: that of the index, or counted from the start in the mapping."""
    if not pd.api.types.is_numeric_dtype(index):
        return parse_times(pd.Series(index), None, mapping, lambda row: f"{name}, row {row + 1}")
    if mapping.start is None or mapping.step is None:
        raise RecordError(
            f"{name}: its steps are numbers ({index[0]}, …); give `start` and `step` in the "
            'mapping, such as start = "2016-01-01T00:00", step = "15min"'
        )
    offsets = (index.to_numpy() - index[0]).astype(np.int64)
    if len(np.unique(offsets)) < len(offsets):
        raise RecordError(f"{name}: a step occurs twice")
    seconds = int(parse_step(mapping.step).total_seconds())
    return np.datetime64(mapping.start, "s") + offsets * np.timedelta64(seconds, "s")
