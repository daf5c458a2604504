"""A bench on a real Ray cluster, whose workers may die in the middle of a job."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from powerphase import Task, forecast, score
from powerphase.bench import Outcome, RemoteJob
from powerphase.dataset import MANIFEST
from powerphase.records import read_failures, read_results, write_result
from tests.bench.conftest import bench, reproducible, toys
from tests.bench.toy_models import Fateful
from tests.ray_folders import ray_folder
from tests.records.rows import row

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray warns about itself

Answer = tuple[Outcome, dict[str, bytes]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A running cluster with two CPUs, to which this process belongs."""
    ray = pytest.importorskip("ray")
    cluster_utils = pytest.importorskip("ray.cluster_utils")
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with ray_folder():
        head = {"num_cpus": 2, "object_store_memory": 200 * 2**20, "include_dashboard": False}
        running = cluster_utils.Cluster(initialize_head=True, head_node_args=head)
        ray.init(address=running.address, log_to_driver=False, logging_level="ERROR")
        yield
        ray.shutdown()
        running.shutdown()
    os.environ.pop("PYTHONPATH")
    if before is not None:
        os.environ["PYTHONPATH"] = before


class FinishedRay:
    """The part of Ray's interface that returns the answer of a finished task."""

    exceptions = SimpleNamespace(RayError=RuntimeError, RayTaskError=RuntimeError)

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def remote(self, *arguments: object) -> None: ...

    def wait(self, references: list[None], timeout: float) -> tuple[list[None], list[None]]:
        return references, []

    def get(self, reference: None) -> Answer:
        return self._answer


def receive(files: dict[str, bytes], out: Path) -> Outcome:
    ray = FinishedRay((Outcome(1.0, answer={"row": "elsewhere"}), files))
    outcome = RemoteJob(ray, ray, (), out).poll()
    assert outcome is not None
    return outcome


def test_a_row_from_a_node_is_checked_and_written_like_any_other(tmp_path: Path) -> None:
    local, remote = tmp_path / "local", tmp_path / "remote"
    path = write_result(row(), {"by_bus/crps": np.ones((3, 4))}, remote)
    files = {str(file.relative_to(remote)): file.read_bytes() for file in remote.rglob("*.*")}
    files |= {"note.txt": b"of the model"}
    assert receive(files, local).answer == {"row": str(local / row().path)}
    written = {str(file.relative_to(local)): file.read_bytes() for file in local.rglob("*.*")}
    assert written == {name: files[name] for name in files if name != "note.txt"}
    other = write_result(row(config={"width": 65}), {}, tmp_path / "third")
    broken = {
        "config": other.read_bytes(),
        "JSON": path.read_bytes()[:-9],
        "craps": path.read_bytes().replace(b'"crps"', b'"craps"'),
    }
    for fact, content in broken.items():
        outcome = receive({**files, str(row().path): content}, local)
        assert (outcome.answer, outcome.kind) == (None, "ResultError")
        assert fact in outcome.sentence
        assert (local / row().path).read_bytes() == path.read_bytes()


@pytest.mark.usefixtures("cluster")
def test_a_job_whose_worker_dies_continues_on_another(data: Path, tmp_path: Path) -> None:
    done = bench(data, tmp_path, toys("Fateful"), "--seeds", 3, "--engine", "ray")
    assert done.exit_code == 0, done.output
    assert len(list((tmp_path / "runs/exact/ieee14/fateful-3").glob("died-*"))) == 1
    (made,) = read_results([tmp_path / "results"])
    assert made.path.name == "fateful-3.json"
    assert (tmp_path / "results" / made.path).with_suffix(".npz").exists()
    task, calm = Task(data / "ieee14"), Fateful(seed=3, device="cpu")
    expected = score(forecast(calm, task, device="cpu"), task, device="cpu").row
    assert reproducible(made) == reproducible(expected)


@pytest.mark.usefixtures("cluster")
def test_a_job_whose_workers_all_die_fails(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerphase.bench.ray_engine.TRIES", 1)
    done = bench(data, tmp_path, toys("Fatal"), "--seeds", 3, "--engine", "ray")
    assert done.exit_code == 1
    (failure,) = read_failures([tmp_path / "results"])
    assert (failure.name, failure.kind) == ("fatal", "WorkerCrashedError")


@pytest.mark.usefixtures("cluster")
def test_an_error_on_a_node_is_not_mistaken_for_a_dead_worker(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / MANIFEST).write_text("{")
    monkeypatch.setattr("powerphase.bench.ray_engine.Path.resolve", lambda self: damaged)
    bench(data, tmp_path, toys("Plain"), "--engine", "ray")
    (failure,) = read_failures([tmp_path / "results"])
    assert failure.kind == "StoreError"
    assert MANIFEST in failure.sentence


@pytest.mark.usefixtures("cluster")
def test_data_that_a_node_cannot_reach_is_named(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerphase.bench.ray_engine.Path.resolve", lambda self: Path("/nowhere"))
    bench(data, tmp_path, toys("Plain"), "--engine", "ray")
    (failure,) = read_failures([tmp_path / "results"])
    assert failure.kind == "StoreError"
    assert "/nowhere" in failure.sentence
