"""The certificate detects damage and false values, and its bound is valid and tight."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import zarr

from powerphase.axes import THETA, P, Q, V
from powerphase.dataset import (
    AcCheck,
    ReactiveLimits,
    StepSolver,
    make_recipe,
    open_store,
    sha256_of,
    verify,
    zarr_store,
)
from powerphase.grid import GEN_STATUS, PD, PV, QMAX, QMIN, load_grid
from powerphase.synthesis import Signals
from tests.damage import edit_manifest


@pytest.fixture
def store(tmp_path: Path, undisturbed: Path) -> Path:
    return Path(shutil.copytree(undisturbed, tmp_path / "store"))


def test_an_intact_data_set_is_valid_with_the_mismatch_of_rounding(undisturbed: Path) -> None:
    certificate = verify(undisturbed)
    assert certificate.valid
    assert certificate.provenance == [2880, 0, 0, 0]
    assert 0.1 < certificate.largest_share <= 1  # the bound holds, and is not much too large
    assert 0 < certificate.p_mw.largest < 1e-3
    assert certificate.p_mw.quantiles[0.5] <= certificate.p_mw.quantiles[0.999]
    assert certificate.solver_mismatch_pu < 1e-9


@pytest.mark.parametrize("channel", [P, Q, V, THETA])
def test_a_forged_value_with_a_forged_checksum_violates_the_ac_equations(
    store: Path, channel: int
) -> None:
    state = zarr.open_array(zarr_store(store, read_only=False), path="state", mode="r+")
    block = np.asarray(state[960:1920])
    block[40, 4 * 8 + channel] *= np.float32(1.001)
    state[960:1920] = block
    with edit_manifest(store) as manifest:
        manifest["blocks"]["1"]["sha256"]["state"] = sha256_of(block)
    certificate = verify(store)
    assert certificate.damaged == []
    assert certificate.inconsistent_steps == [1000]
    assert not certificate.valid


def test_generators_outside_their_reactive_limits_are_counted(undisturbed: Path) -> None:
    """Bus by bus and step by step: of the PV buses of IEEE 14, only bus 8 has no load."""
    certificate, store = verify(undisturbed), open_store(undisturbed)
    (row,) = np.flatnonzero((store.grid.bus_type == PV) & (store.grid.bus[:, PD] == 0))
    (unit,) = np.flatnonzero(store.grid.generator_row == row)
    produced = -store.read(bus=int(store.grid.bus_id[row]), variable="Q")
    lowest, highest = store.grid.gen[unit, [QMIN, QMAX]]
    share = float(np.mean([not lowest <= q <= highest for q in produced]))
    assert certificate.generator_buses == 1
    assert certificate.outside_reactive == (share, share)
    assert certificate.branches == (20, 0)
    assert certificate.valid


def test_reactive_limits_of_a_bus_are_those_of_all_its_generators() -> None:
    grid = load_grid("ieee14")
    gen = np.vstack([grid.gen, grid.gen[4], grid.gen[4]])
    gen[4:, [QMIN, QMAX]] = (-6.0, 24.0), (-4.0, 6.0), (-100.0, 100.0)
    gen[-1, GEN_STATUS] = 0
    limits = ReactiveLimits(replace(grid, gen=gen))
    assert limits.buses.tolist() == [7]
    state = np.zeros((5, 56))
    state[:, 4 * 7 + Q] = -30.1, -30.0, 0.0, 10.0, 10.1  # net consumption
    assert limits.outside(state)[:, 0].tolist() == [True, False, False, False, True]


@pytest.mark.parametrize(("lowest", "highest"), [(5.0, -5.0), (np.nan, 5.0)])
def test_a_bus_without_usable_reactive_limits_is_not_counted(lowest: float, highest: float) -> None:
    grid = load_grid("ieee14")
    gen = grid.gen.copy()
    gen[4, [QMIN, QMAX]] = lowest, highest
    assert not len(ReactiveLimits(replace(grid, gen=gen)).buses)


def test_nan_violates_the_ac_equations() -> None:
    check = AcCheck(load_grid("ieee14"))
    state = np.full((2, 56), np.nan, dtype=np.float32)
    assert (check.mismatch(state)[1] == np.inf).all()


@pytest.mark.parametrize("name", ["activsg500", "pegase1354", "polish2383"])
def test_the_rounding_bound_is_valid_and_tight_on_real_grids(name: str, signals: Signals) -> None:
    """A solved state rounded to float32 is within the bound; a relative change of 2⁻²⁰ is not."""
    grid = load_grid(name)
    block = StepSolver(grid, signals, make_recipe(grid, signals)).solve(slice(0, 24))
    assert (AcCheck(grid).mismatch(block.state)[1] < 1).all()
    changed = block.state.copy()
    changed[:, V::4] *= 1 + np.resize([1, -1], grid.n_buses).astype(np.float32) * np.float32(2**-20)
    assert (AcCheck(grid).mismatch(changed)[1] > 1).all()


def test_an_unfinished_data_set_is_not_valid(store: Path) -> None:
    with edit_manifest(store) as manifest:
        del manifest["blocks"]["2"]
    certificate = verify(store)
    assert not certificate.complete
    assert not certificate.valid
    assert certificate.inconsistent_steps == []


def test_a_fingerprint_that_contradicts_the_recipe_is_reported(store: Path) -> None:
    with edit_manifest(store) as manifest:
        manifest["recipe"]["seed"] = 9
    assert any("fingerprint" in part for part in verify(store).damaged)


def test_progress_reaches_the_end(undisturbed: Path) -> None:
    reports: list[tuple[int, int]] = []
    verify(undisturbed, on_progress=lambda *report: reports.append(report))
    assert reports[-1] == (open_store(undisturbed).manifest.n_steps,) * 2


def test_a_record_shortened_together_with_its_manifest_is_reported(store: Path) -> None:
    with edit_manifest(store) as manifest:
        manifest["n_steps"] = 1920
        del manifest["blocks"]["2"]
        manifest["blocks"]["0"]["provenance"] = [0, 0, 0, 960]
    certificate = verify(store)
    assert any("n_steps" in part for part in certificate.damaged)
    assert certificate.provenance == [1920, 0, 0, 0]  # counted, not copied from the manifest


def test_a_false_largest_power_is_reported(store: Path) -> None:
    with edit_manifest(store) as manifest:
        manifest["blocks"]["1"]["largest"][0] *= 2
    certificate = verify(store)
    assert len(certificate.damaged) == 1
    assert "block 1" in certificate.damaged[0]
    assert not certificate.valid
