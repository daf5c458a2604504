"""Where models compute: devices by name, and the processes that torchrun starts together."""

import socket
from collections.abc import Callable

import pytest
import torch
from torch import distributed

from powerphase.errors import TaskError, UnknownName
from powerphase.models.framework import device
from powerphase.models.framework.device import (
    ProcessGroup,
    choose_device,
    is_rank_zero,
    process_group,
)

CPU = torch.device("cpu")
Started = Callable[..., None]


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """A machine with so many GPUs, as far as torch is asked."""

    def have(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return have


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


def test_a_device_that_nobody_knows_is_refused() -> None:
    with pytest.raises(UnknownName, match="no device 'cude'; did you mean cuda"):
        choose_device("cude")


def test_without_a_gpu_there_is_the_processor(gpus: Callable[[int], None]) -> None:
    gpus(0)
    assert choose_device("auto") == choose_device("cpu") == CPU
    with pytest.raises(TaskError, match="no GPU"):
        choose_device("cuda")


def test_a_gpu_is_taken_where_there_is_one(gpus: Callable[[int], None]) -> None:
    gpus(1)
    assert choose_device("auto") == choose_device("cuda") == torch.device("cuda")
    assert choose_device("cpu") == CPU


def test_each_process_has_a_gpu_of_its_own(gpus: Callable[[int], None], started: Started) -> None:
    gpus(2)
    for rank in (0, 1):
        started(rank)
        assert choose_device("auto") == torch.device("cuda", rank)
        assert choose_device("cpu") == CPU


def test_the_gpu_is_counted_on_its_machine(gpus: Callable[[int], None], started: Started) -> None:
    gpus(2)
    started(rank=5, size=8, local_rank=1)
    assert choose_device("auto") == torch.device("cuda", 1)


def test_more_processes_than_gpus_are_refused(
    gpus: Callable[[int], None], started: Started
) -> None:
    gpus(1)
    started(rank=1)
    with pytest.raises(TaskError, match="local rank 1"):
        choose_device("auto")


def test_one_process_leads(started: Started, monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_rank_zero()
    monkeypatch.setenv("RANK", "1")
    assert is_rank_zero(), "a number that torchrun did not give means nothing"
    started(0)
    assert is_rank_zero()
    started(1)
    assert not is_rank_zero()


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_a_team_divides_work_without_rest_and_has_one_leader(size: int) -> None:
    members = [ProcessGroup(rank, size) for rank in range(size)]
    work = list(range(10))
    done = [piece for member in members for piece in work[member.shard]]
    assert sorted(done) == work
    assert [member.is_rank_zero for member in members] == [True] + [False] * (size - 1)


def test_who_is_alone_waits_for_nobody() -> None:
    with process_group(CPU) as members:
        assert members == ProcessGroup(0, 1)
        assert not distributed.is_initialized()
        members.wait()
        assert members.total(torch.tensor(3.0)) == 3.0


def fail_in_a_team() -> None:
    with process_group(CPU) as members:
        assert distributed.is_initialized()
        assert members == ProcessGroup(0, 1)
        raise ValueError("stop")


def test_trainings_of_one_script_share_a_team_whatever_became_of_the_first(
    started: Started,
) -> None:
    started(rank=0, size=1)
    try:
        with pytest.raises(ValueError, match="stop"):
            fail_in_a_team()
        with process_group(torch.device("cpu")) as members:
            assert members.size == 1
    finally:
        device._destroy_group()
    assert not distributed.is_initialized()
    device._destroy_group()
