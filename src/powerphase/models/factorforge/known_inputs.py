"""What forecasts of load, sun and wind say, as inputs of the forecast of the factors.

Squares and products of forecasts count as forecasts too: the load that is left when sun or wind are
strong does not follow them along a straight line.
"""

from dataclasses import dataclass
from itertools import combinations_with_replacement

import numpy as np
import torch
from jaxtyping import Float64

from powerphase.errors import ForecastError
from powerphase.resolution import rescale_steps, steps_per_day
from powerphase.scenarios import Known, mean_and_size

AROUND = (8, 24)
"""Quarter-hours around a step over which a forecast is averaged: weather comes early or late."""

RECENT = 16
"""The last quarter-hours before the origin, in which a forecast can be compared with the states."""

N_VIEWS = len(AROUND) + 3
"""The inputs of each column: the step's, its averages, that of the day, and that of the past."""


@dataclass(frozen=True, eq=False)
class KnownColumns:
    """Which forecasts a model was fitted with, and their means and sizes in its record."""

    names: tuple[str, ...]
    mean: Float64[np.ndarray, " N"]
    size: Float64[np.ndarray, " N"]

    @classmethod
    def of(cls, known: Known) -> "KnownColumns":
        """Those of a training record."""
        mean, size = mean_and_size(known.values)
        return cls(known.names, mean.numpy(), size.numpy())

    @property
    def counts(self) -> tuple[int, int, int]:
        """How many inputs forecasts give if they are ignored, used, and used with products."""
        n_columns = len(self.names)
        return 0, N_VIEWS * n_columns, N_VIEWS * (n_columns + n_columns * (n_columns + 1) // 2)

    def nothing(self, n_steps: int) -> Known:
        """What is known of a window of so many steps if nothing had been issued."""
        shape = (1, n_steps, len(self.names))
        units, issued = ("MW",) * len(self.names), np.full(shape, "NaT", "datetime64[s]")
        return Known(self.names, units, torch.full(shape, torch.nan), issued, 0)

    def __call__(self, known: Known | None) -> Float64[np.ndarray, "*B S D"]:
        """Each forecast in units of its size, then all squares and products; NaN where missing."""
        missing = [name for name in self.names if known is None or known.column(name) is None]
        if known is None or missing:
            raise ForecastError(
                f"factorforge was fitted with forecasts of {', '.join(self.names)}, but there are "
                f"none of {', '.join(missing)}; give them, or fit it without"
            )
        order = [known.names.index(name) for name in self.names]
        scaled = (known.values[..., order].double().cpu().numpy() - self.mean) / self.size
        pairs = combinations_with_replacement(range(len(self.names)), 2)
        products = [scaled[..., first] * scaled[..., second] for first, second in pairs]
        return np.concatenate([scaled, np.stack(products, axis=-1)], axis=-1)


def known_inputs(
    past: Float64[np.ndarray, "B T D"], future: Float64[np.ndarray, "B H D"], step_s: int
) -> Float64[np.ndarray, "B H inputs"]:
    """What forecasts say of each step, as deviations from the calendar, column by column.

    A forecast has errors in time, and errors that last for hours, so it is read in five ways: at
    the step, averaged over hours around it and over a day, and averaged over the last hours, whose
    states are inputs as well.
    """
    widths = [rescale_steps(steps, step_s) for steps in AROUND]
    views = [
        future,
        *(moving_mean(future, steps) for steps in (*widths, 2 * steps_per_day(step_s))),
    ]
    recent = past[:, -rescale_steps(RECENT, step_s) :].mean(1, keepdims=True)
    views.append(np.broadcast_to(recent, future.shape))
    return np.stack(views, axis=-1).reshape(*future.shape[:2], -1)


def moving_mean(series: Float64[np.ndarray, "B T K"], steps: int) -> Float64[np.ndarray, "B T K"]:
    """Means over the steps around each step; near the ends, over as many as exist."""
    total = np.cumsum(np.pad(series, ((0, 0), (1, 0), (0, 0))), axis=1)
    centre, last = np.arange(series.shape[1]), series.shape[1]
    first = np.maximum(centre - steps // 2, 0)
    stop = np.minimum(centre + steps // 2 + 1, last)
    return (total[:, stop] - total[:, first]) / (stop - first)[:, None]
