"""What cells will take, by the cost of rows; and the table of it that `--dry-run` shows."""

from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from powerphase import cli
from powerphase.bench.estimates import Estimate, channels_of, memory_of, seconds_of
from powerphase.bench.plan import Plan
from powerphase.bench.request import ENGINES, Table
from powerphase.cli.bench_display import show_plan
from powerphase.records.result import Result
from tests.records.rows import row

GPU, PROCESSOR = "NVIDIA H200", "Some Processor, 2 cores"
PREDICT_AND_SCORE_S = 0.25 + 0.5


def plan_of(data: Path, tmp_path: Path, model: str = "powerforge", **options: Any) -> Plan:
    return Table(["ieee14"], [model], [42], data=data, out=tmp_path / "r", **options).plan()


def planted(
    grid: str, train_s: float, memory_gib: float | None = None, hardware: str = GPU, **changes: Any
) -> Result:
    """A row that took `train_s`, besides the 0.25 s and 0.5 s of forecasting and scoring."""
    told = {"train_s": train_s, "peak_memory_gib": memory_gib, "hardware": hardware}
    return row(grid=grid, cost={**row().cost, **told}, **changes)


def test_a_cell_takes_what_rows_of_other_seeds_took(data: Path, tmp_path: Path) -> None:
    plan = plan_of(data, tmp_path)
    (cell,) = plan.cells
    assert seconds_of(plan, cell, True) == memory_of(plan, cell, True) == Estimate()
    plan.rows += [planted("ieee14", 10.0, 2.0, seed=1), planted("ieee14", 20.0, seed=2)]
    plan.rows += [planted("ieee14", 999.0, 9.0, model="ets"), planted("ieee30", 999.0, 9.0)]
    assert seconds_of(plan, cell, True) == Estimate(15.0 + PREDICT_AND_SCORE_S)
    assert memory_of(plan, cell, True) == Estimate(2.0)


def test_else_in_proportion_to_the_channels_of_other_grids(data: Path, tmp_path: Path) -> None:
    plan = plan_of(data, tmp_path)
    (cell,) = plan.cells
    assert (channels_of("ieee14"), channels_of("ieee30")) == (56, 120)
    assert channels_of("my-grid") is None
    plan.rows += [planted("ieee30", 120.0 - PREDICT_AND_SCORE_S, 3.0), planted("my-grid", 7.0, 3.0)]
    assert astuple(seconds_of(plan, cell, True)) == (pytest.approx(56.0), True)
    assert astuple(memory_of(plan, cell, True)) == (pytest.approx(1.4), True)
    plan.rows.append(planted("ieee14", 10.0))
    assert not seconds_of(plan, cell, True).is_guess
    assert memory_of(plan, cell, True).is_guess  # which the row of the grid does not tell


@pytest.mark.parametrize(
    ("on_gpu", "same", "other"), [(True, GPU, PROCESSOR), (False, PROCESSOR, GPU)]
)
def test_rows_of_the_other_kind_of_device_count_only_where_there_are_none_of_the_same(
    data: Path, tmp_path: Path, on_gpu: bool, same: str, other: str
) -> None:
    plan = plan_of(data, tmp_path)
    (cell,) = plan.cells
    plan.rows.append(planted("ieee30", 240.0 - PREDICT_AND_SCORE_S, 8.0, other))
    assert astuple(seconds_of(plan, cell, on_gpu)) == (pytest.approx(112.0), True)
    plan.rows.append(planted("ieee14", 129.0, 8.0, other, seed=1))
    plan.rows.append(planted("ieee14", 131.0, 8.0, "unknown", seed=2))
    assert seconds_of(plan, cell, on_gpu) == Estimate(130.0 + PREDICT_AND_SCORE_S, is_guess=True)
    assert memory_of(plan, cell, on_gpu) == Estimate()  # it is not the same memory
    plan.rows.append(planted("ieee30", 12.0 - PREDICT_AND_SCORE_S, 3.0, same))
    assert astuple(seconds_of(plan, cell, on_gpu)) == (pytest.approx(5.6), True)
    assert astuple(memory_of(plan, cell, on_gpu)) == (pytest.approx(1.4), True)
    plan.rows.append(planted("ieee14", 8.0, 2.0, same, seed=3))
    assert seconds_of(plan, cell, on_gpu) == Estimate(8.0 + PREDICT_AND_SCORE_S)
    assert memory_of(plan, cell, on_gpu) == Estimate(2.0)


def test_where_the_kind_of_device_is_not_known_all_is_a_guess(data: Path, tmp_path: Path) -> None:
    plan = plan_of(data, tmp_path)
    for seed, hardware in enumerate((GPU, PROCESSOR, "unknown")):
        plan.rows.append(planted("ieee14", 10.0 * seed, 2.0, hardware, seed=seed))
    found = seconds_of(plan, plan.cells[0], None)
    assert found == Estimate(10.0 + PREDICT_AND_SCORE_S, is_guess=True)
    assert memory_of(plan, plan.cells[0], None) == Estimate()


def test_the_device_that_is_asked_for_decides_and_only_a_cluster_knows_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for has_gpu in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda found=has_gpu: found)
        assert Table().on_gpu is has_gpu
        assert Table(engine="ray").on_gpu is None
        for engine in ENGINES:
            assert Table(device="cuda", engine=engine).on_gpu is True
            assert Table(device="cpu", engine=engine).on_gpu is False


def test_only_what_has_epochs_is_cut_to_the_limit(data: Path, tmp_path: Path) -> None:
    for model, train_s in (("powerforge", 11.0), ("ets", 15.0)):
        plan = plan_of(data, tmp_path, model)
        plan.rows += [planted("ieee14", took, model=model, seed=1) for took in (10.0, 20.0)]
        found = seconds_of(plan, plan.cells[0], True, limit=12.0)
        assert found == Estimate(train_s + PREDICT_AND_SCORE_S)


def test_rows_of_another_task_tell_nothing(data: Path, tmp_path: Path) -> None:
    plan = plan_of(data, tmp_path, windows=3)
    plan.rows.append(planted("ieee14", 10.0, 2.0))
    assert seconds_of(plan, plan.cells[0], True) == memory_of(plan, plan.cells[0], True)
    assert seconds_of(plan, plan.cells[0], True) == Estimate()


def test_a_dry_run_tells_the_time_on_the_device_and_marks_what_it_guesses(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = plan_of(data, tmp_path, "ets")
    for seed, train_s, memory, hardware in ((1, 3600.0, 4.0, PROCESSOR), (2, 360.0, 2.0, GPU)):
        plan.rows.append(planted("ieee14", train_s, memory, hardware, seed=seed, model="ets"))
    legend = "~: by rows of other grids, in proportion to their channels, or of any kind of device"
    for on_gpu, cost, total in (
        (True, ["0.100", "2.0"], "about 0:06 h one after another on a GPU"),
        (False, ["1.000", "4.0"], "about 1:00 h one after another on a processor"),
        (None, ["~0.550", "–"], "about 0:33 h one after another"),
    ):
        show_plan(plan, on_gpu, None)
        table, *lines = capsys.readouterr().out.split("1 cells, ")
        (shown,) = (line for line in table.splitlines() if "ets-42" in line)
        assert [cell.strip() for cell in shown.split("│")[4:6]] == cost
        below = [f"0 done, 1 to do: {total}"] + [legend] * (on_gpu is None)
        assert lines[0].splitlines() == below


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
