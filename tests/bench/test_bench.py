"""A bench in full: rows of what is good, records of what is bad, and nothing lost in between."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result as Done
from typer.testing import CliRunner

from powerphase import cli
from powerphase.bench import processes
from powerphase.bench.processes import Child
from powerphase.bench.scheduler import locked
from powerphase.records.failure import Failure, read_failures
from powerphase.records.result import Result, read_results
from tests.bench.conftest import TOYS

FOLDER = Path("powerphase-day-ahead") / "exact" / "ieee14"
GOOD = ("Steady", "Plain")
BAD = ("Raises", "Unspeakable", "Asks", "NotNumbers", "WrongShape", "Restless", "Exits", "IsKilled")


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
    (place / "results" / FOLDER).mkdir(parents=True)
    (place / "results" / FOLDER / "plain-0.failed.json").write_text("{}")  # of an earlier bench
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
    assert f"failed: {len(BAD)};" in done.stdout
    assert "done: plain-0 on ieee14" in done.stderr
    assert not (place / "results" / ".bench.lock").exists()


def test_a_failure_goes_when_the_row_comes(mixed: tuple[Path, Done]) -> None:
    folder = mixed[0] / "results" / FOLDER
    assert (folder / "plain-0.npz").exists()
    assert not (folder / "plain-0.failed.json").exists()


@pytest.mark.parametrize(
    ("model", "kind", "sentence"),
    [
        ("Raises", "RuntimeError", "RuntimeError: no such luck"),
        ("Unspeakable", "RuntimeError", "RuntimeError: two lines of caf\\udce9"),
        ("Asks", "EOFError", "EOFError"),
        ("NotNumbers", "ForecastError", "window 0"),
        ("WrongShape", "ForecastError", "95"),
        ("Restless", "ForecastError", "tells another config once it is fitted"),
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


@pytest.mark.parametrize(
    ("code", "advice"),
    [(-signal.SIGKILL, "give it more memory, or mend it"), (-signal.SIGSEGV, "mend the model")],
)
def test_only_what_the_system_kills_is_to_have_more_memory(code: int, advice: str) -> None:
    child = Child({})
    try:
        assert child._death(code).sentence.endswith(f"; {advice}")
    finally:
        child.stop()


def test_a_failure_tells_what_was_said_last(failures: Mapping[str, Failure]) -> None:
    lines = failures["Raises"].last_lines
    assert "about to fail" in lines
    assert lines[-1] == "RuntimeError: no such luck"


def test_a_traceback_is_printed_before_the_failure_is_told(data: Path) -> None:
    """Whoever hears of the failure reads what was printed and ends the process at once."""
    job = {"do": "make", "model": f"{TOYS}:Raises", "training": {}, "seed": 0, "device": "cpu"}
    job |= {"data": str(data / "ieee14"), "windows": 10}
    asked = subprocess.Popen(
        [sys.executable, "-m", "powerphase.bench.worker"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert asked.stdin is not None
    assert asked.stdout is not None
    with asked.stdin as where, asked.stdout as said:
        where.write(f"{json.dumps(job)}\n".encode())
        where.flush()
        lines = said.read().decode().splitlines()
    assert asked.wait() == 1
    assert lines[-2] == "RuntimeError: no such luck"
    assert json.loads(lines[-1])["failed"]["kind"] == "RuntimeError"


def test_a_leaderboard_tells_who_failed_and_why(mixed: tuple[Path, Done]) -> None:
    shown = CliRunner().invoke(
        cli.app, ["leaderboard", str(mixed[0] / "results"), "--format", "markdown"]
    )
    assert shown.exit_code == 0, shown.output
    assert "Without a row: asks-0 (EOFError: EOF when reading a line (in toy_" in shown.stdout
    assert "; exits-0 (its process ended with status 3" in shown.stdout


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


def test_what_takes_too_long_is_stopped(data: Path, tmp_path: Path) -> None:
    done = bench(data, tmp_path, toys("Hangs"), "--limit", 4)
    assert done.exit_code == 1
    (failure,) = read_failures([tmp_path / "results"])
    assert failure.kind == "limit"
    assert "took longer than the 4 s of --limit" in failure.sentence


def test_another_bench_is_told_that_one_is_at_work(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerphase.bench.scheduler.LOCK_PATIENCE_S", 0.0)
    with locked(tmp_path / "results"):
        done = bench(data, tmp_path, toys("Plain"))
    assert "another bench is writing here" in str(done.exception)
    assert not list((tmp_path / "results").rglob("*.json"))


def test_a_tree_that_was_removed_meanwhile_needs_no_unlocking(tmp_path: Path) -> None:
    with locked(tmp_path / "results"):
        shutil.rmtree(tmp_path / "results")
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_current_folder_does_not_pass_for_python_s_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    child = Child({})
    while (outcome := child.poll()) is None:
        time.sleep(0.05)
    assert outcome.sentence.startswith("KeyError")  # which the empty job is worth


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

    monkeypatch.setattr(processes.subprocess, "Popen", limited)
    done = bench(data, tmp_path, toys("Plain"), "--seeds", 1)
    assert done.exit_code == 1
    (failure,) = read_failures([tmp_path / "results"])
    assert (failure.name, failure.kind) == ("plain", "ResultError")
    assert "cannot be written" in failure.sentence
