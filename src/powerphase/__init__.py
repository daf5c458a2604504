"""Probabilistic forecasting of whole power grids.

    import powerphase as pp

    store = pp.generate("activsg500", out="data/activsg500")
    task = pp.Task(store)
    print(pp.score(pp.forecast(pp.models.LastWeek(), task), task))

Names are loaded when they are first used, so importing the package costs next to nothing.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from powerphase import models as models
    from powerphase.dataset.certificate import Certificate as Certificate
    from powerphase.dataset.certificate import verify as verify
    from powerphase.dataset.generation import generate as generate
    from powerphase.dataset.store import Store as Store
    from powerphase.dataset.store import open_store as open
    from powerphase.errors import PowerphaseError as PowerphaseError
    from powerphase.evaluation.forecasting import Forecast as Forecast
    from powerphase.evaluation.forecasting import forecast as forecast
    from powerphase.evaluation.forecasting import load_forecast as load_forecast
    from powerphase.evaluation.oracle import Oracle as Oracle
    from powerphase.evaluation.outlook import Outlook as Outlook
    from powerphase.evaluation.outlook import outlook as outlook
    from powerphase.evaluation.physical import physical as physical
    from powerphase.evaluation.scoring import Evaluation as Evaluation
    from powerphase.evaluation.scoring import score as score
    from powerphase.grid.case import Grid as Grid
    from powerphase.grid.catalog import load_grid as load_grid
    from powerphase.records.result import Result as Result
    from powerphase.records.result import read_results as read_results
    from powerphase.report.leaderboard import leaderboard as leaderboard
    from powerphase.scenarios import Context as Context
    from powerphase.scenarios import Layout as Layout
    from powerphase.scenarios import Scenarios as Scenarios
    from powerphase.scenarios import Training as Training
    from powerphase.synthesis.signals import Signals as Signals
    from powerphase.synthesis.sources import load_signals as load_signals
    from powerphase.task.windows import Task as Task

_HOMES = {
    "Certificate": "powerphase.dataset.certificate",
    "Context": "powerphase.scenarios",
    "Evaluation": "powerphase.evaluation.scoring",
    "Forecast": "powerphase.evaluation.forecasting",
    "Grid": "powerphase.grid.case",
    "Layout": "powerphase.scenarios",
    "Oracle": "powerphase.evaluation.oracle",
    "Outlook": "powerphase.evaluation.outlook",
    "PowerphaseError": "powerphase.errors",
    "Result": "powerphase.records.result",
    "Scenarios": "powerphase.scenarios",
    "Signals": "powerphase.synthesis.signals",
    "Store": "powerphase.dataset.store",
    "Task": "powerphase.task.windows",
    "Training": "powerphase.scenarios",
    "forecast": "powerphase.evaluation.forecasting",
    "generate": "powerphase.dataset.generation",
    "leaderboard": "powerphase.report.leaderboard",
    "load_forecast": "powerphase.evaluation.forecasting",
    "load_grid": "powerphase.grid.catalog",
    "load_signals": "powerphase.synthesis.sources",
    "models": "powerphase.models",
    "open": "powerphase.dataset.store:open_store",
    "outlook": "powerphase.evaluation.outlook",
    "physical": "powerphase.evaluation.physical",
    "read_results": "powerphase.records.result",
    "score": "powerphase.evaluation.scoring",
    "verify": "powerphase.dataset.certificate",
}
"""The public names and where they live."""

__all__ = [
    "Certificate",
    "Context",
    "Evaluation",
    "Forecast",
    "Grid",
    "Layout",
    "Oracle",
    "Outlook",
    "PowerphaseError",
    "Result",
    "Scenarios",
    "Signals",
    "Store",
    "Task",
    "Training",
    "forecast",
    "generate",
    "leaderboard",
    "load_forecast",
    "load_grid",
    "load_signals",
    "models",
    "open",
    "outlook",
    "physical",
    "read_results",
    "score",
    "verify",
]
__version__ = version("powerphase")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'powerphase' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    home = import_module(module)
    return home if name == "models" else getattr(home, attribute or name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
