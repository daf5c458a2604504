"""ETS: exponential smoothing of every channel with level, trend and season (Holt-Winters)."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
