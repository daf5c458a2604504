"""Who works on what: GPUs of their own, cores of their own, and memory for all."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from powerphase.bench import local
from powerphase.bench.local import Local
from powerphase.bench.processes import Memory, Outcome
from powerphase.bench.request import Table
from powerphase.bench.scheduler import Bench, Options
from powerphase.cli import bench_display
from powerphase.cli.bench_display import BenchDisplay
from powerphase.errors import TaskError
from powerphase.records.result import write_result
from tests.bench.conftest import TOYS
from tests.records.rows import row


@pytest.mark.parametrize(
    ("named", "wanted"),
    [(None, ["0", "1", "2"]), ("5,7,GPU-ab", ["5", "7", "GPU-ab"]), ("5", ["5"])],
)
def test_each_worker_has_a_gpu_of_its_own(
    monkeypatch: pytest.MonkeyPatch, named: str | None, wanted: list[str]
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: len(wanted))
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if named is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", named)
    engine = Local("auto")
    assert engine.workers == len(wanted)
    found = [engine._environment(worker) for worker in range(engine.workers)]
    if len(wanted) == 1:
        assert found == [{}]
    else:
        assert [one["CUDA_VISIBLE_DEVICES"] for one in found] == wanted
    assert Local("cpu").workers == 1


def test_workers_without_a_gpu_share_out_the_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in local.THREADS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.cpu_count", lambda: 9)
    assert Local("cpu", 4)._environment(0) == dict.fromkeys(local.THREADS, "2")
    assert Local("cpu", 1)._environment(0) == {}
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert "OMP_NUM_THREADS" not in Local("cpu", 4)._environment(0)
    with pytest.raises(TaskError, match="--workers 0 make nothing"):
        Local("cpu", 0)


class Halted:
    """A process that ends when it is told to."""

    def __init__(self) -> None:
        self.progress: Mapping[str, Any] = {}
        self.outcome: Outcome | None = None

    def poll(self) -> Outcome | None:
        return self.outcome

    def stop(self) -> None: ...


class Paper:
    """An engine that only notes what it is asked for."""

    workers = 3

    def __init__(self) -> None:
        self.asked: list[Mapping[str, Any]] = []
        self.on_gpu, self.shared = True, Memory("GPU 7", None)

    def start(self, job: Mapping[str, Any], worker: int, memory_gib: float | None) -> Halted:
        self.asked.append(job)
        return Halted()

    def memory(self, worker: int) -> Memory | None:
        return self.shared


def bench_of(data: Path, out: Path, models: list[str], **options: Any) -> tuple[Bench, Paper]:
    plan = Table(["ieee14"], models, [1, 2], data=data, out=out, runs=out, **options).plan()
    engine = Paper()
    return Bench(plan, Options(seconds=options.get("seconds")), engine, BenchDisplay()), engine


@pytest.mark.parametrize(
    ("on_gpu", "where", "hardware"),
    [(True, "GPU 7", "NVIDIA H200"), (False, "this machine", "Some Processor, 2 cores")],
)
def test_cells_that_do_not_fit_beside_each_other_wait(
    data: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    on_gpu: bool,
    where: str,
    hardware: str,
) -> None:
    bench, engine = bench_of(data, tmp_path, ["powerforge", "ets"])
    for model, memory in (("powerforge", 6.0), ("ets", 3.0)):
        cost = {**row().cost, "peak_memory_gib": memory, "hardware": hardware}
        bench.plan.rows.append(row(grid="ieee14", model=model, seed=9, cost=cost))
    engine.on_gpu, engine.shared = on_gpu, Memory(where, 10.0)
    bench._begin_all()
    bench._begin_all()
    assert [(job["model"], job["seed"]) for job in engine.asked] == [("powerforge", 1), ("ets", 1)]
    told = [line for line in capsys.readouterr().err.splitlines() if "waiting" in line]
    assert told[0] == (
        f"waiting: powerforge-2 on ieee14 takes about 6.0 GiB, and of 10.0 GiB of {where} others "
        "take 6.0"
    )
    assert [line.split()[1] for line in told] == ["powerforge-2", "ets-2"]
    bench.running.clear()
    engine.shared = Memory(where, 1.0)  # what runs alone is let try
    bench._begin_all()
    assert [(job["model"], job["seed"]) for job in engine.asked[2:]] == [("powerforge", 2)]


def test_the_memory_of_a_machine_tells_nothing_about_that_of_a_gpu(
    data: Path, tmp_path: Path
) -> None:
    bench, engine = bench_of(data, tmp_path, ["powerforge"])
    cost = {**row().cost, "peak_memory_gib": 6.0, "hardware": "Some Processor, 2 cores"}
    bench.plan.rows.append(row(grid="ieee14", seed=9, cost=cost))
    engine.on_gpu, engine.shared = True, Memory("GPU 7", 10.0)
    bench._begin_all()
    assert [job["seed"] for job in engine.asked] == [1, 2]


def test_workers_that_share_a_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def free(device: torch.device) -> float:
        asked.append(device)
        return 8.0

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(local, "free_memory_gib", free)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6")
    three = Local("cuda", 3)
    assert [three.memory(k) for k in range(3)] == [Memory("GPU 4", 8.0), None, Memory("GPU 4", 8.0)]
    assert asked == [torch.device("cuda", 0)]
    assert [Local("cuda").memory(k) for k in range(2)] == [None, None]
    assert Local("cpu", 2).memory(0) == Local("cpu", 2).memory(1) == Memory("this machine", 8.0)


def test_a_row_that_cannot_be_read_fails_its_cell_and_the_rest_goes_on(
    data: Path, tmp_path: Path
) -> None:
    bench, _ = bench_of(data, tmp_path, ["ets"])
    bench._begin_all()
    broken, sound = bench.running.pop(0), bench.running.pop(1)
    facts = {"edition": "exact", "grid": "ieee14", "model": "ets"}
    for work in (broken, sound):
        write_result(row(seed=work.cell.seed, **facts), {}, tmp_path)
    files = [tmp_path / row(seed=work.cell.seed, **facts).path for work in (broken, sound)]
    files[0].write_text("{")
    for work, file in zip((broken, sound), files, strict=True):
        bench._end(work, Outcome(1.0, answer={"row": str(file)}))
    assert [(one.seed, one.kind) for one in bench.failures] == [(1, "ResultError")]
    assert f"its row cannot be read: {files[0]}: not the JSON" in bench.failures[0].sentence
    assert [cell.seed for cell in bench.plan.done] == [2]


def test_jobs_name_whole_paths(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model may change the folder that its process is in."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").symlink_to(data)
    bench, engine = bench_of(Path("here"), Path("results"), ["factorforge"])
    bench._begin_all()
    places = [engine.asked[0][name] for name in ("data", "out", "run")]
    assert all(Path(place).is_absolute() for place in places)
    assert places[1:] == [
        str(tmp_path / "results"),
        str(tmp_path / "results" / "exact" / "ieee14" / "factorforge-1"),
    ]


def test_other_seeds_wait_until_one_is_measured(data: Path, tmp_path: Path) -> None:
    bench, engine = bench_of(data, tmp_path, ["powerforge"], seconds=60.0)
    bench._begin_all()
    assert [(job["do"], job["seed"]) for job in engine.asked] == [("measure", 1)]
    assert [cell.seed for cell in bench.unfinished] == [1, 2]
    work = bench.running.pop(0)
    size = work.cell.description.config["training"]["batch_size"]
    bench._end(work, Outcome(1.0, answer={"epochs": 20, "batch_size": size}))
    bench._begin_all()
    made = [(job["do"], job["seed"], job["epochs"]) for job in engine.asked[1:]]
    assert made == [("make", 1, 20), ("make", 2, 20)]
    assert engine.asked[1]["run"] == str(tmp_path / "exact/ieee14/powerforge+short-1")


def test_a_seed_waits_until_another_has_chosen_a_batch_size(data: Path, tmp_path: Path) -> None:
    """Side by side, each would take what memory the other leaves, and they would not be alike."""
    bench, engine = bench_of(data, tmp_path, [f"{TOYS}:ToyNet", "ets"])
    bench._begin_all()
    begun = [(job["model"].rpartition(":")[2], job["seed"]) for job in engine.asked]
    assert begun == [("ToyNet", 1), ("ets", 1), ("ets", 2)]
    cell = bench.running.pop(2).cell
    config = bench.running[0].cell.description.config
    chosen = {**config, "training": {**config["training"], "batch_size": 2}}
    facts = {"grid": "ieee14", "edition": "exact", "fingerprint": cell.data.fingerprint}
    bench.plan.rows.append(row(model="toy-net", seed=9, config=chosen, **facts))
    bench._begin_all()
    assert [(job["seed"], job["batch_size"]) for job in engine.asked[3:]] == [(2, 2)]


def test_what_cannot_be_measured_fails_for_all_seeds(data: Path, tmp_path: Path) -> None:
    bench, _ = bench_of(data, tmp_path, ["powerforge"], seconds=60.0)
    bench._begin_all()
    bench._end(bench.running.pop(0), Outcome(1.0, kind="TrainingError", sentence="too slow"))
    assert [failure.seed for failure in bench.failures] == [1, 2]
    assert not bench.queue


def test_the_time_left_is_that_of_the_longest_cell_and_runs_down(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three workers do not make two cells in a third of their time."""
    bench, _ = bench_of(data, tmp_path, ["ets"])
    cost = {**row().cost, "train_s": 90.0, "predict_s": 0.0, "score_s": 0.0}
    bench.plan.rows.append(row(grid="ieee14", model="ets", seed=9, cost=cost))
    display = BenchDisplay()
    assert display._time_left(bench, 0) == ", 90 s to go"
    bench._begin_all()
    later = bench.running[0].begun + 60.0
    monkeypatch.setattr(bench_display, "monotonic", lambda: later)
    assert display._time_left(bench, 0) == ", 30 s to go"
