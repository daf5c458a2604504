"""TimeMCL: the recurrent encoder, several hypotheses and their scores.

The defaults are those of the reference, without its quirks.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from math import sqrt
from types import MappingProxyType
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from powerphase.models.framework.configuration import SHORT, Variants
from powerphase.models.framework.network import Losses
from powerphase.models.framework.ops import (
    REFERENCE_SCALE,
    Objective,
    annealing_temperature,
    choice_weights,
    window_seeds,
)
from powerphase.models.recurrent.blocks import channel_slices, channels_at_once
from powerphase.models.recurrent.config import REFERENCE_INPUTS, StandardisedConfig
from powerphase.models.recurrent.encoder import Window, check_paths, path_slices, roll_out
from powerphase.models.recurrent.model import RecurrentModel, RecurrentNetwork, Size, step_numbers
from powerphase.models.timemcl.distances import squared_errors
from powerphase.scenarios import Context, Scenarios


@dataclass(frozen=True)
class TimeMCLConfig(StandardisedConfig):
    """Settings of the encoder, the hypotheses, their loss and the forecast."""

    condition: int = 100
    """Width of the linear layer between the LSTM and the hypotheses."""
    hypotheses: int = 16
    objective: Objective = "relaxed"
    """How much of the loss belongs to the winner: nearly all, increasingly more, or all."""
    slack: float = 0.1
    """Share of the relaxed loss that belongs to all hypotheses but the winner."""
    temperature: float = 10.0
    """Initial temperature of annealing."""
    cooling: float = 0.95
    """Factor by which the temperature falls in each epoch."""
    least_temperature: float = 5e-4
    """Below this temperature the winner takes all."""
    score_weight: float = 0.5
    """Weight of the scores' cross-entropy in the loss."""
    resamples: int | None = None
    """Number of scenarios of equal weight drawn from the hypotheses; None for the hypotheses
    themselves with their weights."""
    leak: bool = False
    """Whether each hypothesis starts from the final LSTM state of the previous one."""

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "tuned": {"lag_inputs": 300.0, "standardise": True},
            "reference": {"resamples": 100, "leak": True, **REFERENCE_INPUTS},
            "reference-scale": REFERENCE_SCALE,
            "resampled": {"resamples": 100},
            "leak": {"leak": True},
            "annealed": {"objective": "annealed"},
            "plain": {"objective": "plain"},
            "informed": {"informed": True},
            **SHORT,
        }
    )

    def _rules(self) -> list[tuple[bool, str]]:
        return [
            *super()._rules(),
            (self.condition < 1, "condition must be 1 or more"),
            (self.hypotheses < 2, "hypotheses must be 2 or more"),
            (not 0 <= self.slack < 1, "slack must be in [0, 1)"),
            (min(self.temperature, self.least_temperature) <= 0, "temperatures must be above 0"),
            (not 0 < self.cooling <= 1, "cooling must be in (0, 1]"),
            (self.score_weight < 0, "score_weight must be 0 or more"),
            (self.resamples is not None and self.resamples < 1, "resamples must be 1 or more"),
        ]


class Hypotheses(nn.Module):
    """Maps a hidden state to M values of each channel and M scores.

    Args:
        width: width of the hidden state, K.
        n_channels: channels, C.
        count: hypotheses, M.
    """

    def __init__(self, width: int, n_channels: int, count: int) -> None:
        super().__init__()
        bound = 1 / sqrt(width)  # as linear layers are initialised
        size = (count, n_channels)
        self.weight = nn.Parameter(torch.empty(*size, width).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(*size, 1).uniform_(-bound, bound))
        self.score = nn.Linear(width, count)

    def values(self, hidden: Float[Tensor, "B P K"], paths: slice) -> Float[Tensor, "B P C"]:
        """The values of some hypotheses, each from the hidden state of its path."""
        by_path = torch.bmm(hidden.movedim(1, 0), self.weight[paths].mT)
        return (by_path + self.bias[paths].mT).movedim(0, 1)

    def scores(self, hidden: Float[Tensor, "B P K"], paths: slice) -> Float[Tensor, "B P"]:
        """The scores of some hypotheses, each from the hidden state of its path."""
        logits = (hidden * self.score.weight[paths]).sum(2) + self.score.bias[paths]
        return torch.sigmoid(logits)


class TimeMCLNetwork(RecurrentNetwork):
    """TimeMCL for one grid; see `RecurrentNetwork` for the arguments."""

    name = "timemcl"
    config: TimeMCLConfig
    steps: Tensor

    def __init__(
        self,
        config: TimeMCLConfig,
        n_channels: int,
        context_steps: int,
        horizon: int,
        channel_block: int | None = None,
    ) -> None:
        size = (n_channels, context_steps, horizon)
        super().__init__(config, *size, channel_block, config.condition)
        self.head = Hypotheses(self.encoder.width, n_channels, config.hypotheses)
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))

    def head_losses(self, output: Float[Tensor, "B steps K"], window: Window) -> Losses:
        """Squared errors of all hypotheses, mostly the winner's, and the scores' cross-entropy.

        A window has one winner, the nearest hypothesis over all of its steps and channels.
        """
        parts = channel_slices(self.n_channels, self.at_once(output))
        load_values = partial(self.scaled_steps, window)
        distances = squared_errors(load_values, parts, output, self.head.weight, self.head.bias)
        errors = distances.to(window.scale.dtype)
        winner = errors.argmin(1, keepdim=True)
        temperature = annealing_temperature(self.steps, self.config)
        weights = choice_weights(errors, winner, temperature, self.config)
        error = (weights * errors).sum(1).mean()
        won = torch.zeros_like(errors).scatter_(1, winner, 1)
        probability = torch.sigmoid(self.head.score(output).to(errors)).mean(1)
        score = cross_entropy(probability, won)
        if self.training:
            self.steps += 1
        logged = {
            "error": error.detach(),
            "winner's error": errors.detach().amin(1).mean(),
            "score": self.config.score_weight * score.detach(),
            "winners": won.amax(0).sum(),
        }
        return Losses(error + self.config.score_weight * score, logged)

    @torch.no_grad()
    def scenarios(self, context: Context, seed: int) -> Scenarios:
        """The hypotheses weighted by their scores, or a resample of them."""
        values = self.empty_paths(context, self.config.hypotheses)
        score = torch.cat(list(self._roll_out(context, values)), dim=1)
        check_paths(values, self.name)
        weights = score / score.sum(1, keepdim=True)
        scenarios = Scenarios(values, weights.unsqueeze(2).expand(-1, -1, self.n_channels))
        if self.config.resamples is None:
            return scenarios
        return _resample(scenarios, self.config.resamples, window_seeds(seed, context.time))

    def _roll_out(
        self, context: Context, values: Float[Tensor, "B M H C"]
    ) -> Iterator[Float[Tensor, "B P"]]:
        """Write all hypotheses to `values`, and yield the mean scores of each group of them.

        Each hypothesis is fed its own values. If the state leaks from one hypothesis to the next,
        they run one at a time.
        """
        seen, count = self.encode(context), self.config.hypotheses
        at_once = 1 if self.config.leak else self.paths_at_once
        for paths in path_slices(count, at_once, len(values), self.n_channels):
            scores: list[Tensor] = []

            def draw(hidden: Tensor, paths: slice = paths, scores: list[Tensor] = scores) -> Tensor:
                scores.append(self.head.scores(hidden, paths))
                return self.restore(self.head.values(hidden, paths))

            state = roll_out(self.encoder, seen, draw, values[:, paths])
            if self.config.leak:
                seen = seen._replace(state=state)
            yield torch.stack(scores).mean(0)


def cross_entropy(
    probability: Float[Tensor, "B M"], won: Float[Tensor, "B M"]
) -> Float[Tensor, ""]:
    """Mean binary cross-entropy between each hypothesis's probability of winning and the outcome.

    Equals PyTorch's for probabilities other than 0 and 1, at which the gradient is 0. NaN
    propagates to the check of the loss; PyTorch's version would abort the process on a GPU.
    """
    limits = torch.finfo(probability.dtype)
    probability = probability.clamp(limits.tiny, 1 - limits.eps)
    return -(won * probability.log() + (1 - won) * (-probability).log1p()).mean()


def _resample(scenarios: Scenarios, count: int, seeds: list[int]) -> Scenarios:
    """Draw `count` scenarios of equal weight for each window, by weight, with the window's seed."""
    samples = [
        Scenarios(scenarios.values[k : k + 1], scenarios.weights[k : k + 1]).sample(count, seed)
        for k, seed in enumerate(seeds)
    ]
    return Scenarios.equal(torch.cat([sample.values for sample in samples]))


DOUBLE = 2.0
"""Size of a float64 number in float32 numbers."""


class TimeMCL(RecurrentModel):
    """The reference's TimeMCL."""

    name = "timemcl"
    config_type = TimeMCLConfig
    joint_scenarios = True
    network_type = TimeMCLNetwork

    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Encoder, z of a block, and the inputs of the distances.

        The inputs are products of z with hidden states (two copies, also in float64), weights (four
        copies in float64), and the hidden states themselves.
        """
        rows, width = size.rows(self.config), self.config.condition + 1
        at_once = channels_at_once(channel_block, size.n_channels, rows)
        per_channel = rows + width * (
            2 * (1 + DOUBLE) * size.loss_windows + 4 * DOUBLE * self.config.hypotheses
        )
        head = at_once * per_channel + (1 + 2 * DOUBLE) * rows * width
        return step_numbers(self.config, size, channel_block, head)
