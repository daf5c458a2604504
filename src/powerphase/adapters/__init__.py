"""Models of other libraries as forecasters; a library is imported when its model is adapted."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
