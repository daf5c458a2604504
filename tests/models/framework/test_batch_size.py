"""The batch size of models whose config leaves it open: the first that fits."""

from pathlib import Path
from typing import Any

import pytest

from powerphase.errors import TrainingError
from powerphase.models import DeepAR
from powerphase.models.framework import SAFE_SHARE, WEIGHTS, RunFolder
from powerphase.models.framework import neural as neural_module
from powerphase.models.timemcl import TimeMCL
from tests.models.recurrent.toys import tiny, training_of, waves

TRAIN = training_of(waves())


def open_model(kind: Any = DeepAR, **options: Any) -> Any:
    return kind(tiny(kind.config_type, training={"batch_size": None}), device="cpu", **options)


def needed(size: int) -> float:
    return DeepAR(tiny(DeepAR.config_type, training={"batch_size": size})).memory_gib(TRAIN)


@pytest.fixture
def free(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets how much memory is free."""
    memory: dict[str, float] = {"gib": 1e9}
    monkeypatch.setattr(neural_module, "free_memory_gib", lambda device: memory["gib"])
    return memory


@pytest.mark.parametrize("size", [200, 64, 32, 16, 8])
def test_the_batch_size_is_the_largest_that_leaves_some_memory(size: int, free: Any) -> None:
    free["gib"] = needed(size) / SAFE_SHARE * 1.0001
    model = open_model()
    model.configure(TRAIN)
    assert model.config.training.batch_size == size


def test_a_training_raises_if_no_batch_size_fits(free: Any) -> None:
    free["gib"] = needed(8) / 2
    with pytest.raises(TrainingError, match="batch of 8"):
        open_model().fit(TRAIN)


def test_a_continued_training_keeps_its_batch_size(tmp_path: Path, free: Any) -> None:
    free["gib"] = needed(16) / SAFE_SHARE * 1.0001
    open_model(run=tmp_path).fit(TRAIN)
    free["gib"] = 1e9
    again = open_model(run=tmp_path)
    again.fit(TRAIN)
    assert again.config.training.batch_size == 16
    assert RunFolder.open(tmp_path).header.config["training"]["batch_size"] == 16


def test_a_training_without_weights_chooses_its_batch_size_again(tmp_path: Path, free: Any) -> None:
    free["gib"] = needed(16) / SAFE_SHARE * 1.0001
    open_model(run=tmp_path).fit(TRAIN)
    (tmp_path / WEIGHTS).unlink()
    free["gib"] = needed(8) / SAFE_SHARE * 1.0001
    again = open_model(run=tmp_path)
    again.configure(TRAIN)
    assert again.config.training.batch_size == 8


def test_the_folder_of_another_model_does_not_set_the_batch_size(tmp_path: Path, free: Any) -> None:
    TimeMCL(tiny(TimeMCL.config_type), device="cpu", run=tmp_path).fit(TRAIN)
    model = open_model(run=tmp_path)
    model.configure(TRAIN)
    assert model.config.training.batch_size == 200


def test_several_processes_need_an_explicit_batch_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neural_module, "world_size", lambda: 2)
    with pytest.raises(TrainingError, match="--batch-size"):
        open_model().configure(TRAIN)
