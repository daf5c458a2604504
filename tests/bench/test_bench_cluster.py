"""A bench on a real Ray cluster, whose workers may die in the middle of a cell."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from powerphase.bench.processes import Outcome
from powerphase.bench.ray_engine import Answer, Remote
from powerphase.dataset import MANIFEST
from powerphase.evaluation.forecasting import forecast
from powerphase.evaluation.scoring import score
from powerphase.records.failure import read_failures
from powerphase.records.result import read_results, write_result
from powerphase.task.windows import Task
from tests.bench.test_bench import bench, told, toys
from tests.bench.toy_models import Fateful
from tests.ray_folders import ray_folder
from tests.records.rows import row

pytestmark = pytest.mark.filterwarnings("ignore")  # Ray's own


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """A running cluster of two processors, which this process belongs to."""
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


class OneAnswer:
    """As much of Ray as tells the answer of a task that is done."""

    exceptions = SimpleNamespace(RayError=RuntimeError, RayTaskError=RuntimeError)

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    def remote(self, *arguments: object) -> None: ...

    def wait(self, asked: list[None], timeout: float) -> tuple[list[None], list[None]]:
        return asked, []

    def get(self, asked: None) -> Answer:
        return self._answer


def came_back(files: dict[str, bytes], out: Path) -> Outcome | None:
    ray = OneAnswer((Outcome(1.0, answer={"row": "elsewhere"}), files))
    return Remote(ray, ray, (), out).poll()


def test_a_row_that_comes_back_is_written_as_any_other(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    path = write_result(row(), {"by_bus/crps": np.ones(3)}, there)
    files = {str(one.relative_to(there)): one.read_bytes() for one in there.rglob("*.*")}
    files |= {"note.txt": b"of the model"}
    found = came_back(files, here)
    assert found is not None
    assert found.answer == {"row": str(here / row().path)}
    kept = {str(one.relative_to(here)): one.read_bytes() for one in here.rglob("*.*")}
    assert kept == {name: files[name] for name in files if name != "note.txt"}
    other = write_result(row(config={"width": 65}), {}, tmp_path / "third")
    broken = {
        "holds a row with another config": other.read_bytes(),
        "not the JSON of a result": path.read_bytes()[:-9],
        "scores": path.read_bytes().replace(b'"crps"', b'"craps"'),
    }
    for why, content in broken.items():
        found = came_back({**files, str(row().path): content}, here)
        assert found is not None
        assert (found.answer, found.kind) == (None, "ResultError")
        assert found.sentence.startswith("the row that came from its node is not kept: ")
        assert why in found.sentence
        assert (here / row().path).read_bytes() == path.read_bytes()


@pytest.mark.usefixtures("cluster")
def test_a_cell_whose_worker_dies_in_mid_run_goes_on_with_another(
    data: Path, tmp_path: Path
) -> None:
    models = toys("Fateful", "Raises")
    done = bench(data, tmp_path, models, "--seeds", 3, "--engine", "ray")
    assert done.exit_code == 1, done.output
    assert len(list((tmp_path / "runs/exact/ieee14/fateful-3").glob("died-*"))) == 1
    (found,) = read_results([tmp_path / "results"])
    assert found.path.name == "fateful-3.json"
    assert (tmp_path / "results" / found.path).with_suffix(".npz").exists()
    task, calm = Task(data / "ieee14"), Fateful(seed=3, device="cpu")
    assert told(found) == told(score(forecast(calm, task, device="cpu"), task, device="cpu").row)
    (failure,) = read_failures([tmp_path / "results"])
    assert failure.sentence.startswith("RuntimeError: no such luck (in toy_models.py, line ")


@pytest.mark.usefixtures("cluster")
def test_a_cell_whose_workers_all_die_fails(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerphase.bench.ray_engine.TRIES", 1)
    done = bench(data, tmp_path, toys("Fatal"), "--seeds", 3, "--engine", "ray")
    assert done.exit_code == 1
    (failure,) = read_failures([tmp_path / "results"])
    assert (failure.name, failure.kind) == ("fatal", "WorkerCrashedError")
    assert "died 1 times" in failure.sentence


@pytest.mark.usefixtures("cluster")
def test_an_error_on_a_node_is_told_and_not_taken_for_a_death(
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
def test_data_that_a_node_does_not_reach_is_told(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("powerphase.bench.ray_engine.Path.resolve", lambda self: Path("/nowhere"))
    bench(data, tmp_path, toys("Plain"), "--engine", "ray")
    (failure,) = read_failures([tmp_path / "results"])
    assert "/nowhere: no data set here on the node" in failure.sentence
    assert "all nodes of the cluster reach by the same path" in failure.sentence
