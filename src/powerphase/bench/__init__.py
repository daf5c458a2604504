"""A bench: every combination of grid, model and seed, from a request to scored rows."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
