"""Files that outlast a process: forecasts, result rows, failures, and the table of scores."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
