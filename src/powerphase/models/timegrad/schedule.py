"""The diffusion: how values become noise step by step, and how noise becomes values again.

Step t keeps √(1 − β) of what there is and adds noise of variance β. After t steps √ᾱ of the values
is left, with ᾱ the product of all 1 − β, and noise of variance 1 − ᾱ.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

Predict = Callable[[Float[Tensor, "*B C"], int], Float[Tensor, "*B C"]]
"""From noisy values and the step that made them to the noise in them."""


class Return(NamedTuple):
    """One step back: (x − noise · predicted) · stretch + spread · fresh noise."""

    noise: float
    stretch: float
    spread: float


class Schedule(nn.Module):
    """How much noise each step adds.

    Args:
        steps: number of steps.
        least: variance β of the noise that the first adds; between it and the last, linear.
        most: that of the last.
    """

    signal: Tensor
    noise: Tensor

    def __init__(self, steps: int, least: float, most: float) -> None:
        super().__init__()
        beta = np.linspace(least, most, steps)
        left = np.cumprod(1 - beta)
        before = np.append(1.0, left[:-1])
        spread = np.sqrt(beta * (1 - before) / (1 - left))
        numbers = (beta / np.sqrt(1 - left), 1 / np.sqrt(1 - beta), spread)
        self.returns = [Return(*(float(one) for one in row)) for row in zip(*numbers, strict=True)]
        # In double precision, whatever the network has; and no part of what is learned.
        self.register_buffer("signal", torch.from_numpy(np.sqrt(left)), persistent=False)
        self.register_buffer("noise", torch.from_numpy(np.sqrt(1 - left)), persistent=False)

    def noisy_(
        self, values: Float[Tensor, "R C"], noise: Float[Tensor, "R C"], step: Int[Tensor, " R"]
    ) -> Float[Tensor, "R C"]:
        """The values after so many steps more than one, in their own place."""
        signal, share = (one[step, None].to(values) for one in (self.signal, self.noise))
        return values.mul_(signal).addcmul_(noise, share)

    def sample(
        self,
        predict: Predict,
        first: Float[Tensor, "*B C"],
        fresh: Callable[[], Float[Tensor, "*B C"]],
    ) -> Float[Tensor, "*B C"]:
        """From noise to values, step by step; all but the last add fresh noise.

        How much is the variance of a step, given the values and the noise around it. Nothing is
        clipped.
        """
        values = first
        for step in range(len(self.returns) - 1, -1, -1):
            back = self.returns[step]
            values = (values - back.noise * predict(values, step)) * back.stretch
            if step:
                values = values.add_(fresh(), alpha=back.spread)
        return values
