"""Without a GPU, kernels are tested in Triton's interpreter; it is told before Triton is loaded."""

import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
