"""What cells will take, by the cost of rows; and the table of it that `--dry-run` shows."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from powerphase import cli
from powerphase.bench.estimates import Estimate, channels_of, estimate
from powerphase.bench.plan import Plan
from powerphase.bench.table import Table
from tests.records.rows import row


def plan_of(data: Path, tmp_path: Path, model: str = "powerforge", **options: Any) -> Plan:
    return Table(["ieee14"], [model], [42], data=data, out=tmp_path / "r", **options).plan()


def costs(train_s: float, memory_gib: float | None) -> dict[str, Any]:
    return {**row().cost, "train_s": train_s, "peak_memory_gib": memory_gib}


def test_a_cell_takes_what_rows_of_other_seeds_took(data: Path, tmp_path: Path) -> None:
    plan = plan_of(data, tmp_path)
    assert estimate(plan, plan.cells[0]) == Estimate()
    for seed, train_s, memory in ((1, 10.0, 2.0), (2, 20.0, None)):
        plan.rows.append(row(grid="ieee14", seed=seed, cost=costs(train_s, memory)))
    plan.rows.append(row(grid="ieee14", model="ets", cost=costs(1000.0, 9.0)))
    plan.rows.append(row(grid="ieee30", cost=costs(1000.0, 9.0)))
    predict_and_score = 0.25 + 0.5
    assert estimate(plan, plan.cells[0]) == Estimate(15.0 + predict_and_score, 2.0)
    assert estimate(plan, plan.cells[0], seconds=12.0).seconds == 11.0 + predict_and_score


def test_else_in_proportion_to_the_channels_of_other_grids(data: Path, tmp_path: Path) -> None:
    plan = plan_of(data, tmp_path)
    assert (channels_of("ieee14"), channels_of("ieee30")) == (56, 120)
    assert channels_of("my-grid") is None
    plan.rows.append(row(grid="ieee30", cost=costs(120.0 - 0.75, 3.0)))
    plan.rows.append(row(grid="my-grid", cost=costs(7.0, 3.0)))
    found = estimate(plan, plan.cells[0])
    assert found.is_scaled
    assert (found.seconds, found.memory_gib) == pytest.approx((56.0, 1.4))


def test_memory_is_that_of_rows_made_on_the_same_kind_of_device(data: Path, tmp_path: Path) -> None:
    plan = plan_of(data, tmp_path)
    processor = {"hardware": "Some Processor, 2 cores"}
    plan.rows.append(row(grid="ieee14", seed=1, cost=costs(10.0, 2.0) | processor))
    plan.rows.append(row(grid="ieee14", seed=2, cost=costs(10.0, 8.0) | {"hardware": "unknown"}))
    on = {on_gpu: estimate(plan, plan.cells[0], on_gpu=on_gpu) for on_gpu in (True, False, None)}
    assert {kind: found.memory_gib for kind, found in on.items()} == {True: None, False: 2, None: 5}
    plan.rows.append(row(grid="ieee30", cost=costs(99.0, 3.0) | {"hardware": "NVIDIA H200"}))
    # Those of other grids tell it where the grid's own are all of the other kind.
    assert estimate(plan, plan.cells[0], on_gpu=True).memory_gib == pytest.approx(1.4)
    assert estimate(plan, plan.cells[0], on_gpu=True).seconds == on[True].seconds
    assert estimate(plan, plan.cells[0], on_gpu=False) == on[False]


def test_rows_of_another_task_tell_nothing(data: Path, tmp_path: Path) -> None:
    plan = plan_of(data, tmp_path, windows=3)
    plan.rows.append(row(grid="ieee14", cost=costs(10.0, 2.0)))
    assert estimate(plan, plan.cells[0]) == Estimate()


def test_a_dry_run_shows_every_cell_and_makes_nothing(data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "results" / "powerphase-day-ahead" / "exact" / "ieee14"
    folder.mkdir(parents=True)
    (folder / "ets-42.failed.json").write_text("{}")
    options = ["--data", data, "--out", tmp_path / "results", "--runs", tmp_path / "runs"]
    given = ["bench", "--grids", "ieee14", "--models", "ets,last-week", "--dry-run", *options]
    done = CliRunner().invoke(cli.app, [*map(str, given)], env={"COLUMNS": "150"})
    assert done.exit_code == 0, done.output
    lines = [line.split("│")[1:-1] for line in done.stdout.splitlines() if "ieee14" in line]
    assert [[cell.strip() for cell in line] for line in lines] == [
        ["ieee14", "ets-22", "to do", "–", "–"],
        ["ieee14", "ets-42", "failed before", "–", "–"],
        ["ieee14", "ets-3142", "to do", "–", "–"],
        ["ieee14", "last-week-0", "to do", "–", "–"],
    ]
    assert "4 cells, 0 done, 4 to do: the cost of 4 is not known\n" in done.stdout
    assert "~" not in done.stdout
    assert not (tmp_path / "runs").exists()
    assert [file.name for file in folder.iterdir()] == ["ets-42.failed.json"]
