"""How jobs share a machine: its GPUs, its cores and its memory."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from powerphase.bench import (
    THREADS,
    BenchRequest,
    Job,
    LocalEngine,
    Memory,
    Outcome,
    Scheduler,
    make_plan,
    processes,
)
from powerphase.cli import bench_display
from powerphase.cli.bench_display import BenchDisplay
from powerphase.errors import TaskError
from powerphase.records import write_result
from tests.records.rows import row


@pytest.mark.parametrize(
    ("visible", "expected"),
    [(None, ["0", "1", "2"]), ("5,7,GPU-ab", ["5", "7", "GPU-ab"]), ("5", ["5"])],
)
def test_each_worker_has_its_own_gpu(
    monkeypatch: pytest.MonkeyPatch, visible: str | None, expected: list[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(expected))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    engine = LocalEngine("auto")
    assert engine.workers == len(expected)
    variables = [engine.environment(worker) for worker in range(engine.workers)]
    if len(expected) == 1:
        assert variables == [{}]
    else:
        assert [each["CUDA_VISIBLE_DEVICES"] for each in variables] == expected
    assert LocalEngine("cpu").workers == 1


def test_workers_without_a_gpu_share_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 9)
    assert LocalEngine("cpu", 4).environment(0) == dict.fromkeys(THREADS, "2")
    assert LocalEngine("cpu", 1).environment(0) == {}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "OMP_NUM_THREADS" not in LocalEngine("cpu", 4).environment(0)
    with pytest.raises(TaskError, match="--workers"):
        BenchRequest(workers=0)


class HaltedProcess:
    """A process that never ends."""

    def __init__(self) -> None:
        self.progress: Mapping[str, Any] = {}

    def poll(self) -> Outcome | None:
        return None

    def stop(self) -> None: ...


class RecordingEngine:
    """An engine that only records the jobs that it is given."""

    workers = 3

    def __init__(self) -> None:
        self.jobs: list[Job] = []
        self.on_gpu, self.shared = True, Memory("GPU 7", None)

    def start(self, job: Job, worker: int, memory_gib: float | None) -> HaltedProcess:
        self.jobs.append(job)
        return HaltedProcess()

    def memory(self, worker: int) -> Memory | None:
        return self.shared


def make_scheduler(
    data: Path, out: Path, models: list[str], **options: Any
) -> tuple[Scheduler, RecordingEngine]:
    request = BenchRequest(["ieee14"], models, [1, 2], data=data, out=out, runs=out, **options)
    engine = RecordingEngine()
    return Scheduler(make_plan(request), engine, BenchDisplay()), engine


@pytest.mark.parametrize(
    ("on_gpu", "name", "hardware"),
    [(True, "GPU 7", "NVIDIA H200"), (False, "this machine", "Some Processor, 2 cores")],
)
def test_cells_wait_for_memory(
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    on_gpu: bool,
    name: str,
    hardware: str,
) -> None:
    scheduler, engine = make_scheduler(data, tmp_path, ["powerforge", "ets"])
    for model, memory in (("powerforge", 6.0), ("ets", 3.0)):
        cost = {**row().cost, "peak_memory_gib": memory, "hardware": hardware}
        scheduler.plan.rows.append(row(grid="ieee14", model=model, seed=9, cost=cost))
    engine.on_gpu, engine.shared = on_gpu, Memory(name, 10.0)
    scheduler.start_jobs()
    scheduler.start_jobs()
    assert [(job.model, job.seed) for job in engine.jobs] == [("powerforge", 1), ("ets", 1)]
    lines = [line for line in capsys.readouterr().err.splitlines() if "waiting" in line]
    assert [line.split()[1] for line in lines] == ["powerforge-2", "ets-2"]
    for fact in (name, "10.0 GiB", "6.0"):
        assert fact in lines[0]
    scheduler.running.clear()
    engine.shared = Memory(name, 1.0)  # a single job starts whatever it needs
    scheduler.start_jobs()
    assert [(job.model, job.seed) for job in engine.jobs[2:]] == [("powerforge", 2)]


def test_memory_used_on_a_cpu_says_nothing_about_a_gpu(data: Path, tmp_path: Path) -> None:
    scheduler, engine = make_scheduler(data, tmp_path, ["powerforge"])
    cost = {**row().cost, "peak_memory_gib": 6.0, "hardware": "Some Processor, 2 cores"}
    scheduler.plan.rows.append(row(grid="ieee14", seed=9, cost=cost))
    engine.on_gpu, engine.shared = True, Memory("GPU 7", 10.0)
    scheduler.start_jobs()
    assert [job.seed for job in engine.jobs] == [1, 2]


def test_workers_on_one_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    queried = []

    def free_memory(device: torch.device) -> float:
        queried.append(device)
        return 8.0

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(processes, "free_memory_gib", free_memory)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    three = LocalEngine("cuda", 3)
    shared = Memory("GPU 4", 8.0)
    assert [three.memory(worker) for worker in range(3)] == [shared, None, shared]
    assert queried == [torch.device("cuda", 0)]
    assert [LocalEngine("cuda").memory(worker) for worker in range(2)] == [None, None]
    machine = Memory("this machine", 8.0)
    assert [LocalEngine("cpu", 2).memory(worker) for worker in range(2)] == [machine, machine]


def test_an_unreadable_row_fails_its_cell_only(data: Path, tmp_path: Path) -> None:
    scheduler, _ = make_scheduler(data, tmp_path, ["ets"])
    scheduler.start_jobs()
    broken, sound = scheduler.running.pop(0), scheduler.running.pop(1)
    facts: dict[str, Any] = {"edition": "exact", "grid": "ieee14", "model": "ets"}
    for work in (broken, sound):
        write_result(row(seed=work.cell.seed, **facts), {}, tmp_path)
    files = [tmp_path / work.cell.key.path for work in (broken, sound)]
    files[0].write_text("{")
    for work, file in zip((broken, sound), files, strict=True):
        scheduler.finish(work, Outcome(1.0, answer={"row": str(file)}))
    (failure,) = scheduler.failures
    assert (failure.seed, failure.kind) == (1, "ResultError")
    assert str(files[0]) in failure.sentence
    assert [cell.seed for cell in scheduler.plan.done] == [2]


def test_jobs_have_absolute_paths(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model may change the current folder of its process."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").symlink_to(data)
    scheduler, engine = make_scheduler(Path("here"), Path("results"), ["factorforge"])
    scheduler.start_jobs()
    job, results = engine.jobs[0], tmp_path / "results"
    assert Path(job.data).is_absolute()
    assert (Path(job.out), Path(job.run)) == (results, results / "exact/ieee14/factorforge-1")


def test_other_seeds_wait_until_one_is_measured(data: Path, tmp_path: Path) -> None:
    scheduler, engine = make_scheduler(data, tmp_path, ["powerforge"], seconds=60.0)
    scheduler.start_jobs()
    assert [(job.measure_s, job.seed) for job in engine.jobs] == [(60.0, 1)]
    assert [cell.seed for cell in scheduler.unfinished] == [1, 2]
    work = scheduler.running.pop(0)
    scheduler.finish(work, Outcome(1.0, answer={"epochs": 20}))
    scheduler.start_jobs()
    budgets = [(job.measure_s, job.seed, job.budget) for job in engine.jobs[1:]]
    assert [(measure_s, seed) for measure_s, seed, _ in budgets] == [(None, 1), (None, 2)]
    assert [budget for _, _, budget in budgets] == [20, 20]
    assert engine.jobs[1].run == str(tmp_path / "exact/ieee14/powerforge+short-1")


def test_a_failed_measurement_fails_all_seeds(data: Path, tmp_path: Path) -> None:
    scheduler, _ = make_scheduler(data, tmp_path, ["powerforge"], seconds=60.0)
    scheduler.start_jobs()
    outcome = Outcome(1.0, kind="TrainingError", sentence="too slow")
    scheduler.finish(scheduler.running.pop(0), outcome)
    assert [failure.seed for failure in scheduler.failures] == [1, 2]
    assert not scheduler.queue


def test_the_time_left_is_at_least_that_of_the_longest_cell(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three workers do not make two cells in a third of their time."""
    scheduler, _ = make_scheduler(data, tmp_path, ["ets"])
    cost = {**row().cost, "train_s": 90.0, "predict_s": 0.0, "score_s": 0.0}
    scheduler.plan.rows.append(row(grid="ieee14", model="ets", seed=9, cost=cost))
    display = BenchDisplay()
    assert "1.5 min" in display.time_left(scheduler)
    scheduler.start_jobs()
    later = scheduler.running[0].start + 60.0
    monkeypatch.setattr(bench_display, "monotonic", lambda: later)
    assert "30 s" in display.time_left(scheduler)
