"""The frozen protocol: these numbers define the benchmark."""

from typing import Any

import numpy as np
import pytest

from powerphase.errors import TaskError
from powerphase.records import NORMAL_BAND_PU
from powerphase.task import PROTOCOL_VERSION, Protocol, Splits, band_of


def clock(first: str, stop: str) -> np.ndarray:
    return np.arange(np.datetime64(first, "s"), np.datetime64(stop, "s"), np.timedelta64(900, "s"))


TWO_YEARS = clock("2015-01-01", "2017-01-01")


def test_the_paper_s_record_is_split_as_in_the_paper() -> None:
    splits = Protocol().splits(TWO_YEARS)
    assert splits == Splits(first=0, fit_stop=51_552, train_stop=52_512, stop=70_176)
    assert splits.stop - splits.train_stop == 17_664


def test_the_ten_test_windows_are_the_paper_s() -> None:
    origins = Protocol().test_origins(Protocol().splits(TWO_YEARS))
    assert ((origins - 52_512) % 96 == 0).all()
    assert list((origins - 52_512) // 96) == [0, 20, 41, 61, 81, 102, 122, 142, 163, 183]
    assert str(TWO_YEARS[origins[0]]) == "2016-07-01T00:00:00"
    assert str(TWO_YEARS[origins[-1]]) == "2016-12-31T00:00:00"


def test_validation_is_the_last_ten_midnights_of_training() -> None:
    origins = Protocol().validation_origins(Protocol().splits(TWO_YEARS))
    assert list(origins) == list(range(51_552, 52_512, 96))


def test_all_windows_are_every_day_of_the_half_year_under_another_name() -> None:
    every = Protocol(windows="all")
    origins = every.test_origins(every.splits(TWO_YEARS))
    assert len(origins) == 184
    assert set(np.diff(origins)) == {96}
    assert every.name == "powerphase-day-ahead-all"
    assert set(Protocol().test_origins(Protocol().splits(TWO_YEARS))) <= set(origins)


def test_the_name_contains_every_option_that_is_not_the_paper_s() -> None:
    options = [
        Protocol(),
        Protocol(windows=20),
        Protocol(horizon=48),
        Protocol(context=96),
        Protocol(context=96, horizon=48, windows="all"),
        Protocol(limits="case", rating="b"),
        Protocol(windows="all", limits="0.9-1.10"),
        Protocol(limits="0.95-1.05"),
    ]
    assert [protocol.name for protocol in options] == [
        "powerphase-day-ahead",
        "powerphase-day-ahead-20-windows",
        "powerphase-48-steps-ahead",
        "powerphase-day-ahead-from-96",
        "powerphase-48-steps-ahead-from-96-all",
        "powerphase-day-ahead-case-limits-rating-b",
        "powerphase-day-ahead-all-0p9-1p1-limits",
        "powerphase-day-ahead",
    ]
    assert [Protocol.of_name(protocol.name).name for protocol in options] == [
        protocol.name for protocol in options
    ]
    assert {Protocol.of_name(protocol.name).forecast_name for protocol in options[-3:]} == {
        "powerphase-day-ahead",
        "powerphase-day-ahead-all",
    }
    assert {protocol.version for protocol in options} == {PROTOCOL_VERSION} == {1}


def test_the_name_of_a_task_tells_its_voltage_band() -> None:
    bands = {
        Protocol().name: NORMAL_BAND_PU,
        Protocol(windows="all", rating="c").name: NORMAL_BAND_PU,
        Protocol(windows=3, limits="0.9-1.1", rating="b").name: (0.9, 1.1),
        Protocol(limits="1-1.025").name: (1.0, 1.025),
        Protocol(limits="case").name: None,
        "a task of somebody else": NORMAL_BAND_PU,
    }
    assert {task: band_of(task) for task in bands} == bands


def test_a_longer_record_has_the_same_windows() -> None:
    time = clock("2014-11-20", "2018-02-01")
    splits = Protocol().splits(time)
    dates = time[Protocol().test_origins(splits)]
    assert list(dates) == list(TWO_YEARS[Protocol().test_origins(Protocol().splits(TWO_YEARS))])
    assert str(time[splits.first]) == "2015-01-01T00:00:00"
    assert str(time[splits.stop]) == "2017-01-01T00:00:00"


@pytest.mark.parametrize("days", [40, 60, 365])
def test_another_record_trains_on_three_quarters_of_its_days(days: int) -> None:
    last = np.datetime64("2019-03-01") + np.timedelta64(days, "D")
    time = clock("2019-03-01", str(last))
    splits = Protocol().splits(time)
    assert splits.train_stop == int(0.75 * days) * 96
    assert splits.train_stop - splits.fit_stop == 960
    origins = Protocol().test_origins(splits)
    assert origins[0] == splits.train_stop
    assert origins[-1] == (days - 1) * 96
    assert len(set(origins)) == 10


def test_a_longer_horizon_keeps_every_target_in_its_split() -> None:
    protocol = Protocol(horizon=192)
    splits = protocol.splits(TWO_YEARS)
    assert protocol.test_origins(splits)[-1] + 192 == splits.stop
    assert protocol.validation_origins(splits)[-1] + 192 == splits.train_stop
    assert len(protocol.validation_origins(splits)) == 9


def test_a_single_window_is_the_first_one() -> None:
    protocol = Protocol(windows=1)
    assert list(protocol.test_origins(protocol.splits(TWO_YEARS))) == [52_512]


def test_more_windows_than_days_raise() -> None:
    protocol = Protocol(windows=185)
    with pytest.raises(TaskError, match=r"185 .*184"):
        protocol.test_origins(protocol.splits(TWO_YEARS))


def test_a_record_that_is_too_short_for_a_context_raises() -> None:
    with pytest.raises(TaskError, match="672"):
        Protocol().test_origins(Protocol().splits(clock("2015-01-01", "2015-01-09")))


@pytest.mark.parametrize("options", [{"windows": 0}, {"horizon": 0}, {"context": -1}])
def test_invalid_options_raise(options: dict[str, Any]) -> None:
    with pytest.raises(TaskError, match=next(iter(options))):
        Protocol(**options)
