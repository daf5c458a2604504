"""The reader of signals: what it accepts, what it fills and what it rejects."""

import gzip
from collections.abc import Callable
from datetime import date
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from powerphase.errors import SignalError
from powerphase.synthesis import Signals, read_signals

LOAD = "DE_load_actual_entsoe_transparency"
SOLAR = "DE_solar_generation_actual"
WIND = "DE_wind_generation_actual"
TWO_YEARS = Path(__file__).parents[2] / "../shared/data/de_15min_2015_2016.csv.gz"

Edit = Callable[[pd.DataFrame], pd.DataFrame]


def table(start: str = "2015-06-01", rows: int = 96, minutes: int = 15) -> pd.DataFrame:
    """A valid file, with every cell as text."""
    time = pd.date_range(start, periods=rows, freq=f"{minutes}min")
    step = np.arange(rows)
    columns = {
        "utc_timestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ"),
        LOAD: [str(50_000 + n) for n in step],
        SOLAR: [str(n % 96) for n in step],
        WIND: [f"{9_000 + n / 8}" for n in step],
    }
    return pd.DataFrame(columns, dtype=object)


def write(folder: Path, frame: pd.DataFrame) -> Path:
    path = folder / "signals.csv"
    frame.to_csv(path, index=False)
    return path


def read(folder: Path, frame: pd.DataFrame) -> Signals:
    return read_signals(write(folder, frame))


def error_message(path: Path) -> str:
    with pytest.raises(SignalError) as caught:
        read_signals(path)
    message = str(caught.value)
    assert message.startswith(f"signals file {str(path)!r}")
    assert "\n" not in message
    return message


def with_cell(row: int, column: str, text: str) -> Edit:
    def edit(frame: pd.DataFrame) -> pd.DataFrame:
        frame.loc[row, column] = text
        return frame

    return edit


# Valid files


def test_a_day_is_read_unchanged(tmp_path: Path) -> None:
    signals = read(tmp_path, table())
    assert signals.time.dtype == np.dtype("datetime64[s]")
    assert signals.time[0] == np.datetime64("2015-06-01T00:00:00")
    assert (np.diff(signals.time) == np.timedelta64(15, "m")).all()
    assert signals.values_mw.dtype == np.float64
    assert signals.values_mw[8].tolist() == [50_008, 8, 9_001]
    assert signals.filled == 0


def test_gzip_is_recognised_by_content(tmp_path: Path) -> None:
    plain = write(tmp_path, table())
    packed = tmp_path / "packed.csv"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read_signals(packed).sha256 == read_signals(plain).sha256


def test_other_columns_their_order_and_blank_lines_do_not_matter(tmp_path: Path) -> None:
    path = write(tmp_path, table())
    expected = read_signals(path).sha256
    frame = table().assign(cet_cest_timestamp="whatever", AT_load="")
    write(tmp_path, frame[[WIND, "AT_load", SOLAR, "cet_cest_timestamp", "utc_timestamp", LOAD]])
    path.write_text("\ufeff" + path.read_text().replace("\n", "\n\n"), encoding="utf-8")
    assert read_signals(path).sha256 == expected


def test_an_offset_of_zero_is_utc(tmp_path: Path) -> None:
    frame = table()
    frame["utc_timestamp"] = [f"{t[:10]} {t[11:-1]}+00:00" for t in frame["utc_timestamp"]]
    assert read(tmp_path, frame).sha256 == read(tmp_path, table()).sha256


def test_only_whole_utc_days_are_used(tmp_path: Path) -> None:
    signals = read(tmp_path, table("2015-05-31T23:00", rows=4 + 2 * 96 + 95))
    assert signals.time[[0, -1]].astype(str).tolist() == [
        "2015-06-01T00:00:00",
        "2015-06-02T23:45:00",
    ]


@pytest.mark.parametrize(("start", "rows"), [("2014-12-31T23:00", 70_200), ("2015-01-01", 70_176)])
def test_a_file_that_covers_2015_and_2016_gives_exactly_these_years(
    tmp_path: Path, start: str, rows: int
) -> None:
    signals = read(tmp_path, table(start, rows))
    assert signals.time.size == 70_176
    assert signals.time[0] == np.datetime64("2015-01-01T00:00:00")
    assert signals.time[-1] == np.datetime64("2016-12-31T23:45:00")


def test_a_file_without_the_last_step_of_2016_gives_all_its_whole_days(tmp_path: Path) -> None:
    signals = read(tmp_path, table("2014-12-31", rows=732 * 96 - 1))
    assert signals.time.size == 731 * 96
    assert signals.time[0] == np.datetime64("2014-12-31T00:00:00")


def test_values_outside_the_record_are_not_checked(tmp_path: Path) -> None:
    frame = table("2015-05-31T23:45", rows=97)
    frame.loc[0, [LOAD, SOLAR, WIND]] = ["text", "-1", "inf"]
    assert read(tmp_path, frame).sha256 == read(tmp_path, frame[1:]).sha256


def test_the_edition_is_a_name_or_derived_from_the_content(tmp_path: Path) -> None:
    path = write(tmp_path, table())
    unnamed, named = read_signals(path), read_signals(path, "field-trial", attribution="ours")
    assert unnamed.edition == f"custom-{unnamed.sha256[:8]}"
    assert "'signals.csv'" in unnamed.attribution
    assert (named.edition, named.attribution) == ("field-trial", "ours")
    assert named.sha256 == unnamed.sha256


# Filled gaps


def test_gaps_are_interpolated_and_counted(tmp_path: Path) -> None:
    frame = table()
    for row, mark in zip([0, 40, 41, 95], ["", "NaN", "NA", " "], strict=True):
        frame.loc[row, LOAD] = mark
    frame.loc[42, LOAD] = str(50_039 + 30)
    signals = read(tmp_path, frame)
    assert signals.filled == 4
    load = signals.values_mw[:, 0]
    assert load[[0, 95]].tolist() == [50_001, 50_094]
    assert load[39:43] == pytest.approx([50_039, 50_049, 50_059, 50_069])


@st.composite
def records(draw: st.DrawFn) -> np.ndarray:
    """One or two days of load, solar and wind with at most one value in twenty missing."""
    rows = 96 * draw(st.integers(1, 2))
    values = draw(arrays(np.float64, (rows, 3), elements=st.floats(0, 1e300)))
    values[:, 0] = np.maximum(values[:, 0], 5e-324)
    for column in range(3):
        gaps = draw(st.sets(st.integers(0, rows - 1), max_size=rows // 20))
        values[list(gaps), column] = np.nan
    return values


@settings(deadline=None, max_examples=60)
@given(
    values=records(),
    day=st.dates(date(1900, 1, 1), date(2200, 1, 1)),
)
def test_only_gaps_are_changed(
    tmp_path_factory: pytest.TempPathFactory, values: np.ndarray, day: date
) -> None:
    frame = table(str(day), rows=len(values))
    for column, name in enumerate((LOAD, SOLAR, WIND)):
        frame[name] = ["" if np.isnan(v) else repr(float(v)) for v in values[:, column]]
    signals = read(tmp_path_factory.mktemp("record"), frame)
    expected = pd.DataFrame(values).interpolate().ffill().bfill().to_numpy()
    known = ~np.isnan(values)
    assert (signals.values_mw[known] == values[known]).all()
    np.testing.assert_allclose(signals.values_mw, expected, rtol=1e-12)
    assert signals.filled == (~known).sum()
    assert signals.time[0] == np.datetime64(str(day), "s")


# Rejected files


DAY = table().to_csv(index=False).encode()


@settings(deadline=None, max_examples=200)
@given(
    junk=st.binary(max_size=80) | st.text(max_size=40).map(str.encode),
    start=st.integers(0, len(DAY)),
    length=st.integers(0, len(DAY)),
    is_packed=st.booleans(),
)
@example(junk=b"", start=0, length=len(DAY), is_packed=False)
@example(junk=b"\x1f\x8b", start=0, length=0, is_packed=False)
@example(junk=b"\x00", start=200, length=1, is_packed=False)
def test_any_bytes_are_signals_or_a_signal_error(
    tmp_path_factory: pytest.TempPathFactory, junk: bytes, start: int, length: int, is_packed: bool
) -> None:
    whole = gzip.compress(DAY) if is_packed else DAY
    path = tmp_path_factory.mktemp("bytes") / "signals.csv"
    path.write_bytes(whole[:start] + junk + whole[start + length :])
    try:
        signals = read_signals(path)
    except SignalError:
        return
    assert np.isfinite(signals.values_mw).all()


def test_a_missing_file_raises(tmp_path: Path) -> None:
    assert "not found" in error_message(tmp_path / "nowhere.csv")


def test_a_folder_raises(tmp_path: Path) -> None:
    error_message(tmp_path)


@pytest.mark.parametrize(
    ("content", "fact"),
    [
        (b"", "empty"),
        (b"\n" + DAY, "empty"),
        (DAY.splitlines()[0] + b"\n", "no rows"),
        (DAY[: DAY.rindex(b",") + 1], "line 97"),  # an empty cell would be filled
        (DAY[:-2], "line 97"),  # a number without its last digit would be taken
        (DAY + b"x" * 300_000, "line 98"),
        (DAY + b"\n" * 2_000_000, "line 2,000,001"),
        (gzip.compress(DAY + (b"," * 3 + b"\n") * 100 + b" " * 2**19), "line 198"),
        (b"\x89PNG\r\n\x1a\n\x00", "utf-8"),
        (DAY.replace(b",", b";"), "';'"),
        (DAY.replace(b"50001,", b'50001,"'), "line 97 has 3 fields"),
        (DAY + b"2015-06-02T00", "line 98 has 1 fields"),
        (DAY + b'"' + b"x" * 200_000, "field limit"),
        (gzip.compress(DAY)[:-200], "gzip"),
        (gzip.compress(DAY)[:-8] + b"\0" * 8, "CRC"),
        (b"\x1f\x8b" + bytes(20), "gzip"),
    ],
)
def test_a_damaged_file_raises(tmp_path: Path, content: bytes, fact: str) -> None:
    path = tmp_path / "signals.csv"
    path.write_bytes(content)
    assert fact in error_message(path)


def test_missing_columns_are_all_named_with_similar_names(tmp_path: Path) -> None:
    frame = table().rename(columns={LOAD: "DE_load_actual_entsoe_power_statistics", SOLAR: "sun"})
    message = error_message(write(tmp_path, frame))
    assert "2 problems" in message
    assert f"(1) column {LOAD!r}" in message
    assert "'DE_load_actual_entsoe_power_statistics'" in message
    assert f"(2) column {SOLAR!r}" in message


def test_a_duplicate_column_raises(tmp_path: Path) -> None:
    frame = table()
    frame.insert(4, WIND, frame[WIND], allow_duplicates=True)
    assert f"column {WIND!r} occurs 2 times" in error_message(write(tmp_path, frame))


def test_local_time_without_utc_raises(tmp_path: Path) -> None:
    frame = table().rename(columns={"utc_timestamp": "cet_cest_timestamp"})
    assert "'cet_cest_timestamp'" in error_message(write(tmp_path, frame))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("2015-06-01T01:00:00", "no time zone"),
        ("2015-06-01T02:00:00+01:00", "not in UTC"),
        ("1 June 2015, 1 am", "2015-01-01T00:00:00Z"),
        ("", "2015-01-01T00:00:00Z"),
    ],
)
def test_a_time_that_is_not_utc_raises(tmp_path: Path, text: str, fault: str) -> None:
    message = error_message(write(tmp_path, with_cell(4, "utc_timestamp", text)(table())))
    assert f"utc_timestamp is {text!r} on line 6, " in message
    assert fault in message


@pytest.mark.parametrize(
    ("frame", "fact"),
    [
        (table(rows=48, minutes=60), "60 min"),
        (table(rows=96, minutes=30), "30 min"),
        (
            table("2015-06-01T00:07", rows=200),
            "01T00:07:00Z' on line 2 and 199 more",
        ),
        (
            table().drop(index=[7, 8, 50]),
            "01T01:30:00Z' on line 8 and 1 more, after which 3 rows",
        ),
        (table()[::-1], "T23:30:00Z' on line 3 and 94 more"),
        (pd.concat([table()[:5], table()[4:]]), "T01:00:00Z' on line 7"),
        (table(rows=95), "95 rows from 2015-06-01T00:00:00Z to 2015-06-01T23:30:00Z"),
        (table("2015-06-01T00:15", rows=190), "190 rows from 2015-06-01T00:15:00Z"),
        (table(rows=1), "1 rows from 2015-06-01T00:00:00Z"),
    ],
    ids=["hourly", "half-hourly", "off", "missing", "unsorted", "repeated", "short", "cut", "one"],
)
def test_irregular_times_raise(tmp_path: Path, frame: pd.DataFrame, fact: str) -> None:
    assert fact in error_message(write(tmp_path, frame))


def test_all_faults_of_the_times_are_reported_together(tmp_path: Path) -> None:
    frame = pd.concat([table()[6:], table()[:8]]).drop(index=40)
    message = error_message(write(tmp_path, frame))
    assert "3 problems" in message
    assert "after which 1 rows" in message


@pytest.mark.parametrize("column", [LOAD, SOLAR, WIND])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n/e", "a number in MW"),
        ("1.234,5", "a number in MW"),
        ("1_000", "a number in MW"),
        ("٣", "a number in MW"),
        ("inf", "a finite number"),
        ("-Infinity", "a finite number"),
        ("1e999", "a finite number"),
        ("-0.01", "more than 0"),
    ],
)
def test_an_invalid_value_raises_with_its_line_and_column(
    tmp_path: Path, column: str, text: str, expected: str
) -> None:
    if column != LOAD:
        expected = expected.replace("more than", "at least")
    message = error_message(write(tmp_path, with_cell(10, column, text)(table())))
    assert f"{column} is {text!r} on line 12, expected {expected}" in message


def test_a_load_of_zero_raises_but_not_solar_of_zero(tmp_path: Path) -> None:
    assert "more than 0" in error_message(write(tmp_path, with_cell(9, LOAD, "0")(table())))
    assert read(tmp_path, with_cell(9, SOLAR, "0")(table())).values_mw[9, 1] == 0


def test_too_many_gaps_raise_with_share_and_longest_gap(tmp_path: Path) -> None:
    frame = table(rows=192)
    frame.loc[[3, 100, 101, 102, 103, 104, 105, 106, 107], WIND] = ""
    assert read(tmp_path, frame).filled == 9
    frame.loc[190, WIND] = ""
    message = error_message(write(tmp_path, frame))
    for fact in (WIND, "10 of 192", "5.21%", "8 in a row", "2015-06-02T01:00:00Z", "5%"):
        assert fact in message


def test_an_empty_column_raises(tmp_path: Path) -> None:
    message = error_message(write(tmp_path, table().assign(**{SOLAR: ""})))
    assert SOLAR in message
    assert "96 of 96" in message


def test_all_faults_of_the_values_are_reported_together(tmp_path: Path) -> None:
    frame = table()
    frame.loc[[4, 5], LOAD] = "n/e"
    frame.loc[6, SOLAR] = "-3"
    frame.loc[7:20, WIND] = ""
    message = error_message(write(tmp_path, frame))
    assert "3 problems" in message
    assert f"{LOAD} is 'n/e' on line 6 and 1 more" in message
    assert f"{SOLAR} is '-3' on line 8," in message
    assert "14 of 96" in message


# A record of two years


@pytest.mark.skipif(not TWO_YEARS.exists(), reason="the record of 2015 and 2016 is missing")
def test_the_record_of_two_years_has_its_known_statistics() -> None:
    signals = read_signals(TWO_YEARS, "opsd-r")
    load, solar, wind = signals.values_mw.T
    assert signals.time.size == 70_176
    assert signals.filled == 0
    assert [load.mean(), solar.mean(), wind.mean()] == pytest.approx(
        [55_089.6, 3_956.7, 8_783.1], abs=0.05
    )
    assert [load.std(), solar.std(), wind.std()] == pytest.approx(
        [10_015.7, 6_054.2, 6_988.5], abs=0.1
    )
    assert [load.min(), load.max()] == pytest.approx([30_104.7, 77_429.5], abs=0.05)
    assert np.corrcoef(load, solar)[0, 1] == pytest.approx(0.345, abs=5e-4)
