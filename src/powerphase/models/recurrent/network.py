"""What the networks with this front end share: inputs, the loss of a batch, encoded contexts."""

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.models.framework.network import CapturableNetwork, Losses
from powerphase.models.framework.sampling import PathNoise, window_generators
from powerphase.models.recurrent.blocks import channels_at_once
from powerphase.models.recurrent.encoder import RecurrentEncoder
from powerphase.models.recurrent.inputs import Window, clock, scales
from powerphase.models.recurrent.rollout import Seen, check_paths, roll_out, shares
from powerphase.scenarios import Context, Scenarios

Input = tuple[
    Float[Tensor, "W T C"], Float[Tensor, "W H C"], Float[Tensor, "W steps 6"], Float[Tensor, "W C"]
]
"""Past, target, clock and scale of the windows that count."""

NoisyDraw = Callable[[PathNoise, Float[Tensor, "B P K"]], Float[Tensor, "B P C"]]
"""From noise and the encoder's output for P paths of each window to a draw of their next z."""


class RecurrentNetwork(CapturableNetwork):
    """A head on the recurrent encoder; a model says what its loss is and how it draws.

    Args:
        config: all constants, a `RecurrentConfig`.
        n_channels: channels of the grid, C.
        context_steps: steps before each window, T.
        horizon: steps to forecast, H.
        channel_block: how many channels to work on at a time. It computes the same, with less
            memory.
        condition: width of a linear layer on top of the LSTM; None for none.
    """

    name: ClassVar[str]
    criterion = "loss"
    encoder_type: ClassVar[Callable[..., Any]] = RecurrentEncoder
    paths_at_once: int | None = None
    """How many paths to roll out at a time; None for as many as keep a step's values small."""

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

    @abstractmethod
    def judged(self, output: Float[Tensor, "B steps K"], window: Window) -> Losses:
        """The loss of what the encoder knew before each step, and its parts."""

    @abstractmethod
    def scenarios(self, context: Context, seed: int) -> Scenarios:
        """The scenarios of these windows."""

    @property
    def counted(self) -> slice:
        """Which windows of a batch the loss is of."""
        return slice(None)

    def inputs(self, context: Context, target: Float[Tensor, "B H C"]) -> Input:
        """All that `losses` wants to know of a batch."""
        here, scale = self.counted, scales(context.past, self.config, in_batch=True)
        return context.past[here], target[here], self._clock(context)[here], scale[here]

    def losses(
        self,
        past: Float[Tensor, "B T C"],
        target: Float[Tensor, "B H C"],
        clock: Float[Tensor, "B steps 6"],
        scale: Float[Tensor, "B C"],
    ) -> Losses:
        """The loss and its parts. It never waits for the device, so that a GPU can replay it."""
        window = Window(past, target, scale)
        loss, parts = self.judged(self.encoder(window, clock), window)
        sizes = window.sizes()
        still = (sizes[0] == 0).to(scale).mean()
        found = {"largest input": (sizes / scale).amax(), "zero channels": still}
        return Losses(loss, {**parts, **found})

    def see(self, context: Context) -> Seen:
        """What is known of these windows when their forecast begins."""
        scale = scales(context.past, self.config, in_batch=False)
        found: Seen = self.encoder.see(Window(context.past, None, scale), self._clock(context))
        return found

    def sampled(self, context: Context, seed: int, n_paths: int, draw: NoisyDraw) -> Scenarios:
        """Paths of equal weight, each step drawn with the noise of its window and path."""
        seen, values = self.see(context), self.empty_paths(context, n_paths)
        for part in shares(n_paths, self.paths_at_once, len(values), self.n_channels):
            # Anew for each share: noise must not depend on how paths are divided.
            generators = window_generators(seed, context.time, values.device)
            noise = PathNoise(generators, n_paths, part)
            roll_out(self.encoder, seen, partial(draw, noise), values[:, part])
        check_paths(values, self.name)
        return Scenarios.equal(values)

    def empty_paths(self, context: Context, n_paths: int) -> Float[Tensor, "B P H C"]:
        """Where so many paths of each window can be written."""
        size = (len(context.past), n_paths, self.horizon, self.n_channels)
        return torch.empty(size, device=context.past.device, dtype=context.past.dtype)

    def judged_steps(self, window: Window, channels: slice) -> Float[Tensor, "B steps C"]:
        """The z of the steps that the encoder's outputs are held against."""
        return window.scaled(channels, self.encoder.reach)

    def at_once(self, output: Float[Tensor, "B steps K"], copies: int = 1) -> int:
        """Channels of a block, of which a head makes so many tensors side by side."""
        rows = copies * output.shape[0] * output.shape[1]
        return channels_at_once(self.channel_block, self.n_channels, rows)

    def _clock(self, context: Context) -> Float[Tensor, "B steps 6"]:
        time = context.time[:, self.encoder.reach :]
        return clock(time, self.config.minute_period).to(context.past, non_blocking=True)
