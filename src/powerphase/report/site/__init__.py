"""A static site from result rows, which a browser opens without a server or a network."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
