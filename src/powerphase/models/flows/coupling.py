"""A coupling: one half of the channels says how the other half is stretched and moved.

Channels meet only where a half goes into the networks, in a sum over its channels. All else is
done for some channels at a time, and made once more in the backward pass; of a half that was
moved, only its new values are kept.

What goes over all rows of a block is said here in plain PyTorch. Where it shall be `fast`, which
needs Triton and a GPU, kernels do the same in fewer passes.
"""

from copy import deepcopy
from functools import reduce
from math import sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.flows.kernels.contraction import contracted
from powerphase.models.flows.kernels.motion import moved
from powerphase.models.flows.normalisation import Affine, FlowNorm, Moments
from powerphase.models.recurrent.blocks import remade
from powerphase.models.recurrent.inputs import Given

NETWORKS = 2
"""Of a coupling: one for the scale, one for the translation."""


class Half(NamedTuple):
    """Every second channel, and what was decided about it but not carried out."""

    values: list[Given]
    """Block by block; to kernels, all in one."""
    affine: Affine
    """What they are to go through."""
    moments: Moments
    """Of the values, before that."""


class Maps(NamedTuple):
    """The last layers of both networks, for some channels."""

    weight: Float[Tensor, "2 C K"]
    bias: Float[Tensor, "2 C"]


class Moved(NamedTuple):
    """What a coupling makes of a block of channels."""

    values: Float[Tensor, "B steps C"] | None
    """None where nobody will ask for them."""
    moments: Moments
    log_determinant: Float[Tensor, ""]
    """Mean over rows."""


class Coupling(nn.Module):
    """A coupling and the normalisation after it.

    Weights that a mask of the other half would multiply by zero do not exist.

    Args:
        condition: numbers that the networks are told beside the still half.
        hidden: their width.
        n_moving: channels that are moved.
        n_still: channels that say how.
    """

    def __init__(self, condition: int, hidden: int, n_moving: int, n_still: int) -> None:
        super().__init__()
        # The layers begin as those of all inputs and channels would, and both networks alike.
        inputs = condition + n_moving + n_still
        self.known = _alike(inputs, (condition, hidden), dim=1)
        self.still = _alike(inputs, (n_still, hidden), dim=1)
        self.bias = _alike(inputs, (hidden,))
        self.scale = nn.Sequential(
            nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
        )
        layers = (deepcopy(one) if isinstance(one, nn.Linear) else nn.ReLU() for one in self.scale)
        self.shift = nn.Sequential(*layers)
        self.last_weight = _alike(hidden, (1, n_moving, hidden))
        self.last_bias = _alike(hidden, (1, n_moving))
        self.norm_moving, self.norm_still = FlowNorm(n_moving), FlowNorm(n_still)

    def forward(
        self,
        known: Float[Tensor, "B steps K"],
        moving: Half,
        still: Half,
        at_once: int,
        keep: bool,
        fast: bool = False,
    ) -> tuple[Half, Half, Float[Tensor, ""]]:
        """Both halves after it, and the log-determinant, mean over rows.

        Args:
            known: the condition of each row.
            moving: the half that is moved.
            still: the half that says how.
            at_once: channels of a block.
            keep: whether the values that are moved will be asked for.
            fast: by kernels.
        """
        inner = self._inner(known, self._contracted(still, at_once, fast))
        found = self._moved(moving, inner, at_once, keep, fast)
        moments = Moments.joined([one.moments for one in found])
        rows = known.shape[0] * known.shape[1]
        own, first = self.norm_moving(moments, rows)
        other, second = self.norm_still(still.affine.moments(still.moments), rows)
        kept = [Given((one.values,)) for one in found if one.values is not None]
        determinants = [one.log_determinant for one in found]
        left = still._replace(affine=still.affine.then(other))
        return Half(kept, own, moments), left, torch.stack(determinants).sum() + first + second

    def inverse(
        self,
        known: Float[Tensor, "B P K"],
        moving: Float[Tensor, "B P moving"],
        still: Float[Tensor, "B P still"],
    ) -> tuple[Float[Tensor, "B P moving"], Float[Tensor, "B P still"]]:
        """The halves before it, of those after it."""
        moving, still = self.norm_moving.inverse(moving), self.norm_still.inverse(still)
        inner = self._inner(known, still @ self.still)
        log_scale, shift = _told(inner, Maps(self.last_weight, self.last_bias))
        return (moving - shift) * (-log_scale).exp(), still

    def _contracted(self, still: Half, at_once: int, fast: bool) -> Float[Tensor, "B steps inner"]:
        """What the still half adds to the first layers of both networks."""
        if fast:
            return contracted(still.values[0], still.affine, self.still, at_once)

        def contract(values: Given, affine: Affine, weight: Tensor) -> Tensor:
            # Parts may be made in half precision, and must not be added up in it.
            return (affine(values.made()) @ weight).to(weight.dtype)

        own = still.affine.split(at_once), self.still.split(at_once)
        pieces = zip(still.values, *own, strict=True)
        return reduce(torch.add, remade(contract, list(pieces)))

    def _moved(
        self, moving: Half, inner: tuple[Tensor, Tensor], at_once: int, keep: bool, fast: bool
    ) -> list[Moved]:
        """The moving half after it, block by block."""
        if fast:
            (values,), weight, bias = moving.values, self.last_weight, self.last_bias
            return [Moved(*moved(values, moving.affine, inner, weight, bias, at_once, keep))]

        def move(values: Given, affine: Affine, maps: Maps) -> Moved:
            return _moved_block(affine(values.made()), _told(inner, maps), keep)

        own = moving.affine.split(at_once), self._maps(at_once)
        pieces = zip(moving.values, *own, strict=True)
        return list(remade(move, list(pieces)))

    def _inner(
        self, known: Float[Tensor, "B rows K"], still: Float[Tensor, "B rows inner"]
    ) -> tuple[Float[Tensor, "B rows hidden"], Float[Tensor, "B rows hidden"]]:
        """What the last layers are given: of the scale, of the translation."""
        first = known @ self.known + self.bias + still
        scale, shift = first.chunk(NETWORKS, dim=2)
        return self.scale(scale), self.shift(shift)

    def _maps(self, at_once: int) -> list[Maps]:
        """The last layers for some channels after others."""
        weights, biases = self.last_weight.split(at_once, 1), self.last_bias.split(at_once, 1)
        return [Maps(*part) for part in zip(weights, biases, strict=True)]


def _alike(inputs: int, size: tuple[int, ...], dim: int = 0) -> nn.Parameter:
    """Weights of two layers with so many inputs, side by side, that begin as the same one."""
    begun = torch.empty(size).uniform_(-1 / sqrt(inputs), 1 / sqrt(inputs))
    return nn.Parameter(torch.cat([begun] * NETWORKS, dim=dim))


def _told(inner: tuple[Tensor, Tensor], maps: Maps) -> tuple[Tensor, Tensor]:
    """Logarithm of the scale, and the translation, of the channels of these maps."""
    log_scale, shift = map(F.linear, inner, maps.weight, maps.bias)
    return torch.tanh(log_scale), shift


def _moved_block(
    values: Float[Tensor, "B steps C"], told: tuple[Tensor, Tensor], keep: bool
) -> Moved:
    log_scale, shift = told
    log_scale = log_scale.to(values)  # its sum over rows needs all digits
    values = values * log_scale.exp() + shift
    rows = values.shape[0] * values.shape[1]
    return Moved(values if keep else None, Moments.of(values), log_scale.sum() / rows)
