"""The scores' part of the loss."""

from jaxtyping import Float
from torch import Tensor


def cross_entropy(likely: Float[Tensor, "B M"], won: Float[Tensor, "B M"]) -> Float[Tensor, ""]:
    """Binary cross-entropy of how likely each hypothesis was to win, mean over all.

    As PyTorch's own, but for one thing: numbers that are none are handed on to whoever checks the
    loss, where that one ends the process of a GPU.
    """
    certain = likely.log().clamp(min=-100), (-likely).log1p().clamp(min=-100)
    return -(won * certain[0] + (1 - won) * certain[1]).mean()
