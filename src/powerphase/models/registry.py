"""The forecasters that the command line knows by name."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType
from typing import Any

from powerphase.errors import UnknownName
from powerphase.models.framework.base import Forecaster

MODELS: Mapping[str, str] = MappingProxyType(
    {
        "climatology": "naive:Climatology",
        "deepar": "deepar.model:DeepAR",
        "ets": "ets.model:ETS",
        "factorforge": "factorforge.model:FactorForge",
        "last-7-days": "naive:LastSevenDays",
        "last-week": "naive:LastWeek",
        "powerforge": "powerforge.model:PowerForge",
        "tactis-2": "tactis.model:TACTiS",
        "tempflow": "flows.tempflow.model:TempFlow",
        "timegrad": "timegrad.model:TimeGrad",
        "timemcl": "timemcl.model:TimeMCL",
        "timeprism": "timeprism.model:TimePrism",
        "transformer-tempflow": "flows.transformer.model:TransformerTempFlow",
    }
)
"""Where each model lives in this package; modules are loaded when a model is asked for."""


def model_class(name: str) -> type[Any]:
    """The class of the model of that name."""
    if name not in MODELS:
        raise UnknownName.among("model", name, MODELS)
    module, _, attribute = MODELS[name].partition(":")
    found: type[Any] = getattr(import_module(f"powerphase.models.{module}"), attribute)
    return found


def make_model(name: str) -> Forecaster:
    """The model of that name with its defaults, not yet fitted."""
    made: Forecaster = model_class(name)()
    return made
