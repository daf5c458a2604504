"""A transmission grid as a MATPOWER case describes it, checked before it is used.

The solver diverges silently on zero impedances, missing numbers and islands, and interprets a
second reference bus differently from MATPOWER. The constructor of `Grid` therefore checks the data:
every `Grid` is a connected network with one reference bus and finite numbers.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from powerphase.circuit import Circuit
from powerphase.errors import CaseError
from powerphase.grid.matpower_file import read_matpower_file

# Columns of MATPOWER's matrices, under MATPOWER's names.
BUS_I, BUS_TYPE, PD, QD, GS, BS, BUS_AREA, VM, VA, BASE_KV, ZONE, VMAX, VMIN = range(13)
GEN_BUS, PG, QG, QMAX, QMIN, VG, MBASE, GEN_STATUS, PMAX, PMIN = range(10)
F_BUS, T_BUS, BR_R, BR_X, BR_B, RATE_A, RATE_B, RATE_C, TAP, SHIFT, BR_STATUS = range(11)
COLUMNS = {"bus": 13, "gen": 10, "branch": 11}

LIMITS = {
    ("bus", PD): ("Pd", -1e6, 1e6),
    ("bus", QD): ("Qd", -1e6, 1e6),
    ("bus", GS): ("Gs", -1e6, 1e6),
    ("bus", BS): ("Bs", -1e6, 1e6),
    ("bus", BASE_KV): ("baseKV", 0.0, 1e4),
    ("gen", PG): ("Pg", -1e6, 1e6),
    ("gen", QG): ("Qg", -1e6, 1e6),
    ("gen", VG): ("Vg", 0.1, 10.0),
    ("branch", BR_R): ("r", -1e4, 1e4),
    ("branch", BR_X): ("x", -1e4, 1e4),
    ("branch", BR_B): ("b", -1e4, 1e4),
    ("branch", TAP): ("ratio", 0.1, 10.0),
    ("branch", SHIFT): ("angle", -360.0, 360.0),
}
"""MATPOWER's name and the range of each number that enters a power flow, for what is in service:
a hundred times what the grids of the catalogue have, or more, where no physical limit is nearer."""

UNLIMITED_MVA = 1e10
"""A rating this large means none, as in MATPOWER's optimal power flow; so does 0."""

RATINGS_MVA = (1e-3, 1e7)
"""The range of all other ratings; those of the catalogue are from 0.18 to 19,052 MVA."""

SHORT_PU = 1e-9
"""An impedance below this connects nothing but numbers; the smallest of the catalogue is 1e-5."""

PQ, PV, SLACK = 1, 2, 3
"""Bus types in MATPOWER's codes."""


@dataclass(frozen=True, eq=False)
class Grid:
    """Buses, generators and branches of one connected AC network, in the case file's order."""

    name: str
    base_mva: float
    bus: Float[np.ndarray, "N 13"]
    gen: Float[np.ndarray, "generators 10"]
    branch: Float[np.ndarray, "branches 11"]

    def __post_init__(self) -> None:
        problems = _find_problems(self)
        if problems:
            raise CaseError(f"grid {self.name!r}: {'; '.join(problems)}")

    @property
    def n_buses(self) -> int:
        """Number of buses, N."""
        return len(self.bus)

    @cached_property
    def bus_id(self) -> Int[np.ndarray, " N"]:
        """The case file's bus numbers."""
        return self.bus[:, BUS_I].astype(np.int64)

    @cached_property
    def generator_row(self) -> Int[np.ndarray, " generators"]:
        """Bus row (0-based) of each generator."""
        return self.rows(self.gen[:, GEN_BUS])

    @cached_property
    def branch_rows(self) -> Int[np.ndarray, "branches 2"]:
        """Bus rows (0-based) of each branch's two ends: from, to."""
        ends = self.rows(self.branch[:, [F_BUS, T_BUS]].ravel())
        return ends.reshape(-1, 2)

    @cached_property
    def generator_on(self) -> Bool[np.ndarray, " generators"]:
        """Whether each generator is in service."""
        return self.gen[:, GEN_STATUS] > 0

    @cached_property
    def branch_on(self) -> Bool[np.ndarray, " branches"]:
        """Whether each branch is in service."""
        return self.branch[:, BR_STATUS] > 0

    @cached_property
    def bus_type(self) -> Int[np.ndarray, " N"]:
        """1 PQ, 2 PV, 3 slack; a PV bus whose generators are all out of service is PQ."""
        types = np.full(self.n_buses, PQ)
        generating = np.zeros(self.n_buses, dtype=bool)
        generating[self.generator_row[self.generator_on]] = True
        types[(self.bus[:, BUS_TYPE] == PV) & generating] = PV
        types[self.bus[:, BUS_TYPE] == SLACK] = SLACK
        return types

    @property
    def n_pq_in_file(self) -> int:
        """Number of buses of type PQ in the file, whatever the status of their generators."""
        return int((self.bus[:, BUS_TYPE] == PQ).sum())

    @cached_property
    def setpoint_pu(self) -> Float[np.ndarray, " N"]:
        """The file's voltage set-point of each slack or PV bus [p.u.]; NaN at PQ buses."""
        setpoint = np.full(self.n_buses, np.nan)
        controls = self.generator_on & (self.bus_type[self.generator_row] != PQ)
        setpoint[self.generator_row[controls][::-1]] = self.gen[controls, VG][::-1]
        clash = controls & (setpoint[self.generator_row] != self.gen[:, VG])
        if clash.any():
            bus = self.bus_id[self.generator_row[clash][0]]
            raise CaseError(
                f"grid {self.name!r}: generators at bus {bus} have different voltage set-points; "
                "give one set-point for all buses (setpoint 1.02)"
            )
        return setpoint

    @cached_property
    def circuit(self) -> Circuit:
        """The branches in service and the shunts."""
        branch, bus = self.branch[self.branch_on], self.bus
        return Circuit(
            base_mva=self.base_mva,
            shunt_pu=(bus[:, GS] + 1j * bus[:, BS]) / self.base_mva,
            ends=self.branch_rows[self.branch_on],
            r_pu=branch[:, BR_R],
            x_pu=branch[:, BR_X],
            b_pu=branch[:, BR_B],
            ratio=np.where(branch[:, TAP] == 0, 1.0, branch[:, TAP]),
            shift_rad=np.deg2rad(branch[:, SHIFT]),
            name=tuple(np.array(self._branch_names(), dtype=object)[self.branch_on]),
        )

    def _branch_names(self) -> list[str]:
        """The ends of every branch in the file; later ones between the same buses are numbered.

        Branches out of service count as well, so that switching one changes no other's name.
        """
        count: dict[frozenset[int], int] = {}
        names = []
        for start, end in self.branch[:, [F_BUS, T_BUS]].astype(np.int64).tolist():
            pair = frozenset((start, end))
            count[pair] = count.get(pair, 0) + 1
            number = f"/{count[pair]}" if count[pair] > 1 else ""
            names.append(f"{start}-{end}{number}")
        return names

    @cached_property
    def sha256(self) -> str:
        """Content hash of the network, part of a recipe's fingerprint; it leaves out the name."""
        digest = hashlib.sha256(np.float64(self.base_mva).astype("<f8").tobytes())
        for matrix in (self.bus, self.gen, self.branch):
            digest.update(repr(matrix.shape).encode())
            digest.update(np.ascontiguousarray(matrix, dtype="<f8").tobytes())
        return digest.hexdigest()

    def rows(self, bus_ids: np.ndarray) -> Int[np.ndarray, " n"]:
        """Bus rows (0-based) of the bus numbers `bus_ids`; raise if one does not exist."""
        order = np.argsort(self.bus_id, kind="stable")
        position = np.searchsorted(self.bus_id, bus_ids, sorter=order)
        rows = order[np.minimum(position, len(order) - 1)]
        unknown = np.flatnonzero(self.bus_id[rows] != bus_ids)
        if unknown.size:
            bus = bus_ids[unknown[0]]
            raise CaseError(
                f"grid {self.name!r}: no bus {bus:g}; its {self.n_buses} buses are numbered "
                f"{self.bus_id.min()} to {self.bus_id.max()}"
            )
        return rows.astype(np.int64)


def read_grid(path: Path, name: str | None = None) -> Grid:
    """The grid in the MATPOWER case file at `path`, called `name` or by the file's stem."""
    case = read_matpower_file(path)
    matrices: dict[str, np.ndarray] = {}
    for field, width in COLUMNS.items():
        matrix = np.asarray(case[field])
        if len(matrix) == 0 or matrix.shape[1] < width:
            size = f"{matrix.shape[1]} columns" if len(matrix) else "no rows"
            raise CaseError(f"{path}: mpc.{field} has {size}; it needs at least {width} columns")
        matrices[field] = np.ascontiguousarray(matrix[:, :width])
    dc_lines = np.asarray(case.get("dcline", np.empty((0, 3))))
    if (dc_lines[:, 2:3] > 0).any():
        raise CaseError(
            f"{path}: contains DC lines in service, which an AC power flow cannot model; "
            "replace them with loads and generators or choose another grid"
        )
    return Grid(name or path.stem, float(np.asarray(case["baseMVA"])), **matrices)


def _find_problems(grid: Grid) -> list[str]:
    """Everything that keeps the grid from having one well-defined power flow, as clauses."""
    problems = _data_problems(grid)
    # The other checks rely on sound data.
    return problems or _reference_problems(grid) + _network_problems(grid)


def _data_problems(grid: Grid) -> list[str]:
    for name, width in COLUMNS.items():
        shape = getattr(grid, name).shape
        if len(shape) != 2 or shape[0] < 1 or shape[1] != width:
            return [f"mpc.{name} has the shape {shape}; it needs rows of {width} columns"]
    problems = []
    if not (np.isfinite(grid.base_mva) and grid.base_mva > 0):
        problems.append(f"baseMVA is {grid.base_mva:g}; it must be positive")
    ids, count = np.unique(grid.bus[:, BUS_I], return_counts=True)
    if (count > 1).any():
        worst = count.argmax()
        problems.append(f"bus number {ids[worst]:g} is used {count[worst]} times")
    invalid = ids[~((ids >= 1) & (ids <= 2**53) & (ids == np.round(ids)))]
    if invalid.size:
        problems.append(f"bus number {invalid[0]:g} is not a positive whole number")
    for name, matrix, columns in (
        ("bus", grid.bus, [BUS_I, BUS_TYPE, PD, QD, GS, BS, BASE_KV]),
        ("gen", grid.gen, [GEN_BUS, PG, QG, VG, GEN_STATUS]),
        ("branch", grid.branch, [F_BUS, T_BUS, BR_R, BR_X, BR_B, TAP, SHIFT, BR_STATUS]),
    ):
        rows = np.flatnonzero(~np.isfinite(matrix[:, columns]).all(axis=1))
        if rows.size:
            problems.append(f"row {rows[0] + 1} of mpc.{name} contains a non-finite number")
    for name, bus_numbers in (
        ("gen", grid.gen[:, [GEN_BUS]]),
        ("branch", grid.branch[:, [F_BUS, T_BUS]]),
    ):
        unknown = np.setdiff1d(bus_numbers, ids)
        if unknown.size:
            problems.append(
                f"mpc.{name} refers to bus {unknown[0]:g}, which is missing from mpc.bus"
            )
    rating, (least, most) = grid.branch[:, RATE_A : RATE_C + 1], RATINGS_MVA
    is_sound = (rating == 0) | (rating >= least) & (rating <= most) | (rating >= UNLIMITED_MVA)
    invalid_rows = np.flatnonzero(~is_sound.all(axis=1))  # also where one is NaN
    if invalid_rows.size:
        row = grid.branch[invalid_rows[0]]
        ratings = ", ".join(f"{value:g}" for value in row[RATE_A : RATE_C + 1])
        problems.append(
            f"branch {row[F_BUS]:g}-{row[T_BUS]:g} has the ratings {ratings} MVA; a rating must be "
            f"from {least:g} to {most:g} MVA, or 0 for none"
        )
    if not problems:
        problems += _range_problems(grid)
    if not (grid.bus[:, PD] > 0).any():
        problems.append("no bus has a load with P > 0, so nothing would vary")
    return problems


def _range_problems(grid: Grid) -> list[str]:
    """The first number of each column that no grid has, and the first branch that leads nowhere."""
    on = {"bus": True, "gen": grid.generator_on, "branch": grid.branch_on}
    problems = []
    for (matrix, column), (name, low, high) in LIMITS.items():
        values = getattr(grid, matrix)[:, column]
        is_wrong = (values < low) | (values > high)
        if column == TAP and matrix == "branch":
            is_wrong &= values != 0  # a line, which has no ratio
        rows = np.flatnonzero(is_wrong & on[matrix])
        if rows.size:
            problems.append(
                f"row {rows[0] + 1} of mpc.{matrix} has {name} = {values[rows[0]]:g}; it must be "
                f"from {low:g} to {high:g}"
            )
    loops = np.flatnonzero(grid.branch[:, F_BUS] == grid.branch[:, T_BUS])
    if loops.size:
        bus = grid.branch[loops[0], F_BUS]
        problems.append(
            f"row {loops[0] + 1} of mpc.branch connects bus {bus:g} with itself; "
            "remove it or model it as a shunt"
        )
    return problems


def _reference_problems(grid: Grid) -> list[str]:
    reference = np.flatnonzero(grid.bus[:, BUS_TYPE] == SLACK)
    if len(reference) == 0:
        return ["no slack bus (type 3); mark one bus with a generator as the reference"]
    if len(reference) > 1:
        buses = ", ".join(str(bus) for bus in grid.bus_id[reference[:4]])
        return [f"{len(reference)} slack buses ({buses}); exactly one must have type 3"]
    if not grid.generator_on[grid.generator_row == reference[0]].any():
        return [f"the slack bus {grid.bus_id[reference[0]]} has no generator in service"]
    return []


def _network_problems(grid: Grid) -> list[str]:
    problems = []
    has_other_type = ~np.isin(grid.bus[:, BUS_TYPE], (PQ, PV, SLACK))
    if has_other_type.any():
        bus = grid.bus[np.flatnonzero(has_other_type)[0]]
        problems.append(
            f"bus {bus[BUS_I]:g} has type {bus[BUS_TYPE]:g}; remove isolated buses (type 4)"
        )
    impedance = np.hypot(grid.branch[:, BR_R], grid.branch[:, BR_X])
    is_short = grid.branch_on & (impedance < SHORT_PU)
    if is_short.any():
        row = grid.branch[np.flatnonzero(is_short)[0]]
        problems.append(
            f"branch {row[F_BUS]:g}-{row[T_BUS]:g} has zero impedance; merge its two buses"
        )
    ends = grid.branch_rows[grid.branch_on]
    links = coo_array((np.ones(len(ends)), ends.T), shape=(grid.n_buses, grid.n_buses))
    n_islands, island = connected_components(links, directed=False)
    if n_islands > 1:
        outside = np.flatnonzero(island != np.bincount(island).argmax())
        problems.append(
            f"{n_islands} islands; {len(outside)} buses (first: {grid.bus_id[outside[0]]}) have no "
            "connection to the main network through branches in service"
        )
    return problems
