"""The estimated cost of cells, and the table that `--dry-run` shows."""

from dataclasses import astuple
from pathlib import Path
from time import perf_counter
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from powerphase import Result, Store, Task, cli
from powerphase.bench import (
    ENGINES,
    BenchRequest,
    Cell,
    Estimate,
    Plan,
    Timing,
    channel_count,
    estimate_memory,
    estimate_seconds,
    estimates,
    make_plan,
    time_cell,
    time_cells,
)
from powerphase.cli.bench_display import show_plan
from powerphase.evaluation import ModelSpec
from powerphase.models import PowerForge
from tests.models.toys import tiny
from tests.records.rows import row

GPU, PROCESSOR = "NVIDIA H200", "Some Processor, 2 cores"
PREDICT_AND_SCORE_S = 0.25 + 0.5


def plan_of(data: Path, tmp_path: Path, model: str = "powerforge", **options: Any) -> Plan:
    request = BenchRequest(["ieee14"], [model], [42], data=data, out=tmp_path / "r", **options)
    return make_plan(request)


def make_row(
    grid: str, train_s: float, memory_gib: float | None = None, hardware: str = GPU, **changes: Any
) -> Result:
    """A row that took `train_s` to train, 0.25 s to forecast and 0.5 s to score."""
    cost = {"train_s": train_s, "peak_memory_gib": memory_gib, "hardware": hardware}
    return row(grid=grid, cost={**row().cost, **cost}, **changes)


def test_a_cell_costs_what_other_seeds_cost(data: Path, tmp_path: Path) -> None:
    plan = plan_of(data, tmp_path)
    (cell,) = plan.cells
    assert estimate_seconds(plan, cell, True) == estimate_memory(plan, cell, True) == Estimate()
    plan.rows += [make_row("ieee14", 10.0, 2.0, seed=1), make_row("ieee14", 20.0, seed=2)]
    plan.rows += [make_row("ieee14", 999.0, 9.0, model="ets"), make_row("ieee30", 999.0, 9.0)]
    assert estimate_seconds(plan, cell, True) == Estimate(15.0 + PREDICT_AND_SCORE_S)
    assert estimate_memory(plan, cell, True) == Estimate(2.0)


def test_costs_on_other_grids_are_scaled_by_their_size(data: Path, tmp_path: Path) -> None:
    plan = plan_of(data, tmp_path)
    (cell,) = plan.cells
    assert (channel_count("ieee14"), channel_count("ieee30")) == (56, 120)
    assert channel_count("my-grid") is None
    plan.rows += [
        make_row("ieee30", 120.0 - PREDICT_AND_SCORE_S, 3.0),
        make_row("my-grid", 7.0, 3.0),
    ]
    assert astuple(estimate_seconds(plan, cell, True)) == (pytest.approx(56.0), True)
    assert astuple(estimate_memory(plan, cell, True)) == (pytest.approx(1.4), True)
    plan.rows.append(make_row("ieee14", 10.0))
    assert not estimate_seconds(plan, cell, True).is_guess
    assert estimate_memory(plan, cell, True).is_guess  # unknown in the row of the grid


@pytest.mark.parametrize(
    ("on_gpu", "same", "other"), [(True, GPU, PROCESSOR), (False, PROCESSOR, GPU)]
)
def test_rows_of_another_kind_of_device_do_not_count(
    data: Path, tmp_path: Path, on_gpu: bool, same: str, other: str
) -> None:
    plan = plan_of(data, tmp_path)
    (cell,) = plan.cells
    plan.rows.append(make_row("ieee30", 240.0, 8.0, other))
    plan.rows.append(make_row("ieee14", 129.0, 8.0, other, seed=1))
    plan.rows.append(make_row("ieee14", 131.0, 8.0, "unknown", seed=2))
    for estimate in (estimate_seconds, estimate_memory):
        assert estimate(plan, cell, on_gpu) == estimate(plan, cell, None) == Estimate()
    plan.rows.append(make_row("ieee30", 12.0 - PREDICT_AND_SCORE_S, 3.0, same))
    assert astuple(estimate_seconds(plan, cell, on_gpu)) == (pytest.approx(5.6), True)
    assert astuple(estimate_memory(plan, cell, on_gpu)) == (pytest.approx(1.4), True)
    plan.rows.append(make_row("ieee14", 8.0, 2.0, same, seed=3))
    assert estimate_seconds(plan, cell, on_gpu) == Estimate(8.0 + PREDICT_AND_SCORE_S)
    assert estimate_memory(plan, cell, on_gpu) == Estimate(2.0)


def test_a_timing_counts_more_than_other_grids_and_less_than_rows_of_the_grid(
    data: Path, tmp_path: Path
) -> None:
    plan = plan_of(data, tmp_path, seconds=50.0)
    (cell,) = plan.cells
    timings = {cell.group: Timing(100.0, 5.0, 0.9)}
    plan.rows.append(make_row("ieee30", 240.0, 8.0))
    assert estimate_seconds(plan, cell, True, timings) == Estimate(55.0, is_guess=True)
    assert estimate_memory(plan, cell, True, timings) == Estimate(0.9, is_guess=True)
    plan.rows.append(make_row("ieee14", 8.0, 2.0))
    assert estimate_seconds(plan, cell, True, timings) == Estimate(8.0 + PREDICT_AND_SCORE_S)
    assert estimate_memory(plan, cell, True, timings) == Estimate(2.0)


def test_cells_without_a_row_of_their_grid_are_timed(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_of(data, tmp_path, "last-week", device="cpu")
    (cell,) = plan.cells
    started: list[Cell] = []
    timings = time_cells(plan, False, started.append)
    assert started == [cell]
    assert (timings[cell.group].predict_and_score_s or 0) > 0
    assert (timings[cell.group].peak_memory_gib or 0) > 0.05  # torch alone takes more
    assert not (tmp_path / "r").exists()
    plan.rows.append(make_row("ieee14", 8.0, hardware=PROCESSOR, model="last-week"))
    assert time_cells(plan, False, started.append) == {}
    plan.rows.clear()
    monkeypatch.setattr(estimates, "TIMING_S", 0.0)
    assert time_cells(plan, False, started.append) == time_cells(plan, None, started.append) == {}
    assert started == [cell]


def test_the_time_of_a_network_covers_all_its_epochs(sixty_days: Store) -> None:
    task = Task(sixty_days, context=192, horizon=24, windows=2)
    spec = ModelSpec("powerforge", PowerForge, tiny(epochs=1000))
    start = perf_counter()
    timing = time_cell(spec, task, 7, "cpu")
    assert timing.train_s > 10 * (perf_counter() - start)
    assert timing.peak_memory_gib == PowerForge(tiny()).memory_gib(task.training)


def test_the_requested_device_decides_and_only_a_cluster_knows_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for has_gpu in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda has_gpu=has_gpu: has_gpu)
        assert BenchRequest().on_gpu is has_gpu
        assert BenchRequest(engine="ray").on_gpu is None
        for engine in ENGINES:
            assert BenchRequest(device="cuda", engine=engine).on_gpu is True
            assert BenchRequest(device="cpu", engine=engine).on_gpu is False


def test_only_trainings_with_epochs_are_cut_to_the_time(data: Path, tmp_path: Path) -> None:
    for model, train_s in (("powerforge", 11.0), ("ets", 15.0)):
        plan = plan_of(data, tmp_path, model, seconds=12.0)
        plan.rows += [make_row("ieee14", took, model=model, seed=1) for took in (10.0, 20.0)]
        estimate = estimate_seconds(plan, plan.cells[0], True)
        assert estimate == Estimate(train_s + PREDICT_AND_SCORE_S)


def test_rows_of_another_task_do_not_count(data: Path, tmp_path: Path) -> None:
    plan = plan_of(data, tmp_path, windows=3)
    plan.rows.append(make_row("ieee14", 10.0, 2.0))
    assert estimate_seconds(plan, plan.cells[0], True) == estimate_memory(plan, plan.cells[0], True)
    assert estimate_seconds(plan, plan.cells[0], True) == Estimate()


def test_a_dry_run_shows_the_time_on_the_device(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(data, tmp_path, "ets")
    for seed, train_s, memory, hardware in ((1, 5800.0, 4.0, PROCESSOR), (2, 360.0, 0.5, GPU)):
        plan.rows.append(make_row("ieee14", train_s, memory, hardware, seed=seed, model="ets"))
    for on_gpu, cost, total in (
        (True, ["6.0 min", "512 MiB"], "6.0 min"),
        (False, ["1.6 h", "4.0 GiB"], "1.6 h"),
        (None, ["–", "–"], "unknown"),
    ):
        show_plan(plan, on_gpu)
        table, _, below = capsys.readouterr().out.partition("1 cells, ")
        (shown,) = (line for line in table.splitlines() if "ets-42" in line)
        assert [cell.strip() for cell in shown.split("│")[4:6]] == cost
        assert total in below
        assert "~" not in below  # no legend


def test_a_dry_run_shows_every_cell_and_makes_nothing(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(estimates, "TIMING_S", 0.0)
    folder = tmp_path / "results" / "powerphase-day-ahead" / "exact" / "ieee14"
    folder.mkdir(parents=True)
    (folder / "ets-42.failed.json").write_text("{}")
    options = ["--data", data, "--out", tmp_path / "results", "--runs", tmp_path / "runs"]
    arguments = ["bench", "--grids", "ieee14", "--models", "ets,last-week", "--dry-run"]
    command = [str(argument) for argument in (*arguments, *options)]
    done = CliRunner().invoke(cli.app, command, env={"COLUMNS": "150"})
    assert done.exit_code == 0, done.output
    lines = [line.split("│")[1:-1] for line in done.stdout.splitlines() if "ieee14" in line]
    assert [[cell.strip() for cell in line] for line in lines] == [
        ["ieee14", "ets-22", "to do", "–", "–"],
        ["ieee14", "ets-42", "failed before", "–", "–"],
        ["ieee14", "ets-3142", "to do", "–", "–"],
        ["ieee14", "last-week-0", "to do", "–", "–"],
    ]
    assert "4 cells, 0 done, 4 to do" in done.stdout
    assert "~" not in done.stdout
    assert not (tmp_path / "runs").exists()
    assert [file.name for file in folder.iterdir()] == ["ets-42.failed.json"]
