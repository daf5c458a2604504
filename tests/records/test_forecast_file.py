"""Forecast files: what was written is read bit for bit, and damage raises an error."""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import zarr
from zarr.storage import LocalStore

from powerphase.errors import ForecastError
from powerphase.files import replace_file
from powerphase.records import (
    FORECAST_LOCK,
    FORECAST_MANIFEST,
    FORMAT,
    ForecastHeader,
    ForecastWriter,
    chunk_file,
    forecast_file,
    forecast_format,
    forecast_writer,
    open_forecast,
)
from tests.damage import flip, remove, truncate

M, H, C = 3, 5, 20
WIDTH = 8
HEADER = ForecastHeader(
    task="powerphase-day-ahead",
    task_version=1,
    context=7,
    horizon=H,
    windows=["2016-07-01T00:00", "2016-12-31T00:00", "2017-01-11T12:15"],
    grid="ieee14",
    edition="opsd-r",
    fingerprint="0123456789abcdef" * 4,
    n_channels=C,
    scenarios=M,
    scale=[1234.5, 0.1],
    model="last-7-days",
    variant=None,
    config={"layers": [1, 2], "rate": 1e-3},
    parameters=None,
    seed=42,
    version="0.1.0",
    joint=True,
    model_version=3,
)
GONE = object()
COST = {"predict_s": 1.5, "hardware": "two cores"}
WHOLE = [slice(0, C)]
ODD = [slice(0, 3), slice(3, 4), slice(4, 13), slice(13, C)]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 8, 8 and 4 channels."""
    monkeypatch.setattr(forecast_format, "CHUNK_BYTES", 4 * M * H * (WIDTH + 1))


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations are not enforced, as outside of tests."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def values_of(window: int) -> np.ndarray:
    values = np.random.default_rng([window, 0]).standard_normal((M, H, C), dtype=np.float32)
    values[0, 0, :4] = [np.inf, -0.0, 1e-42, np.nan]  # kept bit for bit
    return values


def weights_of(window: int) -> np.ndarray:
    weights = np.random.default_rng([window, 1]).random((M, C), dtype=np.float32)
    return weights / weights.sum(axis=0)


def write(writer: ForecastWriter, window: int, blocks: Iterable[slice], sign: int = 1) -> None:
    for block in blocks:
        values = np.float32(sign) * values_of(window)[..., block]
        writer.write(window, block, values, weights_of(window)[..., block])


def fill(writer: ForecastWriter, blocks: Iterable[slice] = ODD) -> None:
    for window in sorted(set(range(3)) - writer.finished):
        write(writer, window, blocks)
        writer.finish_window(window)
    writer.close(COST)


def same_bits(actual: np.ndarray, expected: np.ndarray) -> bool:
    return actual.dtype == expected.dtype and actual.tobytes() == expected.tobytes()


def files_of(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete forecast that no test damages."""
    path = tmp_path_factory.mktemp("forecasts") / "undisturbed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast_format, "CHUNK_BYTES", 4 * M * H * (WIDTH + 1))
        with forecast_writer(path, HEADER) as writer:
            fill(writer)
    return path


@pytest.fixture
def forecast(tmp_path: Path, undisturbed: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(undisturbed, tmp_path / "forecast"))


@pytest.mark.parametrize(
    "blocks",
    [
        WHOLE,
        ODD,
        ODD[::-1],
        [slice(0, 8), slice(8, 16), slice(16, 20)],
        [slice(c, c + 1) for c in range(C)],
        [slice(c, c + 1) for c in np.random.default_rng(3).permutation(C).tolist()],
        [slice(5, None), slice(None, 5)],
    ],
)
def test_a_forecast_is_read_as_written_in_any_blocks(tmp_path: Path, blocks: Any) -> None:
    with forecast_writer(tmp_path / "f", HEADER) as writer:
        fill(writer, blocks)
    forecast = open_forecast(tmp_path / "f")
    assert forecast.header == HEADER
    assert forecast.cost == COST
    for window in range(3):
        values, weights = forecast.read(window, slice(0, C))
        assert same_bits(values, values_of(window))
        assert same_bits(weights, weights_of(window))


def test_any_range_of_channels_can_be_read(undisturbed: Path) -> None:
    forecast = open_forecast(undisturbed)
    for channels in (*forecast.blocks(), *ODD, slice(None), slice(7, 9), slice(12, None)):
        values, weights = forecast.read(1, channels)
        assert same_bits(values, values_of(1)[..., channels])
        assert same_bits(weights, weights_of(1)[..., channels])


def test_windows_may_be_written_in_turns(tmp_path: Path, undisturbed: Path) -> None:
    with forecast_writer(tmp_path / "f", HEADER) as writer:
        for block in ODD:
            for window in range(3):
                write(writer, window, [block])
        for window in (2, 0, 1):
            writer.finish_window(window)
        writer.close(COST)
    assert files_of(tmp_path / "f") == files_of(undisturbed)


def test_time_is_the_start_of_every_forecast_step(undisturbed: Path) -> None:
    time = open_forecast(undisturbed).time
    quarters = [f"2017-01-11T{clock}" for clock in ("12:15", "12:30", "12:45", "13:00", "13:15")]
    assert time[2].astype("datetime64[m]").astype(str).tolist() == quarters
    stored = zarr.open_array(LocalStore(undisturbed), path="time", mode="r")
    assert stored.dtype == np.int64
    assert stored[0, 0] == 1467331200  # 2016-07-01 by the Unix clock


@pytest.mark.parametrize(
    ("n_channels", "scenarios"),
    [(36964, 100), (36964, 625), (2000, 1), (56, 7), (8, 10**6), (4, 16)],
)
def test_blocks_are_whole_buses_of_about_16_mb_and_cover_all_channels(
    monkeypatch: pytest.MonkeyPatch, n_channels: int, scenarios: int
) -> None:
    monkeypatch.undo()
    blocks = replace(HEADER, horizon=96, n_channels=n_channels, scenarios=scenarios).blocks()
    covered = [channel for block in blocks for channel in range(block.start, block.stop)]
    assert covered == list(range(n_channels))
    widths = [block.stop - block.start for block in blocks]
    assert all(width % 4 == 0 for width in widths)
    size = 4 * 96 * scenarios * widths[0]
    assert size <= 2**24 or widths[0] == 4
    assert size > 0.9 * 2**24 or len(blocks) == 1 or 96 * scenarios * 4 * 8 > 2**24


def test_chunks_on_disk_are_the_blocks(undisturbed: Path) -> None:
    chunks = sorted(path.name for path in (undisturbed / "values/c/1/0/0").iterdir())
    assert chunks == sorted(path.name for path in (undisturbed / "weights/c/1/0").iterdir())
    assert len(chunks) == len(open_forecast(undisturbed).blocks()) == 3


def test_equal_weights_take_little_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    header = replace(HEADER, windows=HEADER.windows[:1], n_channels=400, scenarios=100, horizon=1)
    weights = np.full((100, 400), 0.01, dtype=np.float32)
    with forecast_writer(tmp_path, header) as writer:
        writer.write(0, slice(0, 400), np.ones((100, 1, 400), dtype=np.float32), weights)
        writer.finish_window(0)
    assert (tmp_path / "weights/c/0/0/0").stat().st_size < 0.02 * weights.nbytes


def test_a_chunk_of_nan_is_not_mistaken_for_a_missing_chunk(tmp_path: Path) -> None:
    nothing = np.full((M, H, C), np.nan, dtype=np.float32)
    header = replace(HEADER, windows=HEADER.windows[:1])
    with forecast_writer(tmp_path, header) as writer:
        writer.write(0, slice(0, C), nothing, weights_of(0))
        writer.finish_window(0)
        writer.close(COST)
    values, _ = open_forecast(tmp_path).read(0, slice(0, C))
    assert np.isnan(values).all()


@pytest.mark.parametrize("blocks", [[], [slice(4, 13)], [slice(0, 9), slice(9, 19)], WHOLE])
def test_a_kill_within_a_window_loses_only_that_window(
    tmp_path: Path, undisturbed: Path, blocks: list[slice]
) -> None:
    path = tmp_path / "f"
    with suppress(KeyboardInterrupt), forecast_writer(path, HEADER) as writer:
        write(writer, 1, ODD)
        writer.finish_window(1)
        write(writer, 0, blocks, sign=-1)
        raise KeyboardInterrupt
    before = files_of(path / "values/c/1")
    # SIGKILL also leaves a stale lock, a partial file and a chunk of zeros.
    (path / FORECAST_LOCK).touch()
    for leftover in ("values/c/0/0/0/1.ab12.partial", "values/c/0/0/0/2", "weights/c/0/0/0"):
        (path / leftover).parent.mkdir(parents=True, exist_ok=True)
        (path / leftover).write_bytes(bytes(10))
    with forecast_writer(path, HEADER) as writer:
        assert writer.finished == {1}
        fill(writer, WHOLE)
    assert files_of(path) == files_of(undisturbed)
    assert files_of(path / "values/c/1") == before


@pytest.mark.parametrize("crash", range(10))
def test_a_crash_while_writing_metadata_is_recovered(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, crash: int
) -> None:
    replaced = 0

    def crash_once(file: Path, content: bytes) -> None:
        nonlocal replaced
        replaced += 1
        if replaced == crash + 1:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.with_name(f"{file.name}.partial").write_bytes(content[:5])
            raise KeyboardInterrupt
        replace_file(file, content)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        for module in (forecast_file, forecast_format):
            patch.setattr(module, "replace_file", crash_once)
        with forecast_writer(tmp_path / "f", HEADER) as writer:
            fill(writer)
    assert replaced == crash + 1
    with forecast_writer(tmp_path / "f", HEADER) as writer:
        fill(writer)
    assert files_of(tmp_path / "f") == files_of(undisturbed)


def test_a_complete_forecast_is_not_changed(forecast: Path, undisturbed: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in forecast.rglob("*") if path.is_file()}
    with forecast_writer(forecast, HEADER) as writer:
        assert writer.finished == {0, 1, 2}
        with pytest.raises(ForecastError, match=r"^window 1: "):
            write(writer, 1, WHOLE)
        with pytest.raises(ForecastError, match=r"^window 1: "):
            writer.finish_window(1)
        writer.close({"predict_s": 0.0})
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert files_of(forecast) == files_of(undisturbed)


def test_another_forecast_in_the_same_directory_raises(forecast: Path, undisturbed: Path) -> None:
    different = replace(HEADER, seed=3142, config={"layers": [1, 3]}, version="0.2.0")
    with (
        pytest.raises(ForecastError, match="config, seed, version"),
        forecast_writer(forecast, different),
    ):
        pass
    assert files_of(forecast) == files_of(undisturbed)


def test_a_directory_with_other_files_raises_and_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "values").mkdir()
    (tmp_path / "values/thesis.tex").write_text("years of work")
    with (
        pytest.raises(ForecastError, match=str(tmp_path)),
        forecast_writer(tmp_path, HEADER),
    ):
        pass
    assert files_of(tmp_path) == {"values/thesis.tex": b"years of work"}


def test_a_user_s_file_in_the_directory_is_kept(tmp_path: Path) -> None:
    with forecast_writer(tmp_path, HEADER) as writer:
        write(writer, 0, ODD)
    notes = tmp_path / "values/notes.txt"
    notes.write_text("mine")
    with forecast_writer(tmp_path, HEADER) as writer:
        fill(writer)
    assert notes.read_text() == "mine"


def test_a_file_instead_of_a_directory_raises(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("mine")
    with (
        pytest.raises(ForecastError, match=str(file)),
        forecast_writer(file, HEADER),
    ):
        pass
    with pytest.raises(ForecastError, match=str(file)):
        open_forecast(file)
    assert file.read_text() == "mine"


def test_a_url_raises(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(ForecastError, match="s3://bucket/forecast"),
        forecast_writer("s3://bucket/forecast", HEADER),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_a_second_writer_raises_and_does_not_disturb_the_first(
    tmp_path: Path, undisturbed: Path
) -> None:
    with forecast_writer(tmp_path / "f", HEADER) as writer:
        write(writer, 0, ODD)
        with (
            pytest.raises(ForecastError, match=str(tmp_path)),
            forecast_writer(tmp_path / "f", HEADER),
        ):
            pass
        writer.finish_window(0)
        fill(writer)
    assert files_of(tmp_path / "f") == files_of(undisturbed)


@pytest.mark.parametrize("moment", range(4))
def test_a_full_disk_raises_and_writing_can_continue(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    writes, put = 0, LocalStore.set

    async def fail_once(self: LocalStore, key: str, value: Any) -> None:
        nonlocal writes
        writes += 1
        if writes == 1 + 5 * moment:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        await put(self, key, value)

    monkeypatch.setattr(LocalStore, "set", fail_once)
    with (
        pytest.raises(ForecastError, match="disk is full"),
        forecast_writer(tmp_path / "f", HEADER) as writer,
    ):
        fill(writer)
    with forecast_writer(tmp_path / "f", HEADER) as writer:
        fill(writer)
    assert files_of(tmp_path / "f") == files_of(undisturbed)


def test_an_error_of_the_model_is_not_reported_as_a_disk_error(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="the model's own"),
        forecast_writer(tmp_path, HEADER),
    ):
        raise OSError("the model's own")


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"windows": []}, r"windows"),
        ({"windows": ["2016-07-01T00:00"] * 2}, "windows"),
        ({"windows": ["2016-07-01"]}, "windows"),
        ({"windows": ["2016-13-01T00:00"]}, "windows"),
        ({"windows": ["NaT"]}, "windows"),
        ({"windows": [20160701]}, "windows"),
        ({"windows": "2016-07-01T00:00"}, "windows"),
        ({"task": ""}, "task"),
        ({"model": None}, "model"),
        ({"variant": ""}, "variant"),
        ({"task_version": 0}, "task_version"),
        ({"scenarios": 2.0}, "scenarios"),
        ({"horizon": True}, "horizon"),
        ({"n_channels": 18}, "n_channels"),
        ({"fingerprint": "0123"}, "fingerprint"),
        ({"fingerprint": "g" * 64}, "fingerprint"),
        ({"scale": [1.0]}, "scale"),
        ({"scale": [1.0, float("nan")]}, "scale"),
        ({"scale": [1.0, 0.0]}, "scale"),
        ({"config": {"layers": (1, 2)}}, "config"),
        ({"config": {1: 2}}, "config"),
        ({"config": {"rate": float("inf")}}, "config"),
        ({"config": {"path": Path("x")}}, "config"),
        ({"parameters": -1}, "parameters"),
        ({"seed": "42"}, "seed"),
        ({"seed": 1.5, "grid": 14}, r"grid.*seed"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_an_invalid_header_raises(change: dict[str, Any], fact: str) -> None:
    with pytest.raises(ForecastError, match=fact):
        ForecastHeader(**{**asdict(HEADER), **change})


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[ForecastWriter]:
    with forecast_writer(tmp_path / "f", HEADER) as writer:
        yield writer


def test_the_error_names_a_missing_channel(writer: ForecastWriter) -> None:
    write(writer, 2, [slice(0, 9), slice(11, C)])
    with pytest.raises(ForecastError, match="2 of 20") as caught:
        writer.finish_window(2)
    assert (caught.value.window, caught.value.channel) == (2, 9)
    assert writer.finished == set()
    write(writer, 2, [slice(9, 11)])
    writer.finish_window(2)
    assert writer.finished == {2}


def test_writing_a_channel_twice_raises_and_changes_nothing(
    tmp_path: Path, undisturbed: Path
) -> None:
    with forecast_writer(tmp_path / "f", HEADER) as writer:
        write(writer, 0, [slice(0, 9)])
        with pytest.raises(ForecastError, match=str(tmp_path)) as caught:
            write(writer, 0, [slice(7, 12)], sign=-1)
        assert (caught.value.window, caught.value.channel) == (0, 7)
        write(writer, 0, [slice(9, C)])
        writer.finish_window(0)
        fill(writer)
    assert files_of(tmp_path / "f") == files_of(undisturbed)


@pytest.mark.parametrize(
    ("window", "channels", "fact"),
    [
        (3, slice(0, 4), "window 3"),
        (-1, slice(0, 4), "window -1"),
        (0, slice(0, 4, 2), "window 0: "),
        (0, slice(18, 22), r"slice\(18, 22"),
        (0, slice(-4, None), "window 0: "),
        (0, slice(4, 4), "window 0: "),
    ],
)
def test_windows_and_channels_out_of_range_raise(
    writer: ForecastWriter, undisturbed: Path, window: int, channels: slice, fact: str
) -> None:
    values = np.zeros((M, H, 4), dtype=np.float32)
    with pytest.raises(ForecastError, match=fact):
        writer.write(window, channels, values, values[:, 0])
    with pytest.raises(ForecastError, match=fact):
        open_forecast(undisturbed).read(window, channels)


def test_finishing_a_window_out_of_range_raises(writer: ForecastWriter) -> None:
    with pytest.raises(ForecastError, match="window 3"):
        writer.finish_window(3)


@pytest.mark.parametrize(
    ("values", "weights", "fact"),
    [
        ((M, H, 5), (M, 4), r"values .*\(3, 5, 4\).*\(3, 5, 5\)"),
        ((M, H - 1, 4), (M, 4), r"values .*\(3, 4, 4\)"),
        ((M + 1, H, 4), (M + 1, 4), r"values .*\(4, 5, 4\)"),
        ((1, M, H, 4), (M, 4), r"values .*\(1, 3, 5, 4\)"),
        ((M, H, 4), (M, 1), r"weights .*\(3, 4\).*\(3, 1\)"),
        ((M, H, 4), (M,), r"weights .*\(3, 4\).*\(3,\)"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_block_of_another_shape_raises(
    writer: ForecastWriter, values: Any, weights: Any, fact: str
) -> None:
    arrays = [np.zeros(shape, dtype=np.float32) for shape in (values, weights)]
    with pytest.raises(ForecastError, match=fact) as caught:
        writer.write(1, slice(8, 12), *arrays)
    assert (caught.value.window, caught.value.channel) == (1, 8)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.usefixtures("unchecked")
def test_a_block_of_another_type_raises(writer: ForecastWriter, which: int) -> None:
    arrays = [np.zeros((M, H, 4), dtype=np.float32), np.zeros((M, 4), dtype=np.float32)]
    arrays[which] = arrays[which].astype(np.float64)
    with pytest.raises(ForecastError, match="float64"):
        writer.write(0, slice(0, 4), *arrays)


@pytest.mark.parametrize(
    ("weights", "fact"),
    [
        ([0.5, 0.25, 0.2501], "1.0001"),
        ([0.5, 0.25, 0.2499], "0.9999"),
        ([1.5, -0.5, 0.0], "-0.5"),
        ([0.5, 0.5, np.nan], "nan"),
    ],
)
def test_writing_weights_that_do_not_sum_to_one_raises(
    writer: ForecastWriter, weights: list[float], fact: str
) -> None:
    values, block = np.zeros((M, H, 4), dtype=np.float32), weights_of(0)[:, :4].copy()
    block[:, 2] = weights
    with pytest.raises(ForecastError, match=fact) as caught:
        writer.write(1, slice(8, 12), values, block)
    assert (caught.value.window, caught.value.channel) == (1, 10)
    block[:, 2] = [0.5, 0.25, 0.25 + 9e-6]  # within the tolerance
    writer.write(1, slice(8, 12), values, block)


def test_a_forecast_with_a_missing_window_cannot_be_closed_or_opened(tmp_path: Path) -> None:
    with forecast_writer(tmp_path, HEADER) as writer:
        for window in (0, 2):
            write(writer, window, ODD)
            writer.finish_window(window)
        with pytest.raises(ForecastError, match=r"^window 1: "):
            writer.close(COST)
    with pytest.raises(ForecastError, match="2 of 3"):
        open_forecast(tmp_path)


def test_a_cost_that_json_cannot_hold_raises(tmp_path: Path) -> None:
    with forecast_writer(tmp_path, HEADER) as writer:
        with pytest.raises(ForecastError, match="window 0: "):
            writer.close({})
        for window in range(3):
            write(writer, window, WHOLE)
            writer.finish_window(window)
        with pytest.raises(ForecastError, match="cost"):
            writer.close({"predict_s": float("nan")})
        writer.close(COST)
    assert open_forecast(tmp_path).cost == COST


def test_the_manifest_contains_the_header(undisturbed: Path) -> None:
    manifest = json.loads((undisturbed / FORECAST_MANIFEST).read_text())
    progress = {"cost": COST, "finished": [0, 1, 2], "complete": True}
    files = sorted(files_of(undisturbed))
    chunks = [file for file in files if "/c/" in file and not file.startswith("time")]
    sha256 = {file: hashlib.sha256((undisturbed / file).read_bytes()) for file in chunks}
    checksums = {"sha256": {file: digest.hexdigest() for file, digest in sha256.items()}}
    header = {name: fact for name, fact in asdict(HEADER).items() if name != "step_s"}
    assert manifest == {"format": FORMAT, **header, **progress, **checksums}


@pytest.mark.parametrize("name", ["joint", "model_version"])
def test_a_forecast_states_every_fact(forecast: Path, name: str) -> None:
    change_manifest(forecast, **{name: GONE})
    with pytest.raises(ForecastError, match=name):
        open_forecast(forecast)


def test_opening_a_directory_without_a_forecast_raises(tmp_path: Path) -> None:
    with pytest.raises(ForecastError, match=str(tmp_path)):
        open_forecast(tmp_path)


def change_manifest(path: Path, **changes: Any) -> None:
    file = path / FORECAST_MANIFEST
    values = {**json.loads(file.read_text()), **changes}
    kept = {name: value for name, value in values.items() if value is not GONE}
    file.write_text(json.dumps(kept))


@pytest.mark.parametrize(
    ("changes", "fact"),
    [
        ({"format": 1}, "format 1"),
        ({"format": FORMAT + 1}, f"format {FORMAT + 1}"),
        ({"format": "2"}, "format '2'"),
        ({"complete": False}, "3 of 3"),
        ({"finished": [0, 2]}, "complete"),
        ({"cost": None}, "complete"),
        ({"cost": [1]}, "cost"),
        ({"finished": [0, 1, 2, 3]}, "3"),
        ({"finished": 3}, "forecast.json"),
        ({"windows": []}, "windows"),
        ({"windows": HEADER.windows[:1] * 3}, "windows"),
        ({"colour": "red"}, "colour"),
        ({"seed": None}, "seed"),
        ({"joint": 1}, "joint"),
        ({"model_version": 0}, "model_version"),
        ({"n_channels": 24}, r"shape of values .*\(3, 3, 5, 20\)"),
        ({"windows": HEADER.windows[:2], "finished": [0, 1]}, "checksums"),
        ({"horizon": 6}, "shape of values|checksums"),
        ({"sha256": {}}, "checksums"),
        ({"sha256": {"values/c/0/0/0/0": "none"}}, "sha256"),
        (
            {"windows": ["2016-07-01T00:15", *HEADER.windows[1:]]},
            "^window 0: .*2016-07-01T00:00:00.*2016-07-01T00:15",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_an_inconsistent_manifest_raises(
    forecast: Path, changes: dict[str, Any], fact: str
) -> None:
    change_manifest(forecast, **changes)
    with pytest.raises(ForecastError, match=fact):
        open_forecast(forecast)


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_truncated_manifest_raises_and_is_not_changed(forecast: Path, share: float) -> None:
    manifest = forecast / FORECAST_MANIFEST
    os.truncate(manifest, int(share * manifest.stat().st_size))
    before = files_of(forecast)
    with pytest.raises(ForecastError, match=r"forecast\.json"):
        open_forecast(forecast)
    with (
        pytest.raises(ForecastError, match=r"forecast\.json"),
        forecast_writer(forecast, HEADER),
    ):
        pass
    assert files_of(forecast) == before


@pytest.mark.parametrize("text", ["[]", "{}", "3", '"format"', "null", '{"format": 1}', "\xff"])
def test_a_manifest_of_other_content_raises(forecast: Path, text: str) -> None:
    (forecast / FORECAST_MANIFEST).write_bytes(text.encode("latin-1"))
    with pytest.raises(ForecastError, match=r"forecast\.json"):
        open_forecast(forecast)


@pytest.mark.parametrize("name", ["values", "weights", "time"])
def test_the_error_names_a_missing_array(forecast: Path, name: str) -> None:
    shutil.rmtree(forecast / name)
    with pytest.raises(ForecastError, match=name):
        open_forecast(forecast)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("values", "shape", [3, 3, 5, 21]),
        ("weights", "shape", [3, 4, 20]),
        ("values", "data_type", "int32"),
        ("weights", "data_type", "uint32"),
        ("time", "data_type", "float64"),
        ("values", "fill_value", 0.0),
    ],
)
def test_an_array_that_differs_from_the_header_raises(
    forecast: Path, name: str, key: str, value: Any
) -> None:
    file = forecast / name / "zarr.json"
    metadata = {**json.loads(file.read_text()), key: value}
    if key == "data_type":
        metadata["fill_value"] = 0
    file.write_text(json.dumps(metadata))
    with pytest.raises(ForecastError, match=f"(fill_value|{key}) of {name}"):
        open_forecast(forecast)


def test_another_order_of_axes_in_a_chunk_raises(forecast: Path) -> None:
    file = forecast / "values/zarr.json"
    metadata = json.loads(file.read_text())
    metadata["codecs"][0]["configuration"]["order"] = [0, 3, 2, 1]
    file.write_text(json.dumps(metadata))
    with pytest.raises(ForecastError, match="codecs of values"):
        open_forecast(forecast)


def test_steps_that_are_not_15_minutes_apart_raise(forecast: Path) -> None:
    array = zarr.open_array(LocalStore(forecast), path="time", mode="r+")
    array[1, 3] = np.asarray(array[1, 2]) + 3600
    with pytest.raises(ForecastError, match="2016-12-31T00:30") as caught:
        open_forecast(forecast)
    assert (caught.value.window, caught.value.step) == (1, 3)


@pytest.mark.parametrize("at", [0.0, 0.3, 0.999])
@pytest.mark.parametrize("harm", [flip, truncate, remove])
@pytest.mark.parametrize("file", ["values/c/1/0/0/1", "weights/c/1/0/1"])
def test_the_error_names_a_damaged_chunk_and_others_can_be_read(
    forecast: Path, file: str, harm: Any, at: float
) -> None:
    harm(forecast / file, at)
    opened = open_forecast(forecast)
    for channels in (slice(8, 16), slice(10, 12), slice(None)):
        with pytest.raises(ForecastError, match=file) as caught:
            opened.read(1, channels)
        assert (caught.value.window, caught.value.channel) == (1, 8)
    for window, channels in ((1, slice(0, 8)), (1, slice(16, 20)), (0, slice(None))):
        values, weights = opened.read(window, channels)
        assert same_bits(values, values_of(window)[..., channels])
        assert same_bits(weights, weights_of(window)[..., channels])


def test_a_forecast_of_the_first_format_must_be_made_again(forecast: Path) -> None:
    """It has no checksums, so that nobody can tell whether its chunks are in their places."""
    file = forecast / FORECAST_MANIFEST
    manifest = json.loads(file.read_text())
    del manifest["sha256"]
    file.write_text(json.dumps({**manifest, "format": 1}))
    with pytest.raises(ForecastError, match=r"format 1.*powerphase forecast"):
        open_forecast(forecast)
    with pytest.raises(ForecastError, match="format 1"), forecast_writer(forecast, HEADER):
        pass


@pytest.mark.parametrize("name", ["values", "weights"])
@pytest.mark.parametrize("other", [(0, 0), (2, 1), (1, 1)], ids=["both", "window", "channels"])
@pytest.mark.parametrize("swaps", [True, False], ids=["swapped", "copied"])
def test_a_chunk_in_the_place_of_another_is_refused(
    forecast: Path, name: str, other: tuple[int, int], swaps: bool
) -> None:
    """Its own checksum is right, and so is its shape."""
    files = [forecast / chunk_file(name, *at) for at in ((1, 0), other)]
    contents = [file.read_bytes() for file in files]
    for file, content in zip(files[::-1] if swaps else files[1:], contents, strict=False):
        file.write_bytes(content)
    opened = open_forecast(forecast)
    window, number = other
    with pytest.raises(ForecastError, match=str(files[1])) as caught:
        opened.read(window, opened.blocks()[number])
    assert (caught.value.window, caught.value.channel) == (window, number * WIDTH)
    assert same_bits(opened.read(1, slice(16, C))[0], values_of(1)[..., 16:])


def test_weights_that_are_no_distribution_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if somebody wrote them with their checksums."""
    header = replace(HEADER, windows=HEADER.windows[:1])
    for wrong in (np.nan, -0.5, 3.0):
        weights = weights_of(0)
        weights[1, 9] = wrong
        with monkeypatch.context() as patch, forecast_writer(tmp_path / str(wrong), header) as w:
            patch.setattr(forecast_file, "check_weights", lambda *_: None)
            w.write(0, slice(0, C), values_of(0), weights)
            w.finish_window(0)
            w.close(COST)
        opened = open_forecast(tmp_path / str(wrong))
        with pytest.raises(ForecastError) as caught:
            opened.read(0, slice(None))
        assert (caught.value.window, caught.value.channel) == (0, 9)


@pytest.mark.parametrize("harm", [flip, truncate, remove])
def test_the_error_names_damaged_times(forecast: Path, harm: Any) -> None:
    harm(forecast / "time/c/0/0", 0.5)
    with pytest.raises(ForecastError, match="time/c/0/0"):
        open_forecast(forecast)
