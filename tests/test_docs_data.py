"""The examples of docs/data.md: a grid and signals of one's own."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandapower
import pandapower.networks
import pytest

from powerphase.dataset import Store, open_store
from powerphase.grid import PD, PG, QD, PowerFlow, load_grid
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


@pytest.mark.filterwarnings("ignore:tap_dependency_table is missing:DeprecationWarning")
def test_a_pandapower_network(folder: Path) -> None:
    """pandapower's own power flow is the oracle."""
    (code,) = blocks(section(PAGE, "A pandapower network"), "python")
    names: dict[str, Any] = {}
    exec(compile(code, "data.md", "exec"), names)
    grid, net = names["grid"], pandapower.networks.case14()
    pandapower.runpp(net, init="flat", calculate_voltage_angles=True, numba=False)
    p_mw, q_mvar = grid.bus[:, PD].copy(), grid.bus[:, QD]
    np.subtract.at(p_mw, grid.generator_row, grid.gen[:, PG])
    voltage = PowerFlow(grid, grid.setpoint_pu, p_mw, q_mvar).start
    np.testing.assert_allclose(np.abs(voltage), net.res_bus.vm_pu, rtol=1e-9)
    np.testing.assert_allclose(np.rad2deg(np.angle(voltage)), net.res_bus.va_degree, atol=1e-8)
    assert open_store("data/case14-pandapower").manifest.edition == "synthetic-case"


def test_xarray_opens_a_data_set(folder: Path, sixty_days: Store) -> None:
    shutil.copytree(sixty_days.path, folder / "data" / "ieee14")
    (code,) = blocks(section(PAGE, "The store"), "python")
    names: dict[str, Any] = {}
    exec(compile(code, "data.md", "exec"), names)
    assert names["voltage"].sizes == {"time": 60 * 96, "bus": 14}
    assert names["grid"].sizes["n_bus"] == 14


def test_signals_of_your_own(folder: Path) -> None:
    (code,) = blocks(SIGNALS, "python")
    exec(compile(code, "data.md", "exec"), {})
    header = Path("my_signals.csv").read_text().splitlines()[0]
    assert header.split(",") == [TIME_COLUMN, *COLUMNS.values()]
    generated, scored = (output_of(command) for command in commands(SIGNALS))
    assert "mine (0 values filled)" in generated
    assert "climatology on ieee57 mine" in scored
