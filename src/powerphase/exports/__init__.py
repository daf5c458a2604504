"""Joint scenarios in the formats of the programs that use them; `export` is in `powerphase`."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
