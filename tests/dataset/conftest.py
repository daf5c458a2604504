from pathlib import Path

import pytest

from powerphase.dataset import generate
from powerphase.synthesis import Signals
from tests.dataset.exact import exact_signals


@pytest.fixture(scope="session")
def signals() -> Signals:
    return exact_signals()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory, signals: Signals) -> Path:
    """A data set of three blocks, made without interruption by one thread; do not change it."""
    out = tmp_path_factory.mktemp("undisturbed") / "store"
    generate("ieee14", out, signals=signals, threads=1)
    return out
