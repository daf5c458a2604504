"""The passes over contexts and scenarios, as Triton kernels and in plain PyTorch.

Scenarios are by far the largest tensors of PowerForge, and contexts the second largest, so both are
read and written as rarely as possible. Every pass has an argument `fast`: it selects the kernel, or
else the same computation in a few lines of PyTorch, which is what tests compare the kernel with.
"""

import lazy_loader as lazy

__getattr__, __dir__, __all__ = lazy.attach_stub(__name__, __file__)
