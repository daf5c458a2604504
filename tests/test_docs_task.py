"""The examples on the pages of the task and of tomorrow run as written, one after the other."""

import re
from pathlib import Path

import pytest

from powerphase import Layout, Store, Task
from tests.pages import blocks

DOCS = Path(__file__).parents[1] / "docs"


def test_the_examples_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,), (tomorrow,) = (
        blocks((DOCS / page).read_text(encoding="utf-8"), "python")
        for page in ("task.md", "tomorrow.md")
    )
    assert len(example.split("store = ")[0].strip().splitlines()) <= 40
    monkeypatch.chdir(tmp_path)
    exec(compile(f"{example}\n{tomorrow}", "task.md", "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    assert "kind-of-day on ieee57 (synthetic), powerphase-day-ahead" in printed
    assert "P of the first bus at noon [MW]: [" in printed
    assert list((tmp_path / "data/results").rglob("kind-of-day-0.npz"))
    line = r"^\d +bus +\d+ +[\d.]+ +[\d.]+ +2015-03-02 \d\d:\d\d:00 +(below|above)$"
    assert len(re.findall(line, printed, re.MULTILINE)) == 3


def test_a_layout_has_what_the_page_says(sixty_days: Store) -> None:
    text = (DOCS / "task.md").read_text(encoding="utf-8")
    (row,) = re.findall(r"^\| `context.layout` \| (.*) \|$", text, re.MULTILINE)
    layout = Task(sixty_days).layout
    assert isinstance(layout, Layout)
    names = re.findall(r"`(\w+)", row)
    assert {"circuit", "limits", "scale"} < set(names)
    assert [name for name in names if not hasattr(layout, name)] == []
