"""Models of other libraries, and objects of a user's module, by text."""

import sys
from pathlib import Path
from typing import Any

import pytest

from powerphase import Task
from powerphase.adapters import SeriesForecaster
from powerphase.errors import ConfigError, ForecastError, PowerphaseError, UnknownName
from powerphase.evaluation import make_forecaster, resolve_model
from tests import command_line

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module of objects in the current folder."""
    code = """
from powerphase import Scenarios
from powerphase.adapters import from_callable

def yesterday(past, time, horizon):
    return past[-96:][:horizon]

ready = from_callable(yesterday, name="ready", on="factors", scenarios=10)
number = 3

class Broken:
    def __init__(self, file):
        pass

class Plain:
    def fit(self, train):
        pass

    def predict(self, context):
        return Scenarios.equal(context.past[:, None, -context.horizon :])

plain = Plain()

def __getattr__(name):
    if name == "naive":
        from statsforecast.models import SeasonalNaive
        return SeasonalNaive(season_length=96)
    raise AttributeError(name)
"""
    (tmp_path / "things.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "things", raising=False)


TEXTS = {
    "statsforecast:SeasonalNaive(season_length=96)": "statsforecast-seasonal-naive",
    "darts:NaiveSeasonal(K=96)+factors": "darts-naive-seasonal",
    "darts:NaiveSeasonal(96)+factors+schaake": "darts-naive-seasonal",
    "sktime:naive.NaiveForecaster(sp=96)": "sktime-naive-forecaster",
    "gluonts:model.seasonal_naive.SeasonalNaivePredictor(prediction_length=96, season_length=96)": (
        "gluonts-seasonal-naive-predictor"
    ),
    "zero-shot:fracast(chunk=8)+factors": "fracast",
    "fracast+factors": "fracast",
    "things:yesterday": "yesterday",
    "things:yesterday+factors+ranked": "yesterday",
    "things:naive+factors": "statsforecast-seasonal-naive",
    "things:ready": "ready",
    "things:plain": "plain",
    "things:plain+schaake": "plain",
}


@pytest.mark.parametrize(("text", "name"), TEXTS.items())
def test_a_text_names_a_model(text: str, name: str, task: Task) -> None:
    spec = resolve_model(text)
    description = spec.description("ieee14", 7)
    assert description.model == name
    words = (description.variant or "").split("-")
    factors = "+factors" in text or name == "ready"
    assert ("factors" in words) == factors
    assert (spec.coupling or "") in text
    assert resolve_model(text).identity == spec.identity
    assert not spec.is_saved
    make_forecaster(text, task, 7)


def test_only_what_is_random_has_several_seeds() -> None:
    assert resolve_model("statsforecast:SeasonalNaive(season_length=96)").seeds([1, 2]) == (0,)
    assert resolve_model("darts:NaiveSeasonal(K=96)").seeds([1, 2]) == (1, 2)
    assert resolve_model("zero-shot:fracast+factors").seeds([1, 2]) == (1, 2)
    assert resolve_model("zero-shot:fracast").seeds([1, 2]) == (0,)
    assert resolve_model("things:ready").seeds([1, 2]) == (42,)


@pytest.mark.parametrize(
    ("text", "error", "fact"),
    [
        ("statsforecast:AutoThetas", UnknownName, "AutoTheta"),
        ("darts:NaiveSeasonal(K=size)", ConfigError, "plain values"),
        ("darts:NaiveSeasonal(**options)", ConfigError, "plain values"),
        ("darts:NaiveSeasonal(K=96", ConfigError, "plain values"),
        ("darts:NaiveSeasonal(L=96)", ConfigError, "NaiveSeasonal"),
        ("darts:no.such.Model", ConfigError, "darts"),
        ("darts:NaiveSeasonal(K=96)+factor", UnknownName, "factors"),
        ("zero-shot:fracas", UnknownName, "fracast"),
        ("things:ready+factors", UnknownName, "factors"),
        ("things:number", ConfigError, "int"),
        ("things:nothing", UnknownName, "nothing"),
        ("things:Broken", ForecastError, "Broken"),
    ],
)
def test_a_wrong_text_raises(text: str, error: type[PowerphaseError], fact: str) -> None:
    with pytest.raises(error, match=fact):
        resolve_model(text).description("ieee14", 7)


def test_arguments_are_never_run_as_code(tmp_path: Path) -> None:
    text = "darts:NaiveSeasonal(K=__import__('pathlib').Path('ran').touch())"
    with pytest.raises(ConfigError):
        resolve_model(text)
    assert not (tmp_path / "ran").exists()


def test_the_command_scores_a_model_of_a_library(task: Task, tmp_path: Path) -> None:
    data = str(task.store.path)
    shown: Any = command_line.invoke(
        "score", "things:yesterday+factors", "--data", data, "--windows", "1", "--out", "rows"
    )
    assert shown.exit_code == 0, shown.output
    (row,) = tmp_path.glob("rows/**/*.json")
    assert row.stem == "yesterday+factors-42"


def test_a_loaded_object_is_not_changed(task: Task) -> None:
    first = make_forecaster("things:ready", task, 1)
    first.fit(task.training)
    assert isinstance(first, SeriesForecaster)
    second = make_forecaster("things:ready", task, 1)
    assert second is not first
    assert isinstance(second, SeriesForecaster)
    assert second._runner is None
