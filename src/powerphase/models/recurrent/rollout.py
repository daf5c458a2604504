"""Paths into the future: what is drawn for one step is among the inputs of the next ones."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.errors import ForecastError
from powerphase.models.recurrent.blocks import BLOCK_NUMBERS
from powerphase.models.recurrent.inputs import Window

Draw = Callable[[Float[Tensor, "B P K"]], Float[Tensor, "B P C"]]
"""From the encoder's output for P paths of each window to their next values, scaled."""


class Seen(NamedTuple):
    """What the encoder has made of contexts."""

    state: Any
    """After the last step of the context."""
    ahead: Float[Tensor, "B H width"]
    """What contexts and the clock add to the inputs of each step to come."""
    scale: Float[Tensor, "B C"]


@runtime_checkable
class Stepping(Protocol):
    """An encoder that can go on step by step."""

    def see(self, window: Window, clock: Float[Tensor, "B steps 6"]) -> Seen:
        """Encode contexts once, for all paths."""

    def spread(self, state: Any, n_paths: int) -> Any:
        """The state of each window for so many paths of it."""

    def run(
        self, inputs: Float[Tensor, "N steps width"], state: Any
    ) -> tuple[Float[Tensor, "N steps K"], Any]:
        """What is known before the next steps, and the state after them."""

    def feed(
        self, values: Float[Tensor, "N C"], ahead: Float[Tensor, "N H width"], step: int
    ) -> None:
        """Add to the inputs of the steps ahead what these values of a step tell them."""


def roll_out(encoder: Stepping, seen: Seen, draw: Draw, out: Float[Tensor, "B P H C"]) -> Any:
    """Write P paths of each window to `out`, step by step; the state after the last step.

    All windows and paths are one batch. What a value tells the steps ahead is added to their inputs
    as soon as it is drawn, so that it is projected once and need not be kept.
    """
    n_windows, n_paths, horizon, _ = out.shape
    ahead = seen.ahead.repeat_interleave(n_paths, 0)
    state = encoder.spread(seen.state, n_paths)
    for step in range(horizon):
        output, state = encoder.run(ahead[:, step : step + 1], state)
        drawn = draw(output.unflatten(0, (n_windows, n_paths)).squeeze(2))
        out[:, :, step] = drawn * seen.scale[:, None]
        encoder.feed(drawn.flatten(0, 1), ahead, step)
    return state


def shares(n_paths: int, asked: int | None, n_windows: int, n_channels: int) -> list[slice]:
    """All paths: so many at a time as asked for, or as keep what is drawn for a step small."""
    at_once = asked or max(1, BLOCK_NUMBERS // (n_windows * n_channels))
    return [slice(k, min(k + at_once, n_paths)) for k in range(0, n_paths, at_once)]


def check_paths(values: Float[Tensor, "B P H C"], name: str) -> None:
    """Refuse paths that left all numbers: nothing is clamped, and nothing is dropped."""
    lost = torch.stack([~part.isfinite().flatten(1).all(1) for part in values.unbind(2)], dim=1)
    if lost.any():
        window, step = lost.nonzero()[0].tolist()
        raise ForecastError(
            f"paths of {name} grew beyond all numbers, as what is drawn is fed back; train it "
            "longer, or with a larger least_scale",
            window=window,
            step=step,
        )
