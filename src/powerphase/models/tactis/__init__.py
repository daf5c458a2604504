"""TACTiS-2: a transformer over tokens that learns their marginals, then a copula."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
