"""What gaps and a stuck sensor cost: the scores of a damaged record and those of the clean one.

    python benchmarks/damaged_record.py data/ieee57 --out benchmarks/measured/damaged_record.json

The states of a data set are imported twice: as they are, and with 5 % of all values missing at
random and one sensor that is stuck for a month of the test. What models forecast from the damaged
record is scored twice as well: at its observed values, as the protocol has it, and against the
states that are really behind the gaps.
"""

import argparse
import json
from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Float

from powerphase import (
    Evaluation,
    Forecast,
    Scenarios,
    Store,
    Task,
    forecast,
    import_states,
    open,
    score,
    score_channels,
    task_facts,
)
from powerphase.axes import KINDS, VARIABLES, P
from powerphase.models import Climatology, FactorForge, LastSevenDays, LastWeek

SEED = 1
MISSING = 0.05
STUCK = ("2016-09-01", "2016-10-01")
"""The first day of the month and the day after its last one."""
MODELS = (FactorForge, Climatology, LastSevenDays, LastWeek)
SCORES = ("crps", "energy", "necv", "coverage_80")


def main() -> None:
    """Import the record twice, and score the models on both."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--windows", type=int, help="by default all days of the test")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    store = open(options.data)
    with TemporaryDirectory() as folder:
        clean, damaged = import_both(store, Path(folder))
        tasks = [Task(part, windows=options.windows or "all") for part in (clean, damaged)]
        rows = [compare(model, *tasks) for model in MODELS]
        result = {**facts(store, damaged), "windows": len(tasks[0].test), "rows": rows}
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def import_both(store: Store, folder: Path) -> tuple[Store, Store]:
    """The record as it is, and damaged."""
    states = store.read().astype(np.float64)
    options: dict[str, Any] = {"grid": store.grid, "mapping": {"zone": "UTC"}}
    clean = import_states(table(store, states), folder / "clean", **options)
    damage(states, store)
    return clean, import_states(table(store, states), folder / "damaged", **options)


def table(store: Store, states: Float[np.ndarray, "S N 4"]) -> xr.Dataset:
    """States with the names that an import needs no mapping for."""
    names = ("p_mw", "q_mvar", "vm_pu", "va_rad")
    arrays = {name: (("time", "bus"), states[..., kind]) for kind, name in enumerate(names)}
    time = store.time.astype("datetime64[ns]")
    return xr.Dataset(arrays, coords={"time": time, "bus": store.bus_id})


def damage(states: Float[np.ndarray, "S N 4"], store: Store) -> None:
    """Remove values, and hold P of the largest load for a month, in place."""
    first, stop = np.searchsorted(store.time, np.array(STUCK, "datetime64[s]"))
    bus = stuck_bus(store)
    states[first:stop, bus, P] = states[first, bus, P]
    states[np.random.default_rng(SEED).random(states.shape) < MISSING] = np.nan


def stuck_bus(store: Store) -> int:
    """The position of the largest load."""
    return int(store.read(slice(0, store.manifest.steps_per_day), variable="P").mean(0).argmax())


def facts(store: Store, damaged: Store) -> dict[str, Any]:
    """Which data, and what the import says of the damage."""
    manifest = damaged.manifest
    everything = slice(0, manifest.n_steps), slice(0, KINDS * manifest.n_buses)
    observed = damaged.read_observed(*everything)
    assert observed is not None
    return {
        "grid": store.manifest.grid,
        "edition": store.manifest.edition,
        "missing": MISSING,
        "stuck": {"bus": int(store.bus_id[stuck_bus(store)]), "from": STUCK[0], "to": STUCK[1]},
        "kind": damaged.kind,
        "findings": manifest.recipe["segments"][0]["findings"],
        "observed_share": float(observed.mean()),
    }


def compare(model: Any, clean: Task, damaged: Task) -> dict[str, Any]:
    """The scores of one model: clean, at observed values, and of the states behind the gaps."""
    usual, from_damaged = forecast(model(), clean), forecast(model(), damaged)
    behind = transferred(from_damaged, damaged, clean)
    sensor = [KINDS * stuck_bus(clean.store) + P]
    row = {
        "model": model.name,
        "clean": numbers(score(usual, clean)),
        "observed": numbers(score(from_damaged, damaged)),
        "behind": numbers(score(behind, clean)),
        "stuck_sensor_crps": {
            "clean": score_channels(usual, clean, sensor).scores["crps"],
            "behind": score_channels(behind, clean, sensor).scores["crps"],
        },
    }
    print(json.dumps(row), flush=True)
    return row


def numbers(done: Evaluation) -> dict[str, Any]:
    """Some scores, and the CRPS by variable."""
    by_type = {variable: done.row.by_type[variable]["crps"] for variable in VARIABLES}
    return {**{name: done.scores[name] for name in SCORES}, "crps_by_type": by_type}


def transferred(source: Forecast, made_for: Task, task: Task) -> Forecast:
    """A forecast as one for a record of the same states, whose scales may differ."""
    old, new = made_for.layout, task.layout
    ratios = (old.p_scale_mw / new.p_scale_mw, old.q_scale_mvar / new.q_scale_mvar, 1.0, 1.0)
    ratio = torch.tensor(ratios, dtype=torch.float32)

    def pieces(skip: Collection[int]) -> Iterator[tuple[int, slice, Scenarios]]:
        for window, channels, scenarios in source.pieces(skip):
            factor = ratio[torch.arange(channels.start, channels.stop) % KINDS]
            yield window, channels, Scenarios(scenarios.values * factor, scenarios.weights)

    return replace(source, facts=task_facts(task), pieces=pieces)


if __name__ == "__main__":
    main()
