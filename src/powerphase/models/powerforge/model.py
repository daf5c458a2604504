"""PowerForge: anchor, encoder, mixer, decoder and objective in this order, and training memory.

The factors of the estimate count the tensors of each size that exist at the peak. They were fitted
to measurements: the kernels' on an H200 with 500 to 9,241 buses, within 3 % of what a step then
allocated (later trainings on the five larger grids took 12 to 18 % less than the estimate); plain
PyTorch's on a CPU with 500 to 2,000 buses, with and without blocks. PEGASE 9241 in blocks of 4,000
channels, with a batch of 4, then took 12.2 GiB; the estimate was 12.3.
"""

from math import ceil
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.axes import KINDS, THETA
from powerphase.metrics.marginal import Fan, crps
from powerphase.models.framework.device import choose_device, world_size
from powerphase.models.framework.kernels import check_backend, uses_triton
from powerphase.models.framework.known import QUANTITIES, KnownForecasts
from powerphase.models.framework.network import CapturableNetwork, Losses, Network
from powerphase.models.framework.neural import NeuralForecaster, gib
from powerphase.models.framework.ops import window_seeds
from powerphase.models.framework.run import Domain
from powerphase.models.framework.training import VALIDATION_SHARE
from powerphase.models.powerforge.anchor import tile_day, wrap
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.decoder import Decoder, DecoderMaps
from powerphase.models.powerforge.encoder import ChannelEncoder, TokenMixer, mean_calendar
from powerphase.models.powerforge.kernels.anchor import anchor_context
from powerphase.models.powerforge.objective import Counts, Objective, Truth, residuals
from powerphase.scenarios import Batches, Context, Scenarios, Training

ALIGNED_BUSES = 16
"""Kernels and matrix products are fastest if rows are multiples of this many numbers."""

Input = tuple[Float[Tensor, "B T C"], Float[Tensor, "B F"], Float[Tensor, "B H C"]]
"""Past, calendar (with what is known of the horizon) and target."""


class PowerForgeNetwork(CapturableNetwork):
    """PowerForge for one grid.

    Args:
        config: all constants.
        n_buses: buses of the grid, N.
        context_steps: steps before each window, T.
        horizon: steps to forecast, H.
        channel_block: channels to decode at a time; a smaller number takes less memory and gives
            the same result.
        backend: "triton", "torch", or "auto" for Triton kernels on a GPU and PyTorch elsewhere.
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
        self.known = KnownForecasts() if config.informed else None
        n_known = horizon * len(QUANTITIES) if config.informed else 0
        self.encoder = ChannelEncoder(config, n_buses, context_steps, n_known)
        self.mixer = TokenMixer(config) if config.mixer else None
        self.decoder = Decoder(config, horizon)
        self.objective = Objective(config)
        if not self.objective.is_ordered:
            self.score = nn.Linear(config.hidden, config.scenarios)

    def prepare(self, batches: Batches) -> None:
        """Initialise the kinds' weights from their volatility in the first batches."""
        if self.known is not None:
            self.known.measure(batches)
        volatility = torch.zeros(KINDS)
        for number in range(self.config.calibration_batches):
            _, target = batches[number]
            deviation = target.std(1, correction=0).unflatten(1, (-1, KINDS))
            volatility += deviation.mean((0, 1)).cpu()
        self.objective.calibrate(volatility / self.config.calibration_batches)

    def inputs(self, context: Context, target: Float[Tensor, "B H C"]) -> Input:
        """The tensors of a batch that `losses` needs."""
        return context.past, self._calendar(context), target

    def losses(
        self,
        past: Float[Tensor, "B T C"],
        calendar: Float[Tensor, "B F"],
        target: Float[Tensor, "B H C"],
    ) -> Losses:
        """The loss and its parts, without ever waiting for the device."""
        state, day = self._encode(past, calendar)
        counts, blocks = self._split_buses(state, day, target)
        maps, noise = self.decoder.linear_maps(), self.decoder.draw_noise()
        winner = None if self.objective.is_ordered else self._winners(maps, noise, blocks, counts)
        contributions = [
            self.objective.block_loss(
                maps.head_outputs(part, noise, self._width(part)),
                truth,
                counts,
                winner,
                self.is_fast,
            )
            for part, truth in blocks
        ]
        loss, parts = (torch.stack(column).sum(0) for column in zip(*contributions, strict=True))
        loss, named = self.objective.losses(loss, parts)
        more = {"gates": self.config.gate_weight * self.encoder.gates.square().sum()}
        if winner is not None:
            # Detached, so that the score head's loss does not change the scenarios.
            more["score"] = F.cross_entropy(self._scores(state.detach()), winner.argmax(1))
        loss = loss + torch.stack(list(more.values())).sum()
        return Losses(loss, {**named, **{name: part.detach() for name, part in more.items()}})

    @torch.no_grad()
    def crps(self, context: Context, target: Float[Tensor, "B H C"]) -> Float[Tensor, ""]:
        """The mean CRPS of `scenarios` for these windows, computed without them where possible."""
        if not self.objective.is_ordered:
            fan = Fan.of(self._scenarios(context, self._no_noise()))
            return crps(fan, target).mean()
        past, calendar, _ = self.inputs(context, target)
        state, day = self._encode(past, calendar)
        counts, blocks = self._split_buses(state, day, target)
        maps, noise = self.decoder.linear_maps(), self._no_noise()
        contributions = [
            self.objective.crps(
                maps.head_outputs(part, noise, self._width(part)), truth, counts, self.is_fast
            )
            for part, truth in blocks
        ]
        return torch.stack(contributions).sum()

    @torch.no_grad()
    def scenarios(
        self, context: Context, seed: int = 0, generator: torch.Generator | None = None
    ) -> Scenarios:
        """The scenarios of these windows.

        The seed fixes the noise of P and Q, which only `noise_at_prediction` adds; a generator
        always adds it.
        """
        if generator is None and self.config.noise_at_prediction:
            number = window_seeds(seed, context.time)[0]
            generator = torch.Generator().manual_seed(number)  # the same on every device
        noise = self._no_noise() if generator is None else self.decoder.draw_noise(generator)
        return self._scenarios(context, noise)

    @torch.no_grad()
    def _scenarios(self, context: Context, noise: Float[Tensor, "2 H M"]) -> Scenarios:
        state, day = self._encode(context.past, self._calendar(context))
        size = (len(state), self.config.scenarios, self.horizon, self.n_buses, KINDS)
        values, maps = day.new_empty(size), self.decoder.linear_maps()
        for first in range(0, self.n_buses, self.buses_at_once):
            buses = slice(first, first + self.buses_at_once)
            by_kind = self._decode(maps, noise, state[:, :, buses], day[..., buses])
            for kind, part in enumerate(by_kind):
                ordered = part.sort(1).values if self.objective.is_ordered else part
                values[:, :, :, buses, kind] = ordered
        weights = self._weights(state).unsqueeze(2).expand(-1, -1, self.n_buses * KINDS)
        return Scenarios(values.flatten(3), weights)

    @property
    def is_fast(self) -> bool:
        """Whether Triton kernels run."""
        return uses_triton(self.backend, self.decoder.scenario.device)

    def _encode(
        self, past: Float[Tensor, "B T C"], calendar: Float[Tensor, "B F"]
    ) -> tuple[Float[Tensor, "B 4 N K"], Float[Tensor, "4 B H N"]]:
        """The channel states and the reference days, by kind."""
        width = self._align(self.n_buses)
        anchored = anchor_context(past, self.encoder.gates, self.config, width, self.is_fast)
        state = self.encoder(anchored.residual, anchored.size, calendar, self.is_fast)
        if self.mixer is not None:
            # Half precision would save no more time than rounding the states for it takes.
            with torch.autocast(state.device.type, enabled=False):
                state = self.mixer(state.flatten(1, 2)).unflatten(1, (KINDS, -1))
        return state, tile_day(anchored.day, self.horizon)

    def _split_buses(
        self,
        state: Float[Tensor, "B 4 N K"],
        day: Float[Tensor, "4 B H N"],
        target: Float[Tensor, "B H C"],
    ) -> tuple[Counts, list[tuple[Tensor, Truth]]]:
        """The batch in blocks of buses: states and truth of each block."""
        counts = Counts(len(target), self.n_buses, self.config.scenarios, self.horizon)
        truth = by_kind(target)
        if self.buses_at_once >= self.n_buses:
            return counts, [(state, Truth(day, truth))]
        tensors = ((state, 2), (day, 3), (truth, 3))
        parts = (tensor.split(self.buses_at_once, axis) for tensor, axis in tensors)
        return counts, [
            (states, Truth(days.contiguous(), targets.contiguous()))
            for states, days, targets in zip(*parts, strict=True)
        ]

    def _decode(
        self,
        maps: DecoderMaps,
        noise: Float[Tensor, "2 H M"],
        state: Float[Tensor, "B 4 N K"],
        day: Float[Tensor, "4 B H N"],
    ) -> list[Float[Tensor, "B M H N"]]:
        """The scenarios of a block of buses by kind, not yet sorted."""
        heads = maps.head_outputs(state, noise, self._width(state))
        parts = zip(residuals(heads, self.is_fast), day.unsqueeze(2), strict=True)
        scenarios = [part[..., : day.shape[3]] + reference for part, reference in parts]
        scenarios[THETA] = wrap(scenarios[THETA])
        return scenarios

    @torch.no_grad()
    def _winners(
        self, maps: DecoderMaps, noise: Float[Tensor, "2 H M"], blocks: Any, counts: Counts
    ) -> Float[Tensor, "B M"]:
        """1 for the scenario of each window that is nearest to the target on the whole grid."""
        contributions = [
            self.objective.distances(
                self._decode(maps, noise, part, truth.day), truth.target, counts
            )
            for part, truth in blocks
        ]
        distance = torch.stack(contributions).sum(0)
        return F.one_hot(distance.argmin(1), counts.scenarios).to(distance)

    def _calendar(self, context: Context) -> Float[Tensor, "B F"]:
        """The calendar of the context and, if informed, how the horizon differs from last week."""
        past = context.past
        calendar = mean_calendar(context.time[:, : past.shape[1]]).to(past, non_blocking=True)
        if self.known is None:
            return calendar
        n_days, day_steps = self.config.segments, self.config.segment_steps
        before, ahead = self.known(context).split([past.shape[1], self.horizon], dim=1)
        day = before[:, -n_days * day_steps :].unflatten(1, (n_days, day_steps)).mean(1)
        usual = tile_day(day, self.horizon)
        return torch.cat([calendar, (ahead - usual).flatten(1)], dim=1)

    def _width(self, state: Float[Tensor, "B 4 N K"]) -> int:
        return self._align(state.shape[2])

    def _align(self, buses: int) -> int:
        return -(-buses // ALIGNED_BUSES) * ALIGNED_BUSES if self.is_fast else buses

    def _no_noise(self) -> Float[Tensor, "2 H M"]:
        return self.decoder.scenario.new_zeros(2, self.horizon, self.config.scenarios)

    def _weights(self, state: Float[Tensor, "B 4 N K"]) -> Float[Tensor, "B M"]:
        if self.objective.is_ordered:
            return self.objective.law.weights().expand(len(state), -1)
        return torch.softmax(self._scores(state), dim=1)

    def _scores(self, state: Float[Tensor, "B 4 N K"]) -> Float[Tensor, "B M"]:
        return self.score(state.mean((1, 2)))


def by_kind(values: Float[Tensor, "B H C"]) -> Float[Tensor, "4 B H N"]:
    """The same numbers by kind, with buses along the last axis."""
    return values.unflatten(2, (-1, KINDS)).permute(3, 0, 1, 2).contiguous()


class Factors(NamedTuple):
    """Numbers of tensors of windows × channels × (scenarios × steps, input steps, hidden)."""

    decoded: float
    input: float
    state: float


KERNELS, PLAIN = Factors(2.15, 2.9, 15.5), Factors(4.2, 5.5, 16.0)

ALWAYS_GIB = 0.33
"""At any size: workspace of matrix products, sums of programs, the network itself."""

VALIDATION_TENSORS = 8.0
"""Tensors of windows × scenarios × steps × channels, if validation computes scenarios."""


def memory_gib(
    config: PowerForgeConfig,
    batch: int,
    n_buses: int,
    record_steps: int,
    validation_windows: int,
    windows: tuple[int, int],
    channel_block: int | None,
    fast: bool,
) -> float:
    """The estimated peak on the device of one process, training record and network included.

    Args:
        config: the network's settings.
        batch: windows of a process's batch.
        n_buses: buses of the grid.
        record_steps: steps of the training record, which stays on the device.
        validation_windows: windows that stay there too.
        windows: steps of context and horizon.
        channel_block: channels that are decoded at a time; None for all.
        fast: whether Triton kernels run.
    """
    context, horizon = windows
    factors, n_channels = KERNELS if fast else PLAIN, KINDS * n_buses
    at_once = min(channel_block or n_channels, n_channels)
    decoded = config.scenarios * horizon
    data = n_channels * (record_steps + validation_windows * (context + horizon))
    encoded = n_channels * (factors.input * (context + horizon) + factors.state * config.hidden)
    training = batch * (factors.decoded * at_once * decoded + encoded)
    share = max(1, batch // VALIDATION_SHARE)
    validation = training * share / batch
    if config.training.criterion == "crps" and config.objective != "ordered-quantile":
        validation = VALIDATION_TENSORS * share * n_channels * decoded
    # A captured step keeps its memory to itself.
    peak = training + validation if fast else max(training, validation)
    return ALWAYS_GIB + gib(data + peak)


class PowerForge(NeuralForecaster):
    """The paper's forecaster."""

    name = "powerforge"
    config_type = PowerForgeConfig
    joint_scenarios = False  # scenarios are quantile levels, each channel's by itself
    takes_backend = True

    def make_network(self, domain: Domain) -> Network:
        """The network for this grid and these windows."""
        size = (domain.n_buses, domain.context, domain.horizon)
        config = self.config.at_step(domain.step_s)
        return PowerForgeNetwork(config, *size, self.channel_block, self.backend)

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """The estimated memory of the training on its device, with blocks of this many channels."""
        windows, config = train.validation, self.config.for_grid(train.layout.grid)
        return memory_gib(
            config,
            ceil(config.training.batch_size / world_size()),
            train.layout.n_buses,
            len(train.record),
            len(windows),
            (windows.context_steps, windows.horizon),
            channel_block,
            uses_triton(self.backend, choose_device(self.device)),
        )
