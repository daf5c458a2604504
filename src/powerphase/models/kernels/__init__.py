"""What the kernels of all models share: Triton where there is one, and who runs on it."""
