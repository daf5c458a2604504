"""Grid2Op: the arrays of its chronics `FromNPY`, in one NumPy archive for each window."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from powerphase.dataset.store import Store
from powerphase.exports.day import Day
from powerphase.exports.elements import Elements


def write(folder: Path, days: Iterator[Day], store: Store) -> None:
    """An archive `2016-07-01T0000.npz` for each window; arrays have the axes scenario, step."""
    elements = Elements(store)
    folder.mkdir(parents=True)
    for day in days:
        p_mw, q_mvar, vm_pu = (day.quantity(name) for name in ("p_mw", "q_mvar", "vm_pu"))
        loads, units = elements.load_rows(p_mw, q_mvar), elements.unit_row
        arrays: dict[str, list[np.ndarray]] = {"load_p": [], "load_q": [], "prod_p": []}
        for scenario in range(day.n_scenarios):
            power = elements.split(p_mw[scenario], q_mvar[scenario])
            arrays["load_p"].append(power.load_p[:, loads])
            arrays["load_q"].append(power.load_q[:, loads])
            arrays["prod_p"].append(power.generation_p[:, units] * elements.unit_share)
        stacked: dict[str, Any] = {
            name: np.stack(parts).astype(np.float32) for name, parts in arrays.items()
        }
        np.savez_compressed(
            folder / f"{day.name}.npz",
            **stacked,
            prod_v=vm_pu[..., units] * elements.base_kv[units].astype(np.float32),
            load_bus=store.grid.bus_id[loads],
            prod_bus=store.grid.bus_id[units],
            weight=day.weight,
            time=day.time,
        )
