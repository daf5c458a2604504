"""pandapower runs the exported tables and gets the voltages of the forecast."""

from pathlib import Path

import numpy as np
import pandapower
import pandas as pd
import pytest
from numpy.typing import NDArray
from pandapower.control import ConstControl
from pandapower.converter.pypower.from_ppc import from_ppc
from pandapower.timeseries import DFData

from powerphase import Forecast, Task, export
from tests.exports.conftest import WEIGHT

SCENARIO, STEP = 2, 60


def read(folder: Path, name: str) -> pd.DataFrame:
    """The table of one element and variable for one scenario."""
    table = pd.read_csv(folder / f"{name}.csv", index_col=["scenario", "time_step"])
    chosen = table.index.get_level_values("scenario") == SCENARIO
    return table[chosen].droplevel("scenario")


@pytest.mark.filterwarnings("ignore:tap_dependency_table is missing:DeprecationWarning")
def test_controllers_take_the_tables(
    weighted_days: Forecast, task: Task, states: NDArray[np.float32], tmp_path: Path
) -> None:
    out = export(weighted_days, task.store, to="pandapower", out=tmp_path / "tables")
    assert sorted(path.name for path in out.iterdir()) == [
        start.replace(":", "") for start in weighted_days.facts["windows"]
    ]
    folder = out / weighted_days.facts["windows"][1].replace(":", "")
    grid = task.store.grid
    case = {"version": "2", "baseMVA": grid.base_mva}
    matrices = {name: getattr(grid, name).copy() for name in ("bus", "gen", "branch")}
    net = from_ppc({**case, **matrices})
    for name in ("load.p_mw", "load.q_mvar", "gen.p_mw", "gen.vm_pu", "ext_grid.vm_pu"):
        element, variable = name.split(".")
        data = DFData(read(folder, name), multi=True)
        elements = net[element]
        ConstControl(
            net, element, variable, elements.index, elements.bus.to_numpy(), data_source=data
        )
    for controller in net.controller.object:
        controller.time_step(net, STEP)
    pandapower.runpp(net, run_control=True, numba=False)
    state = states[1, SCENARIO, STEP]
    result = net.res_bus.loc[grid.bus_id]
    np.testing.assert_allclose(result.vm_pu, state[:, 2], atol=1e-6)
    np.testing.assert_allclose(np.deg2rad(result.va_degree), state[:, 3], atol=1e-6)
    np.testing.assert_allclose(result.p_mw, state[:, 0], atol=1e-3)


def test_weights_and_times_are_in_the_folder(
    weighted_days: Forecast, task: Task, tmp_path: Path
) -> None:
    out = export(weighted_days, task.store, to="pandapower", out=tmp_path / "tables")
    start = weighted_days.facts["windows"][0]
    folder = out / start.replace(":", "")
    weights = pd.read_csv(folder / "weights.csv", index_col="scenario").weight
    np.testing.assert_allclose(weights, WEIGHT, atol=1e-7)
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    times = pd.read_csv(folder / "time.csv", index_col="time_step").time
    assert pd.Timestamp(times[4]) == pd.Timestamp(start) + pd.Timedelta("1h")
