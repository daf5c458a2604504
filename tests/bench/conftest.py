from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner
from typer.testing import Result as CommandResult

from powerphase import Result, Store, cli

TOYS = "tests.bench.toy_models"


@pytest.fixture(scope="session")
def data(sixty_days: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of data sets: ieee14, with a record of sixty days."""
    folder: Path = tmp_path_factory.mktemp("data")
    (folder / "ieee14").symlink_to(sixty_days.path)
    return folder


def bench(data: Path, folder: Path, models: str, *options: object) -> CommandResult:
    """The result of `powerphase bench` on ieee14, with results and runs in the folder."""
    paths = ("--data", data, "--out", folder / "results", "--runs", folder / "runs")
    arguments = ["bench", "--grids", "ieee14", "--models", models, "--device", "cpu"]
    command = [str(argument) for argument in (*arguments, *paths, *options)]
    return CliRunner().invoke(cli.app, command, env={"COLUMNS": "200"})


def toys(*names: str) -> str:
    """The toy models of these names, for `--models`."""
    return ",".join(f"{TOYS}:{name}" for name in names)


def reproducible(row: Result) -> dict[str, Any]:
    """All of a row that does not depend on when and where it was made."""
    return {k: v for k, v in vars(row).items() if k not in ("cost", "date", "commit")}
