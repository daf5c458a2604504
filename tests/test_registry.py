"""One entry in the registry is all that a new model needs."""

import os
import subprocess
import sys
from dataclasses import is_dataclass

import pytest

import powerphase.models
from powerphase import registry
from powerphase.errors import UnknownName
from powerphase.evaluation import resolve_model
from powerphase.registry import MODELS, Look, ModelInfo, bench_models, model_class, model_kind
from powerphase.report import looks_of, page_looks

HOME_MADE = ModelInfo(
    "home-made",
    "tests.bench.toy_models:Steady",
    Look("Home-made", "#123456", "x"),
    "a test",
    "task.md",
)


@pytest.fixture
def home_made(monkeypatch: pytest.MonkeyPatch) -> ModelInfo:
    monkeypatch.setitem(registry._BY_NAME, HOME_MADE.name, HOME_MADE)
    return HOME_MADE


def test_an_entry_is_all_that_a_model_needs(home_made: ModelInfo) -> None:
    assert "home-made" in bench_models()
    assert resolve_model("home-made").model_class is model_class("home-made") is home_made.load()
    assert model_kind("home-made") == "model"
    assert "home-made" in registry.models_help("model").split(", ")
    assert looks_of(["home-made"]) == {"home-made": home_made.look}
    assert page_looks(["home-made"])["home-made"]["marker"] == "x"
    with pytest.raises(UnknownName, match="home-made"):
        model_class("home-mad")


def test_each_class_has_the_name_of_its_entry_and_is_public() -> None:
    for name, info in MODELS.items():
        loaded = info.load()
        public = powerphase if info.needs_store else powerphase.models
        assert loaded.name == name == info.name
        assert getattr(public, loaded.__name__) is loaded


def test_each_config_is_public() -> None:
    for info in MODELS.values():
        config = None if info.needs_store else getattr(info.load()(), "config", None)
        if is_dataclass(config):
            kind = type(config)
            assert getattr(powerphase.models, kind.__name__) is kind


def test_the_registry_loads_no_model() -> None:
    code = "import sys, powerphase.registry; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ)
    loaded = set(done.stdout.split())
    assert "powerphase.registry" in loaded
    assert not {"torch", "numpy", "powerphase.models"} & loaded
