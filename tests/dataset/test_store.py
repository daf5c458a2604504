"""Reading: what is asked for, in the units and order that the names promise, and no more."""

from pathlib import Path
from unittest.mock import patch

import fsspec
import numpy as np
import pytest
from zarr.storage import LocalStore

import powerphase as pp
from powerphase.dataset import Store, open_store
from powerphase.errors import CaseError, StoreError, UnknownName
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
    some = store.read(bus=[9, 2], variable=["Q", "P"])
    assert np.array_equal(some, whole[:, [8, 1]][..., [1, 0]])
    assert store.read(bus={2, 9}, variable=("V",)).shape == (2880, 2, 1)
    assert np.array_equal(store.read(slice(100, 200), bus=[4]), whole[100:200, [3]])
    assert np.array_equal(store.read("2015-01-02"), whole[96:192])
    assert np.array_equal(store.read(slice("2015-01-02T12:00", "2015-01-03")), whole[144:192])
    assert np.array_equal(store.read(slice(-96, None)), whole[-96:])
    assert store.read(slice("2015-01-02", "2015-01-02")).shape == (0, 14, 4)


@pytest.mark.parametrize(
    ("selection", "error", "message"),
    [
        ({"variable": "Theta"}, UnknownName, "no variable 'Theta'; did you mean theta"),
        ({"bus": 15}, CaseError, "no bus 15; its 14 buses are numbered 1 to 14"),
        ({"time": slice("noon", None)}, StoreError, "'noon' is not a time"),
        ({"time": "noon"}, StoreError, "'noon' is not a day"),
        ({"time": "2015-01"}, StoreError, "'2015-01' is not a day"),
        (
            {"time": "2030-01-01"},
            StoreError,
            "not in the record, which holds 2015-01-01 to 2015-01",
        ),
        ({"time": slice(0, 100, 2)}, StoreError, "thin it afterwards"),
    ],
)
def test_what_is_not_there_is_refused(store: pp.Store, selection, error, message: str) -> None:
    with pytest.raises(error, match=message):
        store.read(**selection)


def test_one_bus_is_read_without_the_other_channels(
    tmp_path: Path, signals: Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = pp.generate("ieee118", tmp_path / "s", signals=signals, end="2015-01-20")
    fetched, get = [], LocalStore.get

    async def counted(self, key, prototype=None, byte_range=None):
        found = await get(self, key, prototype, byte_range)
        if found is not None and "state/c" in key:
            fetched.append(len(found))
        return found

    monkeypatch.setattr(LocalStore, "get", counted)
    store.read(bus=60, variable="V")
    one_bus = sum(fetched)
    fetched.clear()
    store.read()
    # 472 channels lie in four chunks per block; one bus touches one of them.
    assert one_bus < 0.4 * sum(fetched)


def test_topology_travels_with_the_series(store: pp.Store, signals: Signals) -> None:
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
    with pytest.raises(StoreError, match="no data set here"):
        pp.open("memory://nowhere")


def test_the_manifest_names_sources_and_terms(store: pp.Store) -> None:
    grid, signals = store.manifest.attribution
    assert grid.startswith("grid IEEE 14: licence")
    assert signals == "made by the tests"
    assert "ieee14 exact" in repr(store)


def test_an_unknown_array_names_the_near_miss(store: pp.Store) -> None:
    with pytest.raises(UnknownName, match="no array 'grid/branches'; did you mean grid/branch"):
        store.array("grid/branches")


@pytest.mark.parametrize("steps", [(0, 2880), (0, 960), (5, 2000), (961, 1000), (960, 1920)])
def test_the_largest_power_of_any_steps_is_that_of_their_states(
    undisturbed: Path, steps: tuple[int, int]
) -> None:
    store = open_store(undisturbed)
    states = abs(np.asarray(store.state[slice(*steps)]))
    assert store.largest_power(slice(*steps)) == [states[:, 0::4].max(), states[:, 1::4].max()]


def test_whole_blocks_are_not_read_for_their_largest_power(undisturbed: Path) -> None:
    store = open_store(undisturbed)
    with patch.object(Store, "_load", side_effect=AssertionError("read")):
        assert store.largest_power(slice(0, 1920))[0] > 0
