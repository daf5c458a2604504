"""The examples of docs/data.md: a grid and signals of one's own."""

from pathlib import Path

import pytest

from powerphase.dataset import open_store
from powerphase.grid import load_grid
from powerphase.synthesis import COLUMNS, TIME_COLUMN
from tests.pages import blocks, commands, output_of, section

PAGE = (Path(__file__).parents[1] / "docs" / "data.md").read_text(encoding="utf-8")
GRID, SIGNALS = (section(PAGE, f"{what} of your own") for what in ("A grid", "Signals"))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder of the examples."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_grid_of_your_own(folder: Path) -> None:
    Path("my_grid.m").write_text(*blocks(GRID, "matlab"))
    generated, verified, scored = (output_of(command) for command in commands(GRID))
    assert "my_grid: 4 buses" in generated
    assert "valid" in verified
    assert "factorforge, seed 42 on my_grid synthetic" in scored
    # The mean of a load over the record is about that of the file.
    grid, store = load_grid(Path("my_grid.m")), open_store("data/my_grid")
    mean_mw = store.read_states(slice(None), slice(4, 5)).mean()
    assert mean_mw == pytest.approx(grid.bus[1, 2], rel=0.2)


def test_signals_of_your_own(folder: Path) -> None:
    (code,) = blocks(SIGNALS, "python")
    exec(compile(code, "data.md", "exec"), {})
    header = Path("my_signals.csv").read_text().splitlines()[0]
    assert header.split(",") == [TIME_COLUMN, *COLUMNS.values()]
    generated, scored = (output_of(command) for command in commands(SIGNALS))
    assert "mine (0 values filled)" in generated
    assert "climatology on ieee57 mine" in scored
