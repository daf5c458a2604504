"""What the Triton kernels of all models share, and who chooses between them and PyTorch."""
