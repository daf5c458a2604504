"""Damaged rows, failures, sidecars and forecasts: read faithfully, or rejected in one line.

The cases are seeded, so that a failing one is repeated by its number. `POWERPHASE_FUZZ_CASES` asks
for more of them than the suite runs.
"""

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from powerphase.errors import PowerphaseError
from powerphase.records import (
    FORECAST_MANIFEST,
    ForecastHeader,
    forecast_writer,
    open_forecast,
    read_failure,
    read_result,
    read_sidecar,
    write_failure,
    write_result,
)
from tests.fuzz.mutations import BYTES, JSON, NPZ, Mutation, in_some_file
from tests.records.rows import FAILURE, row

CASES = int(os.environ.get("POWERPHASE_FUZZ_CASES", "150"))
LIMIT_S = 20
"""No read of a small file takes so long, even on a busy machine."""

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


class Hang(BaseException):
    """A read that did not end; no reader may take it for an error of the disk."""


@contextmanager
def time_limit() -> Iterator[None]:
    """Interrupt a read that hangs."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.alarm(LIMIT_S)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check_cases(
    sound: Path,
    victim: Path,
    mutations: Sequence[Mutation],
    read: Callable[[Path], None],
) -> None:
    """Damage a copy of the folder `sound` in many ways; `read` gets the damaged file's path."""
    for case in range(CASES):
        rng = random.Random(case)
        copy = sound.with_name("damaged")
        shutil.copytree(sound, copy)
        target = copy / victim.relative_to(sound)
        rng.choice(mutations)(target, rng)
        try:
            with time_limit():
                read(target)
        except PowerphaseError:
            pass
        except (Exception, Hang) as error:
            raise AssertionError(f"case {case}: {type(error).__name__}: {error}") from error
        finally:
            shutil.rmtree(copy)


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
    arrays: dict[str, np.ndarray] = {
        "by_bus/crps": np.linspace(0, 1, 12, dtype=np.float32).reshape(3, 4),
        "by_step/crps": np.linspace(0, 1, 5, dtype=np.float32),
        "reliability/count": np.arange(10),
    }
    file = write_result(row(), arrays, tmp_path / "sound").with_suffix(".npz")

    def read(damaged: Path) -> None:
        for array in read_sidecar(damaged).values():
            assert array.dtype.kind in "biuf"

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
        values = values_of(folder)
        assert all(array in expected for array in values)

    manifest = forecast / FORECAST_MANIFEST
    if part == "manifest":
        check_cases(tmp_path / "sound", manifest, (*BYTES, *JSON, *JSON), read)
    else:
        check_cases(tmp_path / "sound", forecast, [in_some_file(BYTES)], read)
