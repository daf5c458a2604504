"""A whole bench: rows of good models, records of bad ones, and nothing lost in between."""

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from typer.testing import Result as CommandResult

from powerphase import cli
from powerphase.bench import Job, JobProcess, as_line, lock_results, processes, run_job
from powerphase.errors import ForecastError
from powerphase.records import Failure, read_failures, read_result, read_results
from tests.bench.conftest import TOYS, bench, toys
from tests.warm import warm_jobs

FOLDER = Path("powerphase-day-ahead") / "exact" / "ieee14"
GOOD = ("Steady", "Plain")
BAD = ("Raises", "Asks", "Exits", "IsKilled")


def job_of(data: Path, out: Path, model: str) -> Job:
    return Job(
        model=f"{TOYS}:{model}",
        seed=0,
        data=str(data / "ieee14"),
        out=str(out),
        run=str(out / "run"),
        device="cpu",
    )


@pytest.fixture(scope="module")
def mixed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, CommandResult]:
    """A bench of good and bad models, where an earlier one left the record of a failure."""
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "results" / FOLDER).mkdir(parents=True)
    (folder / "results" / FOLDER / "plain-0.failed.json").write_text("{}")
    models = toys(GOOD[0], *BAD, GOOD[1])
    with pytest.MonkeyPatch.context() as patch:
        warm_jobs(patch)
        return folder, bench(data, folder, models, "--seeds", 7, "--workers", 2)


@pytest.fixture(scope="module")
def failures(mixed: tuple[Path, CommandResult]) -> Mapping[str, Failure]:
    records = read_failures([mixed[0] / "results"])
    return {failure.model.partition(":")[2]: failure for failure in records}


def test_bad_models_do_not_stop_good_ones(mixed: tuple[Path, CommandResult]) -> None:
    folder, done = mixed
    assert done.exit_code == 1
    assert [row.name for row in read_results([folder / "results"])] == ["plain", "steady"]
    assert f"failed: {len(BAD)}" in done.stdout
    assert "done: plain-0 on ieee14" in done.stderr
    assert not (folder / "results" / ".bench.lock").exists()


def test_a_row_removes_the_record_of_an_earlier_failure(mixed: tuple[Path, CommandResult]) -> None:
    folder = mixed[0] / "results" / FOLDER
    assert (folder / "plain-0.npz").exists()
    assert not (folder / "plain-0.failed.json").exists()


@pytest.mark.parametrize(
    ("model", "kind", "fact"),
    [
        ("Raises", "RuntimeError", "no such luck"),
        ("Asks", "EOFError", "EOFError"),
        ("Exits", "exit", "status 3"),
        ("IsKilled", "signal", "SIGKILL"),
    ],
)
def test_each_failure_is_recorded_with_its_cause(
    failures: Mapping[str, Failure], model: str, kind: str, fact: str
) -> None:
    failure = failures[model]
    assert failure.kind == kind
    assert fact in failure.sentence
    assert (failure.grid, failure.edition, failure.seed) == ("ieee14", "exact", 0)
    assert failure.seconds > 0
    assert "cores" in failure.hardware


@pytest.mark.parametrize(
    ("model", "fact"), [("NotNumbers", "window 0"), ("WrongShape", "95"), ("Restless", "config")]
)
def test_a_forecast_that_cannot_be_scored_raises(
    data: Path, tmp_path: Path, model: str, fact: str
) -> None:
    with pytest.raises(ForecastError, match=fact):
        run_job(job_of(data, tmp_path, model), lambda message: None)
    assert not list(tmp_path.rglob("*.json"))


def test_a_job_scores_by_its_limits(data: Path, tmp_path: Path) -> None:
    job = replace(job_of(data, tmp_path, "Plain"), task="powerphase-day-ahead-1-1p1-limits")
    row = read_result(run_job(job, lambda message: None)["row"])
    assert row.task == "powerphase-day-ahead-1-1p1-limits"
    assert row.truth["violations"] != 0


def test_a_job_survives_the_way_through_json(data: Path, tmp_path: Path) -> None:
    job = replace(job_of(data, tmp_path, "Plain"), task="powerphase-day-ahead-all", measure_s=1.5)
    assert Job.from_json(job.to_json()) == job
    assert "\n" not in job.to_json()


def test_a_message_becomes_one_line_that_utf_8_can_encode() -> None:
    line = as_line("two\nlines of " + os.fsdecode(b"caf\xe9"))
    assert line == "two lines of caf\\udce9"
    assert line.encode()


def test_only_a_kill_by_the_system_is_blamed_on_memory(data: Path, tmp_path: Path) -> None:
    process = JobProcess(job_of(data, tmp_path, "Plain"))
    try:
        for code, is_memory in ((-signal.SIGKILL, True), (-signal.SIGSEGV, False)):
            sentence = process.outcome_of_death(code).sentence
            assert signal.Signals(-code).name in sentence
            assert ("memory" in sentence) == is_memory
    finally:
        process.stop()


def test_a_failure_keeps_the_last_lines_of_its_process(failures: Mapping[str, Failure]) -> None:
    lines = failures["Raises"].last_lines
    assert "about to fail" in lines
    assert lines[-1] == "RuntimeError: no such luck"


def test_a_traceback_is_printed_before_the_failure_is_reported(data: Path, tmp_path: Path) -> None:
    """Upon the report, the parent reads what was printed and kills the process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "powerphase.bench.worker"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path or "." for path in sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process.stdin as stdin, process.stdout as stdout:
        stdin.write(f"{job_of(data, tmp_path, 'Raises').to_json()}\n".encode())
        stdin.flush()
        lines = stdout.read().decode().splitlines()
    assert process.wait() == 1
    assert lines[-2] == "RuntimeError: no such luck"
    assert json.loads(lines[-1])["failed"]["kind"] == "RuntimeError"


def test_a_leaderboard_names_what_failed_and_why(mixed: tuple[Path, CommandResult]) -> None:
    arguments = ["leaderboard", str(mixed[0] / "results"), "--format", "markdown"]
    shown = CliRunner().invoke(cli.app, arguments)
    assert shown.exit_code == 0, shown.output
    for phrase in ("asks-0 (EOFError", "toy_models.py", "exits-0 (", "status 3"):
        assert phrase in shown.stdout


def test_a_second_bench_only_retries_failures(
    mixed: tuple[Path, CommandResult], data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = []

    class Misspelt(JobProcess):
        def __init__(self, job: Job, *options: Any) -> None:
            started.append(job.model)
            super().__init__(replace(job, model=f"{TOYS}:Raisses"), *options)

    warm_jobs(monkeypatch)
    monkeypatch.setattr(processes, "JobProcess", Misspelt)
    done = bench(data, mixed[0], toys("Steady", "Raises", "Plain"), "--seeds", 7)
    assert done.exit_code == 1, done.output
    assert started == [f"{TOYS}:Raises"]
    record = mixed[0] / "results" / FOLDER / "raises-0.failed.json"
    assert json.loads(record.read_text())["kind"] == "UnknownName"


def test_a_cell_that_takes_too_long_is_stopped(data: Path, tmp_path: Path) -> None:
    done = bench(data, tmp_path, toys("Hangs"), "--limit", 1)
    assert done.exit_code == 1
    (failure,) = read_failures([tmp_path / "results"])
    assert failure.kind == "limit"
    assert "1 s of --limit" in failure.sentence


def test_two_benches_cannot_write_to_one_tree(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerphase.bench.scheduler.LOCK_PATIENCE_S", 0.0)
    with lock_results(tmp_path / "results"):
        done = bench(data, tmp_path, toys("Plain"))
    assert "another bench" in str(done.exception)
    assert not list((tmp_path / "results").rglob("*.json"))


def test_a_tree_may_be_removed_while_it_is_locked(tmp_path: Path) -> None:
    with lock_results(tmp_path / "results"):
        shutil.rmtree(tmp_path / "results")
    assert not list(tmp_path.iterdir())


def test_a_file_in_the_current_folder_does_not_shadow_the_standard_library(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    process = JobProcess(job_of(data, tmp_path, "NoSuchModel"))
    while (outcome := process.poll()) is None:
        time.sleep(0.05)
    assert outcome.kind == "UnknownName"


def test_a_full_disk_fails_only_the_cell(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A limit on the size of files, which rows exceed and records of failures do not."""
    start: Any = subprocess.Popen

    def start_limited(*arguments: Any, **options: Any) -> Any:
        def lower() -> None:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))

        return start(*arguments, **options, preexec_fn=lower)

    monkeypatch.setattr("powerphase.bench.processes.subprocess.Popen", start_limited)
    done = bench(data, tmp_path, toys("Plain"), "--seeds", 1)
    assert done.exit_code == 1
    (failure,) = read_failures([tmp_path / "results"])
    assert (failure.name, failure.kind) == ("plain", "ResultError")
    assert str(tmp_path / "results") in failure.sentence
