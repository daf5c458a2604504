"""The example with SimBench's grid, on ten days; `make simbench` installs what it needs."""

import sys
from pathlib import Path

import numpy as np
import pytest

from powerphase import Task, forecast, import_states, score, verify
from powerphase.models import LastWeek

pytest.importorskip("simbench", reason="simbench is not installed; `make simbench` installs it")
sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import simbench_record as example  # type: ignore[import-not-found]


@pytest.mark.filterwarnings("ignore")  # those of simbench and pandapower
def test_what_pandapower_solves_is_imported_as_simulated_and_scored(tmp_path: Path) -> None:
    net, results = example.solve(days=10, minutes=60)
    mapping = {"start": example.START, "step": "60min"}
    store = import_states(results, tmp_path / "store", grid=net, mapping=mapping, zone="UTC")
    assert store.kind == "simulated"
    assert verify(store.path).valid
    np.testing.assert_allclose(store.read(variable="V"), results["res_bus.vm_pu"], atol=1e-6)
    slack = net.ext_grid.bus.iloc[0]
    np.testing.assert_allclose(
        store.read(bus=int(slack) + 1, variable="P"), results["res_bus.p_mw"][slack], rtol=1e-6
    )
    task = Task(store, windows=2, limits="case")
    crps = score(forecast(LastWeek(), task), task).row.scores["crps"]
    assert crps is not None
    assert 0 < crps < 0.1
