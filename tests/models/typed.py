"""Accessors of forecasters whose results are known not to be optional."""

from pathlib import Path
from typing import Any, TypeVar

from powerphase.models import Network, NeuralForecaster, SavedForecaster
from powerphase.scenarios import Context, Scenarios

Model = TypeVar("Model", bound=SavedForecaster)


def reload(model: Model) -> Model:
    """The model, loaded from its run folder."""
    return type(model).load(run_of(model))


def scenarios_of(model: SavedForecaster, context: Context) -> Scenarios:
    """The forecast of a model that returns all channels at once."""
    scenarios = model.predict(context)
    assert isinstance(scenarios, Scenarios)
    return scenarios


def run_of(model: SavedForecaster) -> Path:
    """The run folder of a model that has one."""
    assert model.run is not None
    return model.run


def outcome_of(model: SavedForecaster) -> dict[str, Any]:
    """The outcome of a finished fit."""
    assert model.outcome is not None
    return model.outcome


def network_of(model: NeuralForecaster) -> Network:
    """The network of a model that has been trained."""
    assert model.network is not None
    return model.network
