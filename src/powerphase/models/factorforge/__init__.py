"""FactorForge: forecasts a few factors by regression and maps them to every channel."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
