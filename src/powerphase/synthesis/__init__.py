"""Synthesis: the national signals, and the injections at every bus that follow from them."""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
