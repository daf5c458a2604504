from pathlib import Path

import pytest

from powerphase.dataset import Store

TOYS = "tests.bench.toy_models"


@pytest.fixture(scope="session")
def data(sixty_days: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data sets, which has that of sixty days."""
    folder: Path = tmp_path_factory.mktemp("data")
    (folder / "ieee14").symlink_to(sixty_days.path)
    return folder
