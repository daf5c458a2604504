"""TACTiS-2: an encoder of tokens, the marginals of the forecast steps, and a copula."""

from collections.abc import Iterator
from functools import reduce
from math import ceil

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from powerphase.axes import KINDS
from powerphase.models.framework.base import Prediction
from powerphase.models.framework.device import world_size
from powerphase.models.framework.network import CapturableNetwork, Losses, Network
from powerphase.models.framework.neural import (
    ALWAYS_GIB,
    PER_PARAMETER,
    VALIDATION,
    NeuralForecaster,
    gib,
    peak_numbers,
)
from powerphase.models.framework.ops import window_generators
from powerphase.models.framework.run import Domain
from powerphase.models.framework.training import VALIDATION_SHARE
from powerphase.models.recurrent.blocks import channel_slices, map_checkpointed
from powerphase.models.tactis.config import TactisConfig
from powerphase.models.tactis.copula import Bags, Copula, draw_bags, draw_noise, forecast_bags
from powerphase.models.tactis.encoder import Encoder, context_scale
from powerphase.models.tactis.margins import Margins
from powerphase.scenarios import Context, Scenarios, Training

ANSWER_CHANNELS = 1024
"""Channels that are drawn together. Fixed, because the random numbers depend on it."""

DRAW_NUMBERS = 2**29
"""Numbers in the keys and values of bags that are drawn from the copula together: 2 GiB."""

Input = tuple[
    Float[Tensor, "B T K"], Float[Tensor, "B H K"], Int[Tensor, "B K"], Int[Tensor, "B N"]
]
"""Past and target of each window's bag of channels, the channel numbers, and a random order of the
bag's tokens."""


class TactisNetwork(CapturableNetwork):
    """TACTiS-2 for one grid.

    Args:
        config: all constants.
        n_channels: channels of the grid, C.
        context_steps: steps before each window, T.
        horizon: steps to forecast, H.
        channel_block: channels, of all windows together, to compute at a time; a smaller number
            takes less memory and gives the same result.
    """

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
        """The epochs of the first stage, if a second stage follows it."""
        if not self.config.copula:
            return ()
        # A short training, such as a trial of its speed, has both stages too.
        half = max(1, self.config.training.epochs // 2)
        return (min(self.config.margin_epochs, half),)

    def enter(self, stage: int) -> None:
        """Train the marginals (stage 0), or the copula with frozen marginals (stage 1).

        A buffer stores the stage with the weights.
        """
        self.learns_copula = stage > 0
        self.joint.fill_(stage)
        for name, parameter in self.named_parameters():
            parameter.requires_grad_(name.startswith("copula.") == self.learns_copula)

    def forward(self, context: Context, target: Float[Tensor, "B H C"]) -> Losses:
        """The loss of a batch and its parts; outside training, the mean over several bags."""
        if self.training:
            return self.losses(*self.inputs(context, target))
        inputs = (self.inputs(context, target) for _ in range(self.config.validation_bags))
        bags = [self.losses(*bag) for bag in inputs]
        parts = {name: torch.stack([bag.parts[name] for bag in bags]) for name in bags[0].parts}
        means = {name: values.mean() for name, values in parts.items()}
        return Losses(torch.stack([bag.loss for bag in bags]).mean(), means)

    def inputs(self, context: Context, target: Float[Tensor, "B H C"]) -> Input:
        """A random bag of channels of each window."""
        n_windows, _, n_channels = target.shape
        series = draw_bags(n_windows, n_channels, self.config.bag, target.device)
        past, future = (
            values.gather(2, series[:, None].expand(-1, values.shape[1], -1))
            for values in (context.past, target)
        )
        # Drawn in the first stage too, so that validation sees the same bags in both stages.
        size = (n_windows, series.shape[1] * self.horizon if self.config.copula else 0)
        return past, future, series, torch.rand(size, device=target.device).argsort(1)

    def losses(
        self,
        past: Float[Tensor, "B T K"],
        target: Float[Tensor, "B H K"],
        series: Int[Tensor, "B K"],
        order: Int[Tensor, "B N"],
    ) -> Losses:
        """The negative log-likelihood of a bag's tokens, divided by its number of channels.

        It never synchronises with the device, so it can be captured in a CUDA graph. The values are
        normalised; the likelihood of the raw values differs by the logarithms of their scales, a
        constant.
        """
        n_windows, n_series = series.shape
        scale = context_scale(past, self.config.least_scale)
        past, target = scale.normalise(past), scale.normalise(target)
        if self.training and self.config.noise:
            unit = self.config.noise * self.config.least_scale / scale.deviation
            target = target + unit[..., None] * torch.randn_like(target)

        def loss_of(part: slice) -> Float[Tensor, " 2"]:
            return self._log_losses(past[part], target[part], series[part], order[part])

        at_once = max(1, (self.channel_block or series.numel()) // n_series)
        parts_of_batch = [(part,) for part in channel_slices(n_windows, at_once)]
        total = reduce(torch.add, map_checkpointed(loss_of, parts_of_batch))
        floored = scale.deviation <= self.config.least_scale
        parts = {
            "per token": total.detach().sum() / target.numel(),
            **({"copula": total[1].detach() / series.numel()} if self.config.copula else {}),
            "largest input": torch.maximum(past.abs().amax(), target.abs().amax()),
            "constant channels": floored.to(past).mean(),
        }
        return Losses(total.sum() / series.numel(), parts)

    def _log_losses(
        self,
        past: Float[Tensor, "B K T"],
        target: Float[Tensor, "B K H"],
        series: Int[Tensor, "B K"],
        order: Int[Tensor, "B N"],
    ) -> Float[Tensor, " 2"]:
        """The negative log-likelihood of the marginals, and what the copula adds to it."""
        if not self.learns_copula:
            encoded = self.encoder(past, series, self.horizon)
            marginal = -self.margins(encoded).log_density(target).sum()
            return torch.stack([marginal, torch.zeros_like(marginal)])
        values = torch.cat([past, target], dim=2)
        with torch.no_grad():
            margin = self.margins(self.encoder(past, series, values.shape[2]))
            u, marginal = margin.distribution(values), -margin.log_density(values)
        joint = -self.copula(past, series, u.to(past), order)
        return torch.stack([marginal[..., -self.horizon :].sum(), joint.sum()])

    @torch.no_grad()
    def scenarios(self, context: Context, seed: int) -> Prediction:
        """Paths of equal weight; for a single window of a large grid, in blocks of channels."""
        generators = window_generators(seed, context.time, context.past.device)
        if len(generators) == 1 and self.n_channels > ANSWER_CHANNELS:
            pieces = self._paths(context.past, generators[0])
            return ((channels, Scenarios.equal(values)) for channels, values in pieces)
        windows = []
        for past, generator in zip(context.past.split(1), generators, strict=True):
            pieces = self._paths(past, generator)
            windows.append(torch.cat([values for _, values in pieces], dim=3))
        return Scenarios.equal(torch.cat(windows))

    @property
    def is_joint(self) -> bool:
        """Whether the weights are of the second stage, so that forecasts draw from the copula."""
        return bool(self.config.copula and self.joint)

    @torch.no_grad()
    def _paths(
        self, past: Float[Tensor, "1 T C"], generator: torch.Generator
    ) -> Iterator[tuple[slice, Float[Tensor, "1 M H c"]]]:
        """The paths of one window, one block of channels after another."""
        scale = context_scale(past, self.config.least_scale)
        draw = self._draw_jointly if self.is_joint else self._draw_tokens
        for channels, z in draw(scale.normalise(past), generator):
            mean, deviation = (part[0, channels, None, None] for part in scale)
            yield channels, (mean + deviation * z).permute(2, 1, 0)[None]

    def _draw_tokens(
        self, past: Float[Tensor, "1 C T"], generator: torch.Generator
    ) -> Iterator[tuple[slice, Float[Tensor, "c H M"]]]:
        """Normalised values, each drawn from its marginal by itself."""
        series = torch.arange(self.n_channels, device=past.device)[None]
        encoded = self.encoder(past, series, self.horizon, self.channel_block)[0]
        for channels in channel_slices(self.n_channels, ANSWER_CHANNELS):
            size = (channels.stop - channels.start, self.horizon, self.config.paths)
            u = torch.rand(size, generator=generator, device=past.device, dtype=past.dtype)
            yield channels, self._quantiles(encoded[channels], u)

    def _draw_jointly(
        self, past: Float[Tensor, "1 C T"], generator: torch.Generator
    ) -> Iterator[tuple[slice, Float[Tensor, "c H M"]]]:
        """Normalised values, drawn from the copula bag by bag."""
        config = self.config
        z = past.new_empty((self.n_channels, self.horizon, config.paths))
        at_once = max(1, DRAW_NUMBERS // self.copula.draw_numbers(config.bag, config.paths))
        for batch in forecast_bags(self.n_channels, config.bag, config.copula_links, generator):
            for bags in batch.split(at_once):
                z[bags.new] = self._draw_bags(past[0], bags, z, generator)
        for channels in channel_slices(self.n_channels, ANSWER_CHANNELS):
            yield channels, z[channels]

    def _draw_bags(
        self,
        past: Float[Tensor, "C T"],
        bags: Bags,
        z: Float[Tensor, "C H M"],
        generator: torch.Generator,
    ) -> Float[Tensor, "G new H M"]:
        """The new channels of each bag, given the z of the known ones."""
        series, n_known = bags.channels, bags.known.shape[1]
        past, steps = past[series], (past.shape[1], self.horizon)
        context, horizon = self.encoder(past, series, sum(steps)).split(steps, dim=2)
        u = self.margins(context).distribution(past)
        known = self.margins(horizon[:, :n_known]).unsqueeze().distribution(z[bags.known])
        noise = draw_noise(bags, self.horizon, self.config.paths, past.dtype, generator)
        levels = self.copula.draw(past, series, u, known.flatten(1, 2), noise)
        levels = levels.unflatten(1, (-1, self.horizon))
        new = self._quantiles(horizon[:, n_known:].flatten(0, 1), levels.flatten(0, 1))
        return new.view_as(levels)

    def _quantiles(
        self, encoded: Float[Tensor, "c H width"], u: Float[Tensor, "c H M"]
    ) -> Float[Tensor, "c H M"]:
        """The quantiles of the tokens' marginals at these levels, without the outermost tails."""
        u = self.config.tail + (1 - 2 * self.config.tail) * u
        return self.margins.quantiles(encoded.flatten(0, 1), u.flatten(0, 1)).view_as(u)


# Fitted on a CPU with 4 buses and batches of 8 to 32; nothing was fitted on a GPU.
TENSORS = 36.0
"""Tensors that a step keeps, each with all tokens of the bags at the encoder's width."""
COPULA_TENSORS = 115.0
"""The same in the copula's stage: wider networks compute its keys and values."""


class TACTiS(NeuralForecaster):
    """TACTiS-2, as its reference implementation trains it."""

    name = "tactis-2"
    config_type = TactisConfig

    @property
    def joint_scenarios(self) -> bool:
        """Whether scenarios are joint draws: only a copula couples channels and steps.

        A copula that was never better than independence in its training is not used.
        """
        if isinstance(self.network, TactisNetwork):
            return self.network.is_joint
        return bool(self.config.copula)

    def make_network(self, domain: Domain) -> Network:
        """The network for this grid and these windows."""
        size = (KINDS * domain.n_buses, domain.context, domain.horizon)
        return TactisNetwork(self.config, *size, self.channel_block)

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """The estimated memory of the training on its device, with blocks of this many channels."""
        config, windows = self.config, train.validation
        n_channels, steps = train.layout.n_channels, windows.context_steps + windows.horizon
        batch, bag = ceil(config.training.batch_size / world_size()), min(config.bag, n_channels)
        at_once = min(batch, max(1, (channel_block or batch * bag) // bag))
        network = self.meta_network(train)
        parameters = sum(parameter.numel() for parameter in network.parameters())
        gathered = steps * (batch + VALIDATION * len(windows))
        numbers = n_channels * (len(train.record) + gathered) + PER_PARAMETER * parameters
        tensors = COPULA_TENSORS if config.copula else TENSORS
        window = tensors * bag * steps * config.width
        validated = min(at_once, max(1, batch // VALIDATION_SHARE))
        captured = self.is_captured(network)
        peak = peak_numbers(window * at_once, window * validated, parameters, captured)
        return ALWAYS_GIB + gib(numbers + peak)

    @classmethod
    def trained_parameters(cls, network: nn.Module) -> dict[str, nn.Parameter]:
        """All parameters: the last stage trains only some of them."""
        return dict(network.named_parameters())
