"""Grid2Op steps through exported chronics and observes the loads and generators of the forecast."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from powerphase import Forecast, Task, export
from tests.exports.conftest import WEIGHT


@pytest.fixture(scope="module")
def archives(
    weighted_days: Forecast, task: Task, tmp_path_factory: pytest.TempPathFactory
) -> list[Path]:
    """The archive of each window."""
    out = tmp_path_factory.mktemp("grid2op") / "chronics"
    export(weighted_days, task.store, to="grid2op", out=out)
    return [out / f"{start.replace(':', '')}.npz" for start in weighted_days.facts["windows"]]


def test_arrays_are_the_forecast(
    archives: list[Path], task: Task, states: NDArray[np.float32]
) -> None:
    bus_id = task.layout.bus_id.tolist()
    for window, archive in enumerate(archives):
        arrays = np.load(archive)
        np.testing.assert_allclose(arrays["weight"], WEIGHT, atol=1e-7)
        assert arrays["weight"].sum() == pytest.approx(1, abs=1e-12)
        net = np.zeros(states.shape[1:4])
        for part, sign in (("load", 1), ("prod", -1)):
            columns = [bus_id.index(bus) for bus in arrays[f"{part}_bus"].tolist()]
            for column, values in zip(columns, arrays[f"{part}_p"].T, strict=True):
                net[..., column] += sign * values.T
        np.testing.assert_allclose(net, states[window, ..., 0], rtol=1e-6, atol=1e-4)
        assert arrays["time"][0] == np.datetime64(str(archive.stem[:10]))


def test_an_environment_takes_them(archives: list[Path], task: Task, tmp_path: Path) -> None:
    grid = task.store.grid
    np.savez(
        tmp_path / "case.npz",
        base_mva=grid.base_mva,
        bus=grid.bus,
        gen=grid.gen,
        branch=grid.branch,
    )
    script = Path(__file__).with_name("grid2op_env.py")
    arguments = [tmp_path / "case.npz", archives[1], 2, tmp_path / "environment"]
    command = [sys.executable, "-W", "ignore", str(script), *map(str, arguments)]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    answer = json.loads(run.stdout.splitlines()[-1])
    assert not answer["over"]
    for name, given in answer["given"].items():
        # The slack generator's P is solved, so this also compares the power flows.
        np.testing.assert_allclose(answer["observed"][name], given, rtol=1e-4, atol=1e-3)
