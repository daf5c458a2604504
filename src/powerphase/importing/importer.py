"""Import a record of states: read the source, check it, complete it, and store it."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import pandas as pd
from jaxtyping import Float

from powerphase.axes import KINDS, THETA, VARIABLES, P, Q, V
from powerphase.clock import GERMANY, Calendar
from powerphase.dataset.certificate import AcCheck
from powerphase.dataset.layout import AS_IMPORTED, is_url
from powerphase.dataset.recipe import ImportRecipe, Kind, import_recipe
from powerphase.dataset.store import Store, open_store
from powerphase.errors import CaseError, RecordError, StoreError, UnknownName
from powerphase.grid.admittance import admittance_matrix
from powerphase.grid.catalog import licence_notice
from powerphase.grid.powerflow import CARRIED, NEWTON
from powerphase.importing import pandapower, pypsa
from powerphase.importing.arrays import read_dataset
from powerphase.importing.balance import check_balance, implied_mva, known_points
from powerphase.importing.cleaning import remove_suspects
from powerphase.importing.completing import Completion, complete
from powerphase.importing.draft import Draft, Places, make_draft, places_of
from powerphase.importing.mapping import SourceMapping, read_mapping
from powerphase.importing.networks import Network, plain_name, read_network
from powerphase.importing.parts import is_large, read_parts
from powerphase.importing.readings import Readings
from powerphase.importing.storing import (
    Buses,
    Piece,
    append_record,
    buses_of,
    new_recipe,
    record_in_parts,
    remove_leftovers,
    write_record,
)
from powerphase.importing.tables import frame_table, read_csv, read_parquet, read_table

Gaps = Literal["fill", "refuse"]
Suspects = Literal["fill", "keep", "refuse"]

LEAST_DAYS = 8
"""A window needs a week of context and a day."""

WEEKS_KEPT = 8
"""How far back a grown record is read to fill the gaps of what is new."""

PARQUET = (".parquet", ".pq")

EDITION = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def import_states(
    source: Any,
    out: str | Path,
    *,
    grid: Any = None,
    mapping: str | Path | Mapping[str, Any] | SourceMapping | None = None,
    append: bool = False,
    kind: str = "auto",
    gaps: str = "fill",
    suspects: str = "fill",
    edition: str = "imported",
    country: str | None = None,
    zone: str | None = None,
) -> Store:
    """Import the record of states in a source, and open it.

    Args:
        source: the path of a table (.csv, .csv.gz, .parquet), of a NetCDF file or Zarr store, of a
            folder of pandapower's output writer or a file of PyPSA; or a data frame, an xarray data
            set, the tables of pandapower's output writer, or a network of PyPSA with snapshots.
        out: the folder of the data set.
        grid: a name of the catalogue, a MATPOWER file, a `Grid`, or a network of pandapower or
            PyPSA; without one there are no lines and no power flow. A record that grows has one.
        mapping: a TOML file, or its content, with columns, units, signs and names of buses.
        append: add later steps to the record that is in the folder.
        kind: `simulated` if all states must satisfy the AC equations to rounding, `measured` if
            they need not, `auto` for what they do.
        gaps: `fill` what is missing, which is never scored, or `refuse` it.
        suspects: `fill` impossible and stuck values and spikes like gaps, `keep` or `refuse` them.
        edition: a name for the data in results.
        country: the country whose holidays models know, such as `FR`, or `none`; Germany's by
            default. A record that grows keeps its own.
        zone: the time zone by whose clock they count days; by default that of the country.
    """
    _check_options(out, kind, gaps, suspects, edition)
    columns = read_mapping(mapping)
    store = open_store(out) if append else None
    if store is not None:
        import_recipe(store.manifest.recipe, store.path)  # raises if it was generated
    network = None if grid is None else read_network(grid)
    calendar = GERMANY.override(country, zone)
    rules = Rules(kind, gaps, suspects, edition, calendar)
    if store is None and _has_parts(source):
        return _import_parts(Path(source), network, columns, Path(out), rules)
    readings = _read_source(source, grid, columns)
    if store is None:
        draft = make_draft(readings, places_of(readings, network, columns), columns)
        del readings  # which take as much memory as the draft
        return _import_new(draft, Path(out), rules)
    draft = make_draft(readings, _places(store, network), columns)
    del readings
    return _import_more(draft, store, rules)


@dataclass(frozen=True)
class Rules:
    """How a record is checked and filled, and what it is called."""

    kind: str
    gaps: str
    suspects: str
    edition: str
    calendar: Calendar


def _has_parts(source: Any) -> bool:
    """Whether a source is a Parquet file that is too large to be read at once."""
    if not isinstance(source, str | Path) or not str(source).lower().endswith(PARQUET):
        return False
    return Path(source).is_file() and is_large(Path(source))


def _import_parts(
    source: Path, network: Network | None, columns: SourceMapping, out: Path, rules: Rules
) -> Store:
    """Write a new record from a file in parts, of which each continues the one before."""
    with record_in_parts(out) as folder:
        store: Store | None = None
        for table in read_parts(source, columns):
            readings = read_table(table, columns)
            if store is None:
                places = places_of(readings, network, columns)
                store = _import_new(make_draft(readings, places, columns), folder, rules)
                continue
            if readings.time[0] <= store.time[-1]:
                raise RecordError(
                    f"{source}, row {table.first_row}: {readings.time[0]} comes after later times; "
                    "a file of this size must be in the order of time, so sort it"
                )
            places = _places(store, None)
            store = _import_more(make_draft(readings, places, columns), store, rules)
    return open_store(out)


def _import_new(draft: Draft, out: Path, rules: Rules) -> Store:
    """Write a new record."""
    if draft.n_steps * draft.step_s < LEAST_DAYS * 86_400:
        days = draft.n_steps * draft.step_s / 86_400
        raise RecordError(
            f"{draft.source}: a record of {days:.1f} days is too short; a window needs a week of "
            f"context and a day, so give {LEAST_DAYS} days or more"
        )
    check_balance(draft)
    given = [name for k, name in enumerate(VARIABLES) if draft.given[:, k].any()]
    _clean(draft, rules)
    completion = complete(draft)
    piece = make_piece(draft, completion)
    fits = fits_equations(draft, piece)
    if rules.kind == "simulated" and not fits:
        raise RecordError(
            f"{draft.source}: its states do not satisfy the AC equations to rounding, or have no "
            "grid to check it by; import it as measured"
        )
    grid = draft.grid
    buses = _make_buses(draft, out, rules.calendar)
    chosen: Kind = "measured" if rules.kind == "measured" or not fits else "simulated"
    recipe = ImportRecipe(
        kind=chosen,
        grid_sha256=None if grid is None else grid.sha256,
        bus_sha256=buses.sha256,
        start=str(draft.time[0]),
        step_s=draft.step_s,
        given=tuple(given),
        solved=tuple(completion.solved),
        segments=(),
    )
    attribution = ["states: imported by the user; the terms of their source apply"]
    attribution[:0] = [] if grid is None else [licence_notice(grid)]
    recipe = new_recipe(recipe, piece, draft.notes)
    return write_record(out, rules.edition, attribution, buses, recipe, piece)


def _make_buses(draft: Draft, out: Path, calendar: Calendar) -> Buses:
    """The buses of a new record, with their names and what the source calls them."""
    places, numbers = draft.places, draft.places.bus_id.tolist()
    names = {numbers[row]: name for row, name in places.names.items()}
    labels = {
        numbers[row]: label for row, label in draft.labels.items() if label != str(numbers[row])
    }
    name = plain_name(out.absolute().name, "record") if draft.grid is None else draft.grid.name
    return Buses(draft.grid, places.bus_id, names, labels, places.nominal_kv, name, calendar)


def _import_more(draft: Draft, store: Store, rules: Rules) -> Store:
    """Add later steps to a record."""
    recipe = import_recipe(store.manifest.recipe, store.path)
    draft = _continue(draft, store)
    if draft.n_steps == 0:
        remove_leftovers(store)
        return store
    past = _past(store)
    check_balance(draft)
    _clean(draft, rules, past)
    _check_channels(draft, recipe)
    piece = make_piece(draft, complete(draft, past))
    if recipe.kind == "simulated" and not fits_equations(draft, piece):
        raise RecordError(
            f"{draft.source}: its states do not satisfy the AC equations to rounding, as those of "
            f"{store.path} do; import all of them anew as measured"
        )
    return append_record(store, buses_of(store), new_recipe(recipe, piece, draft.notes), piece)


def _continue(draft: Draft, store: Store) -> Draft:
    """The part of a draft that follows the record; raise if it does not continue it.

    Steps that the record has already are skipped.
    """
    step_s = store.step_s
    if draft.step_s != step_s:
        raise RecordError(
            f"{draft.source}: its steps have {draft.step_s} s, those of {store.path} {step_s} s"
        )
    end = store.time[-1] + np.timedelta64(step_s, "s")
    if (draft.time[0] - end).astype(np.int64) % step_s:
        raise RecordError(f"{draft.source}: {draft.time[0]} is no step after {store.time[-1]}")
    n_between = int((draft.time[0] - end).astype(np.int64)) // step_s
    n_known = max(0, -n_between)
    draft.time, draft.values = draft.time[n_known:], draft.values[n_known:]
    if n_known:
        draft.notes.append(f"{n_known:,} steps that the record has already are skipped")
    if n_between > 0:
        draft.time = end + np.arange(n_between + draft.n_steps) * np.timedelta64(step_s, "s")
        shape = (n_between, *draft.values.shape[1:])
        draft.values = np.concatenate([np.full(shape, np.nan), draft.values])
        draft.notes.append(f"{n_between:,} steps between the record and the source have no row")
    return draft


def _past(store: Store) -> Float[np.ndarray, "T N 4"]:
    """The last weeks of a record, NaN where values were filled."""
    n_steps = store.manifest.n_steps
    per_week = 7 * store.manifest.steps_per_day
    steps = slice(max(0, n_steps - WEEKS_KEPT * per_week), n_steps)
    channels = slice(0, KINDS * store.manifest.n_buses)
    states = store.read_states(steps, channels).astype(np.float64)
    observed = store.read_observed(steps, channels)
    assert observed is not None, "an imported record says what is observed"
    states[~observed] = np.nan
    return states.reshape(len(states), -1, KINDS)


def _check_channels(draft: Draft, recipe: ImportRecipe) -> None:
    """Raise if the new steps lack a variable that the record has."""
    lacking = [
        v for k, v in enumerate(VARIABLES) if v in recipe.given and not draft.given[:, k].any()
    ]
    if lacking:
        raise RecordError(
            f"{draft.source}: has no {', '.join(lacking)}, which the record has; give the same "
            "variables"
        )


def _clean(draft: Draft, rules: Rules, past: Float[np.ndarray, "T N 4"] | None = None) -> None:
    """Treat suspect values and gaps as asked, and note what was found."""
    before = draft.values.copy() if rules.suspects != "fill" else None
    findings = remove_suspects(draft, past)
    if findings and rules.suspects == "refuse":
        raise RecordError(f"{draft.source}: {'; '.join(findings)}; correct them, or fill them")
    if before is not None:
        draft.values = before
        findings = [f"{finding} (kept)" for finding in findings]
    draft.notes += findings
    missing = np.isnan(draft.values) & draft.given
    if missing.any():
        step, bus, kind = (int(k) for k in np.argwhere(missing)[0])
        if rules.gaps == "refuse":
            raise RecordError(
                f"{draft.source}: {draft.channel(bus, kind)} at {draft.time[step]} is missing, and "
                f"{int(missing.sum()):,} values in all; give them, or fill gaps"
            )
        share = missing.sum() / (draft.n_steps * draft.given.sum())
        draft.notes.append(
            f"{int(missing.sum()):,} values filled ({share:.2%}): the last value up to an hour, "
            "then the same time of the last week"
        )


def make_piece(draft: Draft, completion: Completion) -> Piece:
    """The steps of a complete draft as they are stored."""
    n_steps = draft.n_steps
    solved = ~np.isnan(completion.mismatch)
    provenance = np.full(n_steps, AS_IMPORTED, dtype=np.uint8)
    if solved.any():
        provenance[:] = np.where(solved, NEWTON, CARRIED)
    mismatch = completion.mismatch.copy()
    if draft.grid is not None and not solved.any():
        mismatch = _largest_residual(draft, completion)
    return Piece(
        draft.time,
        np.ascontiguousarray(draft.values.reshape(n_steps, -1).astype(np.float32)),
        completion.observed.reshape(n_steps, -1),
        provenance,
        mismatch.astype(np.float32),
    )


def _largest_residual(draft: Draft, completion: Completion) -> Float[np.ndarray, " S"]:
    """The largest residual of each step over observed buses [p.u.]; NaN where none is."""
    assert draft.grid is not None
    ybus = admittance_matrix(draft.grid)
    seen = np.where(completion.observed, draft.values, np.nan)
    implied = implied_mva(draft.grid, ybus, draft.values[..., V], draft.values[..., THETA])
    known = known_points(seen, ybus)
    error = np.maximum(abs(implied.real - seen[..., P]), abs(implied.imag - seen[..., Q]))
    error = np.where(known, error, np.nan)
    return np.fmax.reduce(error, axis=1) / draft.grid.base_mva


def fits_equations(draft: Draft, piece: Piece) -> bool:
    """Whether all states satisfy the AC equations, as far as rounding allows."""
    if draft.grid is None:
        return False
    check, size = AcCheck(draft.grid), 96
    parts = (piece.state[k : k + size] for k in range(0, len(piece.state), size))
    return all(float(check.mismatch(part)[1].max()) <= 1 for part in parts)


def _read_source(source: Any, grid: Any, mapping: SourceMapping) -> Readings:
    """The readings of a source, by what it is."""
    if isinstance(source, str | Path):
        return _read_path(Path(source), grid, mapping)
    if isinstance(source, pd.DataFrame):
        return read_table(frame_table(source), mapping)
    if pypsa.is_network(source):
        return pypsa.read_results(source, mapping)
    if isinstance(source, Mapping) and not hasattr(source, "data_vars"):
        return pandapower.read_results(source, _pandapower_network(grid), mapping)
    if hasattr(source, "dims") and hasattr(source, "coords"):
        return read_dataset(source, mapping)
    raise RecordError(
        f"{type(source).__name__} is no source; give a path, a data frame, an xarray data set, the "
        "output of pandapower's time series, or a network of PyPSA"
    )


def _read_path(path: Path, grid: Any, mapping: SourceMapping) -> Readings:
    """The readings of a file or folder, by the ending of its name."""
    name = path.name.lower()
    if not path.exists():
        raise RecordError(f"{path}: does not exist; check the path")
    if name.endswith((".csv", ".csv.gz", ".txt")):
        return read_table(read_csv(path, mapping), mapping)
    if name.endswith(PARQUET):
        return read_table(read_parquet(path), mapping)
    if name.endswith((".nc", ".nc4", ".h5")):
        return _read_netcdf(path, mapping)
    if path.is_dir() and ((path / "zarr.json").exists() or (path / ".zgroup").exists()):
        return read_dataset(path, mapping)
    if path.is_dir():
        return pandapower.read_results(path, _pandapower_network(grid), mapping)
    raise RecordError(
        f"{path}: is none of .csv, .csv.gz, .parquet, .nc, a Zarr store and a folder of "
        "pandapower's output writer; convert it to one"
    )


def _read_netcdf(path: Path, mapping: SourceMapping) -> Readings:
    """The readings of a NetCDF file, which PyPSA may have written."""
    if mapping.columns:
        return read_dataset(path, mapping)
    try:
        net = pypsa.load(path)
    except CaseError:  # no network of PyPSA; what reads arrays says what is wrong with the file
        return read_dataset(path, mapping)
    return pypsa.read_results(net, mapping)


def _pandapower_network(grid: Any) -> Any:
    """The network of pandapower that the results belong to."""
    if isinstance(grid, str | Path) and str(grid).endswith(".json"):
        return pandapower.load(grid)
    if not pandapower.is_network(grid):
        raise RecordError(
            "results of pandapower need their network as the grid: the network, or a .json file"
        )
    return grid


def _places(store: Store, network: Network | None) -> Places:
    """Where the buses of a record are, by their names and by those of its first source."""
    numbers, labels, names = store.bus_id.tolist(), store.bus_labels, store.bus_names
    if network is not None and not (store.has_grid and numbers == network.grid.bus_id.tolist()):
        raise RecordError(f"{store.path}: has other buses than the grid; leave --grid out")
    by_row = {numbers.index(number): name for number, name in names.items()}
    rows = {str(number): row for row, number in enumerate(numbers)}
    rows |= {name: row for row, name in by_row.items()}
    if network is not None:
        rows |= network.rows
    by_label = {labels.get(number, str(number)): row for row, number in enumerate(numbers)}
    nominal_kv = np.asarray(store.array("grid/nominal_kv")[...])
    grid = store.grid if store.has_grid else None
    return Places(store.bus_id, rows, by_row, nominal_kv, grid, by_label)


def _check_options(out: str | Path, kind: str, gaps: str, suspects: str, edition: str) -> None:
    options = {
        "kind": (kind, ("auto", *get_args(Kind))),
        "gaps": (gaps, get_args(Gaps)),
        "suspects": (suspects, get_args(Suspects)),
    }
    for name, (value, known) in options.items():
        if value not in known:
            raise UnknownName.among(name, value, known)
    if EDITION.fullmatch(edition) is None:
        raise RecordError(
            f"invalid edition name {edition!r}; use lower-case letters, digits and hyphens"
        )
    if is_url(str(out)):
        raise StoreError(f"{out}: data sets are written to a local directory only")
