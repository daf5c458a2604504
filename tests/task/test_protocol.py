"""The frozen protocol: these numbers define the benchmark."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from powerphase.errors import CalendarError, TaskError
from powerphase.records import NORMAL_BAND_PU
from powerphase.task import PROTOCOL_VERSION, Protocol, Splits, band_of, step_hours_of


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


def of_step(minutes: int, **options: Any) -> Protocol:
    return Protocol.of(60 * minutes, **options)


@pytest.mark.parametrize("minutes", [5, 15, 30, 60])
def test_the_paper_s_windows_last_as_long_at_every_step(minutes: int) -> None:
    protocol = of_step(minutes)
    assert protocol.horizon * minutes == 24 * 60
    assert protocol.context * minutes == 7 * 24 * 60
    time = np.arange(
        np.datetime64("2015-01-01", "s"), np.datetime64("2017-01-01"), np.timedelta64(minutes, "m")
    )
    splits = protocol.splits(time)
    assert str(time[splits.train_stop]) == "2016-07-01T00:00:00"
    assert str(time[splits.fit_stop]) == "2016-06-21T00:00:00"
    ours, paper = (
        p.test_origins(p.splits(t)) for p, t in ((protocol, time), (Protocol(), TWO_YEARS))
    )
    assert (time[ours] == TWO_YEARS[paper]).all()


def test_the_name_contains_step_origin_and_calendar() -> None:
    protocols = [
        of_step(60),
        of_step(60, horizon="12h", context="2d", origin="06:00"),
        of_step(15, origin="12:15", windows="all"),
        of_step(5, country="FR"),
        of_step(30, country="none", zone="America/Port-au-Prince", limits="case", windows=20),
        of_step(15, country="DE", zone="Europe/Berlin"),
    ]
    names = [
        "powerphase-day-ahead-60-minute-steps",
        "powerphase-12-steps-ahead-from-48-60-minute-steps-origin-0600",
        "powerphase-day-ahead-origin-1215-all",
        "powerphase-day-ahead-5-minute-steps-country-fr",
        "powerphase-day-ahead-30-minute-steps-country-none-zone-america-port-au-prince-20-windows"
        "-case-limits",
        "powerphase-day-ahead",
    ]
    assert [protocol.name for protocol in protocols] == names
    assert [Protocol.of_name(name) for name in names] == protocols
    assert {step_hours_of(name) for name in names} == {1.0, 0.25, 5 / 60, 0.5}
    assert protocols[1].training_name == protocols[1].name
    assert protocols[2].training_name == "powerphase-day-ahead-origin-1215"


@given(
    minutes=st.sampled_from([5, 15, 30, 60]),
    horizon=st.integers(1, 999_999),
    context=st.integers(1, 999_999),
    windows=st.one_of(st.just("all"), st.integers(1, 999_999)),
    hour=st.integers(0, 23),
    half=st.booleans(),
    country=st.sampled_from([None, "none", "DE", "fr", "US"]),
    zone=st.sampled_from([None, "UTC", "Europe/Madrid", "America/New_York", "Etc/GMT+1"]),
    limits=st.sampled_from(["normal", "case", "0.9-1.1"]),
    rating=st.sampled_from("abc"),
)
def test_a_task_is_the_one_that_its_name_says(
    minutes: int, hour: int, half: bool, country: str | None, zone: str | None, **options: Any
) -> None:
    origin = f"{hour:02}:{'30' if half and minutes < 60 else '00'}"
    zone = "America/New_York" if country == "US" and zone is None else zone
    protocol = of_step(minutes, origin=origin, country=country, zone=zone, **options)
    assert Protocol.of_name(protocol.name) == protocol
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", protocol.name)


@pytest.mark.parametrize(
    "name",
    [
        "powerphase-day-ahead-15-minute-steps",
        "powerphase-day-ahead-20-minute-steps",
        "powerphase-24-steps-ahead-60-minute-steps",
        "powerphase-day-ahead-from-168-60-minute-steps",
        "powerphase-day-ahead-origin-0000",
        "powerphase-day-ahead-origin-2500",
        "powerphase-day-ahead-origin-1207",
        "powerphase-day-ahead-country-atlantis",
        "powerphase-day-ahead-zone-atlantis",
        "powerphase-day-ahead-all-origin-1200",
    ],
)
def test_a_name_that_no_task_has_raises(name: str) -> None:
    with pytest.raises((TaskError, CalendarError)):
        Protocol.of_name(name)


@pytest.mark.parametrize("origin", ["06:00", "12:00", "23:45"])
def test_windows_start_at_the_origin_of_every_day(origin: str) -> None:
    protocol = Protocol.of(origin=origin, windows="all", horizon="36h")
    splits = protocol.splits(TWO_YEARS)
    test, validation = protocol.test_origins(splits), protocol.validation_origins(splits)
    assert {str(TWO_YEARS[k])[11:16] for k in (*test, *validation)} == {origin}
    assert set(np.diff(test)) == set(np.diff(validation)) == {96}
    assert test[0] < splits.train_stop + 96
    assert splits.stop - 96 < test[-1] + protocol.horizon <= splits.stop
    assert validation[-1] + protocol.horizon <= splits.train_stop


def test_days_count_from_the_first_midnight_of_a_record() -> None:
    whole, cut = clock("2019-03-01", "2019-05-01"), clock("2019-02-28T08:15", "2019-05-01T17:30")
    splits = [Protocol().splits(time) for time in (whole, cut)]
    for name in ("first", "fit_stop", "train_stop"):
        assert whole[getattr(splits[0], name)] == cut[getattr(splits[1], name)]
    assert cut[splits[1].stop] == np.datetime64("2019-05-01T00:00")
