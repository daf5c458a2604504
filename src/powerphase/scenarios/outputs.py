"""What a model returns: scenarios of every channel, with weights."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from powerphase.axes import WEIGHT_TOLERANCE
from powerphase.errors import ForecastError
from powerphase.seeds import stream

SCORED_DTYPES = (torch.float32, torch.float64)
"""The dtypes in which scenarios can be scored."""


@dataclass(frozen=True, eq=False)
class Scenarios:
    """M weighted joint trajectories per window: the forecast that a model returns.

    Scenario m is one future of the whole grid. Its weight may differ between channels; the weights
    of a window and channel sum to 1 over the scenarios.
    """

    values: Float[Tensor, "B M H C"]
    weights: Float[Tensor, "B M C"]

    def __post_init__(self) -> None:
        _check_shapes(self.values, self.weights)
        _check_values(self.values)
        _check_weights(self.weights)

    @classmethod
    def equal(cls, values: Float[Tensor, "B M H C"]) -> "Scenarios":
        """Scenarios of equal weight, such as samples."""
        _check_dimensions(values)
        n_windows, n_scenarios, _, n_channels = values.shape
        weight = torch.full((1, 1, 1), 1 / n_scenarios, device=values.device, dtype=values.dtype)
        return cls(values, weight.expand(n_windows, n_scenarios, n_channels))

    @classmethod
    def from_quantiles(
        cls, levels: Sequence[float], values: Float[Tensor, "B M H C"]
    ) -> "Scenarios":
        """Quantiles as weighted scenarios: quantile m of every channel and step is scenario m.

        A quantile stands for the probabilities that are nearer to its level than to the others:
        its weight is the distance between the midpoints to the levels next to it. The first and
        last also stand for the tails, down to 0 and up to 1, so that nothing lies beyond them. The
        levels (m − ½)/M give equal weights.

        Args:
            levels: ascending, above 0 and below 1.
            values: quantiles, with as many along the second axis as there are levels.
        """
        _check_dimensions(values)
        level = np.asarray(levels, dtype=np.float64)
        if level.shape != (values.shape[1],):
            raise ForecastError(
                f"{level.size} levels for {values.shape[1]} quantiles; give as many"
            )
        if not (np.diff(level, prepend=0.0, append=1.0) > 0).all():
            raise ForecastError(f"levels must ascend between 0 and 1, found {level.tolist()}")
        edges = np.concatenate([[0.0], (level[1:] + level[:-1]) / 2, [1.0]])
        weight = torch.from_numpy(np.diff(edges)).to(values)
        n_windows, n_scenarios, _, n_channels = values.shape
        return cls(values, weight[None, :, None].expand(n_windows, n_scenarios, n_channels))

    def of_channels(self, channels: slice) -> "Scenarios":
        """The scenarios of some channels."""
        return self._unchecked(self.values[..., channels], self.weights[..., channels])

    def like(self, target: Tensor) -> "Scenarios":
        """A copy on the target's device and in its precision, without gradients."""
        values, weights = self.values.detach(), self.weights.detach()
        return self._unchecked(values.to(target), weights.to(target))

    @property
    def normalised_weights(self) -> Float[Tensor, "B M C"]:
        """The weights divided by their sum, which may differ from 1 by rounding."""
        exact = self.weights.double()
        return (exact / exact.sum(1, keepdim=True)).to(self.values.dtype)

    def sample(self, n: int, seed: int) -> "Scenarios":
        """`n` scenarios of equal weight, drawn by weight.

        A draw is one random number for the whole grid, looked up in each channel's cumulative
        weights. If the weights are the same for all channels, a draw is one of the scenarios; if
        they differ, every channel still follows its weights.
        """
        n_windows, n_scenarios, horizon, _ = self.values.shape
        draws = torch.from_numpy(stream(seed, "scenarios").random((n_windows, 1, n)))
        cumulative = self.weights.double().cumsum(1).movedim(1, 2).contiguous()
        # Times the sum of the weights, which may be below 1 by rounding.
        draws = draws.to(self.values.device) * cumulative[..., -1:]
        numbers = torch.searchsorted(cumulative, draws, right=True).clamp(max=n_scenarios - 1)
        index = numbers.movedim(2, 1)[:, :, None].expand(-1, -1, horizon, -1)
        return Scenarios.equal(self.values.gather(1, index))

    @classmethod
    def _unchecked(cls, values: Tensor, weights: Tensor) -> "Scenarios":
        """Part of scenarios that are already validated, without a second validation."""
        part = object.__new__(cls)
        object.__setattr__(part, "values", values)
        object.__setattr__(part, "weights", weights)
        return part


def _check_dimensions(values: object) -> None:
    if not isinstance(values, Tensor):
        raise ForecastError(f"scenarios must be a torch.Tensor, found {type(values).__name__}")
    if values.ndim != 4 or 0 in values.shape:
        raise ForecastError(
            f"scenarios have the shape {tuple(values.shape)}; they need four axes, none of them "
            "empty: windows, scenarios, steps, channels"
        )


def _check_shapes(values: Tensor, weights: Tensor) -> None:
    _check_dimensions(values)
    n_windows, n_scenarios, _, n_channels = values.shape
    if values.dtype not in SCORED_DTYPES or weights.dtype not in SCORED_DTYPES:
        raise ForecastError(
            f"values are {values.dtype} and weights {weights.dtype}; use float32 or float64"
        )
    if weights.shape != (n_windows, n_scenarios, n_channels):
        raise ForecastError(
            f"weights have the shape {tuple(weights.shape)}; the values need {n_windows} windows x "
            f"{n_scenarios} scenarios x {n_channels} channels"
        )


def _check_values(values: Tensor) -> None:
    low, high = values.aminmax()  # one pass without a copy; NaN is propagated
    if low.isfinite() and high.isfinite():
        return
    invalid = ~values.isfinite()
    window, step, channel = invalid.any(1).nonzero()[0].tolist()
    scenario = int(invalid[window, :, step, channel].nonzero()[0])
    value = values[window, scenario, step, channel].item()
    raise ForecastError(
        f"scenario {scenario} is {value}; every value must be finite",
        window=window,
        step=step,
        channel=channel,
    )


def _check_weights(weights: Tensor) -> None:
    negative = ~(weights >= 0)  # NaN is not >= 0
    if negative.any():
        window, scenario, channel = negative.nonzero()[0].tolist()
        weight = weights[window, scenario, channel].item()
        raise ForecastError(
            f"scenario {scenario} has the weight {weight}; weights must be 0 or more",
            window=window,
            channel=channel,
        )
    total = weights.sum(1, dtype=torch.float64)
    wrong = ~((total - 1).abs() <= WEIGHT_TOLERANCE)
    if wrong.any():
        window, channel = wrong.nonzero()[0].tolist()
        raise ForecastError(
            f"the weights of the scenarios sum to {total[window, channel].item():.6g} instead of "
            "1; divide them by their sum",
            window=window,
            channel=channel,
        )
