"""A flow that two processes train together: normalised by the whole batch, as one would do it."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from powerphase.models.flows.tempflow.model import TempFlow
from powerphase.models.flows.transformer.model import TransformerTempFlow
from powerphase.models.framework.checkpoint import read_tensors
from powerphase.models.framework.run import WEIGHTS
from tests.models.recurrent.toys import tiny, training_of, waves
from tests.models.toys import curve_of

KINDS: list[Any] = [TempFlow, TransformerTempFlow]


def train_in(folder: Path) -> None:
    """Both, in folders of their own; shares of the batch are too unlike to be taken for it.

    Without dropout and noise, which each process has of its own.
    """
    for kind in KINDS:
        sizes = {"dropout": 0.0, "noise": 0.0, "condition": 8, "hidden": 6}
        config = tiny(kind.config_type, **sizes, training={"learning_rate": 1e-2})
        kind(config, device="cpu", run=folder / kind.name).fit(training_of(waves()))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """By this process, and by two."""
    alone, together = (tmp_path_factory.mktemp("flows") / name for name in ("one", "two"))
    train_in(alone)
    lines = ["from pathlib import Path", f"from {__name__} import train_in"]
    code = "\n".join([*lines, f"train_in(Path({str(together)!r}))"])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    shared = {"TORCHELASTIC_RUN_ID": "test", "WORLD_SIZE": "2", "MASTER_PORT": port}
    shared |= {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}
    processes = []
    for rank in ("0", "1"):
        env = {**os.environ, **shared, "RANK": rank, "LOCAL_RANK": rank}
        processes.append(subprocess.Popen([sys.executable, "-c", code], env=env))
    try:
        assert [process.wait(timeout=120) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    return alone, together


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_what_one_does(kind: Any, trained: tuple[Path, Path]) -> None:
    """Loss, slope, validation, and the running variances that it is by.

    No weights and no means: the next normalisation takes off what is added to a channel, there is
    nothing to be learned of it, and Adam makes whole steps of what is rounded.
    """
    one, two = (folder / kind.name for folder in trained)
    wanted, found = (read_tensors(run / WEIGHTS)[0] for run in (one, two))
    averages = [name for name in wanted if name.endswith(".variance")]
    assert len(averages) == 2 * 3
    for name in averages:
        torch.testing.assert_close(found[name], wanted[name], rtol=1e-3, atol=1e-3, msg=name)
    for line, expected in zip(curve_of(two), curve_of(one), strict=True):
        assert line["loss"] == pytest.approx(expected["loss"], rel=1e-4)
        for name in ("validation_loss", "gradient_norm"):
            assert line[name] == pytest.approx(expected[name], rel=5e-3)
