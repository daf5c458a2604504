"""Sidecars: rounded to a limit, written and read as they are."""

from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays_of

from powerphase.records import (
    BY_BRANCH,
    LEVELS,
    LIMIT_BYTES,
    LINE,
    LINE_AXIS,
    LINE_COUNTS,
    LINE_RISK,
    RISK,
    RISK_LEVELS,
    ROUNDINGS,
    compact,
    expand,
    levels_of,
    read_sidecar,
    round_arrays,
    rounding_of,
    to_npz,
)

Arrays = dict[str, np.ndarray[Any, Any]]
FLOATS = st.floats(-1e6, 1e6, width=32)


def noisy(n_buses: int, shown: int = 12, steps: int = 96) -> Arrays:
    """A sidecar of noise, which compresses badly."""
    random = np.random.default_rng(n_buses)
    return {
        "by_bus/crps": random.lognormal(size=(n_buses, 4)).astype("f4"),
        "by_bus/safety_mbrier": random.uniform(size=n_buses).astype("f4"),
        "by_step/brier": np.where(np.arange(4) == 2, random.uniform(size=(steps, 4)), np.nan),
        "reliability": random.uniform(size=(21, 3)),
        RISK: random.integers(0, RISK_LEVELS + 1, (3, n_buses, steps)).astype(np.uint8),
        "shown/bus_id": np.arange(shown),
        "shown/weight": np.full((3, 5, shown, 4), 0.2, "f4"),
        "shown/target": random.normal(size=(3, steps, shown, 4)).astype("f4"),
        "shown/scenario": random.normal(size=(3, 5, steps, shown, 4)).astype("f4"),
    }


def noisy_lines(n_lines: int, steps: int = 96) -> Arrays:
    """The arrays of lines of a sidecar of noise."""
    random = np.random.default_rng(n_lines)
    scores = {f"by_branch/{name}": random.lognormal(size=n_lines) for name in BY_BRANCH}
    return {
        LINE: random.permutation(n_lines),
        LINE_RISK: random.integers(0, RISK_LEVELS + 1, (3, n_lines, steps)).astype(np.uint8),
        **{name: array.astype("f4") for name, array in scores.items()},
    }


@pytest.mark.parametrize("rounding", ROUNDINGS, ids=lambda rounding: str(astuple(rounding)))
def test_numbers_are_as_close_as_their_rounding_says(rounding: Any) -> None:
    exact = noisy(20)
    stored = round_arrays(exact, rounding)
    assert rounding_of(stored) == rounding
    rounded = expand(stored)
    assert set(rounded) == {"rounding", *exact}
    for name in ("by_bus/safety_mbrier", "reliability"):
        np.testing.assert_array_equal(rounded[name], exact[name])
    for name in ("by_bus/crps", "by_step/brier"):
        np.testing.assert_allclose(rounded[name], exact[name], rtol=2.0 ** -(rounding.bits + 1))
    first = slice(0, rounding.buses)
    for name, step, axes in (("target", 1, 1), ("scenario", rounding.level_step, (1, 2))):
        series = exact[f"shown/{name}"][..., first, :]
        level = step * np.ptp(series, axis=axes, keepdims=True) / LEVELS
        assert (abs(rounded[f"shown/{name}"] - series) <= 0.5 * level + 1e-6).all()
    held = rounded[RISK][..., :: rounding.risk_hold].astype(int)
    assert abs(held - exact[RISK][..., :: rounding.risk_hold]).max() <= rounding.risk_step / 2


def test_rounding_again_changes_nothing() -> None:
    for rounding in ROUNDINGS:
        once = round_arrays(noisy(20), rounding)
        again = round_arrays(expand(once), rounding)
        assert set(once) == set(again)
        for name, array in once.items():
            np.testing.assert_allclose(again[name], array, rtol=1e-6, err_msg=name)


def test_a_sidecar_takes_the_finest_rounding_that_fits() -> None:
    sizes = {}
    for n_buses in (10, 600):
        stored = compact(noisy(n_buses))
        rounding = rounding_of(stored)
        assert rounding is not None
        sizes[n_buses] = len(to_npz(stored))
        assert sizes[n_buses] <= LIMIT_BYTES
        position = ROUNDINGS.index(rounding)
        if position:
            finer = round_arrays(noisy(n_buses), ROUNDINGS[position - 1])
            assert len(to_npz(finer)) > LIMIT_BYTES
    assert rounding_of(compact(noisy(10))) == ROUNDINGS[0]


@pytest.mark.parametrize("n_buses", [10, 600])
def test_lines_get_the_room_that_buses_leave(n_buses: int) -> None:
    buses, lines = noisy(n_buses), noisy_lines(60)
    stored = compact({**buses, **lines})
    assert len(to_npz(stored)) <= LIMIT_BYTES
    assert rounding_of(stored) == rounding_of(compact(buses))
    for name in lines:
        assert stored[name].shape[LINE_AXIS[name]] == len(stored[LINE])
    assert len(stored[LINE]) in LINE_COUNTS
    assert (len(stored[LINE]) == 60) == (n_buses == 10)
    np.testing.assert_array_equal(stored[LINE], lines[LINE][: len(stored[LINE])])


def test_a_sidecar_without_forecasts_has_rounded_scores_alone() -> None:
    scores = {name: array for name, array in noisy(10).items() if name.startswith("by_")}
    assert set(compact(scores)) == {"rounding", *scores}


@given(arrays_of.arrays(np.float32, (3, 7), elements=FLOATS))
def test_levels_keep_the_extremes_of_each_row(series: np.ndarray[Any, Any]) -> None:
    low, high, levels = levels_of(series)
    np.testing.assert_array_equal(low, series.min(axis=1))
    np.testing.assert_array_equal(high, series.max(axis=1))
    assert levels.max() <= LEVELS


def test_equal_arrays_give_equal_bytes_and_are_read_back(tmp_path: Path) -> None:
    stored = compact(noisy(10))
    turned = {name: np.asfortranarray(stored[name]) for name in reversed(stored)}
    assert to_npz(stored) == to_npz(turned)
    (tmp_path / "row.npz").write_bytes(to_npz(stored))
    back = read_sidecar(tmp_path / "row.json")
    assert set(back) == set(stored)
    for name, array in stored.items():
        np.testing.assert_array_equal(back[name], array)
        assert back[name].dtype == array.dtype
    numbers = read_sidecar(tmp_path / "row.json", expanded=True)
    assert numbers.keys() == expand(stored).keys()
    np.testing.assert_array_equal(numbers["shown/target"], expand(stored)["shown/target"])


def test_an_unknown_rounding_is_none() -> None:
    assert rounding_of({}) is None
    assert rounding_of({"rounding": np.array([1, 2, 3])}) is None
