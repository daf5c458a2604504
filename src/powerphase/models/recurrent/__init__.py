"""What all forecasters with lagged inputs share: inputs, encoder, rollout, blocks of channels."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
