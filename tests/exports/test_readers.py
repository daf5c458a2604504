"""PyPSA, Egret and fev, in their own environment (`make readers`), read what was exported."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerphase import Forecast, Store, Task, export, forecast
from powerphase.exports import Elements
from tests.exports.conftest import WEIGHT, WeightedDays, make_task, states_of

ROOT = Path(__file__).parents[2]
PYTHON = ROOT / ".venv-readers" / "bin" / "python"
SCENARIO, STEPS = 1, 2

pytestmark = pytest.mark.skipif(
    not PYTHON.exists(), reason="no environment of readers; `make readers` installs it"
)


def run(script: Path, *arguments: object, given: str = "") -> str:
    """What a script prints in the environment of the readers."""
    command = [str(PYTHON), "-W", "ignore", str(script), *map(str, arguments)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    answer = subprocess.run(
        command, input=given, capture_output=True, text=True, check=False, env=environment
    )
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def read(*arguments: object, given: str = "") -> Any:
    """What `readers.py` finds in an export."""
    return json.loads(run(Path(__file__).with_name("readers.py"), *arguments, given=given))


def test_pypsa_solves_a_scenario_to_the_forecast_s_voltages(
    store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    """On a grid with taps, phase shifters, shunts and negative loads."""
    task = make_task(store_of("pegase89"))
    source = forecast(WeightedDays(), task)
    states = states_of(source, task)[1]
    out = export(source, task.store, to="pypsa", out=tmp_path / "networks")
    start = source.facts["windows"][1]
    elements = Elements(task.store)
    state = states[SCENARIO, :STEPS].astype(np.float32)
    power = elements.split(state[..., 0], state[..., 1])
    rows, share, names = elements.unit_row, elements.unit_share, elements.unit_name
    given = {"bus_id": task.layout.bus_id.tolist()}
    for name, total in (("p_set", power.generation_p), ("q_set", power.generation_q)):
        given[name] = dict(zip(names, (total[:, rows] * share).T.tolist(), strict=True))
    file = out / f"{start.replace(':', '')}.nc"
    answer = read("pypsa", file, f"scenario_{SCENARIO:04}", given=json.dumps(given))
    np.testing.assert_allclose(answer["weights"], WEIGHT, atol=1e-7)
    assert sum(answer["weights"]) == pytest.approx(1, abs=1e-12)
    assert answer["hours"] == 24
    assert answer["start"].startswith(start.split("T")[0])
    assert answer["facts"]["fingerprint"] == task.store.manifest.fingerprint
    assert answer["flow"]["converged"]
    np.testing.assert_allclose(answer["flow"]["vm_pu"], state[..., 2], atol=1e-6)
    np.testing.assert_allclose(answer["flow"]["va_rad"], state[..., 3], atol=1e-6)
    columns = [task.layout.bus_id.tolist().index(int(bus)) for bus in answer["load_bus"]]
    alone = ~elements.has_unit[columns]
    loads = np.array(answer["load_p"])[..., alone]
    np.testing.assert_array_equal(loads, states[..., 0][..., np.array(columns)[alone]])


def test_egret_reads_the_loads_of_every_scenario(
    weighted_days: Forecast, task: Task, tmp_path: Path
) -> None:
    out = export(weighted_days, task.store, to="prescient", out=tmp_path / "tables")
    start = weighted_days.facts["windows"][0]
    day, folder = start.split("T")[0], out / start.replace(":", "")
    assert len(list(folder.glob("scenario_*"))) == len(WEIGHT)
    answer = read("egret", folder / f"scenario_{SCENARIO:03}", day)
    elements = Elements(task.store)
    state = states_of(weighted_days, task)[0, SCENARIO]
    power = elements.split(state[..., 0], state[..., 1])
    for simulation, per_hour in (("DAY_AHEAD", 1), ("REAL_TIME", 4)):
        content = answer[simulation]
        assert content["minutes"] == 60 // per_hour
        assert content["times"][per_hour] == f"{day} 01:00"
        for name, values in content["loads"].items():
            row = task.layout.bus_id.tolist().index(int(name))
            expected = power.load_p[:, row].reshape(24 * per_hour, -1).mean(axis=1)
            np.testing.assert_allclose(values, expected, rtol=1e-6, atol=1e-5)
        total = np.sum(list(content["loads"].values()))
        assert total == pytest.approx(power.load_p.sum() * per_hour / 4, rel=1e-6)
    p_max = dict(zip(elements.unit_name, elements.unit[:, 8].tolist(), strict=True))
    assert answer["DAY_AHEAD"]["p_max"] == p_max
    circuit = task.store.grid.circuit
    reactance = dict(zip(circuit.name, circuit.x_pu.tolist(), strict=True))
    assert answer["DAY_AHEAD"]["reactance"] == pytest.approx(reactance)


def test_fev_reads_tasks_of_the_validation_and_of_the_test_windows(
    sixty_days: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    task = Task(sixty_days, context=192, windows=3)
    channels = [2, 7, 41]
    for targets, windows in ((False, task.training.validation), (True, task.test)):
        file = task.to_fev(tmp_path / str(targets), channels, targets=targets)
        answer = read("fev", file, task.layout.name_of(channels[1]))
        assert [window["lengths"] for window in answer] == [[192] * 3] * len(windows)
        truth = [windows.target(k)[0, :, channels[1]].tolist() for k in range(len(windows))]
        np.testing.assert_allclose([window["target"] for window in answer], truth, rtol=1e-6)


def test_the_example_commits_and_dispatches(
    store_of: Callable[[str], Store], tmp_path: Path
) -> None:
    task = make_task(store_of("ieee14"))
    source = forecast(WeightedDays(), task)
    for name, actual in (("actual", True), ("days", False)):
        export(source, task.store, to="pypsa", out=tmp_path / name, actual=actual)
    script = ROOT / "examples" / "two_stage_dispatch.py"
    folders = (tmp_path / "actual", tmp_path / "days")
    run(script, *folders, "--days", 1, "--out", tmp_path / "bills.json")
    bills = json.loads((tmp_path / "bills.json").read_text())
    cost = {bill["scenarios"]: bill["cost"] for bill in bills}
    assert cost["actual"] <= cost["days"] * (1 + 1e-6)
    (fuel,) = {bill["fuel"] for bill in bills if bill["scenarios"] == "actual"}
    assert fuel > 0
