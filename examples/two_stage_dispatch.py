"""Two-stage dispatch with PyPSA and HiGHS: what to commit today, given scenarios of tomorrow.

    python examples/two_stage_dispatch.py networks/actual networks/climatology networks/factorforge

Each folder was written by `powerphase export --to pypsa`, the first one with `--actual`. Capacity
is committed for a whole day before its load is known, the same for all scenarios. Each block of
hours is then dispatched within it; emergency power serves what capacity and lines cannot. What was
committed for the scenarios is dispatched again for the load that really came, and the bill of that
day counts. Committing with perfect foresight is the least that can be paid.

It needs PyPSA, not powerphase. With `--out` it writes the bills of all days to a file.
"""

import argparse
import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pypsa

COMMITMENT = 8.0
"""Price of holding 1 MW ready for an hour [€]."""
FUEL = (20.0, 60.0)
"""Prices of 1 MWh from the largest and from the smallest unit [€]; in between linear in size."""
EMERGENCY = 500.0
"""Price of 1 MWh of emergency power, at any bus with a load [€]."""
LIMIT_MVA = {138.0: 200.0, 345.0: 600.0}
"""Limit of a line by its voltage [kV], and of a transformer by the higher one."""
HOURS = 2
"""Length of a block that is dispatched."""


def main() -> None:
    """Print the mean bill with each folder of scenarios."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("actual", type=Path)
    parser.add_argument("scenarios", type=Path, nargs="+")
    parser.add_argument("--days", type=int, help="only the first so many days")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    bills = []
    for file in sorted(options.actual.glob("*.nc"))[: options.days]:
        for folder in (*options.scenarios, options.actual):  # the last one is perfect foresight
            capacity = commit(read(folder / file.name))
            bill = {"day": file.stem[:10], "scenarios": folder.name}
            bills.append({**bill, **dispatch(read(file), capacity)})
            print(json.dumps(bills[-1]), flush=True)
    mean = pd.DataFrame(bills).drop(columns="day").groupby("scenarios").mean()
    print(mean.sort_values("cost", ascending=False).round(1).to_string())
    if options.out:
        options.out.write_text(json.dumps(bills, indent=1) + "\n")


def read(file: Path) -> pypsa.Network:
    """A network of blocks of hours, with prices, limits of lines and emergency power."""
    network = pypsa.Network(file)
    load = network.loads_t.p_set.resample(f"{HOURS}h").mean()
    network.set_snapshots(load.index)
    network.snapshot_weightings.loc[:] = HOURS
    network.loads_t.p_set = load
    units = network.generators
    largest, smallest = FUEL
    units["marginal_cost"] = smallest + (largest - smallest) * units.p_nom / units.p_nom.max()
    limit_lines(network)
    buses = network.loads.bus.unique()
    network.add(
        "Generator", buses, suffix=" emergency", bus=buses, p_nom=1e4, marginal_cost=EMERGENCY
    )
    return network


def limit_lines(network: pypsa.Network) -> None:
    """Give limits to branches, none of which has a rating in the case file."""
    kv = network.buses.v_nom.groupby(level="name").first()
    for branches in (network.lines, network.transformers):
        ends = [branches[end].map(kv) for end in ("bus0", "bus1")]
        limit = np.maximum(*ends).map(LIMIT_MVA).fillna(branches.s_nom)
        if branches is network.transformers:
            branches["x"] *= limit / branches.s_nom  # x is on the base of s_nom
        branches["s_nom"] = limit


def commit(network: pypsa.Network) -> pd.Series:
    """The capacity of each unit [MW] that is best over all scenarios, by their probabilities."""
    units = network.generators
    own = ~is_emergency(units)
    units.loc[own, "p_nom_max"] = units.p_nom[own]
    units.loc[own, "p_nom_extendable"] = True
    units.loc[own, "capital_cost"] = COMMITMENT * HOURS * len(network.snapshots)
    solve(network)
    return network.generators.p_nom_opt[own].groupby(level="name").first()


def dispatch(network: pypsa.Network, capacity: pd.Series) -> dict[str, Any]:
    """The bill of one day [€] with this capacity, and what it consists of."""
    units = network.generators
    names = units.index.get_level_values("name")
    own = ~is_emergency(units)
    units.loc[own, "p_nom"] = capacity.reindex(names[own]).to_numpy()
    solve(network)
    power = HOURS * network.generators_t.p.sum().reindex(units.index)
    cost = units.marginal_cost * power
    commitment = COMMITMENT * HOURS * len(network.snapshots) * capacity.sum()
    return {
        "cost": commitment + cost.sum(),
        "committed_mw": capacity.sum(),
        "fuel": cost[own].sum(),
        "emergency_mwh": power[~own].sum(),
    }


def is_emergency(units: pd.DataFrame) -> np.ndarray:
    """Which generators stand for emergency power."""
    return units.index.get_level_values("name").str.endswith(" emergency")


def solve(network: pypsa.Network) -> None:
    """Optimise, or stop."""
    status, condition = network.optimize(
        solver_name="highs",
        io_api="direct",
        progress=False,
        log_to_console=False,
        solver_options={"solver": "ipm", "threads": 1},
    )
    if status != "ok":
        raise SystemExit(f"no optimum: {condition}")


if __name__ == "__main__":
    main()
