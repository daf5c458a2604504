"""Squared distance of all hypotheses from the truth, without computing any hypothesis.

A hypothesis is linear in the hidden state h: with h̃ = (h, 1) and W̃ = (W, b) it is W̃h̃, and over the
steps of a window

    Σ ‖z − W̃h̃‖² = Σ ‖z‖² − 2⟨A, W̃⟩ + ⟨H, W̃ᵀW̃⟩,   A = Σ zh̃ᵀ,   H = Σ h̃h̃ᵀ.

A and H belong to a window and W̃ᵀW̃ to a hypothesis, so no tensor has the size steps × channels ×
hypotheses. The only product as large as the data, A, does not depend on the number of hypotheses.
The gradients have the same form. The three terms are much larger than their sum. Therefore each
channel's mean is subtracted from z and b first, A is computed with the full precision of float32,
and the rest, which is small, in float64.
"""

from collections.abc import Callable
from math import gcd
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.framework.ops import exact_matmul

LoadValues = Callable[[slice], Tensor]
"""Returns a new tensor of z for a block of channels: windows, steps, channels."""

SEGMENTS = 24
"""Preferred number of segments into which the steps of a window are divided."""


def squared_errors(
    load_values: LoadValues,
    blocks: list[slice],
    hidden: Float[Tensor, "B steps K"],
    weight: Float[Tensor, "M C K"],
    bias: Float[Tensor, "M C 1"],
) -> Float[Tensor, "B M"]:
    """Squared error of each hypothesis, summed over channels, mean over steps, in float64.

    Args:
        load_values: called once for each block, and once more in the backward pass.
        blocks: the blocks of channels.
        hidden: output of the encoder before each step, h.
        weight: of all hypotheses, W.
        bias: of all hypotheses, b.
    """
    apply: Any = _SquaredErrors.apply
    errors: Tensor = apply(load_values, blocks, hidden, weight, bias)
    return errors.clamp(min=0)  # rounding may leave a perfect fit slightly below 0


class _SquaredErrors(torch.autograd.Function):
    @staticmethod
    @exact_matmul()
    def forward(
        ctx: Any,
        load_values: LoadValues,
        blocks: list[slice],
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor,
    ) -> Tensor:
        augmented = _append_one(hidden, weight.dtype)
        (count, _, width), (n_windows, n_steps, _) = weight.shape, hidden.shape
        double = augmented.double()
        hidden_gram = double.mT @ double  # H: B K+1 K+1
        del double
        weight_gram = hidden_gram.new_zeros(count, width + 1, width + 1)
        errors = hidden_gram.new_zeros(n_windows, count)
        for block in blocks:
            values, weights = _centre(load_values(block), weight[:, block], bias[:, block])
            weight_gram += weights @ weights.mT
            moments = (augmented.mT @ values).double()  # A: B K+1 C
            errors += _sum_squares(values).unsqueeze(1) - 2 * _inner_products(moments, weights)
        errors += hidden_gram.flatten(1) @ weight_gram.flatten(1).T
        ctx.load_values, ctx.blocks = load_values, blocks
        ctx.save_for_backward(hidden, weight, bias, hidden_gram, weight_gram)
        return errors.div_(n_steps)

    @staticmethod
    @exact_matmul()
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        hidden, weight, bias, hidden_gram, weight_gram = ctx.saved_tensors
        augmented, factor = _append_one(hidden, weight.dtype), upstream * (2 / hidden.shape[1])
        by_window = (factor @ weight_gram.flatten(1)).view_as(hidden_gram)
        grad_augmented = (augmented.double() @ by_window).to(augmented.dtype)
        by_hypothesis = (factor.T @ hidden_gram.flatten(1)).view_as(weight_gram)
        grad_weight, grad_bias = torch.empty_like(weight), torch.empty_like(bias)
        for block in ctx.blocks:
            values, weights = _centre(ctx.load_values(block), weight[:, block], bias[:, block])
            mixed = (factor @ weights.flatten(1)).to(augmented.dtype)
            grad_augmented.baddbmm_(values, mixed.unflatten(1, weights.shape[1:]).mT, alpha=-1)
            moments = (augmented.mT @ values).double()
            moments = (factor.T @ moments.flatten(1)).view_as(weights)
            gradient = torch.baddbmm(moments, by_hypothesis, weights, beta=-1)
            grad_weight[:, block], grad_bias[:, block] = gradient[:, :-1].mT, gradient[:, -1:].mT
        return None, None, grad_augmented[..., :-1].to(hidden.dtype), grad_weight, grad_bias


def _append_one(hidden: Tensor, dtype: torch.dtype) -> Tensor:
    """h̃: B steps K+1."""
    return F.pad(hidden.to(dtype), (0, 1), value=1.0)


def _centre(values: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Subtract each channel's mean from z, in place, and from W̃ᵀ: M K+1 C."""
    mean = values.mean((0, 1))
    weights = torch.cat([weight.double(), bias.double() - mean.double().unsqueeze(1)], dim=2)
    return values.sub_(mean), weights.mT.contiguous()


def _sum_squares(values: Tensor) -> Tensor:
    """Sum of squares of each window, by norms: squaring would copy all z.

    In segments of a few steps: a float32 sum of hundreds of squares would lose digits.
    """
    segments = values.unflatten(1, (gcd(values.shape[1], SEGMENTS), -1))
    return torch.linalg.vector_norm(segments, dim=2).double().square().sum((1, 2))


def _inner_products(moments: Tensor, weights: Tensor) -> Tensor:
    """⟨A, W̃⟩ of all windows and hypotheses, row by row: one long sum would parallelise badly."""
    return torch.bmm(moments.movedim(1, 0), weights.movedim(1, 0).mT).sum(0)
