"""The network: anchor, encoder, mixer, decoder and objective, in this order."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from powerphase.axes import KINDS
from powerphase.models.powerforge.anchor import anchored, reference
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.decoder import Decoder
from powerphase.models.powerforge.encoder import ChannelEncoder, mean_calendar
from powerphase.models.powerforge.mixer import TokenMixer
from powerphase.models.powerforge.objective import Counts, Objective, Sums
from powerphase.models.training import Losses
from powerphase.scenarios import Batches, Context, Scenarios


class PowerForgeNetwork(nn.Module):
    """PowerForge for one grid.

    Args:
        config: all constants.
        n_buses: buses of the grid, N.
        context_steps: steps before each window, T.
        horizon: steps to forecast, H.
        channel_block: how many channels to decode at a time. It computes the same: in training,
            each block is decoded twice, so that memory holds one of them instead of all.
    """

    def __init__(
        self,
        config: PowerForgeConfig,
        n_buses: int,
        context_steps: int,
        horizon: int,
        channel_block: int | None = None,
    ) -> None:
        super().__init__()
        self.config, self.n_buses, self.horizon = config, n_buses, horizon
        self.buses_at_once = max(1, (channel_block or KINDS * n_buses) // KINDS)
        self.encoder = ChannelEncoder(config, n_buses, context_steps)
        self.mixer = TokenMixer(config) if config.mixer else None
        self.decoder = Decoder(config, horizon)
        self.objective = Objective(config)
        if not self.objective.is_ordered:
            self.score = nn.Linear(config.hidden, config.scenarios)

    def prepare(self, batches: Batches) -> None:
        """Weigh the kinds by how much they move in the first batches."""
        found = torch.zeros(KINDS)
        for number in range(self.config.calibration_batches):
            _, target = batches[number]
            moves = target.std(1, correction=0).unflatten(1, (-1, KINDS))
            found += moves.mean((0, 1)).cpu()
        self.objective.calibrate(found / self.config.calibration_batches)

    def forward(self, context: Context, target: Float[Tensor, "B H C"]) -> Losses:
        """The loss of a batch, and its parts."""
        state, day = self._encoded(context)
        noise, truth = self.decoder.draw_noise(), by_kind(target)
        counts = Counts(len(target), self.n_buses, self.config.scenarios, self.horizon)
        pieces = [
            part.split(self.buses_at_once, axis)
            for part, axis in ((state, 1), (day, 2), (truth, 2))
        ]
        blocks = [self._of_block(*piece, noise, counts) for piece in zip(*pieces, strict=True)]
        sums = {name: torch.stack([block[name] for block in blocks]).sum(0) for name in blocks[0]}
        loss, parts = self.objective.losses(sums)
        more = {"gates": self.config.gate_weight * self.encoder.gates.square().sum()}
        if not self.objective.is_ordered:
            winner = sums["distance"].argmin(1)
            # Detached: what is learned about scores must not bend the scenarios.
            more["score"] = F.cross_entropy(self._scores(state.detach()), winner)
        loss = loss + torch.stack(list(more.values())).sum()
        return Losses(loss, {**parts, **{name: part.detach() for name, part in more.items()}})

    @torch.no_grad()
    def scenarios(self, context: Context, generator: torch.Generator | None = None) -> Scenarios:
        """The scenarios of these windows; with a generator, P and Q are noisy."""
        state, day = self._encoded(context)
        noise = None if generator is None else self.decoder.draw_noise(generator)
        size = (len(state), self.config.scenarios, self.horizon, self.n_buses, KINDS)
        values = day.new_empty(size)
        for first in range(0, self.n_buses, self.buses_at_once):
            here = slice(first, first + self.buses_at_once)
            deviations = self.decoder(state[:, here], noise)
            made = self.objective.trajectories(deviations, day[:, :, here])
            for kind, part in enumerate(self.objective.ordered(made)):
                values[:, :, :, here, kind] = part.permute(0, 2, 3, 1)
        weights = self._weights(state).unsqueeze(2).expand(-1, -1, self.n_buses * KINDS)
        return Scenarios(values.flatten(3), weights)

    def _encoded(
        self, context: Context
    ) -> tuple[Float[Tensor, "B N 4 K"], Float[Tensor, "4 B N H"]]:
        """What each channel has come to know, and the reference day of each, by kind."""
        past = context.past
        residual, day = anchored(past, self.config)
        calendar = mean_calendar(context.time[:, : past.shape[1]]).to(past)
        state = self.encoder(residual, calendar)
        if self.mixer is not None:
            state = self.mixer(state.flatten(1, 2)).unflatten(1, (-1, KINDS))
        return state, by_kind(reference(day, self.horizon))

    def _of_block(self, *block: Any) -> Sums:
        """What one block contributes; where there are several, its insides are not kept."""
        if self.buses_at_once >= self.n_buses:
            return self._sums(*block)
        found: Sums = checkpoint(self._sums, *block, use_reentrant=False, preserve_rng_state=False)
        return found

    def _sums(
        self,
        state: Float[Tensor, "B N 4 K"],
        day: Float[Tensor, "4 B N H"],
        truth: Float[Tensor, "4 B N H"],
        noise: Float[Tensor, "2 M H"],
        counts: Counts,
    ) -> Sums:
        deviations = self.decoder(state, noise)
        return self.objective.of_block(deviations, self.decoder.voltage_bound, day, truth, counts)

    def _weights(self, state: Float[Tensor, "B N 4 K"]) -> Float[Tensor, "B M"]:
        if self.objective.is_ordered:
            return self.objective.law.weights().expand(len(state), -1)
        return torch.softmax(self._scores(state), dim=1)

    def _scores(self, state: Float[Tensor, "B N 4 K"]) -> Float[Tensor, "B M"]:
        return self.score(state.mean((1, 2)))


def by_kind(values: Float[Tensor, "B H C"]) -> Float[Tensor, "4 B N H"]:
    """The same numbers by variable and bus, with the steps side by side."""
    return values.unflatten(2, (-1, KINDS)).permute(3, 0, 2, 1).contiguous()
