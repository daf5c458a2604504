"""TimePrism: linear heads that all channels share, the forecaster, and the memory of its training.

The trend head reads the moving average of a scaled context, the season head the remainder. Both are
linear, so the average is taken of the weights, once a step, instead of every context; and the three
heads are one matrix product.

The constants of the memory estimate were fitted to steps on a CPU, and met them within 5 %: 40 to
400 channels with 625 hypotheses and 800 channels with 16, in batches of 8 and 100 and blocks of
1,600 to 32,700 rows. Training ACTIVSg 500 with a batch of 100 then took 3.0 GiB, as estimated.
Nothing was measured on a GPU.
"""

from collections.abc import Iterator
from math import ceil

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.framework.device import world_size
from powerphase.models.framework.network import CapturableNetwork, Losses, Network
from powerphase.models.framework.neural import NeuralForecaster, gib, peak_numbers
from powerphase.models.framework.ops import annealing_temperature
from powerphase.models.framework.run import Domain
from powerphase.models.timeprism.config import TimePrismConfig
from powerphase.models.timeprism.loss import (
    PARTS,
    LinearMap,
    LossSettings,
    Scale,
    loss_and_parts,
    split_outputs,
)
from powerphase.scenarios import Context, Scenarios, Training

ALIGNED_ROWS = 16
"""A GPU's matrix products are fastest if the number of outputs is a multiple of this."""


class Heads(nn.Module):
    """Three linear heads, shared by all channels; the network has no other parameters.

    Args:
        config: the number of hypotheses, and the steps of the moving average.
        context_steps: steps of a context, T.
        horizon: steps to forecast, H.
    """

    def __init__(self, config: TimePrismConfig, context_steps: int, horizon: int) -> None:
        super().__init__()
        self.average_steps, self.horizon = config.average_steps, horizon
        self.trend = nn.Linear(context_steps, config.trends * horizon)
        self.season = nn.Linear(context_steps, config.seasons * horizon)
        self.logit = nn.Linear(context_steps, config.hypotheses)

    def linear_map(self) -> LinearMap:
        """The three heads as one differentiable linear map of the context."""
        season = self.season.weight
        weights = [
            average_weights(self.trend.weight, self.average_steps),
            season - average_weights(season, self.average_steps),
            self.logit.weight,
        ]
        biases = [head.bias[:, None] for head in (self.trend, self.season, self.logit)]
        weight, bias = (self._centre_seasons(parts) for parts in (weights, biases))
        return LinearMap(weight, bias[:, 0])

    def _centre_seasons(self, parts: list[Tensor]) -> Float[Tensor, "J K"]:
        """The rows of all heads, with the seasons' mean moved to the trends."""
        trend, season = (part.unflatten(0, (-1, self.horizon)) for part in parts[:2])
        common = season.mean(0)
        centred = ((trend + common).flatten(0, 1), (season - common).flatten(0, 1))
        rows = torch.cat([*centred, parts[2]])
        return F.pad(rows, (0, 0, 0, -len(rows) % ALIGNED_ROWS))


def average_weights(weight: Float[Tensor, "J T"], steps: int) -> Float[Tensor, "J T"]:
    """The weights that give on a series what these give on its moving average.

    The average is centred, over `steps` steps; the first and the last value extend the series.
    """
    half, length = steps // 2, weight.shape[1]
    averaged = F.avg_pool1d(F.pad(weight, (2 * half, 2 * half)), steps, stride=1)
    first, inner, last = averaged.split([half + 1, length - 2, half + 1], dim=1)
    return torch.cat([first.sum(1, keepdim=True), inner, last.sum(1, keepdim=True)], dim=1)


ROWS_AT_ONCE = 2**15
"""Default windows × channels of a block: large enough for a GPU's matrix products."""


class TimePrismNetwork(CapturableNetwork):
    """TimePrism for windows of one length, of any grid.

    Args:
        config: all constants.
        context_steps: steps before each window, T.
        horizon: steps to forecast, H.
        channel_block: channels to compute at a time; a smaller number takes less memory and gives
            the same result.
    """

    def __init__(
        self,
        config: TimePrismConfig,
        context_steps: int,
        horizon: int,
        channel_block: int | None = None,
    ) -> None:
        super().__init__()
        self.config, self.horizon, self.channel_block = config, horizon, channel_block
        self.heads = Heads(config, context_steps, horizon)
        self.steps: Tensor
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def inputs(
        self, context: Context, target: Float[Tensor, "B H C"]
    ) -> tuple[Float[Tensor, "B T C"], Float[Tensor, "B H C"]]:
        """The tensors of a batch that `losses` needs."""
        return context.past, target

    def losses(self, past: Float[Tensor, "B T C"], target: Float[Tensor, "B H C"]) -> Losses:
        """The loss and its parts, without ever waiting for the device."""
        at_once = channels_at_once(self.channel_block, len(past))
        settings = LossSettings(
            self.config, annealing_temperature(self.steps, self.config), at_once
        )
        if self.training:
            self.steps += 1
        loss, parts = loss_and_parts(self.heads.linear_map(), past, target, settings)
        return Losses(loss, dict(zip(PARTS, parts.unbind(), strict=True)))

    @torch.no_grad()
    def scenarios(
        self,
        context: Context,
        seed: int = 0,
        channels: slice = slice(None),
        heads: LinearMap | None = None,
    ) -> Scenarios:
        """All hypotheses of these windows' channels, weighted for each channel by itself."""
        weight, bias = self.heads.linear_map() if heads is None else heads
        past = context.past[..., channels]
        # From the window alone: a forecast must not depend on the other windows of a request.
        offset, unit = scale = Scale.of(past, self.config)
        outputs = torch.addmm(bias, scale.rows(past), weight.T)
        trend, season, logit = split_outputs(outputs, self.config, self.horizon)
        trend, season = (
            part.unflatten(0, unit.shape).movedim(1, 3).contiguous() * unit[:, None, None]
            for part in (trend, season)
        )  # B N H W
        if offset is not None:
            trend += offset[:, None, None]
        weights = torch.softmax(logit, dim=1).unflatten(0, unit.shape).mT.contiguous()
        return Scenarios((trend.unsqueeze(2) + season.unsqueeze(1)).flatten(1, 2), weights)


def channels_at_once(channel_block: int | None, windows: int) -> int:
    """Channels of a block, for a batch of this many windows."""
    return channel_block or max(1, ROWS_AT_ONCE // windows)


HEADS = 10.0
"""Copies of the heads: weights, gradient, Adam's two moments, and the linear map twice."""

ALWAYS_GIB = 0.55
"""At any size: torch, the data reader, workspace of matrix products."""


def memory_gib(
    config: TimePrismConfig,
    batch: int,
    n_channels: int,
    record_steps: int,
    validation_windows: int,
    windows: tuple[int, int],
    channel_block: int | None,
    captured: bool,
) -> float:
    """The estimated peak on the device of one process, training record and network included.

    Args:
        config: the network's settings.
        batch: windows of a process's batch.
        n_channels: channels of the grid.
        record_steps: steps of the training record, which stays on the device.
        validation_windows: windows that stay there too.
        windows: steps of context and horizon.
        channel_block: channels that are computed at a time; None for the default.
        captured: whether a CUDA graph replays the steps, which keeps a copy of their batch.
    """
    context, horizon = windows
    outputs = (config.trends + config.seasons) * horizon + config.hypotheses
    kept = n_channels * (record_steps + validation_windows * (context + horizon))
    gathered = (2 if captured else 1) * batch * n_channels * (context + horizon)
    rows = batch * min(channels_at_once(channel_block, batch), n_channels)
    # Of a row: inputs, the heads' outputs, the seasons' gradients, and the distances, shares and
    # weights of all hypotheses.
    row = context + horizon + outputs + config.seasons * horizon + 3 * config.hypotheses
    block, heads = float(rows * row), outputs * (context + 1)
    peak = peak_numbers(block, block, heads, captured)
    return ALWAYS_GIB + gib(kept + gathered + peak + HEADS * heads)


ANSWER_BYTES = 256 * 2**20
"""Scenarios that are computed at a time; those of a large grid are 9 GB a window."""


class TimePrism(NeuralForecaster):
    """Forecasts each channel by itself, with hundreds of weighted hypotheses."""

    name = "timeprism"
    config_type = TimePrismConfig
    joint_scenarios = False  # every channel has weights of its own

    def make_network(self, domain: Domain) -> Network:
        """The network for these windows; it is the same for every grid."""
        config = self.config.at_step(domain.step_s)
        return TimePrismNetwork(config, domain.context, domain.horizon, self.channel_block)

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """The estimated memory of the training on its device, with blocks of this many channels."""
        windows = train.validation
        return memory_gib(
            self.config,
            ceil(self.config.training.batch_size / world_size()),
            train.layout.n_channels,
            len(train.record),
            len(windows),
            (windows.context_steps, windows.horizon),
            channel_block,
            self.is_captured(self.meta_network(train)),
        )

    def _predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:
        """All hypotheses, one block of channels after another."""
        assert isinstance(self.network, TimePrismNetwork)
        windows, _, n_channels = context.past.shape
        per_channel = (
            windows * self.config.hypotheses * context.horizon * context.past.element_size()
        )
        at_once = min(self.channel_block or n_channels, max(1, ANSWER_BYTES // per_channel))
        with torch.no_grad():
            heads = self.network.heads.linear_map()
        for first in range(0, n_channels, at_once):
            channels = slice(first, min(first + at_once, n_channels))
            yield channels, self.network.scenarios(context, channels=channels, heads=heads)
