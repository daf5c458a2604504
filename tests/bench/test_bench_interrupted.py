"""A bench that is stopped or killed leaves no process behind, and continues where it was."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from powerphase import Task, forecast, score
from powerphase.bench import JobProcess, Outcome
from powerphase.records import read_results
from tests.bench.conftest import bench, reproducible, toys
from tests.bench.in_process import run_jobs_in_process
from tests.bench.test_bench import job_of
from tests.bench.toy_models import ToyNet

DRIVER = "from powerphase.cli import main; main()"
N_KILLS = 2


def command(data: Path, folder: Path, model: str, *options: str) -> list[str]:
    paths = ("--data", data, "--out", folder / "results", "--runs", folder / "runs")
    arguments = ("bench", "--grids", "ieee14", "--models", toys(model), "--device", "cpu")
    return [sys.executable, "-c", DRIVER, *map(str, (*arguments, *paths, *options))]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}


def test_a_job_ends_with_the_process_that_started_it(data: Path, tmp_path: Path) -> None:
    process = JobProcess(job_of(data, tmp_path, "Hangs"))
    assert process._process.stdin is not None
    process._process.stdin.close()
    assert process._process.wait(60) == -signal.SIGKILL
    assert isinstance(process.poll(), Outcome)


def test_a_bench_that_is_killed_repeatedly_ends_with_the_same_rows(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is killed a random moment after each new file, of a training or of a row."""
    seeds = ("--seeds", "1,2")
    arguments, env = command(data, tmp_path, "SlowNet", *seeds), environment()
    finished: dict[str, bytes] = {}
    random = np.random.default_rng()
    for _ in range(N_KILLS):
        before = written_files(tmp_path)
        driver = subprocess.Popen(arguments, env=env, stderr=subprocess.DEVNULL)
        while written_files(tmp_path) == before and driver.poll() is None:
            time.sleep(0.02)
        time.sleep(random.uniform(0, 1))
        driver.kill()
        driver.wait()
        rows = {str(file): file.read_bytes() for file in tmp_path.rglob("slow-net*.json")}
        assert finished.items() <= rows.items()
        finished = rows
    run_jobs_in_process(monkeypatch)  # what is left
    assert bench(data, tmp_path, toys("SlowNet"), *seeds).exit_code == 0
    task, results = Task(data / "ieee14"), read_results([tmp_path / "results"])
    assert [row.seed for row in results] == [1, 2]
    for row in results:
        uninterrupted = ToyNet(seed=row.seed, device="cpu")
        expected = score(forecast(uninterrupted, task, device="cpu"), task, device="cpu").row
        assert reproducible(row) == {**reproducible(expected), "model": "slow-net"}


def written_files(folder: Path) -> list[tuple[str, int]]:
    """All files that a bench has finished so far, with their times."""
    files = [file for file in folder.rglob("*") if file.suffix in (".jsonl", ".json", ".npz")]
    return sorted((str(file), file.stat().st_mtime_ns) for file in files if file.exists())


def test_ctrl_c_stops_every_process(data: Path, tmp_path: Path) -> None:
    with subprocess.Popen(
        command(data, tmp_path, "Hangs"),
        env=environment(),
        stderr=subprocess.PIPE,
        text=True,
        # Tests in the background ignore Ctrl-C, and their child processes inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as driver:
        assert driver.stderr is not None
        assert "hangs-0 on ieee14" in driver.stderr.readline()
        (child,) = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
        driver.send_signal(signal.SIGINT)
        assert driver.wait(60) == 130
    assert not Path(f"/proc/{child}").exists()
    assert not list((tmp_path / "results").rglob("*.json"))
