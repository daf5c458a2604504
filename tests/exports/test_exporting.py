"""What is refused, and that a refusal or a failure leaves nothing behind."""

import errno
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

from powerphase import Context, Forecast, Scenarios, Store, Task, couple_forecast, export, forecast
from powerphase.dataset import generate
from powerphase.errors import ExportError, ForecastError, UnknownName
from powerphase.exports import FORMATS
from powerphase.models import Climatology, LastWeek
from tests.cli.conftest import Fails, fails
from tests.dataset.exact import exact_signals
from tests.exports.conftest import WeightedDays, make_task
from tests.pages import output_of

__all__ = ["fails"]


class DifferentWeights(WeightedDays):
    """Scenarios that are more likely at some buses than at others."""

    def predict(self, context: Context) -> Scenarios:
        scenarios = super().predict(context)
        weights = scenarios.weights.clone()
        weights[:, :, 6] = torch.tensor([0.2, 0.2, 0.6])
        return Scenarios(scenarios.values, weights)


class Unstated(WeightedDays):
    """Does not say whether its scenarios are joint."""

    joint_scenarios = None


@pytest.fixture
def out(tmp_path: Path) -> Iterator[Path]:
    """A path at which nothing is, also after the test."""
    folder = tmp_path / "empty"
    folder.mkdir()
    yield folder / "export"
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("model", "fact"),
    [
        (Unstated(), "joint_scenarios"),
        (DifferentWeights(), "channel 6"),
    ],
)
def test_scenarios_without_one_probability_are_refused(
    model: Any, fact: str, task: Task, out: Path
) -> None:
    source = forecast(model, task)
    with pytest.raises(ExportError, match=fact):
        export(source, task.store, to="parquet", out=out)


def test_a_marginal_forecast_is_exported_once_coupled(sixty_days: Store, tmp_path: Path) -> None:
    task = Task(sixty_days, windows=1)
    marginal = forecast(Climatology(), task)
    with pytest.raises(ExportError, match="marginal"):
        export(marginal, task.store, to="netcdf", out=tmp_path / "joint.nc")
    joint = couple_forecast(marginal, task, "schaake", scenarios=4)
    file = export(joint, task.store, to="netcdf", out=tmp_path / "joint.nc")
    with xr.open_dataset(file, engine="h5netcdf") as content:
        assert content.sizes["scenario"] == 4


@pytest.mark.parametrize("to", FORMATS)
def test_one_scenario_is_certain(to: str, task: Task, tmp_path: Path) -> None:
    source = forecast(LastWeek(), task)
    out = export(source, task.store, to=to, out=tmp_path / "one")
    assert out.exists()
    if to == "netcdf":
        with xr.open_dataset(out, engine="h5netcdf") as content:
            assert content.weight.values.tolist() == [[1.0], [1.0]]


@pytest.mark.parametrize("make", [Path.mkdir, Path.touch])
def test_an_existing_path_is_not_touched(
    make: Callable[[Path], None], weighted_days: Forecast, task: Task, tmp_path: Path
) -> None:
    path = tmp_path / "taken"
    make(path)
    with pytest.raises(ExportError, match="taken"):
        export(weighted_days, task.store, to="parquet", out=path)
    assert list(tmp_path.iterdir()) == [path]


def test_a_path_that_appears_meanwhile_is_not_touched(
    weighted_days: Forecast, task: Task, tmp_path: Path
) -> None:
    path = tmp_path / "taken"

    def pieces(skip: Any) -> Iterator[Any]:
        path.write_text("mine")
        yield from weighted_days.pieces(skip)

    with pytest.raises(ExportError, match="taken"):
        export(replace(weighted_days, pieces=pieces), task.store, to="parquet", out=path)
    assert path.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("to", FORMATS)
def test_a_failure_in_the_middle_leaves_nothing(
    to: str, weighted_days: Forecast, task: Task, out: Path
) -> None:
    def pieces(skip: Any) -> Iterator[Any]:
        first, _ = weighted_days.pieces(skip)
        yield first
        raise ForecastError("damaged", window=1)

    with pytest.raises(ForecastError, match="damaged"):
        export(replace(weighted_days, pieces=pieces), task.store, to=to, out=out)


def test_a_full_disk_leaves_nothing(weighted_days: Forecast, task: Task, out: Path) -> None:
    def pieces(skip: Any) -> Iterator[Any]:
        yield from list(weighted_days.pieces(skip))[:1]
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ExportError, match="No space"):
        export(replace(weighted_days, pieces=pieces), task.store, to="netcdf", out=out)


@pytest.mark.parametrize(
    ("to", "module"), [("parquet", "pyarrow"), ("netcdf", "h5netcdf"), ("pypsa", "xarray")]
)
def test_a_missing_library_is_named(
    to: str,
    module: str,
    weighted_days: Forecast,
    task: Task,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(
        "powerphase.exports.exporting.find_spec", lambda name: None if name == module else True
    )
    with pytest.raises(ExportError, match=module):
        export(weighted_days, task.store, to=to, out=out)


def test_names_that_do_not_exist_are_refused(
    weighted_days: Forecast, task: Task, out: Path
) -> None:
    with pytest.raises(UnknownName, match="parquet"):
        export(weighted_days, task.store, to="parket", out=out)
    with pytest.raises(ExportError, match="1999-01-01"):
        export(weighted_days, task.store, to="parquet", out=out, day="1999-01-01")
    with pytest.raises(ExportError, match="s3://"):
        export(weighted_days, task.store, to="parquet", out="s3://bucket/file")


def test_another_data_set_is_refused(
    weighted_days: Forecast, store_of: Callable[[str], Store], out: Path
) -> None:
    with pytest.raises(ExportError, match="ieee24"):
        export(weighted_days, store_of("ieee24"), to="parquet", out=out)


def test_phase_shifters_do_not_fit_into_rts_gmlc_tables(
    store_of: Callable[[str], Store], out: Path
) -> None:
    task = make_task(store_of("pegase89"))
    source = forecast(WeightedDays(), task)
    with pytest.raises(ExportError, match="7637-8581"):
        export(source, task.store, to="prescient", out=out)


def test_the_command_exports_and_refuses(tmp_path: Path, fails: Fails) -> None:
    data, scenarios, table = (tmp_path / name for name in ("data", "week", "week.parquet"))
    generate("ieee14", data, signals=exact_signals(14))
    output_of(f"powerphase forecast last-week --data {data} --out {scenarios} --windows 1")
    command = f"export {scenarios} --data {data} --to parquet --out {table}"
    assert str(table) in output_of(f"powerphase {command}").replace("\n", "")
    assert table.is_file()
    assert str(table) in fails(*command.split()).problem
    actual = tmp_path / "actual.nc"
    assert "what happened" in output_of(
        f"powerphase export {scenarios} --data {data} --to netcdf --out {actual} --actual"
    )
    with xr.open_dataset(actual, engine="h5netcdf") as content:
        np.testing.assert_array_equal(content.weight, 1)
