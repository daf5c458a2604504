"""PyTorch's attention, whose gradients are the same each time.

On a GPU its backward pass adds up gradients of queries in whatever order they come, unless PyTorch
is in its deterministic mode. That mode asks for much else, matrix products with a setting of the
environment among it, so it is switched on for this one step of a backward pass alone.
"""

from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

REPEATABLE = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""All kinds but cuDNN's, which has no such mode."""
NODE = "ScaledDotProduct"
"""How the steps of a backward pass begin that are attention's own; plain products have no need."""


def attended(
    query: Float[Tensor, "N heads asked size"],
    key: Float[Tensor, "N heads L size"],
    value: Float[Tensor, "N heads L size"],
    mask: Bool[Tensor, "asked L"] | None = None,
    dropout: float = 0.0,
    causal: bool = False,
) -> Float[Tensor, "N heads asked size"]:
    """The values by how well their keys fit the query.

    Args:
        query: what asks.
        key: what is asked.
        value: what it has to tell.
        mask: who may see whom; None for all.
        dropout: share of weights that are dropped.
        causal: whether nobody may see what is later.
    """
    with sdpa_kernel(REPEATABLE):
        found = F.scaled_dot_product_attention(query, key, value, mask, dropout, causal)
    if found.grad_fn is not None and found.grad_fn.name().startswith(NODE):
        _Strictly().within(found.grad_fn)
    return found


class _Strictly:
    """PyTorch's deterministic mode, for one step of a backward pass."""

    def __init__(self) -> None:
        self._before = 0

    def within(self, node: Any) -> None:
        """Switch it on before this step, and back after it."""
        node.register_prehook(self._begin)
        node.register_hook(self._end)

    def _begin(self, slopes: object) -> None:
        self._before = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode("error")

    def _end(self, found: object, slopes: object) -> None:
        torch.set_deterministic_debug_mode(self._before)
