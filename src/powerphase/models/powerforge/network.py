"""The network: anchor, encoder, mixer, decoder and objective, in this order."""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.axes import KINDS, THETA
from powerphase.metrics.marginal import Fan, crps
from powerphase.models.framework.kernels import check_backend, uses_triton
from powerphase.models.framework.network import CapturableNetwork, Losses
from powerphase.models.powerforge.anchor import reference, wrap
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.decoder import Decoder, Folded
from powerphase.models.powerforge.encoder import ChannelEncoder, TokenMixer, mean_calendar
from powerphase.models.powerforge.kernels.anchor import anchored
from powerphase.models.powerforge.objective import Counts, Objective, Truth, deviations
from powerphase.scenarios import Batches, Context, Scenarios

ALIGNED_BUSES = 16
"""What kernels and matrix products like: rows that are whole multiples of so many numbers."""

Input = tuple[Float[Tensor, "B T C"], Float[Tensor, "B 4"], Float[Tensor, "B H C"]]
"""Past, calendar and target."""


class PowerForgeNetwork(CapturableNetwork):
    """PowerForge for one grid.

    Args:
        config: all constants.
        n_buses: buses of the grid, N.
        context_steps: steps before each window, T.
        horizon: steps to forecast, H.
        channel_block: how many channels to decode at a time. It computes the same, with less
            memory.
        backend: "triton", "torch", or "auto" for Triton's kernels on a GPU, PyTorch elsewhere.
    """

    def __init__(
        self,
        config: PowerForgeConfig,
        n_buses: int,
        context_steps: int,
        horizon: int,
        channel_block: int | None = None,
        backend: str = "auto",
    ) -> None:
        super().__init__()
        self.backend = check_backend(backend)
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

    def inputs(self, context: Context, target: Float[Tensor, "B H C"]) -> Input:
        """All that `losses` wants to know of a batch."""
        return context.past, _calendar(context), target

    def losses(
        self,
        past: Float[Tensor, "B T C"],
        calendar: Float[Tensor, "B 4"],
        target: Float[Tensor, "B H C"],
    ) -> Losses:
        """The loss and its parts. It never waits for the device, so that a GPU can replay it."""
        state, day = self._encoded(past, calendar)
        counts, blocks = self._blocks(state, day, target)
        folded, noise = self.decoder.folded(), self.decoder.draw_noise()
        chosen = None if self.objective.is_ordered else self._chosen(folded, noise, blocks, counts)
        found = [
            self.objective.of_block(
                folded.views(part, noise, self._width(part)), truth, counts, chosen, self.is_fast
            )
            for part, truth in blocks
        ]
        loss, parts = (torch.stack(column).sum(0) for column in zip(*found, strict=True))
        loss, named = self.objective.losses(loss, parts)
        more = {"gates": self.config.gate_weight * self.encoder.gates.square().sum()}
        if chosen is not None:
            # Detached: what is learned about scores must not bend the scenarios.
            more["score"] = F.cross_entropy(self._scores(state.detach()), chosen.argmax(1))
        loss = loss + torch.stack(list(more.values())).sum()
        return Losses(loss, {**named, **{name: part.detach() for name, part in more.items()}})

    @torch.no_grad()
    def crps(self, context: Context, target: Float[Tensor, "B H C"]) -> Float[Tensor, ""]:
        """The mean CRPS of these windows: that of `scenarios`, which are not made for it."""
        if not self.objective.is_ordered:
            fan = Fan.of(self.scenarios(context))
            return crps(fan, target).mean()
        past, calendar, _ = self.inputs(context, target)
        state, day = self._encoded(past, calendar)
        counts, blocks = self._blocks(state, day, target)
        folded, noise = self.decoder.folded(), self._no_noise()
        found = [
            self.objective.crps(
                folded.views(part, noise, self._width(part)), truth, counts, self.is_fast
            )
            for part, truth in blocks
        ]
        return torch.stack(found).sum()

    @torch.no_grad()
    def scenarios(
        self, context: Context, seed: int = 0, generator: torch.Generator | None = None
    ) -> Scenarios:
        """The scenarios of these windows; with a generator, P and Q are noisy."""
        state, day = self._encoded(context.past, _calendar(context))
        noise = self._no_noise() if generator is None else self.decoder.draw_noise(generator)
        size = (len(state), self.config.scenarios, self.horizon, self.n_buses, KINDS)
        values, folded = day.new_empty(size), self.decoder.folded()
        for first in range(0, self.n_buses, self.buses_at_once):
            here = slice(first, first + self.buses_at_once)
            made = self._made(folded, noise, state[:, :, here], day[..., here])
            for kind, part in enumerate(made):
                ordered = part.sort(1).values if self.objective.is_ordered else part
                values[:, :, :, here, kind] = ordered
        weights = self._weights(state).unsqueeze(2).expand(-1, -1, self.n_buses * KINDS)
        return Scenarios(values.flatten(3), weights)

    @property
    def is_fast(self) -> bool:
        """Whether Triton's kernels run."""
        return uses_triton(self.backend, self.decoder.scenario.device)

    def _encoded(
        self, past: Float[Tensor, "B T C"], calendar: Float[Tensor, "B 4"]
    ) -> tuple[Float[Tensor, "B 4 N K"], Float[Tensor, "4 B H N"]]:
        """What each channel has come to know, and the reference day of each, by kind."""
        width = self._padded(self.n_buses)
        week = anchored(past, self.encoder.gates, self.config, width, self.is_fast)
        state = self.encoder(week.residual, week.size, calendar, self.is_fast)
        if self.mixer is not None:
            # In half precision its products are no faster than rounding the states for them.
            with torch.autocast(state.device.type, enabled=False):
                state = self.mixer(state.flatten(1, 2)).unflatten(1, (KINDS, -1))
        return state, reference(week.day, self.horizon)

    def _blocks(
        self,
        state: Float[Tensor, "B 4 N K"],
        day: Float[Tensor, "4 B H N"],
        target: Float[Tensor, "B H C"],
    ) -> tuple[Counts, list[tuple[Tensor, Truth]]]:
        """The batch by blocks of buses."""
        counts = Counts(len(target), self.n_buses, self.config.scenarios, self.horizon)
        truth = by_kind(target)
        if self.buses_at_once >= self.n_buses:
            return counts, [(state, Truth(day, truth))]
        parts = [whole.split(self.buses_at_once, axis) for whole, axis in
                 ((state, 2), (day, 3), (truth, 3))]  # fmt: skip
        return counts, [
            (part, Truth(one.contiguous(), other.contiguous()))
            for part, one, other in zip(*parts, strict=True)
        ]

    def _made(
        self,
        folded: Folded,
        noise: Float[Tensor, "2 H M"],
        state: Float[Tensor, "B 4 N K"],
        day: Float[Tensor, "4 B H N"],
    ) -> list[Float[Tensor, "B M H N"]]:
        """The scenarios of some buses by kind, as the decoder numbers them."""
        views = folded.views(state, noise, self._width(state))
        parts = zip(deviations(views, self.is_fast), day.unsqueeze(2), strict=True)
        made = [part[..., : day.shape[3]] + reference for part, reference in parts]
        made[THETA] = wrap(made[THETA])
        return made

    @torch.no_grad()
    def _chosen(
        self, folded: Folded, noise: Float[Tensor, "2 H M"], blocks: Any, counts: Counts
    ) -> Float[Tensor, "B M"]:
        """1 for the scenario of each window that is nearest to the truth on the whole grid."""
        found = [
            self.objective.distances(
                self._made(folded, noise, part, truth.day), truth.target, counts
            )
            for part, truth in blocks
        ]
        distance = torch.stack(found).sum(0)
        return F.one_hot(distance.argmin(1), counts.scenarios).to(distance)

    def _width(self, state: Float[Tensor, "B 4 N K"]) -> int:
        return self._padded(state.shape[2])

    def _padded(self, buses: int) -> int:
        return -(-buses // ALIGNED_BUSES) * ALIGNED_BUSES if self.is_fast else buses

    def _no_noise(self) -> Float[Tensor, "2 H M"]:
        return self.decoder.scenario.new_zeros(2, self.horizon, self.config.scenarios)

    def _weights(self, state: Float[Tensor, "B 4 N K"]) -> Float[Tensor, "B M"]:
        if self.objective.is_ordered:
            return self.objective.law.weights().expand(len(state), -1)
        return torch.softmax(self._scores(state), dim=1)

    def _scores(self, state: Float[Tensor, "B 4 N K"]) -> Float[Tensor, "B M"]:
        return self.score(state.mean((1, 2)))


def _calendar(context: Context) -> Float[Tensor, "B 4"]:
    past = context.past
    return mean_calendar(context.time[:, : past.shape[1]]).to(past, non_blocking=True)


def by_kind(values: Float[Tensor, "B H C"]) -> Float[Tensor, "4 B H N"]:
    """The same numbers by variable, with the buses side by side."""
    return values.unflatten(2, (-1, KINDS)).permute(3, 0, 1, 2).contiguous()
