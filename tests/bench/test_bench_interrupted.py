"""A bench that is stopped or killed leaves no process behind, and goes on where it was."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from powerphase.bench.processes import Child, Outcome
from powerphase.evaluation.forecasting import forecast
from powerphase.evaluation.scoring import score
from powerphase.records.result import read_results
from powerphase.task.windows import Task
from tests.bench.conftest import TOYS
from tests.bench.test_bench import bench, told, toys
from tests.bench.toy_models import ToyNet


def test_a_child_ends_with_its_asker(data: Path, tmp_path: Path) -> None:
    job = {"do": "make", "model": f"{TOYS}:Hangs", "seed": 0, "data": str(data / "ieee14")}
    job |= {"windows": 10, "device": "cpu", "out": str(tmp_path), "run": "", "seconds": None}
    job["training"] = {}
    child = Child(job)
    assert child._process.stdin is not None
    child._process.stdin.close()
    assert child._process.wait(60) == -signal.SIGKILL
    assert isinstance(child.poll(), Outcome)


DRIVER = "from powerphase.cli import main; main()"


def test_a_bench_that_is_killed_again_and_again_ends_as_one_that_is_not(
    data: Path, tmp_path: Path
) -> None:
    """Killed a random moment after something new was written, be it of a training or a row."""
    options = ("--models", toys("SlowNet"), "--seeds", "1,2", "--device", "cpu")
    where = ("--data", data, "--out", tmp_path / "results", "--runs", tmp_path / "runs")
    given = ["bench", "--grids", "ieee14", *options, *where]
    command = [sys.executable, "-c", DRIVER, *map(str, given)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    finished: dict[str, bytes] = {}
    moments = np.random.default_rng()
    for _ in range(3):
        before = written(tmp_path)
        driver = subprocess.Popen(command, env=env, stderr=subprocess.DEVNULL)
        while written(tmp_path) == before and driver.poll() is None:
            time.sleep(0.02)
        time.sleep(moments.uniform(0, 2))
        driver.kill()
        driver.wait()
        rows = {str(file): file.read_bytes() for file in tmp_path.rglob("slow-net*.json")}
        assert finished.items() <= rows.items()
        finished = rows
    assert bench(data, tmp_path, toys("SlowNet"), "--seeds", "1,2").exit_code == 0
    task, rows = Task(data / "ieee14"), read_results([tmp_path / "results"])
    assert [row.seed for row in rows] == [1, 2]
    for row in rows:
        calm = ToyNet(seed=row.seed, device="cpu")
        wanted = score(forecast(calm, task, device="cpu"), task, device="cpu").row
        assert told(row) == {**told(wanted), "model": "slow-net"}


def written(place: Path) -> list[tuple[str, int]]:
    """All that a bench has finished writing so far."""
    files = [f for f in place.rglob("*") if f.suffix in (".jsonl", ".json", ".npz")]
    return sorted((str(file), file.stat().st_mtime_ns) for file in files if file.exists())


def test_ctrl_c_stops_all_that_was_started(data: Path, tmp_path: Path) -> None:
    where = ("--data", data, "--out", tmp_path / "results", "--runs", tmp_path / "runs")
    given = ["bench", "--grids", "ieee14", "--models", toys("Hangs"), "--device", "cpu", *where]
    command = [sys.executable, "-c", DRIVER, *map(str, given)]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command,
        env=env,
        stderr=subprocess.PIPE,
        text=True,
        # Tests that run in the background hand down to the driver that it ignores Ctrl-C.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as driver:
        assert driver.stderr is not None
        assert driver.stderr.readline() == "begun: hangs-0 on ieee14\n"
        (child,) = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
        driver.send_signal(signal.SIGINT)
        assert driver.wait(60) == 130
        assert "stopped; run the same command again" in driver.stderr.read()
    assert not Path(f"/proc/{child}").exists()
    assert not list((tmp_path / "results").rglob("*.json"))
