"""How far all hypotheses are from what happened, without making any of them.

A hypothesis is linear in what is known: with h̃ = (h, 1) and W̃ = (W, b) it is W̃h̃, and over the steps
of a window

    Σ ‖z − W̃h̃‖² = Σ ‖z‖² − 2⟨A, W̃⟩ + ⟨H, W̃ᵀW̃⟩,   A = Σ zh̃ᵀ,   H = Σ h̃h̃ᵀ.

A and H are a window's, W̃ᵀW̃ a hypothesis's: nothing is of steps × channels × hypotheses, and the
one product as large as the data, A, does not know how many hypotheses there are. Slopes are of the
same kind. The three terms are much larger than what they leave, so z and b lose each channel's mean
first, A is made in all of float32's digits, and the rest, which is small, in float64.
"""

from collections.abc import Callable
from math import gcd
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.framework.products import exact_products

ValuesOf = Callable[[slice], Tensor]
"""From channels to a fresh tensor of their z: windows, steps, channels."""

PIECES = 24
"""Of a window's steps, if these can be divided so."""


def squared_errors(
    values_of: ValuesOf,
    parts: list[slice],
    known: Float[Tensor, "B steps K"],
    weight: Float[Tensor, "M C K"],
    bias: Float[Tensor, "M C 1"],
) -> Float[Tensor, "B M"]:
    """How far each hypothesis is: squared, summed over channels, mean over steps; in float64.

    Args:
        values_of: gives the z of a block of channels; asked for each twice if there are gradients.
        parts: the blocks.
        known: what the encoder knew before each step, h.
        weight: of all hypotheses, W.
        bias: of all hypotheses, b.
    """
    apply: Any = _SquaredErrors.apply
    found: Tensor = apply(values_of, parts, known, weight, bias)
    return found.clamp(min=0)  # what rounding leaves of nothing may be below it


class _SquaredErrors(torch.autograd.Function):
    @staticmethod
    @exact_products()
    def forward(
        ctx: Any,
        values_of: ValuesOf,
        parts: list[slice],
        known: Tensor,
        weight: Tensor,
        bias: Tensor,
    ) -> Tensor:
        told = _with_one(known, weight.dtype)
        (count, _, width), (n_windows, n_steps, _) = weight.shape, known.shape
        wide = told.double()
        own = wide.mT @ wide  # H: B K+1 K+1
        del wide
        gram = own.new_zeros(count, width + 1, width + 1)
        found = own.new_zeros(n_windows, count)
        for here in parts:
            values, plane = _centred(values_of(here), weight[:, here], bias[:, here])
            gram += plane @ plane.mT
            found += _squares(values).unsqueeze(1) - 2 * _dots((told.mT @ values).double(), plane)
        found += own.flatten(1) @ gram.flatten(1).T
        ctx.values_of, ctx.parts = values_of, parts
        ctx.save_for_backward(known, weight, bias, own, gram)
        return found.div_(n_steps)

    @staticmethod
    @exact_products()
    def backward(ctx: Any, upstream: Tensor) -> tuple[Any, ...]:
        known, weight, bias, own, gram = ctx.saved_tensors
        told, share = _with_one(known, weight.dtype), upstream * (2 / known.shape[1])
        inner = (share @ gram.flatten(1)).view_as(own)
        of_told = (told.double() @ inner).to(told.dtype)
        outer = (share.T @ own.flatten(1)).view_as(gram)
        of_weight, of_bias = torch.empty_like(weight), torch.empty_like(bias)
        for here in ctx.parts:
            values, plane = _centred(ctx.values_of(here), weight[:, here], bias[:, here])
            pull = (share @ plane.flatten(1)).to(told.dtype).unflatten(1, plane.shape[1:])
            of_told.baddbmm_(values, pull.mT, alpha=-1)
            side = (told.mT @ values).double()
            slope = torch.baddbmm((share.T @ side.flatten(1)).view_as(plane), outer, plane, beta=-1)
            of_weight[:, here], of_bias[:, here] = slope[:, :-1].mT, slope[:, -1:].mT
        return None, None, of_told[..., :-1].to(known.dtype), of_weight, of_bias


def _with_one(known: Tensor, dtype: torch.dtype) -> Tensor:
    """h̃: B steps K+1."""
    return F.pad(known.to(dtype), (0, 1), value=1.0)


def _centred(values: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """Z less each channel's mean, in its place, and W̃ᵀ less the same: M K+1 C."""
    centre = values.mean((0, 1))
    plane = torch.cat([weight.double(), bias.double() - centre.double().unsqueeze(1)], dim=2)
    return values.sub_(centre), plane.mT.contiguous()


def _squares(values: Tensor) -> Tensor:
    """The sum of each window's squares, as norms: squares would be a copy of all z.

    Of a few steps each: one after another, hundreds of squares would lose digits in float32.
    """
    pieces = values.unflatten(1, (gcd(values.shape[1], PIECES), -1))
    return torch.linalg.vector_norm(pieces, dim=2).double().square().sum((1, 2))


def _dots(side: Tensor, plane: Tensor) -> Tensor:
    """⟨A, W̃⟩ of all windows and hypotheses: row by row, or few would share a very long sum."""
    return torch.bmm(side.movedim(1, 0), plane.movedim(1, 0).mT).sum(0)
