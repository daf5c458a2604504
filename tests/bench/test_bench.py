"""A bench in full: rows of what is good, records of what is bad, and nothing lost in between."""

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result as Done
from typer.testing import CliRunner

from powerphase import cli
from powerphase.bench import children
from powerphase.bench.bench import locked
from powerphase.bench.children import Child, Outcome
from powerphase.bench.evaluation import score
from powerphase.bench.forecasting import forecast
from powerphase.records.failure import Failure, read_failures
from powerphase.records.result import Result, read_results
from powerphase.task.windows import Task
from tests.bench.conftest import TOYS
from tests.bench.toy_models import ToyNet

FOLDER = Path("powerphase-day-ahead") / "exact" / "ieee14"
GOOD, BAD = ("Steady", "Plain"), ("Raises", "NotNumbers", "WrongShape", "Exits", "IsKilled")


def bench(data: Path, place: Path, models: str, *options: object) -> Done:
    where = ("--data", data, "--out", place / "results", "--runs", place / "runs")
    given = ["bench", "--grids", "ieee14", "--models", models, "--device", "cpu", *where, *options]
    return CliRunner().invoke(cli.app, [*map(str, given)], env={"COLUMNS": "200"})


def toys(*names: str) -> str:
    return ",".join(f"{TOYS}:{name}" for name in names)


def told(row: Result) -> dict[str, Any]:
    """All of a row but what no two makings share."""
    return {k: v for k, v in vars(row).items() if k not in ("cost", "date", "commit")}


@pytest.fixture(scope="module")
def mixed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Done]:
    place = tmp_path_factory.mktemp("mixed")
    models = toys(GOOD[0], *BAD, GOOD[1])
    return place, bench(data, place, models, "--seeds", 7, "--workers", 2)


@pytest.fixture(scope="module")
def failures(mixed: tuple[Path, Done]) -> Mapping[str, Failure]:
    found = read_failures([mixed[0] / "results"])
    return {failure.model.partition(":")[2]: failure for failure in found}


def test_bad_models_take_nothing_with_them(mixed: tuple[Path, Done]) -> None:
    place, done = mixed
    assert done.exit_code == 1
    assert [row.name for row in read_results([place / "results"])] == ["plain", "steady"]
    assert "5 cells failed" in done.stdout
    assert "done: plain-0 on ieee14" in done.stderr
    assert not (place / "results" / ".bench.lock").exists()


@pytest.mark.parametrize(
    ("model", "kind", "sentence"),
    [
        ("Raises", "RuntimeError", "RuntimeError: no such luck"),
        ("NotNumbers", "ForecastError", "window 0"),
        ("WrongShape", "ForecastError", "95"),
        ("Exits", "exit", "ended with status 3"),
        ("IsKilled", "signal", "killed by SIGKILL"),
    ],
)
def test_each_way_to_fail_is_recorded_in_a_sentence(
    failures: Mapping[str, Failure], model: str, kind: str, sentence: str
) -> None:
    found = failures[model]
    assert found.kind == kind
    assert sentence in found.sentence
    assert (found.grid, found.edition, found.seed) == ("ieee14", "exact", 0)
    assert found.seconds > 0
    assert "cores" in found.hardware


def test_a_failure_tells_what_was_said_last(failures: Mapping[str, Failure]) -> None:
    lines = failures["Raises"].last_lines
    assert "about to fail" in lines
    assert lines[-1] == "RuntimeError: no such luck"


def test_a_leaderboard_tells_who_failed_and_why(mixed: tuple[Path, Done]) -> None:
    shown = CliRunner().invoke(
        cli.app, ["leaderboard", str(mixed[0] / "results"), "--format", "markdown"]
    )
    assert shown.exit_code == 0, shown.output
    assert "Without a row: exits-0 (its process ended with status 3" in shown.stdout


def test_again_what_failed_is_tried_and_what_is_done_is_not(
    mixed: tuple[Path, Done], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    class Mended(Child):
        def __init__(self, job: Mapping[str, Any], *options: Any) -> None:
            asked.append(job["model"])
            super().__init__({**job, "model": f"{TOYS}:Mended"}, *options)

    monkeypatch.setattr("powerphase.bench.local.Child", Mended)
    done = bench(data, mixed[0], toys("Steady", "Raises", "Plain"), "--seeds", 7)
    assert done.exit_code == 1, done.output
    assert asked == [f"{TOYS}:Raises"]
    record = mixed[0] / "results" / FOLDER / "raises-0.failed.json"
    assert "did you mean" in json.loads(record.read_text())["sentence"]


def test_a_failure_goes_when_the_row_comes(data: Path, tmp_path: Path) -> None:
    record = tmp_path / "results" / FOLDER / "plain-0.failed.json"
    record.parent.mkdir(parents=True)
    record.write_text("{}")
    assert bench(data, tmp_path, toys("Plain")).exit_code == 0
    assert record.with_name("plain-0.json").exists()
    assert not record.exists()


def test_what_takes_too_long_is_stopped(data: Path, tmp_path: Path) -> None:
    done = bench(data, tmp_path, toys("Hangs"), "--limit", 4)
    assert done.exit_code == 1
    (failure,) = read_failures([tmp_path / "results"])
    assert failure.kind == "limit"
    assert "took longer than the 4 s of --limit" in failure.sentence


def test_another_bench_is_told_that_one_is_at_work(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerphase.bench.bench.LOCK_PATIENCE_S", 0.0)
    with locked(tmp_path / "results"):
        done = bench(data, tmp_path, toys("Plain"))
    assert "another bench is writing here" in str(done.exception)
    assert not list((tmp_path / "results").rglob("*.json"))


def test_a_full_disk_fails_the_cell_in_a_sentence(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the size of files, which rows exceed and records of failures do not."""
    start = subprocess.Popen

    def limited(*arguments: Any, **options: Any) -> Any:
        def lower() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

        return start(*arguments, **options, preexec_fn=lower)

    monkeypatch.setattr(children.subprocess, "Popen", limited)
    done = bench(data, tmp_path, toys("Plain"), "--seeds", 1)
    assert done.exit_code == 1
    (failure,) = read_failures([tmp_path / "results"])
    assert (failure.name, failure.kind) == ("plain", "ResultError")
    assert "cannot be written" in failure.sentence


def test_a_child_ends_with_its_asker(data: Path, tmp_path: Path) -> None:
    job = {"do": "make", "model": f"{TOYS}:Hangs", "seed": 0, "data": str(data / "ieee14")}
    job |= {"windows": 10, "device": "cpu", "out": str(tmp_path), "run": "", "seconds": None}
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
    with subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True) as driver:
        assert driver.stderr is not None
        assert driver.stderr.readline() == "begun: hangs-0 on ieee14\n"
        (child,) = Path(f"/proc/{driver.pid}/task/{driver.pid}/children").read_text().split()
        driver.send_signal(signal.SIGINT)
        assert driver.wait(60) == 130
        assert "stopped; run the same command again" in driver.stderr.read()
    assert not Path(f"/proc/{child}").exists()
    assert not list((tmp_path / "results").rglob("*.json"))
