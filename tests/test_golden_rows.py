"""Every model that needs no training in epochs still makes its committed row.

The rows are on 60 days of IEEE 14. After a model's `results_version` was raised, make them again by
`python -m tests.test_golden_rows`, which runs `powerphase bench`.
"""

import shutil
from functools import cache
from math import isclose
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from powerphase import Store, Task, forecast, generate, score
from powerphase.evaluation import Difference, make_forecaster, row_differences
from powerphase.models import NeuralForecaster
from powerphase.records import Result, read_results
from powerphase.registry import bench_models, model_class, results_version
from tests.command_line import run
from tests.dataset.exact import exact_signals

ROWS = Path(__file__).parent / "golden/rows"
WINDOWS = 2
PROCESSOR = 1e-3
"""The largest relative difference between processors, whose sums of float32 differ in order."""

MODELS = (
    *("climatology", "last-week", "flat-week", "last-7-days", "oracle", "ets", "factorforge"),
    "factorforge+draws",
    *("analogs", "boosting", "dynamic-factors", "conformal-climatology"),
)


@cache
def rows() -> dict[str, Result]:
    return {row.name: row for row in read_results([ROWS])}


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, windows=WINDOWS)


@pytest.mark.parametrize("name", MODELS)
def test_the_code_still_makes_the_row(name: str, task: Task) -> None:
    row = rows()[name]
    model = make_forecaster(name, task, row.seed, "cpu")
    again = score(forecast(model, task, device="cpu"), task, device="cpu").row
    assert (again.key, again.config, again.windows) == (row.key, row.config, row.windows)
    assert again.joint is row.joint
    differences = [item for item in row_differences(row, again) if not is_rounding(item)]
    assert not differences, "raise the model's results_version and make its rows again"


def is_rounding(difference: Difference) -> bool:
    old, new = difference.old, difference.new
    if not isinstance(old, float) or not isinstance(new, float):
        return False
    return isclose(old, new, rel_tol=PROCESSOR)


def test_rows_are_of_the_version_of_the_code() -> None:
    versions = {name: results_version(name.partition("+")[0]) for name in MODELS}
    assert {row.name: row.model_version for row in rows().values()} == versions


def test_all_other_models_are_networks() -> None:
    others = [name for name in bench_models() if name not in MODELS]
    assert all(issubclass(model_class(name), NeuralForecaster) for name in others)


def make_rows() -> None:
    with TemporaryDirectory() as folder:
        data, out, runs = (Path(folder) / name for name in ("data", "out", "runs"))
        generate("ieee14", data / "ieee14", signals=exact_signals(60))
        where = ("--data", data, "--out", out, "--runs", runs, "--device", "cpu")
        what = ("--grids", "ieee14", "--models", ",".join(MODELS), "--seeds", 42)
        run("bench", *what, "--windows", WINDOWS, *where)
        for sidecar in out.rglob("*.npz"):
            sidecar.unlink()
        shutil.rmtree(ROWS, ignore_errors=True)
        shutil.copytree(out, ROWS, ignore=shutil.ignore_patterns(".*"))


if __name__ == "__main__":
    make_rows()
