"""The page on forecasts as inputs: its code runs, its table is read, and its names are right."""

import re
from pathlib import Path

import pytest

import powerphase
from powerphase.importing import read_forecasts
from powerphase.task import Protocol
from tests.pages import blocks

PAGE = (Path(__file__).parents[1] / "docs" / "known.md").read_text(encoding="utf-8")


def test_the_code_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "example", "pp": powerphase}
    for code in blocks(PAGE, "python"):
        exec(compile(code, "known.md", "exec"), names)
    printed = capsys.readouterr().out
    assert "[1, 96, 3]" in printed
    assert Protocol.of_name(printed.split()[-1]).known is not None


def test_the_table_is_one_of_forecasts(tmp_path: Path) -> None:
    (table,) = blocks(PAGE, "text")
    file = tmp_path / "forecasts.csv"
    file.write_text(table.strip() + "\n")
    forecasts = read_forecasts(file)
    forecasts.check_step(900)
    assert (forecasts.names, forecasts.units) == (("wind",), ("MW",))


def test_the_names_are_those_of_tasks() -> None:
    ends = re.findall(r"`(?:powerphase-day-ahead|…)(-informed(?:-[a-z0-9-]*[a-z0-9])?)`", PAGE)
    assert len(ends) > 3
    for end in ends:
        assert Protocol.of_name(f"powerphase-day-ahead{end}").known is not None
