"""The network: heads that all channels share, and the loss by which they are trained."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.framework.choice import temperature
from powerphase.models.framework.network import CapturableNetwork, Losses
from powerphase.models.framework.scaling import mean_sizes
from powerphase.models.timeprism.config import TimePrismConfig
from powerphase.models.timeprism.loss import PARTS, Folded, Terms, judged, rows_of, split
from powerphase.scenarios import Context, Scenarios

ALIGNED_ROWS = 16
"""What a GPU's matrix products like: results that are whole multiples of so many numbers."""


class Heads(nn.Module):
    """The heads that all channels share, and all the parameters that there are.

    Args:
        config: the number of hypotheses, and the steps of the moving average.
        context_steps: steps that the heads see, T.
        horizon: steps that they forecast, H.
    """

    def __init__(self, config: TimePrismConfig, context_steps: int, horizon: int) -> None:
        super().__init__()
        self.average_steps, self.horizon = config.average_steps, horizon
        self.trend = nn.Linear(context_steps, config.trends * horizon)
        self.season = nn.Linear(context_steps, config.seasons * horizon)
        self.logit = nn.Linear(context_steps, config.hypotheses)

    def folded(self) -> Folded:
        """The same as one map of the context itself, with gradients."""
        season = self.season.weight
        weights = [
            averaged_back(self.trend.weight, self.average_steps),
            season - averaged_back(season, self.average_steps),
            self.logit.weight,
        ]
        biases = [head.bias[:, None] for head in (self.trend, self.season, self.logit)]
        weight, bias = (self._centred(parts) for parts in (weights, biases))
        return Folded(weight, bias[:, 0])

    def _centred(self, parts: list[Tensor]) -> Float[Tensor, "J K"]:
        """The rows of all heads, with the mean of all seasons moved to the trends."""
        trend, season = (part.unflatten(0, (-1, self.horizon)) for part in parts[:2])
        common = season.mean(0)
        moved = ((trend + common).flatten(0, 1), (season - common).flatten(0, 1))
        rows = torch.cat([*moved, parts[2]])
        return F.pad(rows, (0, 0, 0, -len(rows) % ALIGNED_ROWS))


def averaged_back(weight: Float[Tensor, "J T"], steps: int) -> Float[Tensor, "J T"]:
    """The weights that do to a series what these do to its moving average.

    That is the mean of so many steps around each; beyond the ends, the last value goes on.
    """
    half, length = steps // 2, weight.shape[1]
    reached = F.avg_pool1d(F.pad(weight, (2 * half, 2 * half)), steps, stride=1)
    first, inner, last = reached.split([half + 1, length - 2, half + 1], dim=1)
    return torch.cat([first.sum(1, keepdim=True), inner, last.sum(1, keepdim=True)], dim=1)


ROWS_AT_ONCE = 2**15
"""Windows × channels of a block, where nobody says: large enough for a GPU's matrix products."""


class TimePrismNetwork(CapturableNetwork):
    """TimePrism for windows of one length, of any grid.

    Args:
        config: all constants.
        context_steps: steps before each window, T.
        horizon: steps to forecast, H.
        channel_block: how many channels to judge at a time. It computes the same, with less memory.
    """

    criterion = "loss"

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
        """All that `losses` wants to know of a batch."""
        return context.past, target

    def losses(self, past: Float[Tensor, "B T C"], target: Float[Tensor, "B H C"]) -> Losses:
        """The loss and its parts. It never waits for the device, so that a GPU can replay it."""
        at_once = channels_at_once(self.channel_block, len(past))
        terms = Terms(self.config, temperature(self.steps, self.config), at_once)
        if self.training:
            self.steps += 1
        loss, parts = judged(self.heads.folded(), past, target, terms)
        return Losses(loss, dict(zip(PARTS, parts.unbind(), strict=True)))

    @torch.no_grad()
    def scenarios(
        self,
        context: Context,
        seed: int = 0,
        channels: slice = slice(None),
        folded: Folded | None = None,
    ) -> Scenarios:
        """All hypotheses of these windows' channels, weighted for each channel by itself."""
        weight, bias = self.heads.folded() if folded is None else folded
        past = context.past[..., channels]
        # Of the window alone: a forecast must not depend on what other windows are asked for.
        scale = mean_sizes(past, self.config.least_scale)
        made = torch.addmm(bias, rows_of(past, scale), weight.T)
        trend, season, logit = split(made, self.config, self.horizon)
        trend, season = (
            part.unflatten(0, scale.shape).movedim(1, 3).contiguous() * scale[:, None, None]
            for part in (trend, season)
        )  # B N H W
        weights = torch.softmax(logit, dim=1).unflatten(0, scale.shape).mT.contiguous()
        return Scenarios((trend.unsqueeze(2) + season.unsqueeze(1)).flatten(1, 2), weights)


def channels_at_once(channel_block: int | None, windows: int) -> int:
    """How many channels of so many windows are judged at a time."""
    return channel_block or max(1, ROWS_AT_ONCE // windows)
