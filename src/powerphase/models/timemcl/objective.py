"""The scores' part of the loss."""

import torch
from jaxtyping import Float
from torch import Tensor


def cross_entropy(likely: Float[Tensor, "B M"], won: Float[Tensor, "B M"]) -> Float[Tensor, ""]:
    """Binary cross-entropy of how likely each hypothesis was to win, mean over all.

    As PyTorch's own where nothing is certain. Of what is, gradients are 0; and numbers that are
    none are handed on to whoever checks the loss, where PyTorch's ends the process of a GPU.
    """
    limits = torch.finfo(likely.dtype)
    likely = likely.clamp(limits.tiny, 1 - limits.eps)
    return -(won * likely.log() + (1 - won) * (-likely).log1p()).mean()
