"""What models share: base classes, configs, the training loop, checkpoints, kernels."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
