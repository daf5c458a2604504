"""Reading a data set: selections, metadata, URLs, and no more bytes than necessary."""

from pathlib import Path
from typing import Any
from unittest.mock import patch

import fsspec
import numpy as np
import pytest
from zarr.core.buffer import Buffer
from zarr.storage import LocalStore

import powerphase as pp
from powerphase.dataset import Store, open_store
from powerphase.errors import CaseError, PowerphaseError, StoreError, UnknownName
from powerphase.grid import admittance_matrix, load_grid
from powerphase.synthesis import Signals


@pytest.fixture(scope="module")
def store(undisturbed: Path) -> pp.Store:
    return pp.open(undisturbed)


def test_slices_agree_with_the_whole_array(store: pp.Store) -> None:
    whole = np.asarray(store.state[...]).reshape(2880, 14, 4)
    assert np.array_equal(store.read(), whole)
    assert np.array_equal(store.read(variable="V"), whole[..., 2])
    assert np.array_equal(store.read(bus=3), whole[:, 2])
    assert np.array_equal(store.read(bus=3, variable="theta"), whole[:, 2, 3])
    selection = store.read(bus=[9, 2], variable=["Q", "P"])
    assert np.array_equal(selection, whole[:, [8, 1]][..., [1, 0]])
    assert store.read(bus={2, 9}, variable=("V",)).shape == (2880, 2, 1)
    assert np.array_equal(store.read(slice(100, 200), bus=[4]), whole[100:200, [3]])
    assert np.array_equal(store.read("2015-01-02"), whole[96:192])
    assert np.array_equal(store.read(slice("2015-01-02T12:00", "2015-01-03")), whole[144:192])
    assert np.array_equal(store.read(slice(-96, None)), whole[-96:])
    assert store.read(slice("2015-01-02", "2015-01-02")).shape == (0, 14, 4)


@pytest.mark.parametrize(
    ("selection", "error", "fact"),
    [
        ({"variable": "Theta"}, UnknownName, "theta"),
        ({"bus": 15}, CaseError, "bus 15"),
        ({"time": slice("noon", None)}, StoreError, "noon"),
        ({"time": "noon"}, StoreError, "noon"),
        ({"time": "2015-01"}, StoreError, "2015-01"),
        ({"time": "2030-01-01"}, StoreError, "2015-01-01 to 2015-01-30"),
        ({"time": slice(0, 100, 2)}, StoreError, "step 1, not 2"),
    ],
)
def test_an_invalid_selection_raises(
    store: pp.Store, selection: dict[str, Any], error: type[PowerphaseError], fact: str
) -> None:
    with pytest.raises(error, match=fact):
        store.read(**selection)


def test_one_bus_is_read_without_the_other_channels(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = pp.generate("ieee118", tmp_path / "s", signals=signals, end="2015-01-20")
    sizes: list[int] = []
    get = LocalStore.get

    async def count(
        self: LocalStore, key: str, prototype: Any = None, byte_range: Any = None
    ) -> Buffer | None:
        content = await get(self, key, prototype, byte_range)
        if content is not None and "state/c" in key:
            sizes.append(len(content))
        return content

    monkeypatch.setattr(LocalStore, "get", count)
    store.read(bus=60, variable="V")
    one_bus = sum(sizes)
    sizes.clear()
    store.read()
    # 472 channels are in four chunks per block; one bus needs one of them.
    assert one_bus < 0.4 * sum(sizes)


def test_a_data_set_contains_its_grid_clock_and_signals(store: pp.Store, signals: Signals) -> None:
    grid, original = store.grid, load_grid("ieee14")
    assert grid.sha256 == original.sha256
    ybus = admittance_matrix(original)
    assert np.array_equal(store.array("grid/ybus_data")[...], ybus.data)
    assert np.array_equal(store.array("grid/bus_type")[...], original.bus_type)
    assert np.array_equal(store.time, signals.time)
    assert np.array_equal(store.signals_mw, signals.values_mw)


def test_a_data_set_opens_from_any_url_that_fsspec_reads(undisturbed: Path) -> None:
    memory = fsspec.filesystem("memory")
    memory.put(str(undisturbed), "/elsewhere", recursive=True)
    remote = pp.open("memory://elsewhere")
    assert np.array_equal(remote.read("2015-01-02"), pp.open(undisturbed).read("2015-01-02"))
    with pytest.raises(StoreError, match="nowhere"):
        pp.open("memory://nowhere")


def test_the_manifest_names_sources_and_licences(store: pp.Store) -> None:
    grid, signals = store.manifest.attribution
    assert "IEEE 14: licence" in grid
    assert signals == "made by the tests"
    assert "ieee14 exact" in repr(store)


def test_an_unknown_array_raises_with_a_similar_name(store: pp.Store) -> None:
    with pytest.raises(UnknownName, match=r"grid/branches.*grid/branch"):
        store.array("grid/branches")


@pytest.mark.parametrize("steps", [(0, 2880), (0, 960), (5, 2000), (961, 1000), (960, 1920)])
def test_the_largest_power_equals_that_of_the_states(
    undisturbed: Path, steps: tuple[int, int]
) -> None:
    store = open_store(undisturbed)
    states = abs(np.asarray(store.state[slice(*steps)]))
    assert store.largest_power(slice(*steps)) == [states[:, 0::4].max(), states[:, 1::4].max()]


def test_the_largest_power_of_whole_blocks_needs_no_reading(undisturbed: Path) -> None:
    store = open_store(undisturbed)
    with patch.object(Store, "_load", side_effect=AssertionError("read")):
        assert store.largest_power(slice(0, 1920))[0] > 0
