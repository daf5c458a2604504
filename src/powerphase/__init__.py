"""Probabilistic forecasting of whole power grids.

    import powerphase as pp

    store = pp.generate("activsg500", out="data/activsg500")
    task = pp.Task(store)
    print(pp.score(pp.forecast(pp.models.LastWeek(), task), task))

Names are loaded when they are first used, so importing the package costs next to nothing.
"""

from importlib.metadata import version

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
__version__ = version("powerphase")
