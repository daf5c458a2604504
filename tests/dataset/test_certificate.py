"""The certificate finds what it claims to find, and its bound is neither broken nor empty."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from powerphase.axes import THETA, P, Q, V
from powerphase.dataset import (
    MANIFEST,
    AcCheck,
    StepSolver,
    make_recipe,
    open_store,
    sha256_of,
    verify,
    zarr_store,
)
from powerphase.grid import load_grid
from powerphase.synthesis import Signals


@pytest.fixture
def store(tmp_path: Path, undisturbed: Path) -> Path:
    return Path(shutil.copytree(undisturbed, tmp_path / "store"))


def test_a_sound_data_set_is_valid_and_its_mismatch_is_that_of_rounding(undisturbed: Path) -> None:
    certificate = verify(undisturbed)
    assert certificate.valid
    assert certificate.provenance == [2880, 0, 0, 0]
    assert 0.1 < certificate.largest_share <= 1  # the bound holds, and is no empty gesture
    assert 0 < certificate.p_mw.largest < 1e-3
    assert certificate.p_mw.quantiles[0.5] <= certificate.p_mw.quantiles[0.999]
    assert certificate.solver_mismatch_pu < 1e-9


@pytest.mark.parametrize("channel", [P, Q, V, THETA])
def test_a_forged_value_is_found_by_physics_even_if_its_checksum_is_forged_too(
    store: Path, channel: int
) -> None:
    import zarr

    state = zarr.open_array(zarr_store(store, read_only=False), path="state", mode="r+")
    state[1000, 4 * 8 + channel] *= np.float32(1.001)
    manifest = json.loads((store / MANIFEST).read_text())
    manifest["blocks"]["1"]["sha256"]["state"] = sha256_of(np.asarray(state[960:1920]))
    (store / MANIFEST).write_text(json.dumps(manifest))
    certificate = verify(store)
    assert certificate.damaged == []
    assert certificate.inconsistent_steps == [1000]
    assert not certificate.valid


def test_a_missing_number_counts_as_a_violation() -> None:
    check = AcCheck(load_grid("ieee14"))
    state = np.full((2, 56), np.nan, dtype=np.float32)
    assert (check.mismatch(state)[1] == np.inf).all()


@pytest.mark.parametrize("name", ["activsg500", "pegase1354", "polish2383"])
def test_the_rounding_bound_covers_exact_solutions_of_real_grids(
    name: str, signals: Signals
) -> None:
    """A solved state, rounded to float32, stays within the bound; a step of 4 ulp leaves it."""
    grid = load_grid(name)
    block = StepSolver(grid, signals, make_recipe(grid, signals)).solve(slice(0, 24))
    assert (AcCheck(grid).mismatch(block.state)[1] < 1).all()
    off = block.state.copy()
    off[:, V::4] *= 1 + np.resize([1, -1], grid.n_buses).astype(np.float32) * np.float32(2**-20)
    assert (AcCheck(grid).mismatch(off)[1] > 1).all()


def test_an_unfinished_data_set_is_not_valid(store: Path) -> None:
    manifest = json.loads((store / MANIFEST).read_text())
    del manifest["blocks"]["2"]
    (store / MANIFEST).write_text(json.dumps(manifest))
    certificate = verify(store)
    assert not certificate.complete
    assert not certificate.valid
    assert certificate.inconsistent_steps == []


def test_a_fingerprint_that_does_not_follow_from_the_recipe_is_named(store: Path) -> None:
    manifest = json.loads((store / MANIFEST).read_text())
    manifest["recipe"]["seed"] = 9
    (store / MANIFEST).write_text(json.dumps(manifest))
    assert any("fingerprint does not follow" in claim for claim in verify(store).damaged)


def test_progress_reaches_the_end(undisturbed: Path) -> None:
    seen: list[tuple[int, int]] = []
    verify(undisturbed, on_progress=lambda *step: seen.append(step))
    assert seen[-1] == (open_store(undisturbed).manifest.n_steps,) * 2


def test_a_record_cut_short_with_its_manifest_is_named(store: Path) -> None:
    manifest = json.loads((store / MANIFEST).read_text())
    manifest["n_steps"] = 1920
    del manifest["blocks"]["2"]
    manifest["blocks"]["0"]["provenance"] = [0, 0, 0, 960]
    (store / MANIFEST).write_text(json.dumps(manifest))
    certificate = verify(store)
    assert any("number of steps does not follow" in claim for claim in certificate.damaged)
    assert certificate.provenance == [1920, 0, 0, 0]  # counted, not believed


def test_a_false_claim_about_the_largest_power_is_found(undisturbed: Path, tmp_path: Path) -> None:
    changed = Path(shutil.copytree(undisturbed, tmp_path / "s"))
    manifest = json.loads((changed / "manifest.json").read_text())
    manifest["blocks"]["1"]["largest"][0] *= 2
    (changed / "manifest.json").write_text(json.dumps(manifest))
    certificate = verify(changed)
    assert certificate.damaged == ["manifest (largest P and Q), block 1"]
    assert not certificate.valid
