"""Scoring, fitting and the outlook refuse data that differ from their checksums."""

import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from powerphase import Evaluation, Store, Task, forecast, outlook, score
from powerphase.dataset import open_store
from powerphase.errors import StoreError
from powerphase.models import Climatology, FactorForge, LastWeek
from tests.damage import edit_manifest, flip

LAST = 6
"""The last block of the record of sixty days; the test split begins in block 4."""

Use = Callable[[Task], object]


@pytest.fixture
def data(tmp_path: Path, sixty_days: Store) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(sixty_days.path, tmp_path / "data"))


def shard(data: Path, number: int) -> Path:
    return data / "state" / "c" / str(number) / "0"


def swap(data: Path, number: int) -> None:
    """Put another block of the same record in the place of this one: all its chunks are intact."""
    shutil.copy(shard(data, (number + 1) % LAST), shard(data, number))


def score_last_week(task: Task) -> Evaluation:
    return score(forecast(LastWeek(), task), task)


def read_everything(task: Task) -> object:
    return task.training.read()


USES: list[tuple[Use, int]] = [
    (score_last_week, LAST - 1),
    (lambda task: outlook(LastWeek(), task), LAST - 1),
    (lambda task: Climatology().fit(task.training), 1),
    (lambda task: FactorForge().fit(task.training), 2),
    (read_everything, 0),
    (lambda task: task.training.validation.target(0), 3),
]


@pytest.mark.parametrize(("use", "block"), USES)
@pytest.mark.parametrize("harm", [swap, lambda data, number: flip(shard(data, number), 0.5)])
def test_a_block_that_is_not_the_manifests_raises_where_it_is_read(
    data: Path, use: Use, block: int, harm: Callable[[Path, int], None]
) -> None:
    harm(data, block)
    with pytest.raises(StoreError, match=rf"state, block {block}\b.*powerphase generate"):
        use(Task(data))


def test_blocks_that_are_not_read_are_not_checked(data: Path) -> None:
    swap(data, 0)
    task = Task(data)
    score_last_week(task)
    assert task.targets_verified


def test_targets_count_as_verified_once_they_were_read(sixty_days: Store) -> None:
    task = Task(open_store(sixty_days.path))
    assert not task.targets_verified
    task.test.target(0)
    assert not task.targets_verified
    assert score_last_week(task).row.data_verified
    assert task.targets_verified


def test_a_block_that_changes_later_is_checked_again(data: Path) -> None:
    task = Task(data)
    score_last_week(task)
    swap(data, LAST - 1)
    with pytest.raises(StoreError, match=f"block {LAST - 1}"):
        score_last_week(task)


@pytest.mark.parametrize("file", ["signals/c/0/0", "grid/branch/c/0/0", "time/zarr.json"])
def test_damage_outside_the_blocks_raises(data: Path, file: str) -> None:
    flip(data / file, 0.5)
    with pytest.raises(StoreError, match=file):
        Task(data)


@pytest.mark.parametrize(
    ("key", "value"), [("seed", 9), ("end", "2015-02-27"), ("end", "never"), ("colour", "blue")]
)
def test_a_recipe_that_contradicts_the_manifest_raises(data: Path, key: str, value: object) -> None:
    with edit_manifest(data) as manifest:
        manifest["recipe"][key] = value
    with pytest.raises(StoreError, match="manifest"):
        Task(data)


def test_a_false_largest_power_raises_where_its_block_is_read(data: Path) -> None:
    with edit_manifest(data) as manifest:
        manifest["blocks"]["1"]["largest"][0] *= 2
    with pytest.raises(StoreError, match="block 1"):
        read_everything(Task(data))


def test_checked_states_are_the_stored_ones_in_all_threads(sixty_days: Store) -> None:
    store, whole = open_store(sixty_days.path), np.asarray(sixty_days.state[...])
    starts = range(0, len(whole) - 700, 131)
    with ThreadPoolExecutor(8) as pool:
        parts = pool.map(lambda k: store.read_states(slice(k, k + 700), slice(3, 41)), starts)
        for start, part in zip(starts, parts, strict=True):
            assert np.array_equal(part, whole[start : start + 700, 3:41])
