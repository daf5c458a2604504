"""Forecasters. `powerphase.models.LastWeek()` and its like are loaded when first used."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
