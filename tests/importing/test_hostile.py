"""Sources that cannot be read without guessing are rejected, with the place of what is wrong."""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest

from powerphase.dataset import Store
from powerphase.errors import PowerphaseError, RecordError
from powerphase.importing import import_states, read_mapping
from tests.importing.conftest import long_table, wide_table

Change = Callable[[pd.DataFrame], pd.DataFrame]


class Bad(NamedTuple):
    """A change of a sound table, the mapping for it, and what the error must name."""

    change: Change
    fact: str
    mapping: dict[str, Any] | None = None


def cell(row: int, column: str, value: object) -> Change:
    def change(table: pd.DataFrame) -> pd.DataFrame:
        values: list[object] = table[column].tolist()
        values[row] = value
        changed = table.copy()
        changed[column] = pd.Series(values, index=table.index, dtype=object)
        return changed

    return change


def times(convert: Callable[["pd.Series[str]"], Any]) -> Change:
    return lambda table: table.assign(time=convert(table.time))


def scaled(column: str, factor: float) -> Change:
    return lambda table: table.assign(**{column: factor * table[column]})


def values_of(table: pd.DataFrame) -> pd.DataFrame:
    """The table with a row for each value."""
    names = {"p_mw": "P", "q_mvar": "Q", "vm_pu": "V", "va_rad": "theta"}
    return table.rename(columns=names).melt(["time", "bus"])


LONG = {"time": "time", "bus": "bus"}
P_MW = {"column": "p_mw", "unit": "MW", "sign": "load"}

TABLES = {
    "P of the wrong sign": Bad(scaled("p_mw", -1), "P has the opposite sign"),
    "Q of the wrong sign": Bad(scaled("q_mvar", -1), "Q has the opposite sign"),
    "P in kW": Bad(scaled("p_mw", 1e3), "unit of P"),
    "Q in GVAr": Bad(scaled("q_mvar", 1e-3), "unit of Q"),
    "P and Q in kW and kVAr": Bad(
        lambda t: t.assign(p_mw=1e3 * t.p_mw, q_mvar=1e3 * t.q_mvar), "units of P and Q"
    ),
    "P in W": Bad(scaled("p_mw", 1e9), "check its unit"),
    "P and Q swapped": Bad(
        lambda t: t.rename(columns={"p_mw": "q_mvar", "q_mvar": "p_mw"}), "swapped"
    ),
    "V in kV": Bad(scaled("vm_pu", 110.0), "V of bus 1"),
    "V from phase to ground": Bad(scaled("vm_pu", 3**-0.5), "phase to ground"),
    "theta in degrees": Bad(scaled("va_rad", 180 / np.pi), "degrees"),
    "text in numbers": Bad(cell(5, "p_mw", "n.v."), "row 7, column 'p_mw': 'n.v.'"),
    "a decimal comma": Bad(cell(5, "p_mw", "21,7"), "decimal"),
    "an infinite value": Bad(cell(16, "q_mvar", "inf"), "Q of bus 3"),
    "a word for a time": Bad(cell(9, "time", "noon"), "row 11, column 'time': 'noon'"),
    "a missing time": Bad(cell(9, "time", None), "row 11, column 'time'"),
    "an impossible day": Bad(cell(9, "time", "2015-02-30T00:00Z"), "2015-02-30"),
    "a fraction of a second": Bad(cell(9, "time", "2015-01-01T00:00:00.5Z"), "row 11"),
    "mixed time zones": Bad(cell(9, "time", "2015-01-01T00:00"), "offset"),
    "times without an offset": Bad(times(lambda t: t.str.rstrip("Z")), "zone"),
    "numbers for times": Bad(times(lambda t: np.arange(len(t))), "not a time"),
    "a time beside the steps": Bad(
        times(lambda t: t.replace("2015-01-05T07:15Z", "2015-01-05T07:16Z")), "07:16"
    ),
    "a step of ten minutes": Bad(
        times(
            lambda t: np.repeat(
                pd.date_range("2015", periods=len(t) // 14, freq="10min", tz="UTC")
                .strftime("%Y-%m-%dT%H:%MZ")
                .to_numpy(),
                14,
            )
        ),
        "600 s",
    ),
    "steps that do not start at the hour": Bad(
        times(lambda t: t.str.replace(":00Z", ":07Z").str.replace(":15Z", ":22Z")
              .str.replace(":30Z", ":37Z").str.replace(":45Z", ":52Z")),
        "start at the hour",
    ),
    "a time in another century": Bad(cell(9, "time", "2215-01-01T00:00Z"), "steps"),
    "two rows of one time that differ": Bad(
        lambda t: pd.concat([t, t.iloc[[30]].assign(p_mw=99.0)]), "row 32 of the same time"
    ),
    "a record that is too short": Bad(lambda t: t[: 7 * 96 * 14], "too short"),
    "two steps": Bad(lambda t: t[:28], "too few"),
    "no rows": Bad(lambda t: t[:0], "no rows"),
    "no time column": Bad(lambda t: t.rename(columns={"time": "when"}), "'time'"),
    "columns that say nothing": Bad(lambda t: t.set_axis(list("abcdef"), axis=1), "a, b, c"),
    "an unknown bus": Bad(lambda t: t.assign(bus=t.bus.replace(14, 15)), "15"),
    "a missing bus": Bad(cell(3, "bus", ""), "row 5, column 'bus'"),
    "names of buses": Bad(lambda t: t.assign(bus="Werk " + t.bus.astype(str)), "Werk 1"),
    "two names of one bus": Bad(
        lambda t: t.assign(bus=t.bus.astype(str)),
        "once",
        {"buses": {"13": "14"}},
    ),
    "Q of loads is missing": Bad(lambda t: t[["time", "bus", "p_mw", "vm_pu"]], "Q of PQ bus 4"),
    "one load is missing": Bad(
        lambda t: t[t.bus != 9][["time", "bus", "p_mw", "q_mvar", "vm_pu"]], "bus 9"
    ),
    "a channel that is mostly empty": Bad(
        lambda t: t.assign(p_mw=t.p_mw.where((t.bus != 4) | (np.arange(len(t)) < 5000))),
        "P of bus 4",
    ),
    "another grid's powers": Bad(
        lambda t: t[["time", "bus", "p_mw", "q_mvar"]].assign(p_mw=40 * t.p_mw), "power flow"
    ),
    "a mapped column that does not exist": Bad(
        lambda t: t, "'p_kw'", {**LONG, "P": {**P_MW, "column": "p_kw"}}
    ),
    "a wide column without a bus": Bad(lambda t: t, "{bus}", {"P": P_MW}),
    "a row of an unknown variable": Bad(
        lambda t: cell(7, "variable", "I")(values_of(t)), "row 9, column 'variable': 'I'"
    ),
    "two values of one variable that differ": Bad(
        lambda t: pd.concat([values_of(t), values_of(t)[30:31].assign(value=7.0)]),
        "row 32 of the same time",
    ),
    "a local time that does not exist": Bad(
        times(lambda t: t.str.replace("2015-01", "2015-03").str.replace("-03-12", "-03-29")
              .str.rstrip("Z")),
        "02:00",
        {"zone": "Europe/Berlin"},
    ),
    "a local time that occurs twice": Bad(
        times(lambda t: t.str.replace("2015-01", "2015-10").str.replace("-10-12", "-10-25")
              .str.rstrip("Z")),
        "occurs twice",
        {"zone": "Europe/Berlin"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("kind", TABLES)
def test_bad_tables_are_rejected(kind: str, table: pd.DataFrame, tmp_path: Path) -> None:
    bad, file = TABLES[kind], tmp_path / "states.csv"
    bad.change(table).to_csv(file, index=False)
    with pytest.raises(RecordError) as caught:
        import_states(file, tmp_path / "store", grid="ieee14", mapping=bad.mapping)
    assert bad.fact in str(caught.value)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["states.csv"]


FILES: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "empty": (lambda content: b"", "empty"),
    "binary": (lambda content: bytes(range(256)) * 40, ""),
    "cut off": (lambda content: content[: len(content) // 2 - 3], "cells"),
    "with semicolons": (lambda content: content.replace(b",", b";"), "separator"),
    "with a column twice": (lambda content: content.replace(b"q_mvar", b"p_mw", 1), "p_mw"),
    "with longer rows": (lambda content: content + b"2015-01-13T00:00Z,1,1,1,1,1,1,1,1\n", ""),
    "in another encoding": (lambda content: content.decode().encode("utf-16"), ""),
}


@pytest.mark.parametrize("kind", FILES)
def test_bad_files_are_rejected(kind: str, csv_file: Path, tmp_path: Path) -> None:
    damage, fact = FILES[kind]
    csv_file.write_bytes(damage(csv_file.read_bytes()))
    with pytest.raises(RecordError) as caught:
        import_states(csv_file, tmp_path / "store", grid="ieee14")
    assert csv_file.name in str(caught.value)
    assert fact in str(caught.value)
    assert not (tmp_path / "store").exists()


def test_a_bad_cell_is_named_among_numbers_with_a_decimal_comma(
    table: pd.DataFrame, tmp_path: Path
) -> None:
    file = tmp_path / "comma.csv"
    table.astype({"p_mw": object}).to_csv(file, index=False, sep=";", decimal=",")
    lines = file.read_text().splitlines()
    cells = lines[499].split(";")
    lines[499] = ";".join([*cells[:2], "abc", *cells[3:]])
    file.write_text("\n".join(lines) + "\n")
    mapping = {"separator": ";", "decimal": ","}
    with pytest.raises(RecordError, match=r"row 500, column 'p_mw': 'abc'"):
        import_states(file, tmp_path / "store", grid="ieee14", mapping=mapping)


def test_files_that_are_none_are_rejected(csv_file: Path, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "states.xlsx").write_bytes(b"PK")
    (tmp_path / "states.parquet").write_bytes(b"PAR1")
    (tmp_path / "states.nc").write_bytes(b"CDF")
    (tmp_path / "folder").mkdir()
    with gzip.open(tmp_path / "half.csv.gz", "wb") as file:
        file.write(csv_file.read_bytes())
    half = (tmp_path / "half.csv.gz").read_bytes()
    (tmp_path / "half.csv.gz").write_bytes(half[: len(half) // 2])
    names = ("pipe.csv", "states.xlsx", "states.parquet", "states.nc", "half.csv.gz")
    for name in (*names, "folder", "missing.csv"):
        with pytest.raises(PowerphaseError):
            import_states(tmp_path / name, tmp_path / "store", grid="ieee14")
    assert not (tmp_path / "store").exists()


def test_a_file_that_changes_while_it_is_read_is_rejected(
    csv_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = pd.read_csv

    def change(path: Path, **options: Any) -> pd.DataFrame:
        table = read(path, **options)
        with path.open("a") as file:
            file.write("2015-01-13T00:00Z,1,0,0,1,0\n")
        return table

    monkeypatch.setattr(pd, "read_csv", change)
    with pytest.raises(RecordError, match="changed while it was read"):
        import_states(csv_file, tmp_path / "store", grid="ieee14")


@pytest.mark.parametrize(
    ("document", "fact"),
    [
        ("time = ", "TOML"),
        ("tiem = 'when'", "'tiem'"),
        ("zone = 'Berlin'", "zone"),
        ("stamp = 'middle'", "stamp"),
        ("P = 3", "P is 3"),
        ("P = []", "P is []"),
        ("[P]\ncolumn = 'p'\nunit = 'MW'", "sign"),
        ("[P]\ncolumn = 'p'\nunit = 'mw'\nsign = 'load'", "'MW'"),
        ("[Q]\ncolumn = 'q'\nunit = 'MVAr'\nsign = 'minus'", "'load'"),
        ("[V]\nunit = 'p.u.'", "column"),
        ("[theta]\ncolumn = 'a'\nunit = 'grad'", "'rad'"),
        ("[nominal_kv]\n4 = -110.0", "nominal_kv"),
        ("[buses]\nNord = 4", "buses"),
        ("step = '15 minutes'", "step"),
        ("decimal = ';'", "decimal"),
    ],
)
def test_bad_mappings_are_rejected(document: str, fact: str, tmp_path: Path) -> None:
    file = tmp_path / "mapping.toml"
    file.write_text(document)
    with pytest.raises(RecordError) as caught:
        read_mapping(file)
    assert "mapping.toml" in str(caught.value)
    assert fact in str(caught.value)


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "guessed"},
        {"gaps": "ignore"},
        {"suspects": "mask"},
        {"edition": "My data"},
        {"out": "s3://bucket/store"},
        {"country": "Atlantis"},
        {"grid": "ieee15"},
    ],
)
def test_bad_options_are_rejected(
    options: dict[str, str], table: pd.DataFrame, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"out": tmp_path / "store", "grid": "ieee14", **options}
    with pytest.raises(PowerphaseError):
        import_states(table, **arguments)
    assert not list(tmp_path.iterdir())


def test_gaps_and_suspects_are_refused_if_asked(
    original: Store, states: np.ndarray, tmp_path: Path
) -> None:
    broken = states.copy()
    broken[300, 4, 1] = np.nan
    with pytest.raises(RecordError, match="Q of bus 5"):
        import_states(
            long_table(original, broken), tmp_path / "store", grid="ieee14", gaps="refuse"
        )
    broken = states.copy()
    broken[700:900, 3, 0] = 47.0
    with pytest.raises(RecordError, match="P of bus 4"):
        import_states(
            wide_table(original, broken), tmp_path / "store", grid="ieee14", suspects="refuse"
        )
    with pytest.raises(RecordError, match="AC equations"):
        import_states(
            wide_table(original, broken), tmp_path / "store", grid="ieee14", kind="simulated"
        )


def test_repeated_rows_are_dropped_and_reported(table: pd.DataFrame, tmp_path: Path) -> None:
    store = import_states(pd.concat([table, table[:28]]), tmp_path / "store", grid="ieee14")
    assert any(
        "28 repeated rows" in text for text in store.manifest.recipe["segments"][0]["findings"]
    )
