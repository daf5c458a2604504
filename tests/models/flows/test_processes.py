"""A flow trained by two processes, normalised by the whole batch as in one process."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from powerphase.models.flows import TempFlow, TransformerTempFlow
from powerphase.models.framework import WEIGHTS, read_tensors
from tests.models.recurrent.toys import tiny, training_of, waves
from tests.models.toys import curve_of

KINDS: list[Any] = [TempFlow, TransformerTempFlow]


def train_in(folder: Path) -> None:
    """Train both models, each in a folder; halves of a batch differ too much to stand in for it.

    Without dropout and noise, which differ between processes.
    """
    for kind in KINDS:
        sizes: dict[str, Any] = {"dropout": 0.0, "noise": 0.0, "condition": 8, "hidden": 6}
        config = tiny(kind.config_type, **sizes, training={"learning_rate": 1e-2})
        kind(config, device="cpu", run=folder / kind.name).fit(training_of(waves()))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folders of trainings by one process and by two."""
    single, double = (tmp_path_factory.mktemp("flows") / name for name in ("one", "two"))
    train_in(single)
    lines = ["from pathlib import Path", f"from {__name__} import train_in"]
    code = "\n".join([*lines, f"train_in(Path({str(double)!r}))"])
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
    return single, double


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_train_like_one(kind: Any, trained: tuple[Path, Path]) -> None:
    """Compare loss, gradient norm, validation loss and running variances.

    Weights and means are not compared: normalisation removes what is added to a channel, so its
    gradient is rounding noise, which Adam turns into full steps.
    """
    single, double = (folder / kind.name for folder in trained)
    expected, actual = (read_tensors(run / WEIGHTS)[0] for run in (single, double))
    variances = [name for name in expected if name.endswith(".variance")]
    assert len(variances) == 2 * 3
    for name in variances:
        torch.testing.assert_close(actual[name], expected[name], rtol=1e-3, atol=1e-3, msg=name)
    for line, single_line in zip(curve_of(double), curve_of(single), strict=True):
        assert line["loss"] == pytest.approx(single_line["loss"], rel=1e-4)
        for name in ("validation_loss", "gradient_norm"):
            assert line[name] == pytest.approx(single_line[name], rel=5e-3)
