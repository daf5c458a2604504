"""Reads exports with PyPSA, Egret or fev, in the environment of `make readers`, and prints them.

python readers.py pypsa FILE.nc
python readers.py egret FOLDER DAY
python readers.py fev FILE.yaml SERIES
"""

import json
import logging
import sys
from typing import Any

import numpy as np
import pandas as pd

STEPS = 2
"""The first steps of a scenario, of which PyPSA solves the power flow."""


def read_pypsa(file: str, scenario: str) -> dict[str, Any]:
    """Loads of all scenarios, and the power flow of some steps of one."""
    import pypsa

    network = pypsa.Network(file)
    network.consistency_check(strict=["unknown_buses", "unknown_carriers"])
    loads = network.loads_t.p_set
    return {
        "weights": network.scenario_weightings.weight.tolist(),
        "hours": network.snapshot_weightings.objective.sum(),
        "start": str(network.snapshots[0]),
        "load_bus": network.loads.bus.groupby(level="name").first().reindex(
            loads.columns.get_level_values("name").unique()
        ).tolist(),
        "load_p": [loads[name].to_numpy().tolist() for name in network.scenarios],
        "facts": network.meta["powerphase"],
        "flow": solve(network, scenario, network.meta["pv_generators"]),
    }  # fmt: skip


def solve(network: Any, scenario: str, pv_generators: list[str]) -> dict[str, Any]:
    """AC power flow with the generation that is given on standard input."""
    given = json.load(sys.stdin)
    one = network.get_scenario(scenario)
    one.set_snapshots(one.snapshots[:STEPS])
    one.generators.loc[pv_generators, "control"] = "PV"
    for name in ("p_set", "q_set"):
        frame = pd.DataFrame(given[name], index=one.snapshots)
        one.generators_t[name] = frame.reindex(columns=one.generators.index, fill_value=0.0)
    converged = bool(np.all(one.pf().converged))
    order = [str(bus) for bus in given["bus_id"]]
    return {
        "converged": converged,
        "vm_pu": one.buses_t.v_mag_pu[order].to_numpy().tolist(),
        "va_rad": one.buses_t.v_ang[order].to_numpy().tolist(),
    }


def read_egret(folder: str, day: str) -> dict[str, Any]:
    """Loads of both simulations, generators and branches."""
    from egret.parsers.rts_gmlc.parser import create_ModelData

    answer: dict[str, Any] = {}
    end = str((pd.Timestamp(day) + pd.Timedelta("1D")).date())
    for simulation in ("DAY_AHEAD", "REAL_TIME"):
        data = create_ModelData(folder, day, end, simulation).data
        elements = data["elements"]
        loads = {name: load["p_load"]["values"] for name, load in elements["load"].items()}
        answer[simulation] = {
            "minutes": data["system"]["time_period_length_minutes"],
            "times": data["system"]["time_keys"],
            "loads": loads,
            "p_max": {name: unit["p_max"] for name, unit in elements["generator"].items()},
            "reactance": {name: line["reactance"] for name, line in elements["branch"].items()},
        }
    return answer


def read_fev(file: str, series: str) -> list[dict[str, Any]]:
    """The lengths of all contexts, and what happens to one series, in every window of all tasks."""
    import fev

    answer = []
    for task in fev.Benchmark.from_yaml(file).tasks:
        for window in task.iter_windows():
            past, _ = window.get_input_data()
            truth = window.get_ground_truth()
            target = dict(zip(truth["id"], truth["target"], strict=True))[series]
            lengths = [len(row) for row in past["target"]]
            answer.append({"lengths": lengths, "target": np.asarray(target).tolist()})
    return answer


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    reader = {"pypsa": read_pypsa, "egret": read_egret, "fev": read_fev}[sys.argv[1]]
    sys.stdout.write(json.dumps(reader(*sys.argv[2:])) + "\n")
