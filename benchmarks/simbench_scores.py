"""The record of examples/simbench_record.py: what it holds, how models score on it, its next day.

    pip install simbench pandapower
    python benchmarks/simbench_scores.py data/simbench --out benchmarks/measured/simbench.json

The folder's data set is used as it is if there is one.
"""

import argparse
import json
import logging
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import powerphase as pp

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import simbench_record as example  # type: ignore[import-not-found]

SCORES = ("crps", "energy", "necv", "loading_crps", "coverage_80")
QUARTER_DAYS = 91
RISKS = 5
"""How many buses and lines are listed."""


def main() -> None:
    """Make the record unless it exists, and write what the example prints."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    if not options.data.exists():
        example.make_record(options.data)
    task = example.make_task(options.data)
    result = {**facts(task), "rows": [row(model, task) for model in example.MODELS]}
    result["quarter"] = quarter(task.store)
    result["tomorrow"] = tomorrow(task)
    print(json.dumps(result))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def facts(task: pp.Task) -> dict[str, Any]:
    """What the record and the task hold, and the certificate."""
    store, splits = task.store, task.splits
    certificate, per_day = pp.verify(store.path), store.manifest.steps_per_day
    return {
        "grid": example.GRID,
        "buses": store.manifest.n_buses,
        "branches": certificate.branches[0],
        "steps": store.manifest.n_steps,
        "days": store.manifest.n_steps // per_day,
        "fit_days": (splits.fit_stop - splits.first) // per_day,
        "task": task.name,
        "windows": len(task.test),
        "first_window": task.test.start(0)[:10],
        "kind": store.kind,
        "valid": certificate.valid,
        "mismatch_mw": certificate.p_mw.largest,
    }


def row(model: Any, task: pp.Task) -> dict[str, Any]:
    """The scores of a model, and the CRPS by variable."""
    done = pp.score(pp.forecast(model(), task), task)
    by_type = {name: scores["crps"] for name, scores in done.row.by_type.items()}
    scores = {name: done.scores[name] for name in SCORES}
    return {"model": model.name, **scores, "crps_by_type": by_type}


def quarter(year: pp.Store) -> dict[str, Any]:
    """What the first quarter of the record by itself teaches, with its holidays and without."""
    states = year.to_xarray(slice(0, QUARTER_DAYS * year.manifest.steps_per_day))
    with TemporaryDirectory() as folder:
        store = pp.import_states(states, Path(folder) / "store", grid=year.grid, zone="UTC")
        task = example.make_task(store)
        rows = [row(model, task) for model in example.MODELS]
        plain = pp.Task(store, windows="all", limits="case", country="none", zone="UTC")
        without = row(example.FactorForge, plain)
    fit_days = (task.splits.fit_stop - task.splits.first) // store.manifest.steps_per_day
    return {"fit_days": fit_days, "windows": len(task.test), "rows": rows, "no_holidays": without}


def tomorrow(task: pp.Task) -> dict[str, Any]:
    """The riskiest buses and lines of the day after the record."""
    outlook = pp.outlook(example.FactorForge(), task)
    columns = ("name", "chance", "hours", "riskiest_time_utc")
    listed = {
        kind: [
            {column: entry[column] for column in columns}
            for entry in outlook.rows
            if entry["kind"] == kind
        ][:RISKS]
        for kind in ("bus", "line")
    }
    chances = {
        kind: sum((entry["chance"] or 0) > 0.5 for entry in outlook.rows if entry["kind"] == kind)
        for kind in ("bus", "line")
    }
    return {"day": str(outlook.time[0])[:10], "likely": chances, **listed}


if __name__ == "__main__":
    main()
