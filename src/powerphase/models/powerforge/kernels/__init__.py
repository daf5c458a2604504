"""The passes over whole weeks and scenarios, as Triton kernels and, beside them, in plain PyTorch.

Scenarios are by far the largest thing in PowerForge, and the weeks before them the second, so both
are touched as rarely as can be. Every pass takes `fast`: with it a kernel runs, without it its
twin, which says the same in a few lines and is what the kernel is tested against.
"""
