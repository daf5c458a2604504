"""PowerForge, the paper's forecaster: ordered quantile scenarios around a reference day."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
