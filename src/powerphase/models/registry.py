"""The forecasters that the command line knows by name."""

from collections.abc import Mapping
from importlib import import_module
from types import MappingProxyType

from powerphase.errors import UnknownName
from powerphase.models.base import Forecaster

MODELS: Mapping[str, str] = MappingProxyType(
    {
        "climatology": "naive:Climatology",
        "last-7-days": "naive:LastSevenDays",
        "last-week": "naive:LastWeek",
    }
)
"""Where each model lives in this package; modules are loaded when a model is asked for."""


def make_model(name: str) -> Forecaster:
    """The model of that name, not yet fitted."""
    if name not in MODELS:
        raise UnknownName.among("model", name, MODELS)
    module, _, attribute = MODELS[name].partition(":")
    made: Forecaster = getattr(import_module(f"powerphase.models.{module}"), attribute)()
    return made
