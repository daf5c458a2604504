"""Scores of some channels only, such as the voltages or one bus.

They are not a row: scores of the whole grid cannot be compared with those of a part, so there is
nothing here that could be saved or ranked. Scores of whole scenarios and of what follows from
several channels, such as the loading of a line, are absent, whatever channels are chosen.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float64, Int

from powerphase.axes import KINDS, VARIABLES, V
from powerphase.errors import ForecastError, UnknownName
from powerphase.evaluation.forecasting import Forecast, load_forecast
from powerphase.evaluation.scoring import check_task
from powerphase.metrics.marginal import has_equal_weights
from powerphase.metrics.points import Points, channel_points, voltage_points
from powerphase.metrics.safety import bus_band
from powerphase.models.framework.device import choose_device
from powerphase.records.scores import SCORES, score_format
from powerphase.scenarios import Layout, Scenarios
from powerphase.task.windows import Task

if TYPE_CHECKING:
    import pandas as pd

Channels = str | Sequence[int] | Int[np.ndarray, " C"]


@dataclass(frozen=True, eq=False)
class ChannelScores:
    """The scores of some channels, as means over steps and windows."""

    name: str
    """The forecaster's."""
    names: tuple[str, ...]
    """Of the channels, such as `V of bus 104`."""
    by_channel: Mapping[str, Float64[np.ndarray, " C"]]
    """By score; NaN where a channel does not have it."""

    @property
    def scores(self) -> dict[str, float | None]:
        """Means over the channels that have the score; None if there is none."""
        means = {name: values[~np.isnan(values)] for name, values in self.by_channel.items()}
        return {name: float(known.mean()) if known.size else None for name, known in means.items()}

    @property
    def absent(self) -> tuple[str, ...]:
        """The scores that need whole states, which single channels do not have."""
        return tuple(name for name in SCORES if name not in self.by_channel)

    def to_pandas(self) -> "pd.DataFrame":
        """A table with a line for each channel and a column for each score."""
        import pandas as pd  # takes a second to load

        return pd.DataFrame(dict(self.by_channel), index=pd.Index(self.names, name="channel"))

    def __str__(self) -> str:
        shown = {name: _text(value) for name, value in self.scores.items()}
        lines = [f"  {SCORES[name].title:<16} {value:>10}" for name, value in shown.items()]
        absent = ", ".join(SCORES[name].title for name in self.absent)
        title = f"{self.name}, {len(self.names)} channels"
        return "\n".join([title, *lines, f"Not of single channels: {absent}."])

    def __repr__(self) -> str:
        crps = self.scores["crps"]
        return (
            f"<powerphase.ChannelScores {self.name}, {len(self.names)} channels, CRPS {crps:.4g}>"
        )


def score_channels(
    forecast: Forecast | str | Path,
    task: Task,
    channels: Channels,
    *,
    device: str = "auto",
) -> ChannelScores:
    """Score some channels of a forecast by every score of single points.

    Scores of whole scenarios and of lines need all channels and one weight a scenario; they are
    absent here, even if all channels are given. For them, use `score`.

    Args:
        forecast: for the same task on the same data set, live or in a directory.
        task: has the targets.
        channels: a variable (`P`, `Q`, `V` or `theta`), or numbers of channels in the order of the
            layout.
        device: cpu, cuda, or auto for a GPU if there is one.
    """
    source = forecast if isinstance(forecast, Forecast) else load_forecast(forecast)
    check_task(source, task)
    chosen, where = _numbers(channels, task.layout), choose_device(device)
    names = [name for name, about in SCORES.items() if about.pointwise]
    sums = {name: torch.full((len(chosen),), torch.nan, dtype=torch.float64) for name in names}
    n_points = torch.zeros(len(chosen), dtype=torch.float64)
    scored = np.zeros((len(task.test), len(chosen)), dtype=bool)
    for window, block, scenarios in source.pieces(()):
        inside = np.flatnonzero((chosen >= block.start) & (chosen < block.stop))
        if not inside.size:
            continue
        index = torch.from_numpy(chosen[inside] - block.start)
        target = task.test.target(window, block)[..., index].to(where)
        observed = task.test.observed(window, block)
        seen = torch.ones_like(target) if observed is None else observed[..., index].to(target)
        n_points[inside] += seen[0].double().sum(0).cpu()
        part = Scenarios(scenarios.values[..., index], scenarios.weights[..., index]).like(target)
        scored[window, inside] = True
        for name, points in _points(part, target, chosen[inside], task.layout).items():
            if name in sums:
                total = (points[0].double() * seen[0]).sum(0).cpu()
                before = sums[name][inside]
                sums[name][inside] = total if window == 0 else before + total
    if not scored.all():
        window, position = (int(k) for k in np.argwhere(~scored)[0])
        missing = int(chosen[position])
        raise ForecastError("the forecast has no scenarios", window=window, channel=missing)
    return ChannelScores(
        source.name,
        tuple(task.layout.name_of(int(number)) for number in chosen),
        {name: (values / n_points).numpy() for name, values in sums.items()},
    )


def _points(
    scenarios: Scenarios, target: torch.Tensor, chosen: Int[np.ndarray, " C"], layout: Layout
) -> Points:
    """The scores of the points; NaN at channels that do not have them."""
    points = channel_points(scenarios, target)
    if not has_equal_weights(scenarios) or scenarios.values.shape[1] < 2:
        points["fair_crps"] = torch.full_like(points["crps"], torch.nan)
    is_voltage = torch.from_numpy(chosen % KINDS == V)
    if is_voltage.any():
        at = is_voltage.nonzero()[:, 0]
        part = Scenarios(scenarios.values[..., at], scenarios.weights[..., at])
        band = bus_band(layout.limits, target[..., at], chosen[at.cpu().numpy()] // KINDS)
        for name, values in voltage_points(part, target[..., at], band).items():
            points[name] = torch.full_like(points["crps"], torch.nan)
            points[name][..., at] = values.to(points[name].dtype)
    return points


def _numbers(channels: Channels, layout: Layout) -> Int[np.ndarray, " C"]:
    """The numbers of the channels; raises if the grid does not have them."""
    if isinstance(channels, str):
        if channels not in VARIABLES:
            raise UnknownName.among("variable", channels, VARIABLES)
        return np.flatnonzero(layout.channel_type == VARIABLES.index(channels))
    numbers = np.asarray(channels)
    valid = numbers.ndim == 1 and numbers.size and numbers.dtype.kind in "iu"
    if not valid or numbers.min() < 0 or numbers.max() >= layout.n_channels:
        raise ForecastError(
            f"channels must be one or more whole numbers from 0 to {layout.n_channels - 1}, or a "
            f"variable ({', '.join(VARIABLES)})"
        )
    if len(np.unique(numbers)) < len(numbers):
        raise ForecastError("a channel is given twice; give each once")
    return numbers.astype(np.int64)


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:{score_format(value)}}"
