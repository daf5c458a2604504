"""A data set of a grid with ratings, for the tests of lines."""

from pathlib import Path

import pytest

from powerphase.dataset import Store, generate
from tests.dataset.exact import exact_signals


@pytest.fixture(scope="session")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Store:
    """Twenty days of IEEE 24, of whose lines one comes near its rating every day."""
    out: Path = tmp_path_factory.mktemp("lines") / "ieee24"
    return generate("ieee24", out, signals=exact_signals(20))
