"""Damaged data sets, signals, case files and configs: read faithfully, or rejected in one line."""

import csv
import gzip
import json
import tomllib
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from powerphase.dataset import generate, open_store
from powerphase.grid import admittance_matrix, case_folder, read_grid
from powerphase.importing import read_forecasts, read_mapping
from powerphase.models.factorforge import FactorForgeConfig
from powerphase.models.framework import read_config
from powerphase.models.powerforge import PowerForgeConfig
from powerphase.synthesis import COLUMNS, TIME_COLUMN, read_signals
from tests.dataset.exact import exact_signals
from tests.fuzz.harness import check_cases
from tests.fuzz.mutations import BYTES, JSON, TEXT, compress, in_some_file


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzz") / "sound" / "store"
    generate("ieee14", path, signals=exact_signals(11))
    return path


def content_of(path: Path) -> list[np.ndarray]:
    """Everything of a data set that a model, a score or a page reads."""
    store = open_store(path)
    grid = store.grid
    arrays = [store.read().reshape(-1), store.time, store.signals_mw, store.provenance]
    return [*arrays, grid.bus, grid.gen, grid.branch, np.array([grid.base_mva])]


@pytest.mark.parametrize("part", ["manifest", "any file"])
def test_a_data_set_is_read_unchanged_or_rejected(store: Path, part: str) -> None:
    expected = content_of(store)

    def read(damaged: Path) -> None:
        folder = damaged if damaged.name == "store" else damaged.parent
        for array, sound in zip(content_of(folder), expected, strict=True):
            np.testing.assert_array_equal(array, sound)

    if part == "manifest":
        check_cases(store.parent, store / "manifest.json", (*BYTES, *JSON, *JSON), read)
    else:
        check_cases(store.parent, store, [in_some_file(BYTES), in_some_file(BYTES)], read)


def test_signals_are_read_faithfully_or_rejected(tmp_path: Path) -> None:
    file = tmp_path / "sound" / "signals.csv"
    file.parent.mkdir()
    signals = exact_signals(2)
    with file.open("w") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([TIME_COLUMN, *COLUMNS.values()])
        for time, values in zip(signals.time, signals.values_mw.tolist(), strict=True):
            writer.writerow([f"{time}Z", *values])

    def read(damaged: Path) -> None:
        accepted = read_signals(damaged)
        content = damaged.read_bytes()
        if content.startswith(b"\x1f\x8b"):
            content = gzip.decompress(content)
        table = list(csv.DictReader(content.decode().splitlines()))
        rows = {datetime.fromisoformat(row[TIME_COLUMN].strip()): row for row in table}
        n_blank = 0
        for time, values in zip(accepted.time, accepted.values_mw.tolist(), strict=True):
            row = rows[time.item().replace(tzinfo=UTC)]
            cells = [row[name].strip().lower() for name in COLUMNS.values()]
            blank = [cell in ("", "na", "nan") for cell in cells]
            n_blank += sum(blank)
            for is_blank, cell, value in zip(blank, cells, values, strict=True):
                assert is_blank or float(cell) == value
        assert accepted.filled == n_blank

    check_cases(file.parent, file, (*BYTES, *TEXT, *TEXT, *map(compress, TEXT)), read)


def test_a_case_file_gives_a_grid_that_can_be_solved_or_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "sound" / "mine.m"
    file.parent.mkdir()
    file.write_text((case_folder() / "case14.m").read_text())

    def read(damaged: Path) -> None:
        grid = read_grid(damaged)
        assert np.isfinite(admittance_matrix(grid).data).all()
        assert (np.abs(admittance_matrix(grid).data) < 1e12).all()
        assert (grid.gen[grid.generator_on, 5] > 0).all()

    check_cases(file.parent, file, (*BYTES, *TEXT, *TEXT), read)


@pytest.mark.parametrize("suffix", ["toml", "json"])
def test_a_config_is_read_faithfully_or_rejected(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / "sound" / f"config.{suffix}"
    file.parent.mkdir()
    kind: Any = PowerForgeConfig if suffix == "json" else FactorForgeConfig
    if suffix == "json":
        file.write_text(json.dumps(asdict(PowerForgeConfig())))
    else:
        file.write_text("rank = 30\nlag_days = [1, 7]\npersistence = 0.25\ncoupling = 'draws'\n")

    def read(damaged: Path) -> None:
        config = json.loads(json.dumps(asdict(read_config(kind, damaged))))
        text = damaged.read_text()
        document = json.loads(text) if suffix == "json" else tomllib.loads(text)
        for name in document.keys() - {"training"}:
            value = float(document[name]) if type(config[name]) is float else document[name]
            assert config[name] == value

    mutations = (*BYTES, *JSON, *JSON) if suffix == "json" else (*BYTES, *TEXT, *TEXT)
    check_cases(file.parent, file, mutations, read)


def test_a_mapping_is_read_faithfully_or_rejected(tmp_path: Path) -> None:
    file = tmp_path / "sound" / "mapping.toml"
    file.parent.mkdir()
    file.write_text(
        'time = "when"\nzone = "UTC"\nbus = "station"\n\n[P]\ncolumn = "kw"\nunit = "kW"\n'
        'sign = "load"\n\n[V]\ncolumn = "u"\nunit = "kV"\n\n[buses]\n"Nord" = "4"\n'
    )

    def read(damaged: Path) -> None:
        mapping, document = read_mapping(damaged), tomllib.loads(damaged.read_text())
        for name, value in document.items():
            if name in ("P", "Q", "V", "theta"):
                parts = mapping.columns[name]
                sections = value if isinstance(value, list) else [value]
                for part, section in zip(parts, sections, strict=True):
                    assert {key: getattr(part, key) for key in section} == section
            else:
                assert getattr(mapping, name) == value

    check_cases(file.parent, file, (*BYTES, *TEXT, *TEXT), read)


def test_a_table_of_forecasts_is_read_faithfully_or_rejected(tmp_path: Path) -> None:
    file = tmp_path / "sound" / "forecasts.csv"
    file.parent.mkdir()
    columns = ("issued", "valid", "name", "unit", "value")
    with file.open("w") as text:
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(columns)
        for step in range(48):
            valid = np.datetime64("2015-01-01T12:00") + 15 * step
            for name, value in (("load", 50_000 + step), ("wind", 7_000.5 - step)):
                writer.writerow(["2015-01-01T06:00Z", f"{valid}Z", name, "MW", value])

    def read(damaged: Path) -> None:
        accepted = read_forecasts(damaged)
        with damaged.open(encoding="utf-8-sig", newline="") as text:
            rows = list(csv.DictReader(text))
        assert sum(len(each.values) for each in accepted.series) == len(rows)
        for each in accepted.series:
            own = [row for row in rows if row["name"].strip() == each.name]
            for part, row in enumerate(own):
                assert np.float32(row["value"]) == each.values[part]
                moments = (each.valid[part], each.issued[part])
                for moment, cell in zip(moments, (row["valid"], row["issued"]), strict=True):
                    assert pd.Timestamp(moment, tz="UTC") == pd.Timestamp(cell.strip())

    check_cases(file.parent, file, (*BYTES, *TEXT, *TEXT), read)
