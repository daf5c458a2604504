"""Data sets: recipes, generation, files, and the certificate that states are physical."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
