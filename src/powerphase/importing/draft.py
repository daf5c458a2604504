"""A record in the making: values in the order of the buses, at regular times."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches

import numpy as np
from jaxtyping import Bool, Float, Int, Shaped

from powerphase.axes import KINDS, THETA, VARIABLES, P, Q, V
from powerphase.errors import RecordError
from powerphase.grid.case import BASE_KV, Grid
from powerphase.importing.mapping import SourceMapping
from powerphase.importing.networks import Network, number_buses
from powerphase.importing.readings import Readings
from powerphase.importing.times import regular_axis, step_of

PLAUSIBLE_PU = (0.7, 1.4)
"""The median voltage of a bus; any other is in another unit."""

POSSIBLE_PU = (0.2, 2.0)
"""Any voltage; one outside is a broken sensor."""

LARGEST_MVA = 1e6
"""Any power; the largest grid of the catalogue gives 3e5 MW in total."""


@dataclass(frozen=True, eq=False)
class Places:
    """The buses of a record, and what a source calls them."""

    bus_id: Int[np.ndarray, " N"]
    rows: Mapping[str, int]
    """The position of each bus by its own names."""
    names: Mapping[int, str]
    """The names of buses that have one beside their number, by position."""
    nominal_kv: Float[np.ndarray, " N"]
    """0 where it is unknown."""
    grid: Grid | None
    labels: Mapping[str, int] = field(default_factory=dict)
    """The position of each bus by what the source of the record so far called it."""

    def row_of(self, bus: str, mapping: SourceMapping) -> int | None:
        """The position of a bus of a source; None if there is no such bus.

        A mapping gives the bus its own name. Without one, a source that continues the record
        means what the first one meant.
        """
        name = mapping.buses.get(bus)
        if name is None:
            return self.labels.get(bus, self.rows.get(bus))
        return self.rows.get(name, self.labels.get(name))

    @property
    def title(self) -> str:
        """What the buses belong to, for messages."""
        return "the record" if self.grid is None else f"grid {self.grid.name!r}"

    def label(self, row: int) -> str:
        """The number of a bus, and its name if it has one."""
        name = self.names.get(row)
        return f"{self.bus_id[row]} ({name})" if name else str(self.bus_id[row])


@dataclass(eq=False)
class Draft:
    """The values of a record; NaN where nothing is known."""

    source: str
    time: Shaped[np.ndarray, " S"]
    step_s: int
    places: Places
    labels: dict[int, str]
    """What the source calls the buses, by position."""
    values: Float[np.ndarray, "S N 4"]
    given: Bool[np.ndarray, "N 4"]
    """Which channels the source has."""
    notes: list[str]

    @property
    def n_steps(self) -> int:
        """Number of steps, S."""
        return len(self.time)

    @property
    def grid(self) -> Grid | None:
        """The grid, if there is one."""
        return self.places.grid

    def channel(self, bus: int, kind: int) -> str:
        """The name of a channel, for messages."""
        return f"{VARIABLES[kind]} of bus {self.places.label(bus)}"


def make_draft(readings: Readings, places: Places, mapping: SourceMapping) -> Draft:
    """The draft of a record from what a source says."""
    step_s = step_of(readings.time, readings.source)
    time, steps = regular_axis(readings.time, step_s, readings.source)
    if mapping.stamp == "end":
        time = time - np.timedelta64(step_s, "s")
    rows = _match(readings, places, mapping)
    values = np.full((len(time), len(places.bus_id), KINDS), np.nan)
    for kind, variable in enumerate(VARIABLES):
        if variable in readings.values:
            values[steps[:, None], np.array(rows), kind] = readings.values[variable]
    if readings.in_kv:
        values[..., V] /= _nominal_kv(readings, places, rows)
    draft = Draft(
        source=readings.source,
        time=time,
        step_s=step_s,
        places=places,
        labels=dict(zip(rows, readings.buses, strict=True)),
        values=values,
        given=~np.isnan(values).all(axis=0),
        notes=list(readings.notes),
    )
    missing = draft.n_steps - len(steps)
    if missing:
        draft.notes.append(f"{missing:,} steps have no row")
    _check_sizes(draft)
    return draft


def places_of(readings: Readings, network: Network | None, mapping: SourceMapping) -> Places:
    """Where the buses of a new record are: in a grid, or in the order of the source."""
    if network is not None:
        grid = network.grid
        names = {row: name for row, name in network.names.items() if name != str(grid.bus_id[row])}
        places = Places(grid.bus_id, network.rows, names, grid.bus[:, BASE_KV].copy(), grid)
        for bus in readings.buses:
            row = places.row_of(bus, mapping)
            if row is not None and places.nominal_kv[row] == 0:  # as in the IEEE cases
                places.nominal_kv[row] = mapping.nominal_kv_of(bus)
        return places
    own_names = [mapping.buses.get(bus, bus) for bus in readings.buses]
    bus_id = number_buses(own_names)
    rows = {bus: row for row, bus in enumerate(own_names)}
    names = {row: bus for bus, row in rows.items() if bus != str(bus_id[row])}
    nominal_kv = [mapping.nominal_kv_of(bus) for bus in readings.buses]
    return Places(bus_id, rows, names, np.array(nominal_kv), None)


def _match(readings: Readings, places: Places, mapping: SourceMapping) -> list[int]:
    """The row of each bus of the source."""
    matches = [places.row_of(bus, mapping) for bus in readings.buses]
    unknown = [bus for bus, row in zip(readings.buses, matches, strict=True) if row is None]
    if unknown:
        name = mapping.buses.get(unknown[0], unknown[0])
        near = get_close_matches(name, {**places.rows, **places.labels}, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise RecordError(
            f"{readings.source}: {len(unknown)} buses are not in {places.title}: "
            f"{', '.join(unknown[:5])}{hint}; name them in the section `buses` of a mapping, or "
            "leave them out"
        )
    rows = [row for row in matches if row is not None]
    if len(set(rows)) < len(rows):
        row = next(row for row in rows if rows.count(row) > 1)
        both = [bus for bus, k in zip(readings.buses, rows, strict=True) if k == row]
        raise RecordError(
            f"{readings.source}: {' and '.join(both)} are both bus {places.bus_id[row]} of "
            f"{places.title}; give each bus once"
        )
    return rows


def _nominal_kv(readings: Readings, places: Places, rows: list[int]) -> Float[np.ndarray, " N"]:
    """The nominal voltage of each bus, by which voltages in kV are divided."""
    missing = [row for row in rows if not places.nominal_kv[row] > 0]
    if missing:
        raise RecordError(
            f"{readings.source}: voltages are in kV, but the nominal voltage of bus "
            f"{places.label(missing[0])} is unknown; give it as `nominal_kv` in the "
            "mapping, as a number or by bus, or give voltages in p.u."
        )
    return np.where(places.nominal_kv > 0, places.nominal_kv, 1.0)


def _check_sizes(draft: Draft) -> None:
    """Raise if the sizes of values tell that they are in another unit than stated."""
    values = draft.values
    for bus in np.flatnonzero(draft.given[:, V]):
        median = float(np.nanmedian(values[:, bus, V]))
        if not PLAUSIBLE_PU[0] <= median <= PLAUSIBLE_PU[1]:
            hint = "check its unit and the nominal voltage"
            if 0.55 <= median <= 0.61:
                hint = "it may be from phase to ground: multiply it by √3"
            raise RecordError(
                f"{draft.source}: {draft.channel(int(bus), V)} has a median of {median:.4g} p.u.; "
                f"{hint}"
            )
    theta = np.abs(values[..., THETA])
    if draft.given[:, THETA].any() and np.nanmax(theta) > 2 * np.pi:
        step, bus = np.unravel_index(np.nanargmax(theta), theta.shape)
        raise RecordError(
            f"{draft.source}: {draft.channel(int(bus), THETA)} at {draft.time[step]} is "
            f"{values[step, bus, THETA]:.4g} rad; angles may be in degrees: state their unit"
        )
    for kind in (P, Q):
        size = np.abs(values[..., kind])
        if draft.given[:, kind].any() and np.nanmax(size) > LARGEST_MVA:
            step, bus = np.unravel_index(np.nanargmax(size), size.shape)
            raise RecordError(
                f"{draft.source}: {draft.channel(int(bus), kind)} at {draft.time[step]} is "
                f"{values[step, bus, kind]:.4g} MVA; check its unit"
            )
