"""TimeGrad: an LSTM with a diffusion model over all channels at every step."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
