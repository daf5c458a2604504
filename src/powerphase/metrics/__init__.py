"""Scores: their definitions for single points, and the only place where they are averaged."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
