"""The network: an encoder of tokens, the margins of those that are asked for, and a copula."""

from collections.abc import Iterator
from functools import reduce

import torch
from jaxtyping import Float, Int
from torch import Tensor

from powerphase.models.framework.base import Prediction
from powerphase.models.framework.network import CapturableNetwork, Losses
from powerphase.models.framework.sampling import window_generators
from powerphase.models.recurrent.blocks import blocks, remade
from powerphase.models.tactis.config import TactisConfig
from powerphase.models.tactis.copula import Copula
from powerphase.models.tactis.encoder import Encoder, draw_bags, scale_of
from powerphase.models.tactis.margins import Margins
from powerphase.scenarios import Context, Scenarios

ANSWER_CHANNELS = 1024
"""Channels whose draws are made together. Always the same: the noise is drawn for so many."""

Input = tuple[
    Float[Tensor, "B T K"], Float[Tensor, "B H K"], Int[Tensor, "B K"], Int[Tensor, "B N"]
]
"""Past and target of each window's bag of channels, which they are, and an order of its tokens."""


class TactisNetwork(CapturableNetwork):
    """TACTiS-2 for one grid.

    Args:
        config: all constants.
        n_channels: channels of the grid, C.
        context_steps: steps before each window, T.
        horizon: steps to forecast, H.
        channel_block: how many channels of all windows together to work on at a time. It computes
            the same, with less memory.
    """

    criterion = "loss"
    joint: Tensor

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
        self.learns_copula = False
        if config.copula:
            self.copula = Copula(config, n_channels, context_steps, horizon)
            self.register_buffer("joint", torch.zeros((), dtype=torch.int64))
            self.enter(0)

    @property
    def stages(self) -> tuple[int, ...]:
        """Epochs of margins alone, where the copula follows."""
        return (self.config.margin_epochs,) if self.config.copula else ()

    def enter(self, stage: int) -> None:
        """Learn the margins, 0, or with them frozen the copula, 1; weights tell which they are."""
        self.learns_copula = stage > 0
        self.joint.fill_(stage)
        for name, one in self.named_parameters():
            one.requires_grad_(name.startswith("copula.") == self.learns_copula)

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
        # Also where nobody asks for it: judged margins must see the same bags in both stages.
        size = (n_windows, series.shape[1] * self.horizon if self.config.copula else 0)
        return past, future, series, torch.rand(size, device=target.device).argsort(1)

    def losses(
        self,
        past: Float[Tensor, "B T K"],
        target: Float[Tensor, "B H K"],
        series: Int[Tensor, "B K"],
        order: Int[Tensor, "B N"],
    ) -> Losses:
        """Minus the log-likelihood of a bag's tokens, divided by the number of its channels.

        It never waits for the device, so that a GPU can replay it. The values are normalised; the
        likelihood of the values themselves differs by a constant, the logarithms of their scales.
        """
        n_windows, n_series = series.shape
        scale = scale_of(past, self.config.least_scale)
        before, after = scale.normalised(past), scale.normalised(target)

        def surprise(here: slice) -> Float[Tensor, " 2"]:
            return self._surprise(before[here], after[here], series[here], order[here])

        at_once = max(1, (self.channel_block or series.numel()) // n_series)
        pieces = [(here,) for here in blocks(n_windows, at_once)]
        total = reduce(torch.add, remade(surprise, pieces))
        floored = scale.deviation <= self.config.least_scale
        parts = {
            "per token": total.detach().sum() / after.numel(),
            **({"copula": total[1].detach() / series.numel()} if self.config.copula else {}),
            "largest input": torch.maximum(before.abs().amax(), after.abs().amax()),
            "constant channels": floored.to(past).mean(),
        }
        return Losses(total.sum() / series.numel(), parts)

    def _surprise(
        self,
        past: Float[Tensor, "B K T"],
        target: Float[Tensor, "B K H"],
        series: Int[Tensor, "B K"],
        order: Int[Tensor, "B N"],
    ) -> Float[Tensor, " 2"]:
        """Minus the log-likelihood by margins, and what the copula adds to it."""
        if not self.learns_copula:
            known = self.encoder(past, series, self.horizon)
            alone = -self.margins(known).log_density(target).sum()
            return torch.stack([alone, torch.zeros_like(alone)])
        values = torch.cat([past, target], dim=2)
        with torch.no_grad():
            margin = self.margins(self.encoder(past, series, values.shape[2]))
            u, alone = margin.distribution(values), -margin.log_density(values)
        together = -self.copula(past, series, u.to(past), order)
        return torch.stack([alone[..., -self.horizon :].sum(), together.sum()])

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
        """The paths of one window, some channels after others."""
        scale = scale_of(past, self.config.least_scale)
        before, least = scale.normalised(past), self.config.tail
        known, levels = self._known(before), self._levels(before, generator)
        for here, u in zip(blocks(self.n_channels, ANSWER_CHANNELS), levels, strict=True):
            u = least + (1 - 2 * least) * u
            z = self.margins.draws(known[here].flatten(0, 1), u.flatten(0, 1)).view_as(u)
            mean, deviation = (part[0, here, None, None] for part in scale)
            yield here, (mean + deviation * z).permute(2, 1, 0)[None]

    def _known(self, past: Float[Tensor, "1 C T"], whole: bool = False) -> Float[Tensor, "C n w"]:
        """What the margins' encoder knows of the horizon of all channels, or of the context too."""
        series = torch.arange(self.n_channels, device=past.device)[None]
        asked = self.horizon + (past.shape[2] if whole else 0)
        return self.encoder(past, series, asked, self.channel_block)[0]

    def _levels(
        self, past: Float[Tensor, "1 C T"], generator: torch.Generator
    ) -> Iterator[Float[Tensor, "c H M"]]:
        """Where in their margins the paths are: independent, or as the copula has it."""
        shape, device = (self.horizon, self.config.paths), past.device
        if self.config.copula and int(self.joint):
            yield from self._dependent(past, generator).split(ANSWER_CHANNELS)
            return
        for here in blocks(self.n_channels, ANSWER_CHANNELS):
            size = (here.stop - here.start, *shape)
            yield torch.rand(size, generator=generator, device=device, dtype=past.dtype)

    def _dependent(
        self, past: Float[Tensor, "1 C T"], generator: torch.Generator
    ) -> Float[Tensor, "C H M"]:
        """Levels of all tokens in a random order, one after the other."""
        device = past.device
        count = self.n_channels * self.horizon
        order = torch.randperm(count, generator=generator, device=device)
        size = (count, self.config.paths)
        noise = torch.rand(size, generator=generator, device=device, dtype=past.dtype)
        known = self._known(past, whole=True)[None, :, : past.shape[2]]
        u = self.margins(known).distribution(past)
        drawn = self.copula.draw(past, u, order, noise)
        return drawn.unflatten(0, (self.n_channels, self.horizon))
