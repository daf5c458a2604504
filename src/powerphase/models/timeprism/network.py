"""The network: linear heads that all channels share, and the loss that trains them.

The trend head reads the moving average of a scaled context, the season head the remainder. Both are
linear, so the average is taken of the weights, once a step, instead of every context; and the three
heads are one matrix product.
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.framework.network import CapturableNetwork, Losses
from powerphase.models.framework.ops import annealing_temperature
from powerphase.models.timeprism.config import TimePrismConfig
from powerphase.models.timeprism.loss import (
    PARTS,
    LinearMap,
    LossSettings,
    Scale,
    loss_and_parts,
    split_outputs,
)
from powerphase.scenarios import Context, Scenarios

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
