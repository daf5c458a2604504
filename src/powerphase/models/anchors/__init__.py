"""Statistical anchors: strong forecasters of older kinds, which any new model should beat."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
