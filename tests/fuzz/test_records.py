"""Damaged rows, failures, sidecars and forecasts: read faithfully, or rejected in one line."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerphase.evaluation import array_differences
from powerphase.records import (
    FORECAST_MANIFEST,
    ForecastHeader,
    compact,
    expand,
    forecast_writer,
    open_forecast,
    read_failure,
    read_result,
    read_sidecar,
    write_failure,
    write_result,
)
from tests.fuzz.harness import check_cases
from tests.fuzz.mutations import BYTES, JSON, NPZ, in_some_file, swap_files
from tests.records.rows import FAILURE, row

HEADER = ForecastHeader(
    task="powerphase-day-ahead",
    task_version=1,
    context=7,
    horizon=5,
    windows=["2016-07-01T00:00", "2016-12-31T00:00"],
    grid="ieee14",
    edition="synthetic",
    fingerprint="0123456789abcdef" * 4,
    n_channels=8,
    scenarios=3,
    scale=[1234.5, 0.1],
    model="last-7-days",
    variant=None,
    config={"layers": [1, 2]},
    parameters=None,
    seed=42,
    version="0.1.0",
)


def same_document(text: str, file: Path) -> bool:
    """Whether the text and the file hold the same JSON."""
    return bool(json.loads(text) == json.loads(file.read_text()))


def test_a_row_is_read_faithfully_or_rejected(tmp_path: Path) -> None:
    file = write_result(row(), {}, tmp_path / "sound")

    def read(damaged: Path) -> None:
        assert same_document(read_result(damaged).to_json(), damaged)

    check_cases(tmp_path / "sound", file, (*BYTES, *JSON, *JSON), read)


def test_a_failure_is_read_faithfully_or_rejected(tmp_path: Path) -> None:
    file = write_failure(FAILURE, tmp_path / "sound")

    def read(damaged: Path) -> None:
        assert same_document(json.dumps(vars(read_failure(damaged))), damaged)

    check_cases(tmp_path / "sound", file, (*BYTES, *JSON), read)


def test_a_sidecar_is_readable_or_rejected(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    series = rng.normal(size=(2, 3, 5, 6, 4)).astype(np.float32)  # W M H B 4
    arrays: dict[str, np.ndarray] = {
        "by_bus/crps": rng.random((6, 4)).astype(np.float32),
        "by_bus/brier": rng.random(6).astype(np.float32),
        "by_step/crps": rng.random((5, 4)).astype(np.float32),
        "reliability": rng.random((3, 3)),
        "by_branch/overload": rng.random(4).astype(np.float32),
        "lines/branch": np.arange(4),
        "risk/by_bus_step": np.zeros((2, 6, 5), np.uint8),
        "risk/lines": np.zeros((2, 4, 5), np.uint8),
        "shown/bus_id": np.arange(6),
        "shown/window": np.arange(2),
        "shown/weight": np.full((2, 3, 6, 4), 1 / 3, np.float32),
        "shown/target": series[:, 0],
        "shown/scenario": series,
    }
    sound = compact(arrays)
    file = write_result(row(), sound, tmp_path / "sound").with_suffix(".npz")

    def read(damaged: Path) -> None:
        sidecar = read_sidecar(damaged)
        list(array_differences(sidecar, sound))  # raises nothing but errors of powerphase
        expand(sidecar)

    check_cases(tmp_path / "sound", file, (*BYTES, *NPZ), read)


@pytest.fixture
def forecast(tmp_path: Path) -> Path:
    path = tmp_path / "sound" / "forecast"
    rng = np.random.default_rng(1)
    with forecast_writer(path, HEADER) as writer:
        for window in range(len(HEADER.windows)):
            values = rng.normal(size=(3, 5, 8)).astype(np.float32)
            weights = np.full((3, 8), 1 / 3, dtype=np.float32)
            writer.write(window, slice(0, 8), values, weights)
            writer.finish_window(window)
        writer.close({"predict_s": 1.0})
    return path


def values_of(path: Path) -> list[Any]:
    """Everything that scoring reads of a forecast."""
    file = open_forecast(path)
    windows = range(len(file.header.windows))
    return [array.tolist() for w in windows for array in file.read(w, slice(0, 8))]


@pytest.mark.parametrize("part", ["manifest", "any file"])
def test_a_forecast_is_read_unchanged_or_rejected(
    forecast: Path, tmp_path: Path, part: str
) -> None:
    expected = values_of(forecast)

    def read(damaged: Path) -> None:
        folder = damaged if damaged.is_dir() and damaged.name == "forecast" else damaged.parent
        assert values_of(folder) == expected

    manifest = forecast / FORECAST_MANIFEST
    if part == "manifest":
        check_cases(tmp_path / "sound", manifest, (*BYTES, *JSON, *JSON), read)
    else:
        mutations = [in_some_file(BYTES), swap_files("c"), swap_files("values/c")]
        check_cases(tmp_path / "sound", forecast, mutations, read)
