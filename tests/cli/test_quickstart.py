"""The quickstart, on a small grid and two months: complete, and nothing is made twice."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from powerphase.dataset import generate
from powerphase.records import read_results
from tests.command_line import run
from tests.dataset.exact import exact_signals

MADE = {"last-week-0", "factorforge-42"}
"""PowerForge's training is not of this grid; the other references would take longer."""


def generate_less(grid: str, out: Path, **options: Any) -> None:
    generate(grid, out, signals=exact_signals(60), **options)


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The folder of a first run."""
    folder = tmp_path_factory.mktemp("quick") / "start"
    module = sys.modules["powerphase.cli.quickstart"]  # its function has the same name
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "GRID", "ieee14")
        patch.setattr(module, "generate", generate_less)
        models = ("last-week", "factorforge", module.MODELS[-1])
        patch.setattr(module, "MODELS", models)
        run("quickstart", "--out", folder)
        yield folder


def changes(out: Path) -> dict[Path, int]:
    """When each file of data, trainings and rows was last written."""
    parts = ("ieee14", "runs", "results")
    files = [path for part in parts for path in (out / part).rglob("*") if path.is_file()]
    return {path: path.stat().st_mtime_ns for path in files}


def test_it_leaves_data_rows_a_training_and_a_site(out: Path) -> None:
    rows = read_results([out / "results"])
    assert {Path(row.path).stem for row in rows} == MADE
    assert all(row.data_verified for row in rows)
    assert (out / "runs" / "factorforge" / "model.json").is_file()
    assert (out / "site" / "index.html").is_file()
    assert (
        json.loads((out / "ieee14" / "manifest.json").read_text())["recipe"]["setpoint"] == "case"
    )


def test_a_second_run_makes_nothing_again_and_shows_the_same(out: Path) -> None:
    before = changes(out)
    shown = run("quickstart", "--out", out).stdout
    assert changes(out) == before
    assert "factorforge" in shown
    assert "2015-03-02" in shown  # tomorrow


def test_a_row_of_another_version_is_made_again(out: Path) -> None:
    (row,) = (out / "results").rglob("last-week-0.json")
    current = row.read_text()
    old = current.replace('"version": "', '"version": "0.0.', 1)
    assert old != current
    row.write_text(old)
    before = changes(out)
    run("quickstart", "--out", out)
    changed = {path for path, when in changes(out).items() if before[path] != when}
    assert changed == {row, row.with_suffix(".npz")}
    assert json.loads(row.read_text())["version"] == json.loads(current)["version"]
