"""Every library reads back the series that the task holds, and nothing that it must not see."""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from powerphase import Layout, Store, Task
from powerphase.errors import MissingLibrary, TaskError

CHANNELS = [2, 7, 41]
NAMES = ["V of bus 1", "theta of bus 2", "Q of bus 11"]


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, context=192, windows=3)


@pytest.fixture
def pyg() -> Any:
    return pytest.importorskip("torch_geometric.data")


def values(task: Task, start: int, stop: int) -> np.ndarray:
    return task.test.record.read(slice(start, stop)).numpy()[:, CHANNELS]


def window(task: Task, number: int, ahead: int = 0) -> np.ndarray:
    origin = int(task.test.origins[number])
    return values(task, origin - 192, origin + ahead)


@pytest.mark.filterwarnings("ignore")  # of a faster reader of JSON that gluonts misses
def test_gluonts_reads_the_series(task: Task) -> None:
    split = pytest.importorskip("gluonts.dataset.split").split
    out = task.to_gluonts(CHANNELS)
    assert (out.metadata.freq, out.metadata.prediction_length) == ("15min", 96)
    train = list(out.train)
    assert [entry["item_id"] for entry in train] == NAMES
    assert train[0]["start"] == pd.Period("2015-01-01", freq="15min")
    record = np.stack([entry["target"] for entry in train], axis=1)
    np.testing.assert_array_equal(record, values(task, 0, task.splits.fit_stop))
    for number in range(3):
        entries = list(out.test)[3 * number : 3 * number + 3]
        past = np.stack([entry["target"] for entry in entries], axis=1)
        np.testing.assert_array_equal(past, window(task, number))
    whole = task.to_gluonts(CHANNELS, targets=True)
    _, template = split(whole.test, offset=-96)
    pairs = list(template.generate_instances(96))
    label = np.stack([pair[1]["target"] for pair in pairs[:3]], axis=1)
    np.testing.assert_array_equal(label, window(task, 0, 96)[192:])


def test_nixtla_reads_the_tables(task: Task) -> None:
    validation = pytest.importorskip("utilsforecast.validation")
    processing = pytest.importorskip("utilsforecast.processing")
    out = task.to_nixtla(CHANNELS)
    assert out.targets is None
    for frame in (out.train, *(part for _, part in out.contexts.groupby("cutoff"))):
        validation.validate_format(frame)
        validation.validate_freq(frame["ds"], "15min")
    series = processing.process_df(out.train, "unique_id", "ds", "y")
    assert sorted(series.uids) == sorted(NAMES)
    wide = out.train.pivot_table(index="ds", columns="unique_id", values="y")[NAMES]
    np.testing.assert_array_equal(wide, values(task, 0, task.splits.fit_stop))
    assert (out.contexts["ds"] <= out.contexts["cutoff"]).all()
    core, models = (pytest.importorskip(f"statsforecast{part}") for part in (".core", ".models"))
    naive = core.StatsForecast([models.SeasonalNaive(season_length=96)], freq="15min")
    day = naive.forecast(df=out.train, h=96).pivot_table(index="ds", columns="unique_id")
    stop = task.splits.fit_stop
    np.testing.assert_array_equal(day["SeasonalNaive"][NAMES], values(task, stop - 96, stop))
    ahead = task.to_nixtla(CHANNELS, targets=True).targets
    assert ahead is not None
    first = ahead[ahead["cutoff"] == ahead["cutoff"].min()]
    wide = first.pivot_table(index="ds", columns="unique_id", values="y")[NAMES]
    np.testing.assert_array_equal(wide, window(task, 0, 96)[192:])


@pytest.mark.filterwarnings("ignore")  # of darts' own dependencies, while they are imported
def test_darts_reads_the_series(task: Task) -> None:
    pytest.importorskip("darts")
    out = task.to_darts(CHANNELS, targets=True)
    assert list(out.train.components) == NAMES
    np.testing.assert_array_equal(out.train.values(), values(task, 0, task.splits.fit_stop))
    assert out.targets is not None
    for number, (past, future) in enumerate(zip(out.contexts, out.targets, strict=True)):
        both = past.append(future)  # raises unless the second follows the first
        np.testing.assert_array_equal(both.values(), window(task, number, 96))
    assert task.to_darts(CHANNELS).targets is None


def test_datasets_reads_the_windows(task: Task) -> None:
    pytest.importorskip("datasets")
    out = task.to_datasets(CHANNELS)
    assert set(out["test"].column_names) == {"start", "past"}
    assert [len(out[name]) for name in ("train", "validation", "test")] == [33, 10, 3]
    for number, row in enumerate(out["test"].with_format("numpy")):
        assert row["start"] == task.test.start(number)
        np.testing.assert_array_equal(row["past"], window(task, number))
    train = out["train"].with_format("numpy")
    np.testing.assert_array_equal(train[0]["target"], values(task, 192, 288))
    assert train[-1]["target"].shape == (96, 3)
    last = values(task, task.splits.fit_stop - 96, task.splits.fit_stop)
    np.testing.assert_array_equal(train[-1]["target"], last)
    test = task.to_datasets(CHANNELS, targets=True)["test"].with_format("numpy")
    np.testing.assert_array_equal(test[2]["target"], window(task, 2, 96)[192:])


def test_fev_tasks_hold_the_series(task: Task, tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    file = task.to_fev(tmp_path / "validation", CHANNELS)
    (line,) = json.loads(file.read_text())["tasks"]
    frame = pd.read_parquet(line["dataset_path"])
    assert list(frame["id"]) == NAMES
    series = np.stack([*frame["target"]], axis=1).astype(np.float32)
    np.testing.assert_array_equal(series, values(task, 0, task.splits.train_stop))
    assert line["initial_cutoff"] == task.training.validation.origins[0]
    assert (line["num_windows"], line["window_step_size"], line["horizon"]) == (10, 96, 96)
    tests = json.loads(task.to_fev(tmp_path / "test", CHANNELS, targets=True).read_text())["tasks"]
    assert [line["initial_cutoff"] for line in tests] == task.test.origins.tolist()


def test_pytorch_geometric_reads_the_grid(task: Task, pyg: Any) -> None:
    layout = task.layout
    data = layout.to_pyg()
    assert isinstance(data, pyg.Data)
    assert data.validate()
    n_branches = layout.circuit.n_branches
    assert (data.num_nodes, data.num_edges) == (14, 2 * n_branches)
    assert data.x.shape == (14, 6)
    # The edges and the shunts are the admittance matrix: the sum of what flows into a bus.
    voltage = torch.polar(1 + 0.02 * torch.rand(14), 0.3 * torch.rand(14)).numpy()
    own, other = (torch.complex(data.edge_attr[:, k], data.edge_attr[:, k + 1]) for k in (0, 2))
    source, target = data.edge_index.numpy()
    flow = voltage[source] * np.conj(
        own.numpy() * voltage[source] + other.numpy() * voltage[target]
    )
    both = layout.circuit.flow_mva(abs(voltage), np.angle(voltage)) / data.base_mva
    np.testing.assert_allclose(flow, both.T.ravel(), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(data.branch.numpy(), np.tile(np.arange(n_branches), 2))


@pytest.mark.parametrize("channels", [[], [56], [-1], [3, 3], [0.5], [[1]]])
def test_impossible_channels_raise(task: Task, channels: Any) -> None:
    with pytest.raises(TaskError, match="channel"):
        task.to_nixtla(channels)


@pytest.fixture(params=["gluonts", "darts", "datasets", "torch_geometric"])
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in [n for n in sys.modules if n.partition(".")[0] == request.param]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, request.param, None)
    return request.param


def test_a_missing_library_is_named(task: Task, missing: str) -> None:
    layout: Layout = task.layout
    calls = {
        "gluonts": lambda: task.to_gluonts(CHANNELS),
        "darts": lambda: task.to_darts(CHANNELS),
        "datasets": lambda: task.to_datasets(CHANNELS),
        "torch_geometric": layout.to_pyg,
    }
    with pytest.raises(MissingLibrary, match=missing):
        calls[missing]()
