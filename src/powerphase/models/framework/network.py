"""The base classes of networks, and what a network returns for a batch."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from powerphase.errors import TrainingError
from powerphase.metrics import marginal
from powerphase.models.framework.base import Prediction
from powerphase.scenarios import Batches, Context, Scenarios


class Losses(NamedTuple):
    """The loss of a batch."""

    loss: Tensor
    """A scalar, with gradients."""
    parts: dict[str, Tensor]
    """The terms of the loss by name, detached; they go to the log."""


class Network(nn.Module, ABC):
    """A network that the training loop can train.

    A subclass defines `forward` and `scenarios`; the rest has defaults.
    """

    @property
    def stages(self) -> tuple[int, ...]:
        """The epochs at which later stages of the training start; none by default.

        A stage starts from the best weights so far, with a fresh optimiser and schedule.
        """
        return ()

    def enter(self, stage: int) -> None:
        """Select what is trained from this stage on; called with 1 for the first of `stages`."""

    @property
    def rate_factors(self) -> Mapping[str, float]:
        """Factors on the learning rate of some parameters, by name; 1 for all others."""
        return {}

    def prepare(self, batches: Batches) -> None:
        """Measure what the network needs to know of the data, before the first step."""

    @abstractmethod
    def forward(self, context: Context, target: Float[Tensor, "B H C"]) -> Losses:
        """The loss of a batch, and its parts."""

    @abstractmethod
    def scenarios(self, context: Context, seed: int) -> Prediction:
        """The scenarios of these windows; the seed fixes what is random in them."""

    def crps(self, context: Context, target: Float[Tensor, "B H C"]) -> Float[Tensor, ""]:
        """The mean CRPS of the scenarios; override it if it can be computed without them."""
        scenarios = self.scenarios(context, 0)
        if not isinstance(scenarios, Scenarios):
            raise TrainingError(
                f"{type(self).__name__} returns its scenarios in blocks of channels, which cannot "
                "be validated by CRPS; define crps, or set the training's criterion to 'loss'"
            )
        return marginal.crps(marginal.Fan.of(scenarios), target).mean(dtype=torch.float64)


class CapturableNetwork(Network):
    """A network whose training step can be captured as a CUDA graph and replayed.

    A subclass splits `forward` in two: `inputs` collects the tensors of a batch, and `losses`
    computes the loss from them without ever waiting for the device.
    """

    @property
    def is_capturable(self) -> bool:
        """Whether capturing a step pays: it does not where a step is very many GPU commands."""
        return True

    @abstractmethod
    def inputs(self, context: Context, target: Float[Tensor, "B H C"]) -> tuple[Tensor, ...]:
        """The tensors of a batch that `losses` needs."""

    @abstractmethod
    def losses(self, *inputs: Any, **named_inputs: Any) -> Losses:
        """The loss and its parts, from what `inputs` returns; no operation waits for the device."""

    def forward(self, context: Context, target: Float[Tensor, "B H C"]) -> Losses:
        """The loss of a batch, and its parts."""
        return self.losses(*self.inputs(context, target))
