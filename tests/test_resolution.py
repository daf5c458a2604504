"""Durations, times of day and steps: what they are in seconds, and what is none."""

import numpy as np
import pytest

from powerphase.errors import TaskError
from powerphase.resolution import (
    STEPS_S,
    count_steps,
    parse_time_of_day,
    rescale_steps,
    step_of,
    time_of_day,
    uneven_steps,
)


def clock(n_steps: int, step_s: int) -> np.ndarray:
    return np.datetime64("2016-03-26T22:00", "s") + np.arange(n_steps) * np.timedelta64(step_s, "s")


@pytest.mark.parametrize(
    ("duration", "seconds"),
    [("1h", 3600), ("24h", 86_400), ("7d", 604_800), ("120min", 7200), ("120m", 7200)],
)
@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_duration_lasts_the_same_at_every_step(duration: str, seconds: int, step_s: int) -> None:
    assert count_steps(duration, step_s, "horizon") * step_s == seconds


@pytest.mark.parametrize("duration", [96, "96", np.int64(96)])
@pytest.mark.parametrize("step_s", STEPS_S)
def test_a_number_without_a_unit_counts_steps(duration: int | str, step_s: int) -> None:
    assert count_steps(duration, step_s, "horizon") == 96


@pytest.mark.parametrize(
    "duration",
    [
        *(
            "0h",
            "0",
            "7m",
            "20min",
            "1.5d",
            "-1h",
            "-96",
            "",
            "h",
            "24 h",
            "24H",
            "1w",
            "1e3",
            "٣h",
        ),
        *("24h7d", "25:00", "9999999999h", 0, -1, 1.5, True, None, float("nan")),
    ],
)
def test_what_is_no_duration_of_whole_quarter_hours_raises(duration: object) -> None:
    with pytest.raises(TaskError, match="horizon"):
        count_steps(duration, 900, "horizon")


@pytest.mark.parametrize("step_s", STEPS_S)
@pytest.mark.parametrize(("text", "hours"), [("00:00", 0), ("12:00", 12), ("23:00", 23)])
def test_a_time_of_day_is_counted_from_midnight(text: str, hours: int, step_s: int) -> None:
    assert parse_time_of_day(text, step_s) == hours * 3600


@pytest.mark.parametrize(
    "text", ["25:00", "24:00", "12:60", "12", "1:00", "12:00Z", "12:00:00", "noon", "", "-1:00"]
)
def test_what_is_no_time_of_day_raises(text: str) -> None:
    with pytest.raises(TaskError, match="origin"):
        parse_time_of_day(text, 900)


def test_windows_start_with_a_step() -> None:
    assert parse_time_of_day("12:05", 300) == 12 * 3600 + 300
    with pytest.raises(TaskError, match="12:05"):
        parse_time_of_day("12:05", 900)
    with pytest.raises(TaskError, match="60 minutes"):
        parse_time_of_day("12:30", 3600)


@pytest.mark.parametrize("step_s", STEPS_S)
def test_times_tell_their_step(step_s: int) -> None:
    time = clock(50, step_s)
    assert step_of(time) == step_of(time.reshape(5, 10)) == step_s
    assert not uneven_steps(time, step_s).size
    assert uneven_steps(np.delete(time, 7), step_s).tolist() == [7]


@pytest.mark.parametrize("step_s", [0, 1, 60, 600, 7200, 86_400, -900])
def test_no_other_step_is_possible(step_s: int) -> None:
    with pytest.raises(TaskError):
        step_of(clock(5, step_s))


def test_a_single_time_tells_no_step() -> None:
    with pytest.raises(TaskError, match="1"):
        step_of(clock(1, 900))


def test_the_time_of_day_is_that_of_greenwich() -> None:
    assert [time_of_day(moment) for moment in clock(3, 3600)] == [79_200, 82_800, 0]


@pytest.mark.parametrize(("step_s", "steps"), [(300, 12), (900, 4), (1800, 2), (3600, 1)])
def test_quarter_hours_last_as_long_in_other_steps(step_s: int, steps: int) -> None:
    assert rescale_steps(4, step_s) == steps
    assert rescale_steps(1, 3600) == 1
