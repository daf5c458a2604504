"""The network: an encoder of tokens, and the margins of those that are asked for."""

from collections.abc import Iterator
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from powerphase.models.base import Prediction
from powerphase.models.recurrent.blocks import blocks, summed
from powerphase.models.sampling import window_generators
from powerphase.models.tactis.config import TactisConfig
from powerphase.models.tactis.encoder import Encoder
from powerphase.models.tactis.margins import Margins
from powerphase.models.tactis.tokens import draw_bags, scale_of
from powerphase.models.training import Losses
from powerphase.scenarios import Batches, Context, Scenarios

ANSWER_CHANNELS = 1024
"""Channels whose draws are made together. Always the same: the noise is drawn for so many."""

Input = tuple[Float[Tensor, "B T K"], Float[Tensor, "B H K"], Int[Tensor, "B K"]]
"""Past and target of each window's bag of channels, and which they are."""


class TactisNetwork(nn.Module):
    """TACTiS-2 for one grid.

    Args:
        config: all constants.
        n_channels: channels of the grid, C.
        context_steps: steps before each window, T.
        horizon: steps to forecast, H.
        channel_block: how many channels of all windows together to work on at a time. It computes
            the same, with less memory.
    """

    criterion: ClassVar[str] = "loss"

    def __init__(
        self,
        config: TactisConfig,
        n_channels: int,
        context_steps: int,
        horizon: int,
        channel_block: int | None = None,
    ) -> None:
        super().__init__()
        self.config, self.n_channels, self.horizon = config, n_channels, horizon
        self.channel_block = channel_block
        self.encoder = Encoder(config, n_channels, context_steps, horizon)
        self.margins = Margins(config)

    def prepare(self, batches: Batches) -> None:
        """Nothing is measured before the first step."""

    def forward(self, context: Context, target: Float[Tensor, "B H C"]) -> Losses:
        """The loss of a batch, and its parts; of one bag of each window, or of several to judge."""
        if self.training:
            return self.losses(*self.inputs(context, target))
        inputs = (self.inputs(context, target) for _ in range(self.config.validation_bags))
        found = [self.losses(*one) for one in inputs]
        parts = {name: torch.stack([one.parts[name] for one in found]) for name in found[0].parts}
        means = {name: values.mean() for name, values in parts.items()}
        return Losses(torch.stack([one.loss for one in found]).mean(), means)

    def inputs(self, context: Context, target: Float[Tensor, "B H C"]) -> Input:
        """A random bag of channels of each window."""
        n_windows, _, n_channels = target.shape
        series = draw_bags(n_windows, n_channels, self.config.bag, target.device)
        past, future = (
            values.gather(2, series[:, None].expand(-1, values.shape[1], -1))
            for values in (context.past, target)
        )
        return past, future, series

    def losses(
        self,
        past: Float[Tensor, "B T K"],
        target: Float[Tensor, "B H K"],
        series: Int[Tensor, "B K"],
    ) -> Losses:
        """Minus the log-likelihood of a bag's tokens by their margins, divided by its channels.

        It never waits for the device, so that a GPU can replay it. The values are normalised; the
        likelihood of the values themselves differs by a constant, the logarithms of their scales.
        """
        n_windows, n_series = series.shape
        scale = scale_of(past, self.config.least_scale)
        before, after = scale.normalised(past), scale.normalised(target)

        def surprise(here: slice) -> Float[Tensor, ""]:
            known = self.encoder(before[here], series[here], self.horizon)
            return -self.margins(known).log_density(after[here]).sum()

        at_once = max(1, (self.channel_block or series.numel()) // n_series)
        total = summed(surprise, ((here,) for here in blocks(n_windows, at_once)))
        floored = scale.deviation <= self.config.least_scale
        parts = {
            "per token": total.detach() / after.numel(),
            "largest input": torch.maximum(before.abs().amax(), after.abs().amax()),
            "constant channels": floored.to(past).mean(),
        }
        return Losses(total / (n_windows * n_series), parts)

    @torch.no_grad()
    def scenarios(self, context: Context, seed: int) -> Prediction:
        """Paths of equal weight; of one window of a large grid, block by block of channels."""
        generators = window_generators(seed, context.time, context.past.device)
        if len(generators) == 1 and self.n_channels > ANSWER_CHANNELS:
            pieces = self._answer(context.past, generators[0])
            return ((here, Scenarios.equal(values)) for here, values in pieces)
        found = []
        for past, generator in zip(context.past.split(1), generators, strict=True):
            found.append(torch.cat([one for _, one in self._answer(past, generator)], dim=3))
        return Scenarios.equal(torch.cat(found))

    @torch.no_grad()
    def _answer(
        self, past: Float[Tensor, "1 T C"], generator: torch.Generator
    ) -> Iterator[tuple[slice, Float[Tensor, "1 M H c"]]]:
        """The paths of one window, some channels after others: each token by itself."""
        scale = scale_of(past, self.config.least_scale)
        series = torch.arange(self.n_channels, device=past.device)[None]
        known = self.encoder(scale.normalised(past), series, self.horizon, self.channel_block)[0]
        least, paths = self.config.tail, self.config.paths
        for here in blocks(self.n_channels, ANSWER_CHANNELS):
            size = (here.stop - here.start, self.horizon, paths)
            u = torch.rand(size, generator=generator, device=past.device, dtype=past.dtype)
            u = least + (1 - 2 * least) * u
            z = self.margins.draws(known[here].flatten(0, 1), u.flatten(0, 1)).unflatten(
                0, size[:2]
            )
            mean, deviation = (part[0, here, None, None] for part in scale)
            yield here, (mean + deviation * z).permute(2, 1, 0)[None]
