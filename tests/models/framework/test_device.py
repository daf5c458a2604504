"""Devices by name, and the processes that torchrun starts."""

import socket
from collections.abc import Callable

import pytest
import torch
from torch import distributed

from powerphase.errors import TaskError, UnknownName
from powerphase.models.framework import (
    ProcessGroup,
    choose_device,
    device,
    is_rank_zero,
    process_group,
)

CPU = torch.device("cpu")
Started = Callable[..., None]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make torch report so many GPUs."""

    def set_count(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return set_count


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Started:
    """A process as torchrun starts it."""

    def start(rank: int, size: int = 2, local_rank: int | None = None) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        values = {"TORCHELASTIC_RUN_ID": "test", "RANK": rank, "WORLD_SIZE": size}
        values |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for name, value in values.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setenv("LOCAL_RANK", str(rank if local_rank is None else local_rank))

    return start


def test_an_unknown_device_raises() -> None:
    with pytest.raises(UnknownName, match=r"'cude'.*cuda"):
        choose_device("cude")


def test_without_a_gpu_the_device_is_the_cpu(gpus: Callable[[int], None]) -> None:
    gpus(0)
    assert choose_device("auto") == choose_device("cpu") == CPU
    with pytest.raises(TaskError, match="no GPU"):
        choose_device("cuda")


def test_a_gpu_is_used_if_there_is_one(gpus: Callable[[int], None]) -> None:
    gpus(1)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda")
    assert choose_device("cpu") == CPU


def test_each_process_gets_another_gpu(gpus: Callable[[int], None], started: Started) -> None:
    gpus(2)
    for rank in (0, 1):
        started(rank)
        assert choose_device("auto") == torch.device("cuda", rank)
        assert choose_device("cpu") == CPU


def test_the_gpu_is_chosen_by_local_rank(gpus: Callable[[int], None], started: Started) -> None:
    gpus(2)
    started(rank=5, size=8, local_rank=1)
    assert choose_device("auto") == torch.device("cuda", 1)


def test_more_processes_than_gpus_raise(gpus: Callable[[int], None], started: Started) -> None:
    gpus(1)
    started(rank=1)
    with pytest.raises(TaskError, match="local rank 1"):
        choose_device("auto")


def test_rank_zero_is_read_from_torchrun_only(
    started: Started, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_rank_zero()
    monkeypatch.setenv("RANK", "1")
    assert is_rank_zero(), "RANK counts only under torchrun"
    started(0)
    assert is_rank_zero()
    started(1)
    assert not is_rank_zero()


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_shards_cover_all_work_and_one_process_has_rank_zero(size: int) -> None:
    groups = [ProcessGroup(rank, size) for rank in range(size)]
    work = list(range(10))
    done = [piece for group in groups for piece in work[group.shard]]
    assert sorted(done) == work
    assert [group.is_rank_zero for group in groups] == [True] + [False] * (size - 1)


def test_a_single_process_needs_no_group() -> None:
    with process_group(CPU) as group:
        assert group == ProcessGroup(0, 1)
        assert not distributed.is_initialized()
        group.wait()
        assert group.total(torch.tensor(3.0)) == 3.0


def fail_in_a_group() -> None:
    with process_group(CPU) as group:
        assert distributed.is_initialized()
        assert group == ProcessGroup(0, 1)
        raise ValueError("stop")


def test_trainings_of_one_script_share_a_group_even_after_a_failure(
    started: Started,
) -> None:
    started(rank=0, size=1)
    try:
        with pytest.raises(ValueError, match="stop"):
            fail_in_a_group()
        with process_group(torch.device("cpu")) as group:
            assert group.size == 1
    finally:
        device._destroy_group()
    assert not distributed.is_initialized()
    device._destroy_group()
