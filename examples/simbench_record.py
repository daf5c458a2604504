"""A record that others made: SimBench's extra-high-voltage grid, with its profiles of 2016.

    pip install simbench pandapower
    python examples/simbench_record.py data/simbench

SimBench has the grid and the profiles, pandapower solves the power flow of every hour of the year,
and powerphase imports the results. Then FactorForge and the references are scored, and the
violations on the day after the record are forecast. The data come with the package simbench, under
the Open Database License.
"""

import argparse
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import powerphase as pp
from powerphase.models import Climatology, FactorForge, LastSevenDays, LastWeek

GRID = "1-EHV-mixed--0-no_sw"
"""380 and 220 kV, today's scenario; what its switches join is one bus already."""
START = "2016-01-01T00:00"
"""The first time of the profiles. They name no zone and skip no hour, so it is read as UTC."""
STEP_MINUTES = 15
"""Of the profiles."""
DAYS, MINUTES = 366, 60
"""How much is solved by default, and how long a step is."""
VARIABLES = ("p_mw", "q_mvar", "vm_pu", "va_degree")
MODELS = (FactorForge, Climatology, LastSevenDays, LastWeek)


def main() -> None:
    """Make the record unless it exists, score the models and print tomorrow's risk."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, help="folder of the data set")
    parser.add_argument("--days", type=int, default=DAYS, help="the first days of the year")
    parser.add_argument("--minutes", type=int, default=MINUTES, choices=(15, 30, 60))
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # of pandapower
    if not options.out.exists():
        make_record(options.out, options.days, options.minutes)
    task = make_task(options.out)
    print(task, task.store.kind)
    for model in MODELS:
        print(pp.score(pp.forecast(model(), task), task))
    risk = pp.outlook(FactorForge(), task).to_pandas()
    print(risk[["kind", "name", "chance", "hours", "riskiest_time_utc"]].groupby("kind").head())


def make_record(out: Path, days: int = DAYS, minutes: int = MINUTES) -> pp.Store:
    """Solve and import; days are those of the profiles, whose clock has no summer time."""
    net, results = solve(days, minutes)
    mapping = {"start": START, "step": f"{minutes}min"}
    return pp.import_states(results, out, grid=net, mapping=mapping, zone="UTC")


def solve(days: int, minutes: int) -> tuple[Any, dict[str, pd.DataFrame]]:
    """The network, and the power flow at its buses on the first days of 2016."""
    import pandapower
    import simbench

    net = simbench.get_simbench_net(GRID)
    net.name = "simbench-ehv"
    profiles = simbench.get_absolute_values(net, profiles_instead_of_study_cases=True)
    profiles = {key: table for key, table in profiles.items() if len(table)}
    rows = np.arange(0, days * 24 * 60, minutes) // STEP_MINUTES
    states = np.empty((len(rows), len(net.bus), len(VARIABLES)))
    for step, row in enumerate(rows):
        for (elements, column), table in profiles.items():
            net[elements].loc[table.columns, column] = table.to_numpy()[row]
        pandapower.runpp(net, init="results" if step else "auto")
        states[step] = net.res_bus[list(VARIABLES)]
    return net, {
        f"res_bus.{variable}": pd.DataFrame(states[..., k], columns=net.bus.index)
        for k, variable in enumerate(VARIABLES)
    }


def make_task(data: Path) -> pp.Task:
    """Every day of the test, with the limits of SimBench's buses."""
    return pp.Task(data, windows="all", limits="case")


if __name__ == "__main__":
    main()
