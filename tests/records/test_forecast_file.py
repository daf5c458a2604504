"""Forecast files: what was written comes back to the last bit, or a sentence says why not."""

import errno
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
from powerphase.records import forecast_file, forecast_header, forecast_layout
from powerphase.records.forecast_file import (
    ForecastHeader,
    ForecastWriter,
    forecast_writer,
    open_forecast,
)
from powerphase.records.forecast_header import RECORD
from powerphase.records.forecast_layout import LOCK
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
)
COST = {"predict_s": 1.5, "hardware": "two cores"}
WHOLE = [slice(0, C)]
ODD = [slice(0, 3), slice(3, 4), slice(4, 13), slice(13, C)]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of 8, 8 and 4 channels."""
    monkeypatch.setattr(forecast_header, "CHUNK_BYTES", 4 * M * H * (WIDTH + 1))


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Annotations are not enforced, as outside of tests."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


def values_of(window: int) -> np.ndarray:
    values = np.random.default_rng([window, 0]).standard_normal((M, H, C), dtype=np.float32)
    values[0, 0, :4] = [np.inf, -0.0, 1e-42, np.nan]  # bits are kept, not judged
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


def same_bits(found: np.ndarray, expected: np.ndarray) -> bool:
    return found.dtype == expected.dtype and found.tobytes() == expected.tobytes()


def files_of(path: Path) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in path.rglob("*") if f.is_file()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A complete forecast that nobody damages."""
    path = tmp_path_factory.mktemp("forecasts") / "undisturbed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forecast_header, "CHUNK_BYTES", 4 * M * H * (WIDTH + 1))
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
def test_what_is_read_is_what_was_written_whatever_the_blocks(tmp_path: Path, blocks: Any) -> None:
    with forecast_writer(tmp_path / "f", HEADER) as writer:
        fill(writer, blocks)
    forecast = open_forecast(tmp_path / "f")
    assert forecast.header == HEADER
    assert forecast.cost == COST
    for window in range(3):
        values, weights = forecast.read(window, slice(0, C))
        assert same_bits(values, values_of(window))
        assert same_bits(weights, weights_of(window))


def test_any_channels_are_read_whatever_the_chunks(undisturbed: Path) -> None:
    forecast = open_forecast(undisturbed)
    for channels in (*forecast.blocks(), *ODD, slice(None), slice(7, 9), slice(12, None)):
        values, weights = forecast.read(1, channels)
        assert same_bits(values, values_of(1)[..., channels])
        assert same_bits(weights, weights_of(1)[..., channels])


def test_windows_may_be_written_side_by_side(tmp_path: Path, undisturbed: Path) -> None:
    with forecast_writer(tmp_path / "f", HEADER) as writer:
        for block in ODD:
            for window in range(3):
                write(writer, window, [block])
        for window in (2, 0, 1):
            writer.finish_window(window)
        writer.close(COST)
    assert files_of(tmp_path / "f") == files_of(undisturbed)


def test_time_is_that_of_every_forecast_step(undisturbed: Path) -> None:
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


def test_the_stored_chunks_are_the_blocks(undisturbed: Path) -> None:
    chunks = sorted(path.name for path in (undisturbed / "values/c/1/0/0").iterdir())
    assert chunks == sorted(path.name for path in (undisturbed / "weights/c/1/0").iterdir())
    assert len(chunks) == len(open_forecast(undisturbed).blocks()) == 3


def test_equal_weights_take_next_to_no_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    header = replace(HEADER, windows=HEADER.windows[:1], n_channels=400, scenarios=100, horizon=1)
    weights = np.full((100, 400), 0.01, dtype=np.float32)
    with forecast_writer(tmp_path, header) as writer:
        writer.write(0, slice(0, 400), np.ones((100, 1, 400), dtype=np.float32), weights)
        writer.finish_window(0)
    assert (tmp_path / "weights/c/0/0/0").stat().st_size < 0.02 * weights.nbytes


def test_a_nan_of_the_model_is_told_from_a_lost_chunk(tmp_path: Path) -> None:
    nothing = np.full((M, H, C), np.nan, dtype=np.float32)
    header = replace(HEADER, windows=HEADER.windows[:1])
    with forecast_writer(tmp_path, header) as writer:
        writer.write(0, slice(0, C), nothing, weights_of(0))
        writer.finish_window(0)
        writer.close(COST)
    values, _ = open_forecast(tmp_path).read(0, slice(0, C))
    assert np.isnan(values).all()


@pytest.mark.parametrize("blocks", [[], [slice(4, 13)], [slice(0, 9), slice(9, 19)], WHOLE])
def test_a_kill_within_a_window_costs_that_window_and_nothing_else(
    tmp_path: Path, undisturbed: Path, blocks: list[slice]
) -> None:
    path = tmp_path / "f"
    with suppress(KeyboardInterrupt), forecast_writer(path, HEADER) as writer:
        write(writer, 1, ODD)
        writer.finish_window(1)
        write(writer, 0, blocks, sign=-1)
        raise KeyboardInterrupt
    done = files_of(path / "values/c/1")
    # What SIGKILL leaves too: a lock that nobody holds, a file half written, a chunk of zeros.
    (path / LOCK).touch()
    for rubble in ("values/c/0/0/0/1.ab12.partial", "values/c/0/0/0/2", "weights/c/0/0/0"):
        (path / rubble).parent.mkdir(parents=True, exist_ok=True)
        (path / rubble).write_bytes(bytes(10))
    with forecast_writer(path, HEADER) as writer:
        assert writer.finished == {1}
        fill(writer, WHOLE)
    assert files_of(path) == files_of(undisturbed)
    assert files_of(path / "values/c/1") == done


@pytest.mark.parametrize("crash", range(10))
def test_a_crash_within_any_file_but_the_chunks_is_made_good(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, crash: int
) -> None:
    replaced, put = 0, forecast_layout.replace_file

    def dies(file: Path, content: bytes) -> None:
        nonlocal replaced
        replaced += 1
        if replaced == crash + 1:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.with_name(f"{file.name}.partial").write_bytes(content[:5])
            raise KeyboardInterrupt
        put(file, content)

    with monkeypatch.context() as patch, suppress(KeyboardInterrupt):
        for module in (forecast_file, forecast_layout):
            patch.setattr(module, "replace_file", dies)
        with forecast_writer(tmp_path / "f", HEADER) as writer:
            fill(writer)
    assert replaced == crash + 1
    with forecast_writer(tmp_path / "f", HEADER) as writer:
        fill(writer)
    assert files_of(tmp_path / "f") == files_of(undisturbed)


def test_a_complete_forecast_is_left_alone(forecast: Path, undisturbed: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in forecast.rglob("*") if path.is_file()}
    with forecast_writer(forecast, HEADER) as writer:
        assert writer.finished == {0, 1, 2}
        with pytest.raises(ForecastError, match=r"window 1: .* the window is finished"):
            write(writer, 1, WHOLE)
        with pytest.raises(ForecastError, match=r"window 1: .* the window is finished"):
            writer.finish_window(1)
        writer.close({"predict_s": 0.0})
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert files_of(forecast) == files_of(undisturbed)


def test_another_forecast_in_the_same_place_is_refused(forecast: Path, undisturbed: Path) -> None:
    other = replace(HEADER, seed=3142, config={"layers": [1, 3]}, version="0.2.0")
    with (
        pytest.raises(ForecastError, match=r"it differs in config, seed, version\); choose"),
        forecast_writer(forecast, other),
    ):
        pass
    assert files_of(forecast) == files_of(undisturbed)


def test_a_directory_with_other_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "values").mkdir()
    (tmp_path / "values/thesis.tex").write_text("years of work")
    with (
        pytest.raises(ForecastError, match="holds files that are no forecast; choose an empty"),
        forecast_writer(tmp_path, HEADER),
    ):
        pass
    assert files_of(tmp_path) == {"values/thesis.tex": b"years of work"}


def test_a_file_of_the_user_within_the_directory_survives(tmp_path: Path) -> None:
    with forecast_writer(tmp_path, HEADER) as writer:
        write(writer, 0, ODD)
    notes = tmp_path / "values/notes.txt"
    notes.write_text("mine")
    with forecast_writer(tmp_path, HEADER) as writer:
        fill(writer)
    assert notes.read_text() == "mine"


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "f"
    place.write_text("mine")
    with (
        pytest.raises(ForecastError, match=r"f: cannot be written .*; check the path"),
        forecast_writer(place, HEADER),
    ):
        pass
    with pytest.raises(ForecastError, match="no forecast here"):
        open_forecast(place)
    assert place.read_text() == "mine"


def test_a_url_is_not_taken_for_a_directory(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    with (
        pytest.raises(ForecastError, match="is written to a local directory"),
        forecast_writer("s3://bucket/forecast", HEADER),
    ):
        pass
    assert not list(tmp_path.iterdir())


def test_a_second_writer_is_refused_and_the_first_is_not_disturbed(
    tmp_path: Path, undisturbed: Path
) -> None:
    with forecast_writer(tmp_path / "f", HEADER) as writer:
        write(writer, 0, ODD)
        with (
            pytest.raises(ForecastError, match="another process is writing it"),
            forecast_writer(tmp_path / "f", HEADER),
        ):
            pass
        writer.finish_window(0)
        fill(writer)
    assert files_of(tmp_path / "f") == files_of(undisturbed)


@pytest.mark.parametrize("moment", range(4))
def test_a_full_disk_stops_with_a_sentence_and_the_work_goes_on(
    tmp_path: Path, undisturbed: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    writes, put = 0, LocalStore.set

    async def fails_once(self: LocalStore, key: str, value: Any) -> None:
        nonlocal writes
        writes += 1
        if writes == 1 + 5 * moment:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        await put(self, key, value)

    monkeypatch.setattr(LocalStore, "set", fails_once)
    with (
        pytest.raises(ForecastError, match="the disk is full; nothing that was finished is lost"),
        forecast_writer(tmp_path / "f", HEADER) as writer,
    ):
        fill(writer)
    with forecast_writer(tmp_path / "f", HEADER) as writer:
        fill(writer)
    assert files_of(tmp_path / "f") == files_of(undisturbed)


def test_an_error_of_the_model_is_not_taken_for_one_of_the_disk(tmp_path: Path) -> None:
    with (
        pytest.raises(OSError, match="the model's own"),
        forecast_writer(tmp_path, HEADER),
    ):
        raise OSError("the model's own")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"windows": []}, r"windows must be ascending UTC times such as .*, found \[\]"),
        ({"windows": ["2016-07-01T00:00"] * 2}, "windows must be ascending"),
        ({"windows": ["2016-07-01"]}, "windows must be"),
        ({"windows": ["2016-13-01T00:00"]}, "windows must be"),
        ({"windows": ["NaT"]}, "windows must be"),
        ({"windows": [20160701]}, "windows must be"),
        ({"windows": "2016-07-01T00:00"}, "windows must be"),
        ({"task": ""}, "task must be text, found ''"),
        ({"model": None}, "model must be text, found None"),
        ({"variant": ""}, "variant must be text or None"),
        ({"task_version": 0}, "task_version must be a positive integer, found 0"),
        ({"scenarios": 2.0}, r"scenarios must be a positive integer, found 2\.0"),
        ({"horizon": True}, "horizon must be a positive integer, found True"),
        ({"n_channels": 18}, "n_channels must be four per bus, found 18"),
        ({"fingerprint": "0123"}, "fingerprint must be 64 hexadecimal digits"),
        ({"fingerprint": "g" * 64}, "fingerprint must be 64 hexadecimal digits"),
        ({"scale": [1.0]}, "scale must be two positive numbers"),
        ({"scale": [1.0, float("nan")]}, "scale must be two positive numbers"),
        ({"scale": [1.0, 0.0]}, "scale must be two positive numbers"),
        ({"config": {"layers": (1, 2)}}, "config must be a dictionary that JSON can hold"),
        ({"config": {1: 2}}, "config must be"),
        ({"config": {"rate": float("inf")}}, "config must be"),
        ({"config": {"path": Path("x")}}, "config must be"),
        ({"parameters": -1}, "parameters must be a count or None"),
        ({"seed": "42"}, "seed must be an integer"),
        ({"seed": 1.5, "grid": 14}, "grid must be text, found 14; .*seed must be an integer"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_header_that_says_too_little_is_refused_at_birth(
    change: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ForecastError, match=f"not the header of a forecast: .*{problem}"):
        ForecastHeader(**{**asdict(HEADER), **change})


@pytest.fixture
def writer(tmp_path: Path) -> Iterator[ForecastWriter]:
    with forecast_writer(tmp_path / "f", HEADER) as writer:
        yield writer


def test_a_missing_channel_is_named(writer: ForecastWriter) -> None:
    write(writer, 2, [slice(0, 9), slice(11, C)])
    with pytest.raises(ForecastError, match="2 of 20 channels were not written") as refusal:
        writer.finish_window(2)
    assert (refusal.value.window, refusal.value.channel) == (2, 9)
    assert writer.finished == set()
    write(writer, 2, [slice(9, 11)])
    writer.finish_window(2)
    assert writer.finished == {2}


def test_a_repeated_channel_is_named_and_changes_nothing(tmp_path: Path, undisturbed: Path) -> None:
    with forecast_writer(tmp_path / "f", HEADER) as writer:
        write(writer, 0, [slice(0, 9)])
        with pytest.raises(ForecastError, match="written already; write every") as refusal:
            write(writer, 0, [slice(7, 12)], sign=-1)
        assert (refusal.value.window, refusal.value.channel) == (0, 7)
        write(writer, 0, [slice(9, C)])
        writer.finish_window(0)
        fill(writer)
    assert files_of(tmp_path / "f") == files_of(undisturbed)


@pytest.mark.parametrize(
    ("window", "channels", "problem"),
    [
        (3, slice(0, 4), "no window 3; the forecast has 3, from 0 on"),
        (-1, slice(0, 4), "no window -1"),
        (0, slice(0, 4, 2), "window 0: channels must be a contiguous part of 20"),
        (0, slice(18, 22), r"contiguous part of 20, found slice\(18, 22"),
        (0, slice(-4, None), "contiguous part of 20"),
        (0, slice(4, 4), "contiguous part of 20"),
    ],
)
def test_a_place_that_is_not_there_is_refused(
    writer: ForecastWriter, undisturbed: Path, window: int, channels: slice, problem: str
) -> None:
    values = np.zeros((M, H, 4), dtype=np.float32)
    with pytest.raises(ForecastError, match=problem):
        writer.write(window, channels, values, values[:, 0])
    with pytest.raises(ForecastError, match=problem):
        open_forecast(undisturbed).read(window, channels)


def test_a_window_that_is_not_there_cannot_be_finished(writer: ForecastWriter) -> None:
    with pytest.raises(ForecastError, match="no window 3"):
        writer.finish_window(3)


@pytest.mark.parametrize(
    ("values", "weights", "problem"),
    [
        ((M, H, 5), (M, 4), r"values must be float32 \(3, 5, 4\), found float32 \(3, 5, 5\)"),
        ((M, H - 1, 4), (M, 4), r"values must be .*, found float32 \(3, 4, 4\)"),
        ((M + 1, H, 4), (M + 1, 4), r"values must be .*, found float32 \(4, 5, 4\)"),
        ((1, M, H, 4), (M, 4), r"values must be .*, found float32 \(1, 3, 5, 4\)"),
        ((M, H, 4), (M, 1), r"weights must be float32 \(3, 4\), found float32 \(3, 1\)"),
        ((M, H, 4), (M,), r"weights must be float32 \(3, 4\), found float32 \(3,\)"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_block_of_another_shape_is_refused(
    writer: ForecastWriter, values: Any, weights: Any, problem: str
) -> None:
    arrays = [np.zeros(shape, dtype=np.float32) for shape in (values, weights)]
    with pytest.raises(ForecastError, match=problem) as refusal:
        writer.write(1, slice(8, 12), *arrays)
    assert (refusal.value.window, refusal.value.channel) == (1, 8)


@pytest.mark.parametrize("which", [0, 1])
@pytest.mark.usefixtures("unchecked")
def test_a_block_of_another_type_is_refused(writer: ForecastWriter, which: int) -> None:
    arrays = [np.zeros((M, H, 4), dtype=np.float32), np.zeros((M, 4), dtype=np.float32)]
    arrays[which] = arrays[which].astype(np.float64)
    with pytest.raises(ForecastError, match=r"float32 .*, found float64"):
        writer.write(0, slice(0, 4), *arrays)


@pytest.mark.parametrize(
    ("weights", "problem"),
    [
        ([0.5, 0.25, 0.2501], "weights sum to 1.0001, the least is 0.25;"),
        ([0.5, 0.25, 0.2499], "weights sum to 0.9999, the least is 0.2499;"),
        ([1.5, -0.5, 0.0], "weights sum to 1, the least is -0.5; give weights of 0 or more"),
        ([0.5, 0.5, np.nan], "weights sum to nan"),
    ],
)
def test_weights_that_do_not_sum_to_one_are_refused_when_they_are_written(
    writer: ForecastWriter, weights: list[float], problem: str
) -> None:
    values, given = np.zeros((M, H, 4), dtype=np.float32), weights_of(0)[:, :4].copy()
    given[:, 2] = weights
    with pytest.raises(ForecastError, match=problem) as refusal:
        writer.write(1, slice(8, 12), values, given)
    assert (refusal.value.window, refusal.value.channel) == (1, 10)
    given[:, 2] = [0.5, 0.25, 0.25 + 9e-6]  # as far off as scenarios in memory may be
    writer.write(1, slice(8, 12), values, given)


def test_a_missing_window_keeps_a_forecast_open(tmp_path: Path) -> None:
    with forecast_writer(tmp_path, HEADER) as writer:
        for window in (0, 2):
            write(writer, window, ODD)
            writer.finish_window(window)
        with pytest.raises(ForecastError, match=r"window 1: .* finish every window before"):
            writer.close(COST)
    with pytest.raises(
        ForecastError, match="unfinished, 2 of 3 windows are done; run the same `powerphase forec"
    ):
        open_forecast(tmp_path)


def test_a_cost_that_json_cannot_hold_is_refused(tmp_path: Path) -> None:
    with forecast_writer(tmp_path, HEADER) as writer:
        with pytest.raises(ForecastError, match="window 0: "):
            writer.close({})
        for window in range(3):
            write(writer, window, WHOLE)
            writer.finish_window(window)
        with pytest.raises(ForecastError, match="cost must be what JSON can hold"):
            writer.close({"predict_s": float("nan")})
        writer.close(COST)
    assert open_forecast(tmp_path).cost == COST


def test_the_record_says_all_that_the_header_says(undisturbed: Path) -> None:
    said = json.loads((undisturbed / RECORD).read_text())
    progress = {"cost": COST, "finished": [0, 1, 2], "complete": True}
    assert said == {"format": 1, **asdict(HEADER), **progress}


def test_no_forecast_is_an_error_with_advice(tmp_path: Path) -> None:
    with pytest.raises(ForecastError, match="no forecast here; make one with `powerphase forecas"):
        open_forecast(tmp_path)


def altered(path: Path, **changes: Any) -> None:
    said = json.loads((path / RECORD).read_text())
    (path / RECORD).write_text(json.dumps({**said, **changes}))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": 2}, "written in format 2, this version reads format 1; install the"),
        ({"format": "1"}, "written in format '1'"),
        ({"complete": False}, "unfinished, 3 of 3 windows are done"),
        ({"finished": [0, 2]}, "not a forecast .*marked as complete, but windows or cost"),
        ({"cost": None}, "not a forecast .*marked as complete, but windows or cost"),
        ({"cost": [1]}, "not a forecast .*cost must be what JSON can hold"),
        ({"finished": [0, 1, 2, 3]}, "not a forecast .*are finished but not listed"),
        ({"finished": 3}, "not a forecast"),
        ({"windows": []}, "not a forecast .*windows must be"),
        ({"windows": HEADER.windows[:1] * 3}, "not a forecast .*windows must be ascending"),
        ({"colour": "red"}, "not a forecast .*colour"),
        ({"seed": None}, "not a forecast .*seed must be an integer"),
        ({"n_channels": 24}, r"the shape of values is \(3, 3, 5, 20\), but by forecast"),
        ({"windows": HEADER.windows[:2], "finished": [0, 1]}, "the shape of values is"),
        ({"horizon": 6}, "the shape of values is"),
        (
            {"windows": ["2016-07-01T00:15", *HEADER.windows[1:]]},
            "window 0: .* time starts at 2016-07-01T00:00:00, the header says 2016-07-01T00:15",
        ),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_record_that_disagrees_with_itself_or_the_arrays_is_refused(
    forecast: Path, changes: dict[str, Any], problem: str
) -> None:
    altered(forecast, **changes)
    with pytest.raises(ForecastError, match=problem):
        open_forecast(forecast)


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_record_that_was_cut_is_refused_for_reading_and_writing(
    forecast: Path, share: float
) -> None:
    os.truncate(forecast / RECORD, int(share * (forecast / RECORD).stat().st_size))
    before = files_of(forecast)
    with pytest.raises(ForecastError, match=r"forecast\.json: not a forecast .*; restore it, or"):
        open_forecast(forecast)
    with (
        pytest.raises(ForecastError, match=r"forecast\.json: not a forecast"),
        forecast_writer(forecast, HEADER),
    ):
        pass
    assert files_of(forecast) == before


@pytest.mark.parametrize("text", ["[]", "{}", "3", '"format"', "null", '{"format": 1}', "\xff"])
def test_a_record_of_something_else_is_refused(forecast: Path, text: str) -> None:
    (forecast / RECORD).write_bytes(text.encode("latin-1"))
    with pytest.raises(ForecastError, match=r"forecast\.json: not a forecast of powerphase"):
        open_forecast(forecast)


@pytest.mark.parametrize("name", ["values", "weights", "time"])
def test_a_missing_array_is_named(forecast: Path, name: str) -> None:
    shutil.rmtree(forecast / name)
    with pytest.raises(ForecastError, match=f"forecast: no array {name} .*; restore it, or"):
        open_forecast(forecast)


@pytest.mark.parametrize(
    ("name", "key", "found"),
    [
        ("values", "shape", [3, 3, 5, 21]),
        ("weights", "shape", [3, 4, 20]),
        ("values", "data_type", "int32"),
        ("weights", "data_type", "uint32"),
        ("time", "data_type", "float64"),
        ("values", "fill_value", 0.0),
    ],
)
def test_an_array_that_disagrees_with_the_header_is_named(
    forecast: Path, name: str, key: str, found: Any
) -> None:
    file = forecast / name / "zarr.json"
    metadata = {**json.loads(file.read_text()), key: found}
    if key == "data_type":
        metadata["fill_value"] = 0
    file.write_text(json.dumps(metadata))
    with pytest.raises(ForecastError, match=f"the (fill_value|{key}) of {name} is .* it must be"):
        open_forecast(forecast)


def test_another_order_of_axes_in_a_chunk_is_noticed(forecast: Path) -> None:
    file = forecast / "values/zarr.json"
    metadata = json.loads(file.read_text())
    metadata["codecs"][0]["configuration"]["order"] = [0, 3, 2, 1]
    file.write_text(json.dumps(metadata))
    with pytest.raises(ForecastError, match="the codecs of values"):
        open_forecast(forecast)


def test_steps_that_are_not_15_minutes_apart_are_refused(forecast: Path) -> None:
    array = zarr.open_array(LocalStore(forecast), path="time", mode="r+")
    array[1, 3] = array[1, 2] + 3600
    with pytest.raises(ForecastError, match="is not 15 minutes after 2016-12-31T00:30") as refusal:
        open_forecast(forecast)
    assert (refusal.value.window, refusal.value.step) == (1, 3)


@pytest.mark.parametrize("at", [0.0, 0.3, 0.999])
@pytest.mark.parametrize("harm", [flip, truncate, remove])
@pytest.mark.parametrize("file", ["values/c/1/0/0/1", "weights/c/1/0/1"])
def test_a_damaged_chunk_is_named_and_the_others_are_read(
    forecast: Path, file: str, harm: Any, at: float
) -> None:
    harm(forecast / file, at)
    opened = open_forecast(forecast)
    for channels in (slice(8, 16), slice(10, 12), slice(None)):
        with pytest.raises(ForecastError, match=f"{file}: the file is damaged .*; rest") as refusal:
            opened.read(1, channels)
        assert (refusal.value.window, refusal.value.channel) == (1, 8)
    for window, channels in ((1, slice(0, 8)), (1, slice(16, 20)), (0, slice(None))):
        values, weights = opened.read(window, channels)
        assert same_bits(values, values_of(window)[..., channels])
        assert same_bits(weights, weights_of(window)[..., channels])


@pytest.mark.parametrize("harm", [flip, truncate, remove])
def test_a_damaged_clock_is_named(forecast: Path, harm: Any) -> None:
    harm(forecast / "time/c/0/0", 0.5)
    with pytest.raises(ForecastError, match="time/c/0/0: the file is damaged"):
        open_forecast(forecast)
