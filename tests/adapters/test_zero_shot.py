"""Laws of pretrained models, on tiny random networks of each library."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase import Results, Task, forecast, score
from powerphase.adapters import BACKENDS, SeriesModel, ZeroShot, find_weights
from powerphase.errors import ConfigError, ForecastError, UnknownName
from powerphase.models.framework import describe
from powerphase.report import entry_of
from tests.adapters.tiny import DECILES, MAKERS, module_of

pytestmark = pytest.mark.filterwarnings("ignore")

HORIZON, N_PAST, N_SERIES = 96, 672, 5
TOLERANCE = 2e-3
"""Sums of float32 are rounded in another order in batches of another size."""
TIME = np.datetime64("2016-01-01", "s") + 900 * np.arange(N_PAST + HORIZON)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """The folder of a tiny network, made once."""
    root: Path = tmp_path_factory.mktemp("weights")

    def folder_of(name: str) -> Path:
        if not (root / name).exists():
            torch.manual_seed(0)
            MAKERS[name](root / name)
        return root / name

    return folder_of


@pytest.fixture(scope="module")
def past() -> Any:
    """Days with noise, of different sizes."""
    random = np.random.default_rng(0)
    day = np.sin(2 * np.pi * np.arange(N_PAST) / 96)
    size = 10.0 ** np.arange(-2, N_SERIES - 2)[:, None]
    return (size * (day + 0.1 * random.standard_normal((N_SERIES, N_PAST)))).astype(np.float32)


def answer(model: SeriesModel, past: Any) -> Any:
    return model.answer(past, TIME, HORIZON)


def test_every_backend_is_tested() -> None:
    assert MAKERS.keys() == BACKENDS.keys()


@pytest.mark.parametrize("name", MAKERS)
def test_quantiles_have_their_shape_and_order(
    name: str, past: Any, weights: Callable[[str], Path]
) -> None:
    quantiles = answer(ZeroShot(name, weights(name)).model, past)
    assert list(quantiles) == pytest.approx(DECILES)
    values = np.stack(list(quantiles.values()))
    assert values.shape == (len(DECILES), N_SERIES, HORIZON)
    assert np.isfinite(values).all()
    assert (np.diff(values, axis=0) >= 0).all()


@pytest.mark.parametrize("name", MAKERS)
def test_a_series_is_forecast_the_same_in_any_company(
    name: str, past: Any, weights: Callable[[str], Path]
) -> None:
    model = ZeroShot(name, weights(name)).model
    together = np.stack(list(answer(model, past).values()))
    for part in (slice(0, 1), slice(1, 3), slice(3, None)):
        alone = np.stack(list(answer(model, past[part]).values()))
        scale = abs(past[part]).max(1)[None, :, None]
        assert (np.abs(alone - together[:, part]) / scale).max() <= TOLERANCE


@pytest.mark.parametrize("name", MAKERS)
def test_some_levels_are_those_of_all(name: str, past: Any, weights: Callable[[str], Path]) -> None:
    every = answer(ZeroShot(name, weights(name)).model, past)
    some = answer(ZeroShot(name, weights(name), levels=(0.2, 0.8)).model, past)
    assert list(some) == [0.2, 0.8]
    # Sorted among fewer, where a random network's quantiles cross.
    low, high = (np.sort(np.stack(list(q.values())), axis=0)[[0, -1]] for q in (some, every))
    assert (low[0] >= high[0] - 1e-4).all()
    assert (low[1] <= high[1] + 1e-4).all()


def test_a_row_states_the_weights_and_what_they_may_have_seen(
    task: Task, weights: Callable[[str], Path]
) -> None:
    model = ZeroShot("fracast", weights("fracast"), on="factors", scenarios=20)
    row = score(forecast(model, task), task).row
    assert (row.model, row.variant, row.joint) == ("fracast", "factors", True)
    facts = row.config["weights"]
    assert (facts["source"], facts["revision"]) == ("fracast", None)
    assert facts["sha256"] == find_weights(weights("fracast")).sha256
    seen = {edition: replace(row, edition=edition) for edition in ("opsd", "opsd-r", "synthetic")}
    marks = {edition: entry_of(Results([row])).may_have_seen for edition, row in seen.items()}
    assert marks == {"opsd": True, "opsd-r": True, "synthetic": False}
    assert entry_of([seen["opsd"]]).label != entry_of([seen["synthetic"]]).label


def test_other_weights_have_another_hash(weights: Callable[[str], Path], tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in weights("fracast").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    assert find_weights(copy).sha256 == find_weights(weights("fracast")).sha256
    file = copy / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    assert find_weights(copy).sha256 != find_weights(weights("fracast")).sha256


def test_weights_of_the_hub_have_their_commit_as_revision(
    weights: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a download that finds the snapshot on the disk, as that of the hub does."""
    commit = "0" * 40
    snapshot = tmp_path / "models--someone--tiny" / "snapshots" / commit
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(weights("chronos-bolt"))
    asked: dict[str, Any] = {}

    def download(**arguments: Any) -> str:
        asked.update(arguments)
        return str(snapshot)

    monkeypatch.setattr(module_of("huggingface_hub"), "snapshot_download", download)
    model = ZeroShot("chronos-bolt", "someone/tiny", revision="v1")
    assert (asked["repo_id"], asked["revision"]) == ("someone/tiny", "v1")
    facts = describe(model).config["weights"]
    assert (facts["source"], facts["revision"]) == ("someone/tiny", commit)
    ZeroShot("chronos-bolt")
    assert asked["repo_id"] == "amazon/chronos-bolt-base"


def test_a_download_that_fails_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    def download(**_: Any) -> str:
        raise OSError("no route to host")

    monkeypatch.setattr(module_of("huggingface_hub"), "snapshot_download", download)
    with pytest.raises(ConfigError, match=r"someone/tiny.*no route to host"):
        ZeroShot("tirex", "someone/tiny")


def test_bad_weights_and_options_raise(tmp_path: Path, weights: Callable[[str], Path]) -> None:
    with pytest.raises(UnknownName, match="chronos-2"):
        ZeroShot("chronos2")
    with pytest.raises(ConfigError, match="no weights"):
        ZeroShot("chronos-2", tmp_path)
    with pytest.raises(ConfigError, match="neither"):
        ZeroShot("chronos-2", tmp_path / "missing")
    with pytest.raises(ConfigError, match="revision"):
        ZeroShot("chronos-2", weights("fracast"), revision="v1")
    with pytest.raises(ConfigError, match="revision"):
        ZeroShot("fracast", revision="v1")
    with pytest.raises(ConfigError, match="chunk"):
        ZeroShot("fracast", chunk=0)
    with pytest.raises(ConfigError, match="levels"):
        ZeroShot("fracast", levels=(0.9, 0.1))


@pytest.mark.parametrize("name", ["chronos-2", "toto", "moirai-2"])
def test_a_missing_library_is_named_before_weights_are_sought(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BACKENDS[name], "library", "no-such-library")
    with pytest.raises(ConfigError, match=BACKENDS[name].requirement or "no-such-library"):
        ZeroShot(name, "no/such-weights")


def test_levels_that_a_network_does_not_have_raise(task: Task) -> None:
    model = ZeroShot("fracast", levels=(0.05, 0.5), on="factors")
    model.fit(task.training)
    with pytest.raises(ForecastError, match=r"fracast.*0\.05"):
        model.predict(task.test.context(0))


def test_weights_of_another_library_raise_when_they_are_loaded(
    task: Task, weights: Callable[[str], Path]
) -> None:
    model = ZeroShot("tirex", weights("fracast"))
    with pytest.raises(Exception, match="tirex"):
        model.fit(task.training)
