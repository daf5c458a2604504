"""Probabilistic forecasting of whole power grids.

    import powerphase as pp

    store = pp.generate("activsg500", out="data/activsg500")
    voltage = store.read(time="2016-07-01", bus=1, variable="V")

Names are loaded when they are first used, so importing the package costs next to nothing.
"""

from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from powerphase.dataset.certificate import Certificate as Certificate
    from powerphase.dataset.certificate import verify as verify
    from powerphase.dataset.generation import generate as generate
    from powerphase.dataset.store import Store as Store
    from powerphase.dataset.store import open_store as open
    from powerphase.errors import PowerphaseError as PowerphaseError
    from powerphase.grid.case import Grid as Grid
    from powerphase.grid.catalog import load_grid as load_grid
    from powerphase.synthesis.signals import Signals as Signals
    from powerphase.synthesis.sources import load_signals as load_signals

_HOMES = {
    "Certificate": "powerphase.dataset.certificate",
    "Grid": "powerphase.grid.case",
    "PowerphaseError": "powerphase.errors",
    "Signals": "powerphase.synthesis.signals",
    "Store": "powerphase.dataset.store",
    "generate": "powerphase.dataset.generation",
    "load_grid": "powerphase.grid.catalog",
    "load_signals": "powerphase.synthesis.sources",
    "open": "powerphase.dataset.store:open_store",
    "verify": "powerphase.dataset.certificate",
}
"""The public names and where they live."""

__all__ = [
    "Certificate",
    "Grid",
    "PowerphaseError",
    "Signals",
    "Store",
    "generate",
    "load_grid",
    "load_signals",
    "open",
    "verify",
]
__version__ = version("powerphase")


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'powerphase' has no attribute {name!r}")
    module, _, attribute = _HOMES[name].partition(":")
    return getattr(import_module(module), attribute or name)


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
