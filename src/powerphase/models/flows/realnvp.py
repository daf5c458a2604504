"""Conditional RealNVP: couplings between the values of all channels and independent noise.

A row, a step of a window, is one sample of all channels given a condition. Channels are first
standardised by fixed numbers; then even and odd channels take turns in being transformed, starting
with the even ones. A coupling reads one half of the channels and the condition, and predicts the
log-scale and translation of the other half.

What a coupling adds to a channel drifts by a few hundredths from one training step to the next. The
batch mean removes this drift again; running averages lag behind it. Standardised channels hardly
feel it, but an unscaled voltage, which moves by a thousandth of its size, would be lost in it.

Channels interact only in the projection of a half into the networks, which is a sum over channels.
Everything else works on blocks of channels and is recomputed in the backward pass; only the new
values of a transformed half are stored. This module has the PyTorch version of all operations over
rows × channels. With `fast`, which needs Triton and a GPU, kernels do the same in fewer passes.
"""

from copy import deepcopy
from functools import reduce
from math import log, pi, sqrt
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.flows.kernels.coupling import fused_transform
from powerphase.models.flows.kernels.projection import fused_projection
from powerphase.models.flows.kernels.tiles import channel_moments
from powerphase.models.flows.normalisation import Affine, FlowNorm
from powerphase.models.recurrent.blocks import Moments, channel_slices, map_checkpointed
from powerphase.models.recurrent.encoder import ScaledValues, input_share

NETWORKS = 2
"""Networks of a coupling: one for the log-scale, one for the translation."""
EVEN, ODD = 0, 1
HALVES = slice(EVEN, None, 2), slice(ODD, None, 2)


class ChannelHalf(NamedTuple):
    """Every second channel, with a pending affine map."""

    values: list[ScaledValues]
    """One entry per block; for kernels, a single entry with all channels."""
    affine: Affine
    """Map that is still to be applied to the values."""
    moments: Moments
    """Moments of the values before that map."""


class OutputLayers(NamedTuple):
    """Last layers of both networks, for some channels."""

    weight: Float[Tensor, "2 C K"]
    bias: Float[Tensor, "2 C"]


class TransformedBlock(NamedTuple):
    """A block of channels after a coupling."""

    values: Float[Tensor, "B steps C"] | None
    """None if nothing will read them."""
    moments: Moments
    log_determinant: Float[Tensor, ""]
    """Mean over rows."""


class Coupling(nn.Module):
    """An affine coupling and the normalisation after it.

    Weights that a mask would multiply by zero do not exist. Names of parameters are keys of saved
    checkpoints: `known` and `still` project the condition and the conditioning half.

    Args:
        condition: width of the condition.
        hidden: width of the networks.
        n_moving: channels that are transformed.
        n_still: channels that the networks read.
        reads: they start and learn as if they read so many channels; None for all.
    """

    def __init__(
        self, condition: int, hidden: int, n_moving: int, n_still: int, reads: float | None = None
    ) -> None:
        super().__init__()
        # Layers are initialised as if they had all channels as inputs, and both networks alike.
        inputs = condition + n_moving + n_still
        self.known = _twin_weights(inputs, (condition, hidden), dim=1)
        self.still = _twin_weights(inputs, (n_still, hidden), dim=1)
        self.rate_factor = input_share(reads, n_still)
        self.still.data.mul_(sqrt(self.rate_factor))
        self.bias = _twin_weights(inputs, (hidden,))
        self.scale = nn.Sequential(
            nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh(), nn.Linear(hidden, hidden), nn.Tanh()
        )
        layers = (
            deepcopy(layer) if isinstance(layer, nn.Linear) else nn.ReLU() for layer in self.scale
        )
        self.shift = nn.Sequential(*layers)
        self.last_weight = _twin_weights(hidden, (1, n_moving, hidden))
        self.last_bias = _twin_weights(hidden, (1, n_moving))
        self.norm_moving, self.norm_still = FlowNorm(n_moving), FlowNorm(n_still)

    def forward(
        self,
        condition: Float[Tensor, "B steps K"],
        moving: ChannelHalf,
        still: ChannelHalf,
        block_size: int,
        keep: bool,
        fast: bool = False,
    ) -> tuple[ChannelHalf, ChannelHalf, Float[Tensor, ""]]:
        """Both halves after the coupling, and the log-determinant, mean over rows.

        Args:
            condition: the condition of each row.
            moving: the half that is transformed.
            still: the half that the networks read.
            block_size: channels per block.
            keep: whether the transformed values will be read.
            fast: whether to use Triton kernels.
        """
        hidden = self._hidden(condition, self._project(still, block_size, fast))
        transformed = self._transform(moving, hidden, block_size, keep, fast)
        moments = Moments.concatenate([block.moments for block in transformed])
        rows = condition.shape[0] * condition.shape[1]
        moving_norm, moving_determinant = self.norm_moving(moments, rows)
        still_norm, still_determinant = self.norm_still(still.affine.moments(still.moments), rows)
        values = [
            ScaledValues((block.values,)) for block in transformed if block.values is not None
        ]
        determinant = torch.stack([block.log_determinant for block in transformed]).sum()
        return (
            ChannelHalf(values, moving_norm, moments),
            still._replace(affine=still.affine.then(still_norm)),
            determinant + moving_determinant + still_determinant,
        )

    def inverse(
        self,
        condition: Float[Tensor, "B P K"],
        moving: Float[Tensor, "B P moving"],
        still: Float[Tensor, "B P still"],
    ) -> tuple[Float[Tensor, "B P moving"], Float[Tensor, "B P still"]]:
        """The halves before the coupling, from those after it."""
        moving, still = self.norm_moving.inverse(moving), self.norm_still.inverse(still)
        hidden = self._hidden(condition, still @ self.still)
        layers = OutputLayers(self.last_weight, self.last_bias)
        log_scale, translation = _scale_and_translation(hidden, layers)
        return (moving - translation) * (-log_scale).exp(), still

    def _project(
        self, still: ChannelHalf, block_size: int, fast: bool
    ) -> Float[Tensor, "B steps inner"]:
        """Contribution of the conditioning half to the first layers of both networks."""
        if fast:
            return fused_projection(still.values[0], still.affine, self.still, block_size)

        def project(values: ScaledValues, affine: Affine, weight: Tensor) -> Tensor:
            # Products may be computed in half precision, but not accumulated in it.
            return (affine(values.compute()) @ weight).to(weight.dtype)

        weights = still.affine.split(block_size), self.still.split(block_size)
        return reduce(
            torch.add, map_checkpointed(project, list(zip(still.values, *weights, strict=True)))
        )

    def _transform(
        self,
        moving: ChannelHalf,
        hidden: tuple[Tensor, Tensor],
        block_size: int,
        keep: bool,
        fast: bool,
    ) -> list[TransformedBlock]:
        """The transformed half, block by block."""
        if fast:
            layers = OutputLayers(self.last_weight, self.last_bias)
            (values,), affine = moving.values, moving.affine
            block = fused_transform(values, affine, hidden, *layers, block_size, keep)
            return [TransformedBlock(*block)]

        def transform(
            values: ScaledValues, affine: Affine, layers: OutputLayers
        ) -> TransformedBlock:
            predicted = _scale_and_translation(hidden, layers)
            return transform_block(affine(values.compute()), *predicted, keep)

        weights = moving.affine.split(block_size), self._output_layers(block_size)
        return list(map_checkpointed(transform, list(zip(moving.values, *weights, strict=True))))

    def _hidden(
        self, condition: Float[Tensor, "B rows K"], still: Float[Tensor, "B rows inner"]
    ) -> tuple[Float[Tensor, "B rows hidden"], Float[Tensor, "B rows hidden"]]:
        """Inputs of the last layers: of the log-scale and of the translation."""
        first = condition @ self.known + self.bias + still
        scale, shift = first.chunk(NETWORKS, dim=2)
        return self.scale(scale), self.shift(shift)

    def _output_layers(self, block_size: int) -> list[OutputLayers]:
        """The last layers of consecutive blocks of channels."""
        weights, biases = self.last_weight.split(block_size, 1), self.last_bias.split(block_size, 1)
        return [OutputLayers(*layers) for layers in zip(weights, biases, strict=True)]


class RealNVP(nn.Module):
    """A conditional flow.

    Args:
        condition: width of the condition of a row, K.
        n_channels: channels, C.
        couplings: number of couplings.
        hidden: width of their networks.
        reads: couplings start and learn as if they read so many channels; None for all.
    """

    centre: Tensor
    width: Tensor

    def __init__(
        self,
        condition: int,
        n_channels: int,
        couplings: int,
        hidden: int,
        reads: float | None = None,
    ) -> None:
        super().__init__()
        self.n_channels = n_channels
        sizes = len(range(EVEN, n_channels, 2)), len(range(ODD, n_channels, 2))
        self.couplings = nn.ModuleList(
            Coupling(condition, hidden, sizes[k % 2], sizes[1 - k % 2], reads)
            for k in range(couplings)
        )
        self.register_buffer("centre", torch.zeros(n_channels))
        self.register_buffer("width", torch.ones(n_channels))

    def standardise(self, moments: Moments, noise: float) -> None:
        """Standardise values with these moments, plus noise of this standard deviation.

        Without noise, a channel that never moves would have width 0.
        """
        self.centre.copy_(moments.mean)
        self.width.copy_((moments.variance + noise**2).sqrt())

    def negative_log_likelihood(
        self,
        condition: Float[Tensor, "B steps K"],
        values: ScaledValues,
        block_size: int,
        fast: bool = False,
    ) -> Float[Tensor, ""]:
        """Minus log p of the values, summed over channels, mean over rows.

        The mean square of the resulting noise follows from its moments.

        Args:
            condition: the condition of each row.
            values: the values; read again whenever they are needed.
            block_size: channels per block.
            fast: whether to use Triton kernels, which need a GPU.
        """
        affine = Affine(1 / self.width, self.centre, torch.zeros_like(self.centre))
        split = _split_for_kernels(values, affine) if fast else _split(values, affine, block_size)
        moving, still = split
        determinants, last = [-self.width.log().sum()], len(self.couplings) - 1
        for number, coupling in enumerate(self.couplings):
            keep = number < last
            still, moving, determinant = coupling(condition, moving, still, block_size, keep, fast)
            determinants.append(determinant)
        noise = [half.affine.moments(half.moments) for half in (moving, still)]
        squares = torch.stack([(m.variance + m.mean.square()).sum() for m in noise]).sum()
        return (self.n_channels * log(2 * pi) + squares) / 2 - torch.stack(determinants).sum()

    def inverse(
        self, condition: Float[Tensor, "B P K"], noise: Float[Tensor, "B P C"]
    ) -> Float[Tensor, "B P C"]:
        """The values that the flow maps to this noise, by its running averages."""
        halves = [noise[..., EVEN::2], noise[..., ODD::2]]
        for number, coupling in reversed(list(enumerate(self.couplings))):
            moving = number % 2
            assert isinstance(coupling, Coupling)
            halves[moving], halves[1 - moving] = coupling.inverse(
                condition, halves[moving], halves[1 - moving]
            )
        values = torch.empty_like(noise)
        values[..., EVEN::2], values[..., ODD::2] = halves
        return torch.addcmul(self.centre, values, self.width)


def transform_block(
    values: Float[Tensor, "B steps C"],
    log_scale: Float[Tensor, "B steps C"],
    translation: Float[Tensor, "B steps C"],
    keep: bool,
) -> TransformedBlock:
    """Scale and translate a block of channels; store its values only if `keep`."""
    log_scale = log_scale.to(values)  # its sum over rows needs all digits
    values = values * log_scale.exp() + translation
    rows = values.shape[0] * values.shape[1]
    return TransformedBlock(values if keep else None, Moments.of(values), log_scale.sum() / rows)


def _twin_weights(inputs: int, size: tuple[int, ...], dim: int = 0) -> nn.Parameter:
    """Weights of two layers with so many inputs, concatenated, with the same initial values."""
    weights = torch.empty(size).uniform_(-1 / sqrt(inputs), 1 / sqrt(inputs))
    return nn.Parameter(torch.cat([weights] * NETWORKS, dim=dim))


def _scale_and_translation(
    hidden: tuple[Tensor, Tensor], layers: OutputLayers
) -> tuple[Tensor, Tensor]:
    """Log-scale and translation of the channels of these layers."""
    log_scale, translation = map(F.linear, hidden, layers.weight, layers.bias)
    return torch.tanh(log_scale), translation


def _split(values: ScaledValues, affine: Affine, block_size: int) -> list[ChannelHalf]:
    """Even and odd channels in blocks, with the standardisation as their pending map."""
    halves = []
    for channels in HALVES:
        half = values.select(channels)
        parts = [half.select(block) for block in channel_slices(half.size[2], block_size)]
        moments = Moments.concatenate([Moments.of(part.compute()) for part in parts])
        halves.append(ChannelHalf(parts, affine.select(channels), moments))
    return halves


def _split_for_kernels(values: ScaledValues, affine: Affine) -> list[ChannelHalf]:
    """The same without blocks; one pass over all channels computes the moments."""
    moments = channel_moments(values)
    return [
        ChannelHalf(
            [values.select(channels)],
            affine.select(channels),
            Moments(*(moment[channels] for moment in moments)),
        )
        for channels in HALVES
    ]
