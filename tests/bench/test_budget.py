"""The budget of a training: what fits into the time, what seeds share, and the rows it gives."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from powerphase import Result, Task, couple, forecast, score
from powerphase.bench import (
    LADDER,
    MARGIN,
    BenchRequest,
    Plan,
    budget,
    epochs_within,
    make_plan,
    measure_budget,
    shared_budget,
)
from powerphase.errors import TrainingError
from powerphase.evaluation import resolve_model
from powerphase.models.framework import Progress, with_training
from powerphase.records import read_results
from tests.bench.conftest import TOYS, bench, reproducible, toys
from tests.bench.in_process import run_jobs_in_process
from tests.bench.toy_models import ToyNet, ToyNetConfig

NET = f"{TOYS}:ToyNet"


@pytest.fixture(autouse=True)
def in_process(monkeypatch: pytest.MonkeyPatch) -> None:
    run_jobs_in_process(monkeypatch)


@pytest.mark.parametrize("epochs", [200, 60, 20, 1])
def test_the_largest_number_of_epochs_that_fits_is_chosen(epochs: int) -> None:
    rungs = [epochs, *(rung for rung in LADDER if rung < epochs)]
    for rung, larger in zip(rungs, [None, *rungs], strict=False):
        assert epochs_within(2.0 * rung * MARGIN, 2.0, epochs) == rung
        if larger is not None:
            assert epochs_within(2.0 * larger * MARGIN - 0.01, 2.0, epochs) == rung


def test_a_time_too_short_for_one_epoch_raises() -> None:
    with pytest.raises(TrainingError, match="--seconds"):
        epochs_within(2.0, 2.0, 200)


class Clock:
    """A clock that the test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_second_epoch_is_timed(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, seen = Clock(), []
    monkeypatch.setattr(budget, "perf_counter", clock)
    report = budget._EpochTimer.__call__

    def step(self: Any, now: Progress) -> None:
        seen.append(now.step)
        clock.now += 11.0 if now.step == 2 else 1.0
        report(self, now)

    monkeypatch.setattr(budget._EpochTimer, "__call__", step)
    seconds, task = 3.0 * 2 * MARGIN + 0.01, Task(data / "ieee14")
    measured = measure_budget(resolve_model(NET), task, 1, "cpu", seconds)
    assert measured == 2  # an epoch of three steps takes 3 s
    assert seen == [1, 2, 3, 4, 5, 6, 7]


def test_measuring_stops_when_the_time_is_up(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(budget, "perf_counter", clock)
    report = budget._EpochTimer.__call__

    def step(self: Any, now: Progress) -> None:
        clock.now += 100.0
        report(self, now)

    monkeypatch.setattr(budget._EpochTimer, "__call__", step)
    with pytest.raises(TrainingError, match=r"200\.0 s"):
        measure_budget(resolve_model(NET), Task(data / "ieee14"), 1, "cpu", 50.0)


@pytest.fixture
def plan_with(data: Path, tmp_path: Path) -> Callable[..., Plan]:
    def plan(seeds: list[int], seconds: float | None = None) -> Plan:
        return make_plan(
            BenchRequest(
                ["ieee14"],
                [NET],
                seeds,
                data=data,
                out=tmp_path / "results",
                runs=tmp_path / "runs",
                device="cpu",
                seconds=seconds,
            )
        )

    return plan


def train(data: Path, run: Path | None, seed: int, epochs: int = 4, size: int = 4) -> ToyNet:
    changes = {"epochs": epochs, "batch_size": size}
    model = ToyNet(with_training(ToyNetConfig(), changes), seed=seed, device="cpu", run=run)
    model.fit(Task(data / "ieee14").training)
    return model


def short_run(plan: Plan, index: int) -> Path:
    return plan.run_folder(replace(plan.cells[index].key, variant="short"))


def test_a_seed_takes_the_budget_of_another_seed_s_training(
    plan_with: Callable[..., Plan], data: Path
) -> None:
    plan = plan_with([1, 2], seconds=9.0)
    assert [shared_budget(plan, cell) for cell in plan.cells] == [None, None]
    train(data, short_run(plan, 1), 2, epochs=1)
    assert [shared_budget(plan, cell) for cell in plan.cells] == [1, 1]
    train(data, short_run(plan, 0), 1, epochs=2)
    assert [shared_budget(plan, cell) for cell in plan.cells] == [2, 1]


def test_a_seed_takes_the_budget_of_another_seed_s_row(
    plan_with: Callable[..., Plan], data: Path, tmp_path: Path
) -> None:
    task = Task(data / "ieee14")
    score(forecast(train(data, None, 2, epochs=3), task), task).save(tmp_path / "results")
    for seconds, state in ((None, "to do"), (9.0, "done")):
        plan = plan_with([1, 2], seconds)
        assert [plan.state(cell) for cell in plan.cells] == ["to do", state]
    assert shared_budget(plan, plan.cells[0]) == 3


def test_a_training_with_other_data_or_another_config_shares_no_budget(
    plan_with: Callable[..., Plan], data: Path
) -> None:
    plan = plan_with([1, 2], seconds=9.0)
    cell, folder = plan.cells[0], short_run(plan, 1)
    train(data, folder, 2, epochs=1)
    header = json.loads((folder / "model.json").read_text())
    assert shared_budget(plan, cell) is not None
    smaller = {**header["config"]["training"], "batch_size": 2}
    alterations = (
        ("data", "fingerprint", "0"),
        ("config", "shade", 1),
        ("config", "training", smaller),
    )
    for part, name, value in alterations:
        altered = {**header, part: {**header[part], name: value}}
        (folder / "model.json").write_text(json.dumps(altered))
        assert shared_budget(plan, cell) is None
    (folder / "model.json").write_text("{")
    assert shared_budget(plan, cell) is None


def test_rows_within_a_budget_equal_those_of_train_with_as_many_epochs(
    data: Path, tmp_path: Path
) -> None:
    """One of the two seeds is measured; the time suffices for all epochs."""
    done = bench(data, tmp_path, toys("ToyNet"), "--seeds", "5,6", "--seconds", 1000)
    assert done.exit_code == 0, done.output
    assert done.stderr.count("measuring") == 1
    rows = read_results([tmp_path / "results"])
    assert [row.path.name for row in rows] == ["toy-net-5.json", "toy-net-6.json"]
    for row in rows:
        assert reproducible(row) == reproducible(
            make_by_hand(data, tmp_path / "by-hand", row.seed, 4)
        )


def test_a_training_that_is_cut_gives_the_short_row_of_train(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "runs/exact/ieee14/toy-net+short-6"
    train(data, folder, 6, epochs=2)  # so that nothing has to be measured
    done = bench(data, tmp_path, toys("ToyNet"), "--seeds", "5", "--seconds", 1000)
    assert done.exit_code == 0, done.output
    (row,) = read_results([tmp_path / "results"])
    assert (row.name, row.cost["steps"]) == ("toy-net+short", 6)
    assert "done: toy-net+short-5 on ieee14" in done.stderr
    assert reproducible(row) == reproducible(make_by_hand(data, tmp_path / "by-hand", 5, 2))


def test_a_coupled_network_is_trained_like_the_plain_one(data: Path, tmp_path: Path) -> None:
    """Its training has no coupling, and its budget is found again when the row is lost."""
    arguments = (data, tmp_path, f"{NET}+schaake", "--seeds", "5", "--seconds", 1000)
    for measured in (1, 0):
        done = bench(*arguments)
        assert done.exit_code == 0, done.output
        assert done.stderr.count("measuring") == measured
        (row,) = read_results([tmp_path / "results"])
        task = Task(data / "ieee14")
        model = couple(ToyNet.load(tmp_path / "runs/exact/ieee14/toy-net+schaake-5"), "schaake")
        by_hand = score(forecast(model, task, device="cpu"), task, device="cpu").row
        assert (row.name, row.joint) == ("toy-net+schaake", True)
        assert reproducible(row) == reproducible(by_hand)
        (tmp_path / "results" / row.path).unlink()


def test_epochs_and_batch_size_can_be_requested(data: Path, tmp_path: Path) -> None:
    options = ("--epochs", 2, "--batch-size", 3)
    done = bench(data, tmp_path, toys("ToyNet"), "--seeds", "5", *options)
    assert done.exit_code == 0, done.output
    (row,) = read_results([tmp_path / "results"])
    assert (row.name, row.config["training"]["batch_size"]) == ("toy-net+short-custom", 3)
    assert reproducible(row) == reproducible(make_by_hand(data, tmp_path / "by-hand", 5, 2, size=3))


def make_by_hand(data: Path, folder: Path, seed: int, epochs: int, size: int = 4) -> Result:
    """The row of `powerphase train` and `powerphase score`."""
    run, task = folder / str(seed), Task(data / "ieee14")
    train(data, run, seed, epochs, size)
    return score(forecast(ToyNet.load(run), task, device="cpu"), task, device="cpu").row
