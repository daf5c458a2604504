"""What models are given, `Layout`, `Training` and `Context`, and what they return, `Scenarios`."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
