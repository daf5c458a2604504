"""Every model that needs no training in epochs still makes its committed row.

The rows are on 60 days of IEEE 14. After a model's `results_version` was raised, make them again by
`python -m tests.test_golden_rows`, which runs `powerphase bench`.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from powerphase import Store, Task, forecast, generate, score
from powerphase.evaluation import make_forecaster, row_differences
from powerphase.records import Result, full_name, read_results
from powerphase.registry import MODELS, results_version
from tests.command_line import run
from tests.dataset.exact import exact_signals

ROWS = Path(__file__).parent / "golden/rows"
WINDOWS, SEED = 2, 42
VARIANTS = ("factorforge+draws",)
CPU_MODELS = ("climatology", "last-week", "last-7-days", "oracle", "ets", "factorforge")


def rows() -> list[Result]:
    return read_results([ROWS])


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, windows=WINDOWS)


@pytest.mark.parametrize("row", rows(), ids=lambda row: row.name)
def test_the_code_still_makes_the_row(row: Result, task: Task) -> None:
    model = make_forecaster(full_name(row.model, row.variant), task, row.seed, "cpu")
    again = score(forecast(model, task, device="cpu"), task, device="cpu").row
    assert (again.key, again.config, again.windows) == (row.key, row.config, row.windows)
    assert again.joint is row.joint
    differences = list(row_differences(row, again))
    assert not differences, "raise the model's results_version and make its rows again"


def test_rows_are_of_the_version_of_the_code() -> None:
    assert {row.name: row.model_version for row in rows()} == {
        name: results_version(name.partition("+")[0]) for name in (*CPU_MODELS, *VARIANTS)
    }


def test_other_models_are_trained_in_epochs() -> None:
    trained = {name for name, info in MODELS.items() if info.kind == "model"}
    assert MODELS.keys() - trained <= set(CPU_MODELS)


def make_rows() -> None:
    with TemporaryDirectory() as folder:
        data, out, runs = (Path(folder) / name for name in ("data", "out", "runs"))
        generate("ieee14", data / "ieee14", signals=exact_signals(60))
        models = ",".join((*CPU_MODELS, *VARIANTS))
        where = ("--data", data, "--out", out, "--runs", runs, "--device", "cpu")
        run("bench", "--grids", "ieee14", "--models", models, "--seeds", SEED, "--windows", WINDOWS,
            *where)  # fmt: skip
        for sidecar in out.rglob("*.npz"):
            sidecar.unlink()
        shutil.rmtree(ROWS, ignore_errors=True)
        shutil.copytree(out, ROWS, ignore=shutil.ignore_patterns(".*"))


if __name__ == "__main__":
    sys.exit(make_rows())
