"""What a training may take: the ladder, what seeds share, and a row as `train` would make it."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from powerphase.bench import budget
from powerphase.bench.budget import LADDER, MARGIN, Settled, fitting, measured
from powerphase.bench.request import Table
from powerphase.bench.siblings import settled
from powerphase.errors import TrainingError
from powerphase.evaluation.entrants import entrant
from powerphase.evaluation.forecasting import forecast
from powerphase.evaluation.scoring import score
from powerphase.models.framework.neural import with_training
from powerphase.models.framework.training import Progress
from powerphase.records.result import Result, read_results
from powerphase.task.windows import Task
from tests.bench.conftest import TOYS
from tests.bench.test_bench import bench, told, toys
from tests.bench.toy_models import ToyNet, ToyNetConfig

NET = f"{TOYS}:ToyNet"


@pytest.mark.parametrize("epochs", [200, 60, 20, 1])
def test_the_largest_number_of_epochs_that_fits_is_taken(epochs: int) -> None:
    rungs = [epochs, *(rung for rung in LADDER if rung < epochs)]
    for rung, larger in zip(rungs, [None, *rungs], strict=False):
        assert fitting(epochs, 2.0, 2.0 * rung * MARGIN) == rung
        if larger is not None:
            assert fitting(epochs, 2.0, 2.0 * larger * MARGIN - 0.01) == rung


def test_where_not_even_one_fits_it_is_told() -> None:
    with pytest.raises(TrainingError, match=r"an epoch takes 2.0 s here, .* the 2 s of --seconds"):
        fitting(200, 2.0, 2.0)


class Clock:
    """Steps of a second; the first epoch takes ten more, and the last of each epoch is judged."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_speed_is_that_of_the_second_epoch(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seen = Clock(), []
    monkeypatch.setattr(budget, "perf_counter", clock)
    report = budget._Pace.__call__

    def step(self: Any, now: Progress) -> None:
        seen.append(now.step)
        clock.now += 11.0 if now.step == 2 else 1.0
        report(self, now)

    monkeypatch.setattr(budget._Pace, "__call__", step)
    asked = entrant(NET)
    found = measured(asked, Task(data / "ieee14"), 1, "cpu", 3.0 * 2 * MARGIN + 0.01)
    assert found == Settled(epochs=2, batch_size=4)  # an epoch of three steps takes 3 s
    assert seen == [1, 2, 3, 4, 5, 6, 7]


def test_measuring_stops_when_the_time_is_over(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(budget, "perf_counter", clock)
    report = budget._Pace.__call__

    def step(self: Any, now: Progress) -> None:
        clock.now += 100.0
        report(self, now)

    monkeypatch.setattr(budget._Pace, "__call__", step)
    with pytest.raises(TrainingError, match=r"an epoch takes 200\.0 s here"):
        measured(entrant(NET), Task(data / "ieee14"), 1, "cpu", 50.0)


@pytest.fixture
def table(data: Path, tmp_path: Path) -> Callable[..., Table]:
    places = {"data": data, "out": tmp_path / "results", "runs": tmp_path / "runs"}
    return lambda **options: Table(["ieee14"], [NET], **places, device="cpu", **options)


def trained(data: Path, run: Path | None, seed: int, epochs: int = 4, size: int | None = 2) -> Any:
    changes = {"epochs": epochs, "batch_size": size}
    model = ToyNet(with_training(ToyNetConfig(), changes), seed=seed, device="cpu", run=run)
    model.fit(Task(data / "ieee14").training)
    return model


def test_a_seed_takes_what_another_seed_s_training_has(
    table: Callable[..., Table], data: Path, tmp_path: Path
) -> None:
    plan = table(seeds=[1, 2], seconds=9.0).plan()
    assert [settled(plan, cell, True) for cell in plan.cells] == [None, None]
    trained(data, plan.run_folder(replace(plan.cells[1].key, variant="short")), 2, epochs=1)
    assert [settled(plan, cell, True) for cell in plan.cells] == 2 * [Settled(1, 2)]
    assert [settled(plan, cell, False) for cell in plan.cells] == [None, None]
    trained(data, plan.run_folder(replace(plan.cells[0].key, variant="short")), 1, epochs=2)
    assert [settled(plan, cell, True) for cell in plan.cells] == [Settled(2, 2), Settled(1, 2)]


def test_a_seed_takes_the_batch_size_of_another_seed_s_row(
    table: Callable[..., Table], data: Path, tmp_path: Path
) -> None:
    task = Task(data / "ieee14")
    score(forecast(trained(data, None, 2), task), task).save(tmp_path / "results")
    plan = table(seeds=[1, 2]).plan()
    assert [plan.state(cell) for cell in plan.cells] == ["to do", "done"]
    for is_budgeted in (False, True):
        assert settled(plan, plan.cells[0], is_budgeted) == Settled(4, 2)


def test_what_was_trained_on_other_data_or_otherwise_is_no_sibling(
    table: Callable[..., Table], data: Path
) -> None:
    plan = table(seeds=[1, 2], seconds=9.0).plan()
    cell, folder = plan.cells[0], plan.run_folder(replace(plan.cells[1].key, variant="short"))
    trained(data, folder, 2, epochs=1)
    header = json.loads((folder / "model.json").read_text())
    assert settled(plan, cell, True) is not None
    for part, name, value in (("data", "fingerprint", "0"), ("config", "shade", 1)):
        altered = {**header, part: {**header[part], name: value}}
        (folder / "model.json").write_text(json.dumps(altered))
        assert settled(plan, cell, True) is None
    (folder / "model.json").write_text("{")
    assert settled(plan, cell, True) is None


def test_rows_within_a_budget_are_those_of_train_with_as_many_epochs(
    data: Path, tmp_path: Path
) -> None:
    """Both seeds take what one of them measured; where nothing is short of time, that is all."""
    done = bench(data, tmp_path, toys("ToyNet"), "--seeds", "5,6", "--seconds", 1000)
    assert done.exit_code == 0, done.output
    assert done.stderr.count("measuring") == 1
    rows = read_results([tmp_path / "results"])
    assert [row.path.name for row in rows] == ["toy-net-5.json", "toy-net-6.json"]
    for row in rows:
        assert told(row) == told(made_by_hand(data, tmp_path / "by-hand", row.seed, 4))


def test_a_cut_training_has_a_short_row_that_is_the_same_too(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs/exact/ieee14/toy-net+short-6"
    trained(data, folder, 6, epochs=2, size=4)  # so that nothing has to be measured
    done = bench(data, tmp_path, toys("ToyNet"), "--seeds", "5", "--seconds", 1000)
    assert done.exit_code == 0, done.output
    (row,) = read_results([tmp_path / "results"])
    assert (row.name, row.cost["steps"]) == ("toy-net+short", 6)
    assert "done: toy-net+short-5 on ieee14" in done.stderr
    assert told(row) == told(made_by_hand(data, tmp_path / "by-hand", 5, 2))


def test_epochs_and_batch_size_can_be_asked_for(data: Path, tmp_path: Path) -> None:
    asked = ("--epochs", 2, "--batch-size", 3)
    done = bench(data, tmp_path, toys("ToyNet"), "--seeds", "5", *asked)
    assert done.exit_code == 0, done.output
    (row,) = read_results([tmp_path / "results"])
    assert (row.name, row.config["training"]["batch_size"]) == ("toy-net+short", 3)
    assert told(row) == told(made_by_hand(data, tmp_path / "by-hand", 5, 2, size=3))
    again = bench(data, tmp_path, toys("ToyNet"), "--seeds", "5", "--epochs", 2)
    assert again.exit_code == 0
    assert len(read_results([tmp_path / "results"])) == 1


def made_by_hand(data: Path, place: Path, seed: int, epochs: int, size: int = 4) -> Result:
    """As by `powerphase train` and `powerphase score`."""
    run, task = place / str(seed), Task(data / "ieee14")
    trained(data, run, seed, epochs, size)
    return score(forecast(ToyNet.load(run), task, device="cpu"), task, device="cpu").row
