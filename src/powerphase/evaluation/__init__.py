"""From a model and a task to a forecast, and from a forecast to a scored row.

The functions `physical` and `outlook` are exported by `powerphase` itself.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
