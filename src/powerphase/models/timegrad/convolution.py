"""A convolution along channels as a few matrix products.

Features are rows of a matrix, and all channels of all windows one long row of its columns. A tap of
a convolution is then one product of that matrix, shifted, with a small one. At the ends of a window
the next one is mixed in; those columns are halo, and nobody reads them.
"""

from math import sqrt
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn


class Filter(nn.Module):
    """What is learned of a convolution; it begins as PyTorch's own do.

    Args:
        n_in: features that go in.
        n_out: features that come out.
        taps: channels that it brings together, an odd number.
        dilation: how far apart they are.
    """

    def __init__(self, n_in: int, n_out: int, taps: int = 1, dilation: int = 1) -> None:
        super().__init__()
        bound = 1 / sqrt(n_in * taps)
        self.weight = nn.Parameter(torch.empty(n_out, n_in, taps).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(n_out).uniform_(-bound, bound))
        self.dilation = dilation

    def forward(self, features: Float[Tensor, "I N"]) -> Float[Tensor, "O N"]:
        """The convolution; past their ends, features are zero."""
        return convolved(features, self.weight, self.bias, self.dilation)


def convolved(
    features: Float[Tensor, "I N"],
    weight: Float[Tensor, "O I taps"],
    bias: Float[Tensor, " O"],
    dilation: int = 1,
    beside: tuple[Float[Tensor, "J N"], Float[Tensor, "O J"]] | None = None,
) -> Float[Tensor, "O N"]:
    """The convolution with an odd number of taps, so far apart.

    Args:
        features: of all columns; past their ends they are zero.
        weight: as PyTorch's convolutions have it.
        bias: of what comes out.
        dilation: columns from a tap to the next.
        beside: more features of each column and the matrix that adds them.
    """
    apply: Any = _Convolved.apply
    made: Tensor = apply(dilation, features, weight, bias, *(beside or ()))
    return made


class _Convolved(torch.autograd.Function):
    """With slopes of its own: all shifts of a slope are added where it is, and none is copied."""

    @staticmethod
    def forward(
        ctx: Any, dilation: int, features: Tensor, weight: Tensor, bias: Tensor, *beside: Tensor
    ) -> Tensor:
        ctx.save_for_backward(features, weight, *beside)
        ctx.shifts = _shifts(weight.shape[2], dilation, features.shape[1])
        made = bias[:, None].repeat(1, features.shape[1])
        for matrix, (here, there) in zip(weight.unbind(2), ctx.shifts, strict=True):
            made[:, here].addmm_(matrix, features[:, there])
        if beside:
            made.addmm_(beside[1], beside[0])
        return made

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor | None, ...]:
        features, weight, *beside = ctx.saved_tensors
        of_features, of_weight = torch.zeros_like(features), []
        for matrix, (here, there) in zip(weight.unbind(2), ctx.shifts, strict=True):
            of_features[:, there].addmm_(matrix.T, slope[:, here])
            of_weight.append(_outer(slope[:, here], features[:, there]))
        found = (None, of_features, torch.stack(of_weight, 2), slope.sum(1))
        if not beside:
            return found
        return *found, beside[1].T @ slope, _outer(slope, beside[0])


def _outer(slope: Float[Tensor, "O N"], features: Float[Tensor, "I N"]) -> Float[Tensor, "O I"]:
    # The other way round a CPU takes three times as long.
    return (features @ slope.T).T


def _shifts(taps: int, dilation: int, length: int) -> list[tuple[slice, slice]]:
    """For each tap: which columns it reaches, and from where."""
    found = []
    for tap in range(taps):
        shift = (tap - taps // 2) * dilation
        here = slice(max(0, -shift), length - max(0, shift))
        found.append((here, slice(here.start + shift, here.stop + shift)))
    return found
