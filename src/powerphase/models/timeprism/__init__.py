"""TimePrism: each channel by itself, with hundreds of weighted hypotheses."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
