"""TimeMCL: an LSTM with several hypotheses of every step, trained by multiple-choice learning."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
