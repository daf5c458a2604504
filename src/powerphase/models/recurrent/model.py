"""The base classes of models with lagged inputs: the network, and the forecaster that trains it.

The memory of a training is estimated before it starts. The counts were fitted to DeepAR and TimeMCL
on a CPU with 14 to 1,354 buses and batches of 8 to 64, with blocks of channels and without:
trainings took within 15 % of the estimate. Nothing was fitted on a GPU. TimeMCL's head was counted
again after its distances were rewritten: with 118 and 500 buses and batches of 16 and 64, a
training took 16 % less to 6 % more.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from math import ceil
from typing import Any, ClassVar, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.axes import KINDS
from powerphase.models.framework.device import world_size
from powerphase.models.framework.known import KnownForecasts
from powerphase.models.framework.network import CapturableNetwork, Losses, Network
from powerphase.models.framework.neural import (
    ALWAYS_GIB,
    PER_PARAMETER,
    VALIDATION,
    NeuralForecaster,
    gib,
    peak_numbers,
)
from powerphase.models.framework.ops import PathNoise, window_generators
from powerphase.models.framework.run import Domain
from powerphase.models.framework.training import VALIDATION_SHARE
from powerphase.models.recurrent.blocks import (
    MEASURED_BATCHES,
    Moments,
    channel_slices,
    channels_at_once,
)
from powerphase.models.recurrent.config import RecurrentConfig, StandardisedConfig
from powerphase.models.recurrent.encoder import (
    GATES,
    EncodedContext,
    LagProjection,
    RecurrentEncoder,
    ScaledValues,
    Window,
    check_paths,
    clock_features,
    path_slices,
    roll_out,
    window_scale,
)
from powerphase.scenarios import Batches, Context, Scenarios, Training

BATCHES = 2.0
"""Copies of a batch: the gathered one, and the input buffer of a captured step."""
PRODUCTS = 2.5
"""Tensors of windows × steps × (lags × gates)."""
STATES = 5.0
"""Tensors of windows × steps × gates that the LSTM keeps."""


class Size(NamedTuple):
    """The size of a training."""

    n_channels: int
    record_steps: int
    validation_windows: int
    context: int
    horizon: int
    batch: int
    """Windows that a process gathers at a time."""
    loss_windows: int
    """Those of them that enter the loss."""
    parameters: int
    captured: bool = False
    """Whether steps are captured as a CUDA graph."""

    @property
    def steps(self) -> int:
        """Steps of a window, context and horizon."""
        return self.context + self.horizon

    @property
    def validation(self) -> "Size":
        """The same with as many windows as are validated at a time."""
        share = max(1, self.batch // VALIDATION_SHARE)
        return self._replace(batch=share, loss_windows=min(share, self.loss_windows))

    def rows(self, config: RecurrentConfig) -> int:
        """Encoded steps of windows, which a head predicts."""
        return self.loss_windows * (self.context + self.horizon - max(config.lags))


def memory_gib(size: Size, step: float, validation: float) -> float:
    """An estimate of the peak on one process's device, with the record and the network.

    Args:
        size: of the training.
        step: numbers at the peak of a step, on top of the batch and the weights.
        validation: numbers of a batch of validation windows.
    """
    steps = size.context + size.horizon
    kept = size.n_channels * (size.record_steps + VALIDATION * size.validation_windows * steps)
    batch = BATCHES * size.batch * steps * size.n_channels
    peak = peak_numbers(step, validation, size.parameters, size.captured)
    return ALWAYS_GIB + gib(kept + batch + PER_PARAMETER * size.parameters + peak)


def step_numbers(
    config: RecurrentConfig, size: Size, channel_block: int | None, head: float
) -> float:
    """Numbers at the peak of a step of the recurrent encoder and a head.

    Args:
        config: of the encoder.
        size: of the training.
        channel_block: channels of a block; None for the network's choice.
        head: numbers of the head.
    """
    rows = size.rows(config)
    encoded = rows * GATES * config.cells * (PRODUCTS * len(config.lags) + STATES)
    at_once = channels_at_once(channel_block, size.n_channels, rows)
    projected = size.loss_windows * (size.context + size.horizon) * at_once
    return encoded + max(head, 2 * projected)


def block_numbers(
    rows: int, n_channels: int, channel_block: int | None, tensors: float, copies: int = 1
) -> float:
    """Numbers in so many tensors of a block.

    Args:
        rows: steps of windows.
        n_channels: of the grid.
        channel_block: channels of a block; None for the network's choice.
        tensors: how many exist at a time.
        copies: values of each channel that they hold side by side.
    """
    return tensors * copies * rows * channels_at_once(channel_block, n_channels, copies * rows)


Input = tuple[
    Float[Tensor, "W T C"], Float[Tensor, "W H C"], Float[Tensor, "W steps F"], Float[Tensor, "W C"]
]
"""Past, target, clock and scale of the windows of the loss."""

NoisyDraw = Callable[[PathNoise, Float[Tensor, "B P K"]], Float[Tensor, "B P C"]]
"""From noise and the encoder's output for P paths of each window to a draw of their next z."""


STANDARDISED = 2.0
"""Copies of a batch that standardising its targets takes: the values, and their noise."""


class RecurrentNetwork(CapturableNetwork):
    """A head on an encoder of lagged values; a subclass defines the loss and the scenarios.

    If the config standardises targets, the head sees and draws (z − centre) / width.

    Args:
        config: all constants, a `LaggedConfig`.
        n_channels: channels of the grid, C.
        context_steps: steps before each window, T.
        horizon: steps to forecast, H.
        channel_block: how many channels to process at a time. The results are the same, with less
            memory.
        condition: width of a linear layer on top of the encoder; None for none.
    """

    name: ClassVar[str]
    encoder_type: ClassVar[Callable[..., Any]] = RecurrentEncoder
    centre: Tensor
    width: Tensor
    paths_at_once: int | None = None
    """How many paths to roll out at a time; None for as many as keep the values of a step small."""

    def __init__(
        self,
        config: Any,
        n_channels: int,
        context_steps: int,
        horizon: int,
        channel_block: int | None = None,
        condition: int | None = None,
    ) -> None:
        super().__init__()
        self.config, self.n_channels, self.horizon = config, n_channels, horizon
        self.channel_block = channel_block
        size = (n_channels, context_steps)
        self.encoder = self.encoder_type(config, *size, channel_block, condition)
        self.standardises = isinstance(config, StandardisedConfig) and config.standardise
        if self.standardises:
            self.register_buffer("centre", torch.zeros(n_channels))
            self.register_buffer("width", torch.ones(n_channels))
        is_informed = isinstance(config, StandardisedConfig) and config.informed
        self.known = KnownForecasts() if is_informed else None

    @abstractmethod
    def head_losses(self, output: Float[Tensor, "B steps K"], window: Window) -> Losses:
        """The loss, and its parts, from the encoder's output before each step."""

    @abstractmethod
    def scenarios(self, context: Context, seed: int) -> Scenarios:
        """The scenarios of these windows."""

    @property
    def loss_windows(self) -> slice:
        """The windows of a batch that enter the loss."""
        return slice(None)

    @property
    def rate_factors(self) -> Mapping[str, float]:
        """The factor of the layers that read the lagged values."""
        return {
            f"{name}.project": module.rate_factor
            for name, module in self.named_modules()
            if isinstance(module, LagProjection)
        }

    @torch.no_grad()
    def prepare(self, batches: Batches) -> None:
        """Measure what targets and forecasts are standardised by, if they are."""
        if self.known is not None:
            self.known.measure(batches)
        if not self.standardises:
            return
        moments = self.pooled_moments(batches)
        self.centre.copy_(moments.mean)
        self.width.copy_((moments.variance + self.config.least_deviation**2).sqrt())

    def pooled_moments(self, batches: Batches) -> Moments:
        """Moments of z over the first batches."""
        return Moments.pool(
            [self._batch_moments(*batches[number]) for number in range(MEASURED_BATCHES)]
        )

    def _batch_moments(self, context: Context, target: Float[Tensor, "B H C"]) -> Moments:
        past, target, _, scale = self.inputs(context, target)
        values = self.loss_values(Window(past, target, scale))
        parts = channel_slices(self.n_channels, self.moment_channels(values))
        return Moments.concatenate([Moments.of(values.select(block).compute()) for block in parts])

    def moment_channels(self, values: ScaledValues) -> int:
        """Channels whose moments are measured at a time."""
        n_windows, n_steps, n_channels = values.size
        return channels_at_once(self.channel_block, n_channels, n_windows * n_steps)

    def loss_values(self, window: Window) -> ScaledValues:
        """The z of the steps that the loss is computed over."""
        return window.values(self.encoder.reach)

    def inputs(self, context: Context, target: Float[Tensor, "B H C"]) -> Input:
        """The tensors of a batch that `losses` needs."""
        chosen, scale = self.loss_windows, window_scale(context.past, self.config, in_batch=True)
        return context.past[chosen], target[chosen], self._clock(context)[chosen], scale[chosen]

    def losses(
        self,
        past: Float[Tensor, "B T C"],
        target: Float[Tensor, "B H C"],
        clock: Float[Tensor, "B steps F"],
        scale: Float[Tensor, "B C"],
    ) -> Losses:
        """The loss and its parts; no operation waits for the device."""
        window = Window(past, target, scale)
        loss, parts = self.head_losses(self.encoder(window, clock), self._standardise(window))
        largest = window.max_abs()
        still = (largest[0] == 0).to(scale).mean()
        facts = {"largest input": (largest / scale).amax(), "zero channels": still}
        return Losses(loss, {**parts, **facts})

    def _standardise(self, window: Window) -> Window:
        """The windows as the head sees them."""
        if not self.standardises:
            return window
        assert window.target is not None
        parts = (window.past, window.target)
        past, target = (self._standardise_part(part, window.scale) for part in parts)
        return Window(past, target, torch.ones_like(window.scale))

    def _standardise_part(
        self, part: Float[Tensor, "B steps C"], scale: Float[Tensor, "B C"]
    ) -> Float[Tensor, "B steps C"]:
        values = (part / scale[:, None]).sub_(self.centre).div_(self.width)
        if self.training and self.config.noise:
            unit = self.config.least_deviation / self.width
            values.addcmul_(torch.randn_like(values), unit)
        return values

    def restore(self, values: Float[Tensor, "B P C"]) -> Float[Tensor, "B P C"]:
        """The z of what the head drew."""
        return torch.addcmul(self.centre, values, self.width) if self.standardises else values

    def encode(self, context: Context) -> EncodedContext:
        """Encode the contexts of a forecast."""
        scale = window_scale(context.past, self.config, in_batch=False)
        window = Window(context.past, None, scale)
        encoded: EncodedContext = self.encoder.encode(window, self._clock(context))
        return encoded

    def sample_paths(self, context: Context, seed: int, n_paths: int, draw: NoisyDraw) -> Scenarios:
        """Paths of equal weight, each step drawn with the noise of its window and path."""
        encoded, values = self.encode(context), self.empty_paths(context, n_paths)
        for paths in path_slices(n_paths, self.paths_at_once, len(values), self.n_channels):
            # New generators for each slice: noise must not depend on how paths are divided.
            generators = window_generators(seed, context.time, values.device)
            noise = PathNoise(generators, n_paths, paths)

            def draw_z(hidden: Tensor, noise: PathNoise = noise) -> Tensor:
                return self.restore(draw(noise, hidden))

            roll_out(self.encoder, encoded, draw_z, values[:, paths])
        check_paths(values, self.name)
        return Scenarios.equal(values)

    def empty_paths(self, context: Context, n_paths: int) -> Float[Tensor, "B P H C"]:
        """An empty tensor for so many paths of each window."""
        size = (len(context.past), n_paths, self.horizon, self.n_channels)
        return torch.empty(size, device=context.past.device, dtype=context.past.dtype)

    def scaled_steps(self, window: Window, channels: slice) -> Float[Tensor, "B steps C"]:
        """The z of the steps that the encoder's outputs predict."""
        return window.scaled(channels, self.encoder.reach)

    def at_once(self, output: Float[Tensor, "B steps K"], copies: int = 1) -> int:
        """Channels of a block, of which a head makes so many tensors side by side."""
        rows = copies * output.shape[0] * output.shape[1]
        return channels_at_once(self.channel_block, self.n_channels, rows)

    def _clock(self, context: Context) -> Float[Tensor, "B steps F"]:
        time = context.time[:, self.encoder.reach :]
        clock = clock_features(time, self.config.minute_period)
        features = clock.to(context.past, non_blocking=True)
        if self.known is None:
            return features
        return torch.cat([features, self.known(context)[:, self.encoder.reach :]], dim=2)


class RecurrentModel(NeuralForecaster):
    """A forecaster with a `RecurrentNetwork`; a subclass names the network and its memory."""

    network_type: ClassVar[type[RecurrentNetwork]]

    def make_network(self, domain: Domain) -> Network:
        """The network for this grid and these windows."""
        size = (KINDS * domain.n_buses, domain.context, domain.horizon)
        options: dict[str, Any] = {"backend": self.backend} if self.takes_backend else {}
        config = self.config.at_step(domain.step_s)
        return self.network_type(config, *size, self.channel_block, **options)

    @abstractmethod
    def step_numbers(self, size: Size, channel_block: int | None) -> float:
        """Numbers at the peak of a step, on top of the batch and the weights."""

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """An estimate of the memory that a training in such channel blocks takes on its device."""
        windows, network = train.validation, self.meta_network(train)
        assert isinstance(network, RecurrentNetwork)
        batch = ceil(self.config.training.batch_size / world_size())
        size = Size(
            train.layout.n_channels,
            len(train.record),
            len(windows),
            windows.context_steps,
            windows.horizon,
            batch,
            len(range(batch)[network.loss_windows]),
            sum(weight.numel() for weight in network.parameters()),
            self.is_captured(network),
        )
        copies = STANDARDISED * network.standardises * size.n_channels * size.steps
        validation = self.validation_numbers(size.validation, channel_block)
        validation += copies * size.validation.loss_windows
        step = self.step_numbers(size, channel_block) + copies * size.loss_windows
        return memory_gib(size, step, validation)

    def validation_numbers(self, size: Size, channel_block: int | None) -> float:
        """Numbers of a validation batch, at most: those of a step with as many windows."""
        return self.step_numbers(size, channel_block)
