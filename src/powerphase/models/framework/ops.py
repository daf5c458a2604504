"""Operations that several networks share: attention, products, scales, noise, multiple choice.

**Attention** has the same gradients each time. On a GPU PyTorch's backward pass adds up the
gradients of queries in arbitrary order unless PyTorch is in its deterministic mode. That mode
constrains much else, such as matrix products, so it is switched on only for this one node of the
backward pass.

**Multiple choice** says how much each of several hypotheses learns from a target. With the
`relaxed` objective all but the winner get a small share of the loss; `annealed` shares depend on
the distance, at a temperature that falls from epoch to epoch until the winner gets everything; with
`plain` the winner gets everything from the start.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from powerphase.models.framework.configuration import TrainingConfig
from powerphase.seeds import stream

DETERMINISTIC_BACKENDS = [
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
]
"""All backends of attention but cuDNN's, which has no deterministic mode."""
ATTENTION_NODE = "ScaledDotProduct"
"""Prefix of attention's nodes in the backward pass; the plain products of the MATH backend need no
deterministic mode."""

ZeroScale = Literal["floor", "batch"]
"""What a channel that is zero throughout is divided by: the floor, or the channel's mean over the
batch that the window is in."""

LEAST_SCALE = 1e-4
"""Floor of a channel's mean absolute value in a context, normalised."""

REFERENCE_SCALE = MappingProxyType({"least_scale": 1e-10, "zero_scale": "batch"})
"""The reference implementation's choice, by which a window depends on the others in its batch."""

Objective = Literal["relaxed", "annealed", "plain"]


def attend(
    query: Float[Tensor, "N heads Q size"],
    key: Float[Tensor, "N heads L size"],
    value: Float[Tensor, "N heads L size"],
    mask: Bool[Tensor, "Q L"] | None = None,
    dropout: float = 0.0,
    causal: bool = False,
) -> Float[Tensor, "N heads Q size"]:
    """Scaled dot-product attention, with gradients that are the same each time.

    Args:
        query: of the positions that attend.
        key: of the positions that they attend to.
        value: of the same positions.
        mask: which position may attend to which; None for all.
        dropout: share of weights that are dropped.
        causal: whether a position may attend to no later one.
    """
    with sdpa_kernel(DETERMINISTIC_BACKENDS):
        output = F.scaled_dot_product_attention(query, key, value, mask, dropout, causal)
    if output.grad_fn is not None and output.grad_fn.name().startswith(ATTENTION_NODE):
        _DeterministicMode().register(output.grad_fn)
    return output


class _DeterministicMode:
    """PyTorch's deterministic mode during one node of a backward pass."""

    def __init__(self) -> None:
        self._before = 0

    def register(self, node: Any) -> None:
        """Switch it on before the node, and back after it."""
        node.register_prehook(self._enter)
        node.register_hook(self._leave)

    def _enter(self, gradients: object) -> None:
        self._before = torch.get_deterministic_debug_mode()
        torch.set_deterministic_debug_mode("error")

    def _leave(self, inputs: object, outputs: object) -> None:
        torch.set_deterministic_debug_mode(self._before)


@contextmanager
def exact_matmul() -> Iterator[None]:
    """Matrix products of float32 with all digits, whatever the training's precision.

    For differences of large numbers, which have no digits to spare.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        with torch.autocast("cuda", enabled=False), torch.autocast("cpu", enabled=False):
            yield
    finally:
        torch.set_float32_matmul_precision(before)


def mean_scale(
    past: Float[Tensor, "B T C"], least: float, zero: ZeroScale = "floor"
) -> Float[Tensor, "B C"]:
    """The mean absolute value of each channel of each context, and no less than the floor."""
    scale = torch.linalg.vector_norm(past, ord=1, dim=1) / past.shape[1]
    if zero == "batch":
        scale = torch.where(scale > 0, scale, scale.mean(0))
    return scale.clamp(min=least)


def window_seeds(seed: int, time: Shaped[np.ndarray, "B steps"]) -> list[int]:
    """A number for each window, fixed by the seed and by when its context starts.

    So the noise of a window does not depend on which windows are forecast with it.
    """
    return [int(stream(seed, "noise", str(first)).integers(2**63)) for first in time[:, 0]]


def window_generators(
    seed: int, time: Shaped[np.ndarray, "B steps"], device: torch.device
) -> list[torch.Generator]:
    """A random generator for each window, on the device, seeded by `window_seeds`."""
    return [torch.Generator(device).manual_seed(number) for number in window_seeds(seed, time)]


class PathNoise:
    """Normal numbers for some paths of each window.

    The numbers of a path do not depend on which other paths are drawn with it: the numbers of all
    paths are drawn, and those of the others dropped.

    Args:
        generators: a fresh one for each window.
        n_paths: paths of each window in all.
        paths: those to draw for.
    """

    def __init__(
        self, generators: list[torch.Generator], n_paths: int, paths: slice = slice(None)
    ) -> None:
        self.generators, self.n_paths, self.paths = generators, n_paths, paths

    def normal(self, width: int, like: Tensor) -> Float[Tensor, "B P width"]:
        """The next `width` numbers of each path, with the type and the device of a tensor."""
        size = (self.n_paths, width)
        noise = [
            torch.randn(size, generator=generator, device=like.device, dtype=like.dtype)[self.paths]
            for generator in self.generators
        ]
        return torch.stack(noise)


@runtime_checkable
class ChoiceConfig(Protocol):
    """The fields of a config that control multiple choice."""

    @property
    def objective(self) -> Objective:
        """How the loss is shared among hypotheses."""

    @property
    def slack(self) -> float:
        """Of the relaxed loss, the share of all hypotheses but the winner."""

    @property
    def temperature(self) -> float:
        """At which annealing starts."""

    @property
    def cooling(self) -> float:
        """Factor of the temperature from one epoch to the next."""

    @property
    def least_temperature(self) -> float:
        """Below it, the winner takes all."""

    @property
    def training(self) -> TrainingConfig:
        """Says how many steps an epoch has."""


def annealing_temperature(steps: Int[Tensor, ""], config: ChoiceConfig) -> Float[Tensor, ""]:
    """The temperature after so many steps, computed on the device."""
    epoch = steps.div(config.training.batches_per_epoch, rounding_mode="floor")
    return config.temperature * torch.pow(config.cooling, epoch.double())


def choice_weights(
    distance: Float[Tensor, "R M"],
    winner: Int[Tensor, "R 1"],
    temperature: Float[Tensor, ""],
    config: ChoiceConfig,
) -> Float[Tensor, "R M"]:
    """The weight of each hypothesis in the loss; no gradient goes through it."""
    distance = distance.detach()
    slack = config.slack if config.objective == "relaxed" else 0.0
    weights = torch.full_like(distance, slack / (distance.shape[1] - 1))
    weights.scatter_(1, winner, 1 - slack)
    if config.objective != "annealed":
        return weights
    temperature = temperature.to(distance)
    soft = torch.softmax(-distance / temperature, dim=1)
    return torch.where(temperature < config.least_temperature, weights, soft)
