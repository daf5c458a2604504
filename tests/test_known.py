"""Forecasts as inputs: a window has the newest that had been issued by its origin, and no other."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from powerphase.dataset import Store
from powerphase.errors import PowerphaseError, SignalError, TaskError
from powerphase.issued import Issued, IssuedSeries
from powerphase.scenarios import Windows
from powerphase.task import KnownSource, Protocol, Task

START = np.datetime64("2015-01-01", "s")
HOUR, DAY = np.timedelta64(3600, "s"), np.timedelta64(1, "D")


def issued_every(hours: int, n_issues: int, n_leads: int) -> Issued:
    """Hourly forecasts whose value is the hour of issue plus a thousandth of the valid hour."""
    issue = np.repeat(np.arange(n_issues) * hours, n_leads)
    valid = issue + np.tile(np.arange(n_leads), n_issues)
    values = (issue + valid / 1000).astype(np.float32)
    return Issued([IssuedSeries("wind", "MW", START + issue * HOUR, START + valid * HOUR, values)])


@given(st.integers(1, 30), st.integers(1, 60), st.integers(0, 200), st.integers(-100, 60))
def test_the_newest_issue_is_read_that_had_been_issued_by_then(
    hours: int, n_leads: int, origin: int, ahead: int
) -> None:
    forecasts, valid = issued_every(hours, 12, n_leads), origin + ahead
    seen = forecasts.seen_from(
        np.array([START + origin * HOUR]), START + np.array([[valid]]) * HOUR
    )
    by = origin if ahead >= 0 else origin - 24 * -(ahead // 24)
    issues = [k * hours for k in range(12) if k * hours <= by and 0 <= valid - k * hours < n_leads]
    if issues:
        assert seen.values.item() == np.float32(max(issues) + valid / 1000)
        assert seen.issued.item() == (START + max(issues) * HOUR).item()
    else:
        assert np.isnan(seen.values).all()
        assert np.isnat(seen.issued).all()


def test_rows_may_be_in_any_order() -> None:
    forecasts = issued_every(6, 20, 30)
    (series,) = forecasts.series
    order = np.random.default_rng(0).permutation(len(series.values))
    columns = (getattr(series, name)[order] for name in ("issued", "valid", "values"))
    shuffled = Issued([IssuedSeries(series.name, series.unit, *columns)])
    assert shuffled.sha256 == forecasts.sha256
    time = START + np.arange(0, 80) * HOUR
    origin = np.asarray(START + 2 * DAY)
    for part, other in zip(
        forecasts.seen_from(origin, time), shuffled.seen_from(origin, time), strict=True
    ):
        np.testing.assert_array_equal(part, other)


def broken(**changes: np.ndarray) -> IssuedSeries:
    (sound,) = issued_every(6, 2, 4).series
    arrays = {name: getattr(sound, name) for name in ("issued", "valid", "values")} | changes
    return IssuedSeries("wind", "MW", **arrays)


@pytest.mark.parametrize(
    "changes",
    [
        {"values": np.full(8, np.nan, np.float32)},
        {"valid": np.full(8, START)},
        {"issued": np.full(8, START + DAY)},
        {"valid": START + np.arange(8) * 10_000 * DAY},
        {"issued": np.full(8, START), "valid": START + np.repeat(np.arange(4), 2) * HOUR},
        {"values": np.zeros(7, np.float32)},
        {"values": np.zeros((8, 1), np.float32)},
        {"values": np.full(8, 1e300)},
        {"values": np.full(8, "8150")},
        {"issued": np.full(8, np.datetime64("NaT", "s"))},
        {"valid": np.full(8, np.datetime64("NaT", "s"))},
        {"valid": np.arange(8)},
        {"valid": START + np.arange(8) * HOUR + np.timedelta64(1, "ms")},
        {name: np.zeros(0, f"M8[{unit}]") for name, unit in (("issued", "s"), ("valid", "s"))}
        | {"values": np.zeros(0, np.float32)},
    ],
)
def test_forecasts_that_cannot_be_are_rejected(changes: dict[str, np.ndarray]) -> None:
    with pytest.raises(SignalError):
        broken(**changes)


def test_arrays_of_other_types_are_the_same_forecasts() -> None:
    forecasts = issued_every(6, 2, 4)
    (series,) = forecasts.series
    times = {name: getattr(series, name).astype("datetime64[ns]") for name in ("issued", "valid")}
    other = Issued([replace(series, **times, values=series.values.astype(np.float64))])
    assert other.sha256 == forecasts.sha256
    seen = other.seen_from(np.array([START]), START + np.arange(4)[None] * HOUR)
    assert seen.values.dtype == np.float32
    assert seen.issued.dtype == np.dtype("datetime64[s]")


def test_a_table_has_each_quantity_once() -> None:
    (series,) = issued_every(6, 2, 4).series
    for table in ([], [series, series]):
        with pytest.raises(SignalError):
            Issued(table)


def test_quantities_may_be_issued_at_other_times() -> None:
    (often,), (seldom,) = issued_every(6, 20, 30).series, issued_every(24, 5, 30).series
    series = [often, replace(seldom, name="load"), replace(often, name="sun", values=-often.values)]
    time, origin = START + np.arange(110) * HOUR, np.asarray(START + 2 * DAY)
    together = Issued(series).seen_from(origin, time)
    for column, each in enumerate(series):
        alone = Issued([each]).seen_from(origin, time)
        np.testing.assert_array_equal(together.values[:, [column]], alone.values)
        np.testing.assert_array_equal(together.issued[:, [column]], alone.issued)


def test_the_hash_of_a_part_depends_on_nothing_later() -> None:
    short, long = issued_every(6, 20, 6), issued_every(6, 30, 6)
    end = START + 120 * HOUR
    assert short.sha256_before(end) == long.sha256_before(end) == short.sha256
    assert short.sha256_before(end - HOUR) != short.sha256
    assert len({long.sha256_before(end), long.sha256_before(end + HOUR), long.sha256}) == 3


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, known="made", windows=3)


def origins_of(windows: Windows) -> list[np.datetime64]:
    return [windows.record.time[origin] for origin in windows.origins]


def test_nothing_that_a_window_knows_was_issued_after_its_origin(task: Task) -> None:
    for windows in (task.test, task.training.validation):
        for number, origin in enumerate(origins_of(windows)):
            known = windows.context(number).known
            assert known is not None
            assert (known.issued <= origin).all()
            assert known.future.isfinite().all()
            assert (known.issued[0] <= windows.context(number).time[0][:, None]).all()


def test_a_batch_knows_only_what_had_been_issued_by_its_origins(task: Task) -> None:
    context, _ = task.training.batches(16, seed=1)[0]
    assert context.known is not None
    origin = context.future_time[:, 0]
    assert (context.known.issued <= origin[:, None, None]).all()
    assert context.known.past.shape[:2] == context.past.shape[:2]
    assert context.known.future.shape[1] == context.horizon


def test_a_context_with_a_later_issue_cannot_be_made(task: Task) -> None:
    context = task.test.context(0)
    assert context.known is not None
    issued = context.known.issued.copy()
    issued[0, -1, 2] = context.future_time[0, 0] + np.timedelta64(1, "s")
    with pytest.raises(TaskError):
        replace(context, known=replace(context.known, issued=issued))


def test_the_past_of_a_window_is_what_the_training_has_of_these_steps(task: Task) -> None:
    whole, validation = task.training.known, task.training.validation
    known = validation.context(0).known
    assert whole is not None
    assert known is not None
    # The record of a training ends where validation starts.
    assert len(task.training.record) == len(whole.values)
    n_past = validation.context_steps
    assert torch.equal(whole.values[-n_past:], known.past[0])


def test_a_task_without_forecasts_has_the_same_windows(task: Task, sixty_days: Store) -> None:
    plain = Task(sixty_days, windows=3)
    for number in range(3):
        informed, usual = task.test.context(number), plain.test.context(number)
        assert usual.known is None
        assert plain.training.known is None
        assert torch.equal(informed.past, usual.past)
        assert np.array_equal(informed.time, usual.time)


@pytest.mark.parametrize("horizon", [0, 1, 95, 97])
def test_a_context_with_forecasts_of_another_horizon_cannot_be_made(
    task: Task, horizon: int
) -> None:
    context = task.test.context(0)
    assert context.known is not None
    with pytest.raises(TaskError):
        replace(context, known=replace(context.known, horizon=horizon))


@pytest.mark.parametrize("horizon", ["1h", "6h", "12h"])
def test_what_is_known_of_the_past_does_not_depend_on_the_horizon(
    task: Task, sixty_days: Store, horizon: str
) -> None:
    short = Task(sixty_days, known="made", windows=3, horizon=horizon)
    assert short.training.known is not None
    assert task.training.known is not None
    assert torch.equal(short.training.known.values, task.training.known.values)
    known, expected = short.test.context(0).known, task.test.context(0).known
    assert known is not None
    assert expected is not None
    assert torch.equal(known.past, expected.past)


def changed_at(table: Issued, time: np.datetime64) -> Issued:
    """Other values for one step."""
    return Issued(
        [
            replace(each, values=np.where(each.valid == time, 0, each.values))
            for each in table.series
        ]
    )


def test_a_training_is_identified_by_the_forecasts_that_shape_it(
    task: Task, sixty_days: Store
) -> None:
    assert task.protocol.known is not None
    table = task.protocol.known.forecasts(sixty_days, 96)
    splits, time = task.splits, sixty_days.time
    trained = Task(sixty_days, known=table).training.data["known"]
    # At noon there is sun.
    shape = (splits.fit_stop - 1, splits.fit_stop + 48, splits.train_stop - 1)
    for step in shape:
        other = Task(sixty_days, known=changed_at(table, time[step]))
        assert other.training.data["known"] != trained
    later = Task(sixty_days, known=changed_at(table, time[splits.train_stop]))
    assert later.training.data["known"] == trained


def test_windows_that_are_read_together_know_the_same(task: Task) -> None:
    ((together, _),) = task.test.load(3)
    parts = [known for k in range(3) if (known := task.test.context(k).known) is not None]
    assert together.known is not None
    assert torch.equal(together.known.values, torch.cat([part.values for part in parts]))
    assert np.array_equal(together.known.issued, np.concatenate([part.issued for part in parts]))
    middle = together.of_windows(slice(1, 2)).to("cpu")
    assert middle.known is not None
    assert torch.equal(middle.past, task.test.context(1).past)
    assert torch.equal(middle.known.future, parts[1].future)
    assert np.array_equal(middle.known.issued, parts[1].issued)


@pytest.mark.parametrize(
    ("option", "name"),
    [
        ("made", "powerphase-day-ahead-informed"),
        ("made:1:0", "powerphase-day-ahead-informed"),
        ("made:0.5", "powerphase-day-ahead-informed-wind-0p5"),
        ("made:2:3", "powerphase-day-ahead-informed-wind-2-seed-3"),
        ("made:1:3", "powerphase-day-ahead-informed-seed-3"),
        ("made:1.234567", "powerphase-day-ahead-informed-wind-1p234567"),
        ("made:0.00001", "powerphase-day-ahead-informed-wind-0p00001"),
        ("made:123456.5", "powerphase-day-ahead-informed-wind-123456p5"),
    ],
)
def test_the_name_of_a_task_says_how_its_forecasts_were_made(
    sixty_days: Store, option: str, name: str
) -> None:
    protocol = Task(sixty_days, known=option).protocol
    assert protocol.name == name
    assert Protocol.of_name(name) == protocol
    again = Task.of_protocol(sixty_days, protocol)
    expected = Task(sixty_days, known=option).test.context(0).known
    actual = again.test.context(0).known
    assert expected is not None
    assert actual is not None
    assert torch.equal(actual.values, expected.values)


@pytest.mark.parametrize(
    "facts",
    [
        {"wind": -1.0},
        {"wind": np.nan},
        {"wind": np.inf},
        {"wind": 1e-7},
        {"wind": 1.2345678},
        {"wind": 1e6},
        {"seed": -1},
        {"seed": 10**9},
        {"kind": "file"},
        {"kind": "file", "digest": "wind"},
        {"kind": "record", "seed": 3},
    ],
)
def test_a_source_that_no_name_says_is_refused(facts: dict[str, Any]) -> None:
    with pytest.raises(TaskError):
        KnownSource(**facts)


@given(st.integers(0, 999_999_999_999), st.integers(0, 999_999_999))
def test_every_name_of_a_source_is_read_back(millionths: int, seed: int) -> None:
    source = KnownSource("made", millionths / 1e6, seed)
    name = f"powerphase-day-ahead{source.words}"
    protocol = Protocol.of_name(name)
    assert protocol.known == source
    assert protocol.name == name


def test_an_option_with_more_digits_than_a_name_is_refused(sixty_days: Store) -> None:
    for option in ("made:1.2345678", "made:-1", "made:1:-1"):
        with pytest.raises(PowerphaseError):
            Task(sixty_days, known=option)


def test_a_window_over_the_end_of_a_record_is_not_cut_short(sixty_days: Store) -> None:
    record = Task(sixty_days, windows=3).training.record
    for horizon in (10, 11):
        windows = Windows(record, np.array([len(record) - 10]), 96, horizon)
        if horizon == 10:
            assert windows.context(0).horizon == 10
        else:
            with pytest.raises(TaskError):
                windows.context(0)
