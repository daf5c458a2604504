"""The options that make a task, on every command that makes one."""

import json
from pathlib import Path

import pytest

from powerphase import Store
from powerphase.records import open_forecast, read_results
from tests.command_line import error_of, run
from tests.dataset.resampled import resample

EVENINGS = ("--horizon", "6h", "--context", "3d", "--origin", "18:00", "--windows", 2)
NAME = "powerphase-6-steps-ahead-from-72-60-minute-steps-origin-1800"


@pytest.fixture(scope="module")
def hourly(sixty_days: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an hourly data set of ieee14."""
    folder = tmp_path_factory.mktemp("hourly")
    resample(sixty_days, folder / "ieee14", 3600)
    return folder


def test_a_trained_model_is_forecast_scored_and_benched_by_one_task(
    hourly: Path, tmp_path: Path
) -> None:
    data, out = ("--data", hourly / "ieee14"), tmp_path / "results"
    task = EVENINGS[:-2]
    run("train", "factorforge", *data, "--out", tmp_path / "run", *task)
    run("forecast", tmp_path / "run", *data, "--out", tmp_path / "f", *EVENINGS, "--device", "cpu")
    run("score", tmp_path / "f", *data, "--out", out, *EVENINGS, "--device", "cpu")
    (row,) = read_results([out])
    assert row.task == f"{NAME}-2-windows"
    assert [start[11:] for start in row.windows] == ["18:00", "18:00"]
    header = open_forecast(tmp_path / "f").header
    assert (header.step_s, header.horizon, header.context) == (3600, 6, 72)
    listed = run(
        *("bench", "--grids", "ieee14", "--models", "factorforge", "--seeds", 42, "--dry-run"),
        *("--data", hourly, "--out", out, "--runs", tmp_path, "--device", "cpu", *EVENINGS),
    )
    assert "done" in listed.stdout


def test_tomorrow_starts_where_the_record_ends_or_at_an_origin(sixty_days: Store) -> None:
    model = ("tomorrow", "last-7-days", "--data", sixty_days.path, "--device", "cpu")
    options = ("--limits", "1.019-1.1", "--format", "csv")
    assert "2015-03-02T" in run(*model, *options).stdout
    evening = run(*model, *options, "--origin", "18:00", "--horizon", "5h", "--context", "8d")
    assert "2015-03-01T" in evening.stdout
    assert "2015-03-02T" not in evening.stdout


def test_calibration_takes_a_task(sixty_days: Store) -> None:
    command = ("calibration", "last-7-days", "--data", sixty_days.path, "--device", "cpu")
    options = ("--limits", "1.019-1.1", "--format", "json", "--horizon", "6h")
    windows = [
        json.loads(run(*command, *options, "--origin", origin).stdout)["chance_bins"]
        for origin in ("00:00", "18:00")
    ]
    night, evening = (sum(part["cases"] for part in bins) for bins in windows)
    assert night == evening > 0  # both have a window on each of the 15 days
    assert windows[0] != windows[1]


def test_forecasts_given_to_models_are_part_of_the_task(sixty_days: Store, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "ieee14").symlink_to(sixty_days.path)
    device = ("--device", "cpu", "--windows", 2, "--known", "made:0.5")
    data = tmp_path / "data"
    run("score", "last-week", "--data", data / "ieee14", "--out", tmp_path / "results", *device)
    (row,) = read_results([tmp_path / "results"])
    assert row.task == "powerphase-day-ahead-informed-wind-0p5-2-windows"
    listed = run(
        *("bench", "--grids", "ieee14", "--models", "last-week", "--dry-run", *device),
        *("--data", data, "--out", tmp_path / "results", "--runs", tmp_path / "runs"),
    )
    assert "done" in listed.stdout
    error = error_of("tomorrow", "last-week", "--data", data / "ieee14", "--known", "made")
    assert "after the record" in error


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        (("--known", "nothing.csv"), "nothing.csv"),
        (("--known", "made:-1"), "made:-1"),
        (("--known", "record"), "opsd"),
        (("--known", "made"), "generated"),
        (("--horizon", "0h"), "0h"),
        (("--horizon", "7m"), "7m"),
        (("--horizon", "1.5d"), "1.5d"),
        (("--horizon", "90min"), "90min"),
        (("--context", "week"), "week"),
        (("--context", "-7d"), "-7d"),
        (("--context", "600d"), "14400"),
        (("--origin", "25:00"), "25:00"),
        (("--origin", "12:30"), "12:30"),
        (("--origin", "noon"), "noon"),
        (("--country", "Atlantis"), "ATLANTIS"),
        (("--country", "US"), "US"),
        (("--zone", "Berlin"), "Berlin"),
    ],
)
def test_an_impossible_task_is_refused(hourly: Path, options: tuple[str, str], fact: str) -> None:
    command = ("score", "last-week", "--data", hourly / "ieee14", f"{options[0]}={options[1]}")
    assert fact in error_of(*command)
