"""The page of the task has an example, which runs."""

import re
from pathlib import Path

import pytest

from tests.pages import blocks

PAGE = (Path(__file__).parents[1] / "docs" / "task.md").read_text(encoding="utf-8")


def test_the_example_of_a_model_of_your_own_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example, tomorrow = blocks(PAGE, "python")
    assert len(example.split("store = ")[0].strip().splitlines()) <= 40
    monkeypatch.chdir(tmp_path)
    exec(compile(f"{example}\n{tomorrow}", "task.md", "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    assert "kind-of-day on ieee57 (synthetic), powerphase-day-ahead" in printed
    assert "P of the first bus at noon [MW]: [" in printed
    assert list((tmp_path / "data/results").rglob("kind-of-day-0.npz"))
    when, sides = r"at 2015-03-02T\d\d:\d\d:00", r"\d+% below, \d+% above"
    said = rf"^bus \d+: \d+% on 2015-03-02, [\d.]+ h; {when} {sides}$"
    assert len(re.findall(said, printed, re.MULTILINE)) == 3
