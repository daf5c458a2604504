"""The network: the recurrent encoder, sixteen hypotheses and their scores."""

from collections.abc import Iterator
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.framework.choice import shares, temperature
from powerphase.models.framework.sampling import window_seeds
from powerphase.models.framework.training import Losses
from powerphase.models.recurrent.blocks import blocks
from powerphase.models.recurrent.inputs import Window
from powerphase.models.recurrent.network import RecurrentNetwork
from powerphase.models.recurrent.rollout import check_paths, roll_out
from powerphase.models.recurrent.rollout import shares as shares_of_paths
from powerphase.models.timemcl.config import TimeMCLConfig
from powerphase.models.timemcl.distances import squared_errors
from powerphase.models.timemcl.head import Hypotheses
from powerphase.models.timemcl.objective import cross_entropy
from powerphase.scenarios import Context, Scenarios


class TimeMCLNetwork(RecurrentNetwork):
    """TimeMCL for one grid; `RecurrentNetwork` says what can be given."""

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

    def judged(self, output: Float[Tensor, "B steps K"], window: Window) -> Losses:
        """Squared errors of all hypotheses, the winner's most, and how well scores foretell it.

        A window has one winner, nearest over all of its steps and channels.
        """
        parts = blocks(self.n_channels, self.at_once(output))
        values_of = partial(self.judged_steps, window)
        errors = squared_errors(values_of, parts, output, self.head.weight, self.head.bias)
        found = errors.to(window.scale.dtype)
        winner, heat = found.argmin(1, keepdim=True), temperature(self.steps, self.config)
        error = (shares(found, winner, heat, self.config) * found).sum(1).mean()
        won = torch.zeros_like(found).scatter_(1, winner, 1)
        likely = torch.sigmoid(self.head.score(output).to(found)).mean(1)
        score = cross_entropy(likely, won)
        if self.training:
            self.steps += 1
        logged = {
            "error": error.detach(),
            "winner's error": found.detach().amin(1).mean(),
            "score": self.config.score_weight * score.detach(),
            "winners": won.amax(0).sum(),
        }
        return Losses(error + self.config.score_weight * score, logged)

    @torch.no_grad()
    def scenarios(self, context: Context, seed: int) -> Scenarios:
        """The hypotheses by their scores, or draws from them."""
        values = self.empty_paths(context, self.config.hypotheses)
        score = torch.cat(list(self._rolled(context, values)), dim=1)
        check_paths(values, self.name)
        weights = score / score.sum(1, keepdim=True)
        found = Scenarios(values, weights.unsqueeze(2).expand(-1, -1, self.n_channels))
        if self.config.resamples is None:
            return found
        return _resampled(found, self.config.resamples, window_seeds(seed, context.time))

    def _rolled(
        self, context: Context, values: Float[Tensor, "B M H C"]
    ) -> Iterator[Float[Tensor, "B P"]]:
        """Write all hypotheses, each fed with its own values; the mean scores of one after another.

        Where the state leaks from one to the next, they cannot go together.
        """
        seen, count = self.see(context), self.config.hypotheses
        at_once = 1 if self.config.leak else self.paths_at_once
        for part in shares_of_paths(count, at_once, len(values), self.n_channels):
            scores: list[Tensor] = []

            def draw(known: Tensor, part: slice = part, scores: list[Tensor] = scores) -> Tensor:
                scores.append(self.head.scores_of_paths(known, part))
                return self.head.of_paths(known, part)

            state = roll_out(self.encoder, seen, draw, values[:, part])
            if self.config.leak:
                seen = seen._replace(state=state)
            yield torch.stack(scores).mean(0)


def _resampled(found: Scenarios, count: int, seeds: list[int]) -> Scenarios:
    """So many scenarios of equal weight for each window, drawn by weight as its own seed has it."""
    drawn = [
        Scenarios(found.values[k : k + 1], found.weights[k : k + 1]).sample(count, seed).values
        for k, seed in enumerate(seeds)
    ]
    return Scenarios.equal(torch.cat(drawn))
