"""TimeMCL's network: the recurrent encoder, several hypotheses and their scores."""

from collections.abc import Iterator
from functools import partial
from math import sqrt

import torch
from jaxtyping import Float
from torch import Tensor, nn

from powerphase.models.framework.network import Losses
from powerphase.models.framework.ops import annealing_temperature, choice_weights, window_seeds
from powerphase.models.recurrent.blocks import channel_slices
from powerphase.models.recurrent.encoder import check_paths, path_slices, roll_out
from powerphase.models.recurrent.inputs import Window
from powerphase.models.recurrent.model import RecurrentNetwork
from powerphase.models.timemcl.config import TimeMCLConfig
from powerphase.models.timemcl.distances import squared_errors
from powerphase.scenarios import Context, Scenarios


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
