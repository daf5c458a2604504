"""A user's table of forecasts is read as it is, or rejected with the name of what is wrong."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from powerphase.dataset import Store
from powerphase.errors import PowerphaseError, TaskError
from powerphase.evaluation import forecast
from powerphase.importing import read_forecasts
from powerphase.models import LastWeek
from powerphase.task import Task

STEP = pd.Timedelta(minutes=15)


def table_of(store: Store, first: str = "2014-12-31", days: int = 61) -> pd.DataFrame:
    """Forecasts at six in the evening of the whole next day, in whole MW, as in `exact_signals`."""
    parts = []
    for name, column in (("load", 0), ("wind", 2)):
        issued = pd.date_range(f"{first}T18:00Z", periods=days).repeat(96)
        valid = issued + pd.Timedelta(hours=6) + np.tile(np.arange(96), days) * STEP
        step = ((valid - pd.Timestamp("2015-01-01", tz="UTC")) // STEP).to_numpy()
        value = store.signals_mw[step % len(store.time), column]
        columns = {"issued": issued, "valid": valid, "name": name, "unit": "MW", "value": value}
        parts.append(pd.DataFrame(columns))
    return pd.concat(parts, ignore_index=True)


@pytest.fixture(scope="module")
def sound(sixty_days: Store) -> pd.DataFrame:
    return table_of(sixty_days)


def written(table: pd.DataFrame, file: Path) -> Path:
    if file.suffix == ".parquet":
        table.to_parquet(file, index=False)
    else:
        table.to_csv(file, index=False)
    return file


@pytest.mark.parametrize("name", ["forecasts.csv", "forecasts.csv.gz", "forecasts.parquet"])
def test_a_table_is_read_as_it_is(sound: pd.DataFrame, tmp_path: Path, name: str) -> None:
    shuffled = sound.sample(frac=1, random_state=0)
    forecasts = read_forecasts(written(shuffled, tmp_path / name))
    assert sorted(zip(forecasts.names, forecasts.units, strict=True)) == [
        ("load", "MW"),
        ("wind", "MW"),
    ]
    plain = read_forecasts(written(sound, tmp_path / "plain.csv"))
    assert plain.sha256 == forecasts.sha256


def test_a_task_reads_a_table_and_tomorrow_goes_beyond_the_record(
    sixty_days: Store, sound: pd.DataFrame, tmp_path: Path
) -> None:
    task = Task(sixty_days, known=written(sound, tmp_path / "f.csv"), windows=3)
    for number in range(3):
        origin, known = task.test.origins[number], task.test.context(number).known
        assert known is not None
        happened = sixty_days.signals_mw[origin - 672 : origin + 96, [0, 2]]
        np.testing.assert_array_equal(known.values[0].numpy(), happened.astype(np.float32))
    known = task.tomorrow.known
    assert known is not None
    assert known.future.isfinite().all()
    assert (known.issued[0, -96:] < sixty_days.time[-1]).all()


def test_a_table_may_grow_without_another_training(
    sixty_days: Store, sound: pd.DataFrame, tmp_path: Path
) -> None:
    shorter = sound[sound.issued < pd.Timestamp("2015-02-27", tz="UTC")]
    tables = [written(part, tmp_path / f"{len(part)}.csv") for part in (shorter, sound)]
    tasks = [Task(sixty_days, known=file) for file in tables]
    assert tasks[0].name != tasks[1].name
    assert tasks[0].training.data == tasks[1].training.data


def test_tomorrow_needs_no_forecasts_of_the_past(
    sixty_days: Store, sound: pd.DataFrame, tmp_path: Path
) -> None:
    last = sound[sound.issued >= pd.Timestamp("2015-03-01", tz="UTC")]
    task = Task(sixty_days, known=written(last, tmp_path / "f.csv"), windows=3)
    known = task.tomorrow.known
    assert known is not None
    assert known.future.isfinite().all()
    assert task.training.known is not None
    assert task.training.known.values.isnan().all()
    with pytest.raises(TaskError):
        forecast(LastWeek(), task, device="cpu")


def test_before_the_first_issue_nothing_is_known(
    sixty_days: Store, sound: pd.DataFrame, tmp_path: Path
) -> None:
    later = sound[sound.issued >= pd.Timestamp("2015-01-20", tz="UTC")]
    train = Task(sixty_days, known=written(later, tmp_path / "f.csv"), windows=3).training
    assert train.known is not None
    missing = train.known.values.isnan()
    assert missing[: 20 * 96].all()
    assert not missing[21 * 96 :].any()
    assert np.array_equal(np.isnat(train.known.issued), missing.numpy())
    context, _ = train.batches(32, seed=0)[0]
    assert context.known is not None
    assert bool(context.known.future.isnan().any())


def test_validation_windows_may_begin_before_a_table(
    sixty_days: Store, sound: pd.DataFrame, tmp_path: Path
) -> None:
    later = sound[sound.issued >= pd.Timestamp("2015-02-13", tz="UTC")]
    task = Task(sixty_days, known=written(later, tmp_path / "f.csv"), windows=3)
    ((context, _), *_) = task.training.validation.load(4)
    assert context.known is not None
    assert context.known.future.isnan().all()
    task.test.check_known()
    with pytest.raises(TaskError):
        task.training.validation.check_known()


Change = Callable[[pd.DataFrame], pd.DataFrame]


def hourly(table: pd.DataFrame) -> pd.DataFrame:
    return table[table.valid.dt.minute == 0]


CHANGES: dict[str, tuple[Change, str]] = {
    "another unit": (lambda t: t.assign(unit="kW"), "kW"),
    "two units of one quantity": (
        lambda t: t.assign(name="wind speed", unit=["m/s"] * (len(t) - 1) + ["knots"]),
        "knots",
    ),
    "hourly": (hourly, "60"),
    "five minutes late": (lambda t: t.assign(valid=t.valid + pd.Timedelta("5min")), "00:05"),
    "two values": (lambda t: pd.concat([t, t.iloc[[3]].assign(value=1.0)]), "overlap"),
    "issued too late": (lambda t: t.assign(issued=t.issued + pd.Timedelta("7h")), "issued"),
    "issued after the origin": (
        lambda t: t.assign(issued=t.issued + pd.Timedelta("6h") + STEP * (t.valid.dt.hour > 0)),
        "after the origin",
    ),
    "ends early": (lambda t: t[t.valid < pd.Timestamp("2015-02-15T20:00Z")], "2015-02-15T19:45"),
    "a gap": (lambda t: t.drop(t.index[t.valid == pd.Timestamp("2015-02-15T20:00Z")]), "20:00"),
    "no number": (lambda t: t.assign(value=["many", *t.value[1:]]), "many"),
    "infinite": (lambda t: t.assign(value=[np.inf, *t.value[1:]]), "finite"),
    "blank": (lambda t: t.assign(value=["", *t.value[1:]]), "finite"),
    "no zone": (lambda t: t.assign(valid=t.valid.dt.tz_localize(None)), "valid"),
    "no name": (lambda t: t.assign(name=""), "name"),
    "no time of issue": (lambda t: t.drop(columns="issued"), "issued"),
    "no row": (lambda t: t.iloc[:0], "rows"),
}


def read_all(store: Store, file: Path) -> None:
    """Read what is known in every test window."""
    windows = Task(store, known=file, windows="all").test
    for number in range(len(windows)):
        windows.context(number)


@pytest.mark.parametrize("what", CHANGES)
def test_a_table_that_cannot_be_used_is_refused_by_name(
    sixty_days: Store, sound: pd.DataFrame, tmp_path: Path, what: str
) -> None:
    change, fact = CHANGES[what]
    file = written(change(sound), tmp_path / "forecasts.csv")
    with pytest.raises(PowerphaseError, match=fact):
        read_all(sixty_days, file)
