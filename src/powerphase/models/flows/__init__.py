"""TempFlow and Transformer-TempFlow: an encoder with a conditional RealNVP over all channels."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
