"""Scores of a whole forecast, accumulated window by window and block of channels by block.

A forecast of 36,964 channels in 100 scenarios is 1.4 GB per window. Points are therefore scored in
blocks that fit a processor's cache, summed in float64, and discarded. How a forecast is cut into
blocks changes no score beyond the rounding of these sums. Scores are averaged only here.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from powerphase.axes import KINDS, VARIABLES, V
from powerphase.errors import ForecastError
from powerphase.metrics.joint import OpenWindow, daily_products, projections, slope_of
from powerphase.metrics.kernels import LANES
from powerphase.metrics.lines import LineTotals, OpenStates
from powerphase.metrics.marginal import ROUNDING, has_equal_weights
from powerphase.metrics.points import channel_points, voltage_points
from powerphase.scenarios import Layout, Scenarios

CHANNEL_SCORES = ("crps", "mse", "fair_crps", "coverage_80", "width_80")
VOLTAGE_SCORES = (
    *("safety_mbrier", "necv", "cvar_0.1", "brier", "twcrps", "excursion_error", "excursion_bias"),
    *("violation_probability", "violation", "excursion"),
)
JOINT_SCORES = ("distortion", "energy")

RELIABILITY_BINS = 20
"""Bins of the violation probability above 0; one more bin holds probabilities that round to 0."""

BLOCK_BYTES = {"cpu": 32 * 2**20, "cuda": 256 * 2**20}
"""Size of the scenarios that are scored at a time, by device."""


@dataclass(frozen=True, eq=False)
class Scorecard:
    """All averages of a forecast. A score that does not exist for the forecast is NaN."""

    by_window: dict[str, Float64[np.ndarray, " B"]]
    by_type: dict[str, Float64[np.ndarray, " 4"]]
    """Voltage scores are in the column of V; their other columns are NaN."""
    by_step: dict[str, Float64[np.ndarray, "H 4"] | Float64[np.ndarray, " H"]]
    """Scores of lines have one column."""
    by_bus: dict[str, Float64[np.ndarray, "N 4"]]
    """All scores except the energy score and those of lines, which do not split by bus."""
    by_branch: dict[str, Float64[np.ndarray, " L"]]
    """Scores of rated branches; NaN for the others."""
    line_risk: dict[int, Float[np.ndarray, "2 H R"]]
    """Of each shown window, the probability of overload and the loading that happened."""
    reliability: Float64[np.ndarray, "bins 3"]
    """By violation probability: points, mean forecast probability, share of violations."""
    n_scenarios: int
    daily_slope: Float64[np.ndarray, " 4"]
    """Of P, Q, V and θ; see `metrics.daily_slope`."""

    def __getitem__(self, name: str) -> float:
        """The mean of a score over windows."""
        return float(self.by_window[name].mean())


def channels_at_once(block_bytes: int, scenarios: Scenarios) -> int:
    """How many channels of one window fit into a block, rounded down to whole lanes if possible."""
    one_channel = scenarios.values[0, ..., 0].numel() * scenarios.values.element_size()
    fit = max(1, block_bytes // one_channel)
    return fit - fit % LANES if fit > LANES else fit


class Sums:
    """Running float64 sums of several point scores: by window, by step and by channel.

    Args:
        names: the scores.
        n_windows: windows, B.
        horizon: steps, H.
        n_channels: channels, C.
        device: the device that holds the sums.
    """

    def __init__(
        self,
        names: Sequence[str],
        n_windows: int,
        horizon: int,
        n_channels: int,
        device: torch.device,
    ) -> None:
        self.names = tuple(names)
        zeros = partial(torch.zeros, dtype=torch.float64, device=device)
        self._window = zeros((len(names), n_windows, KINDS))
        self._step = zeros((len(names), horizon, KINDS))
        self._channel = zeros((len(names), n_channels))
        self._counts = (zeros((n_windows, KINDS)), zeros((horizon, KINDS)), zeros(n_channels))
        """The points behind each sum: all, or those that are observed."""

    def add(
        self,
        window: int,
        first: int,
        points: Float[Tensor, "scores H C"],
        stride: int = 1,
        observed: Bool[Tensor, "H C"] | None = None,
    ) -> None:
        """Add the points of one window, of the channels `first`, `first + stride` and so on.

        Points that are not observed do not count.
        """
        exact = points.double()
        channels = first + stride * torch.arange(points.shape[-1], device=points.device)
        is_kind = torch.nn.functional.one_hot(channels % KINDS, KINDS).double()
        count = torch.ones_like(exact[0])
        if observed is not None:
            exact, count = exact.where(observed, 0.0), observed.double()
        by_channel = exact.sum(1)
        self._window[:, window] += by_channel @ is_kind
        self._step += exact @ is_kind
        self._channel[:, channels] += by_channel
        by_window, by_step, by_bus = self._counts
        by_window[window] += count.sum(0) @ is_kind
        by_step += count @ is_kind
        by_bus[channels] += count.sum(0)

    @property
    def observed(self) -> Float64[np.ndarray, "B 4"]:
        """The number of points of each window and variable that count."""
        return self._counts[0].cpu().numpy()

    def by_window(self, name: str) -> Float64[np.ndarray, "B 4"]:
        """Means over steps and buses; NaN where nothing is observed."""
        return (self._window[self.names.index(name)] / self._counts[0]).cpu().numpy()

    def by_step(self, name: str) -> Float64[np.ndarray, "H 4"]:
        """Means over windows and buses; NaN where nothing is observed."""
        return (self._step[self.names.index(name)] / self._counts[1]).cpu().numpy()

    def by_bus(self, name: str) -> Float64[np.ndarray, "N 4"]:
        """Means over windows and steps; NaN where nothing is observed."""
        mean = self._channel[self.names.index(name)] / self._counts[2]
        return mean.cpu().numpy().reshape(-1, KINDS)


class Scorer:
    """Scores a forecast as it arrives.

    Args:
        layout: the channels.
        horizon: forecast steps, H.
        n_windows: windows, B.
        device: the device that computes; scenarios are moved to it block by block.
        block_bytes: how much of a forecast to score at a time; the default depends on the device.
        shown: the windows whose risk of lines is kept.
        day_steps: steps of a day.
    """

    def __init__(
        self,
        layout: Layout,
        horizon: int,
        n_windows: int,
        device: torch.device | str = "cpu",
        block_bytes: int | None = None,
        shown: Collection[int] = (),
        day_steps: int = 96,
    ) -> None:
        self.layout, self.horizon, self.n_windows = layout, horizon, n_windows
        self._day_steps = day_steps
        self.device = torch.device(device)
        self._block_bytes = block_bytes or BLOCK_BYTES[self.device.type]
        size = (n_windows, horizon, layout.n_channels, self.device)
        self._channel_sums = Sums(CHANNEL_SCORES, *size)
        self._voltage_sums = Sums(VOLTAGE_SCORES, *size)
        self._directions = projections(layout.n_channels).to(self.device)
        limits = (layout.limits.v_min_pu, layout.limits.v_max_pu)
        self._band = tuple(torch.from_numpy(limit).to(self.device) for limit in limits)
        self._lines = LineTotals(layout, horizon, n_windows, shown)
        self._daily_products = torch.zeros(
            (2, layout.n_channels), dtype=torch.float64, device=self.device
        )
        self._states: dict[int, OpenStates] = {}
        self._open: dict[int, OpenWindow] = {}
        self._closed: dict[int, dict[str, np.ndarray]] = {}
        self._reliability = torch.zeros(
            (RELIABILITY_BINS + 1, 3), dtype=torch.float64, device=self.device
        )
        self._are_samples = True
        self._n_scenarios = 0

    def add(
        self,
        window: int,
        scenarios: Scenarios,
        target: Float[Tensor, "1 H C"],
        channels: slice = slice(None),
        observed: Bool[Tensor, "1 H C"] | None = None,
    ) -> None:
        """Add one window's scenarios (B = 1), of all channels or of a block of them.

        Args:
            window: counted from 0.
            scenarios: of these channels.
            target: what happened.
            channels: the block.
            observed: which values of the target are observed, which alone are scored; all if None.
        """
        block = slice(*channels.indices(self.layout.n_channels))
        _, n_scenarios, _, n_channels = scenarios.values.shape
        open_window = self._open_window(window, scenarios, target, block)
        self._are_samples &= n_scenarios > 1 and has_equal_weights(scenarios)
        self._n_scenarios = n_scenarios
        width = channels_at_once(self._block_bytes, scenarios)
        for first in range(0, n_channels, width):
            part = slice(first, first + width)
            truth = target[..., part].to(self.device)
            forecast = scenarios.of_channels(part).like(truth)
            seen = None if observed is None else observed[..., part].to(self.device)
            self._score(window, open_window, block.start + first, forecast, truth, seen)
        self._states[window].add(block, scenarios, target, observed)
        if open_window.arrived.all():
            self._close(window)

    def result(self) -> Scorecard:
        """The averages, once every channel of every window has arrived."""
        for window in range(self.n_windows):
            problem = "the forecast has no scenarios"
            if window in self._open:
                channel = int(np.flatnonzero(~self._open[window].arrived)[0])
                raise ForecastError(problem, window=window, channel=channel)
            if window not in self._closed:
                raise ForecastError(problem, window=window)
        self._check_observed()
        curve, risk = self._reliability_curve(), self._lines.risk
        slope = slope_of(self._daily_products).cpu().numpy()
        card = Scorecard({}, {}, {}, {}, {}, risk, curve, self._n_scenarios, slope)
        for sums in (self._channel_sums, self._voltage_sums):
            for name in sums.names:
                self._average(card, sums, name)
        for name in JOINT_SCORES:
            windows = [self._closed[window] for window in range(self.n_windows)]
            card.by_window[name] = np.array([scores[f"{name} window"] for scores in windows])
            card.by_type[name] = _mean([scores[f"{name} type"] for scores in windows])
            card.by_step[name] = _mean([scores[f"{name} step"] for scores in windows])
        distortion = _mean([scores["distortion channel"] for scores in windows])
        card.by_bus["distortion"] = distortion.reshape(-1, KINDS)
        card.by_window.update(self._lines.by_window)
        card.by_step.update(self._lines.by_step)
        card.by_branch.update(self._lines.by_branch)
        return card

    def _open_window(
        self, window: int, scenarios: Scenarios, target: Float[Tensor, "1 H C"], block: slice
    ) -> OpenWindow:
        """The sums of a window to which these scenarios can be added; raises if they cannot."""
        n_windows, n_scenarios, horizon, n_channels = scenarios.values.shape
        expected = (1, self.horizon, block.stop - block.start)
        if (n_windows, horizon, n_channels) != expected or target.shape != expected:
            raise ForecastError(
                f"scenarios of {(n_windows, horizon, n_channels)} and a target of "
                f"{tuple(target.shape)} windows, steps and channels; expected {expected} for both",
                window=window,
            )
        if not 0 <= window < self.n_windows:
            raise ForecastError(
                f"the forecast has {self.n_windows} windows, counted from 0", window=window
            )
        if window in self._closed:
            raise ForecastError("already scored; add every channel of a window once", window=window)
        if not target.isfinite().all():
            _, step, channel = (~target.isfinite()).nonzero()[0].tolist()
            problem = "the target is not finite; check the data set with `powerphase verify`"
            raise ForecastError(problem, window=window, step=step, channel=block.start + channel)
        if n_scenarios != (self._n_scenarios or n_scenarios):
            raise ForecastError(
                f"{n_scenarios} scenarios, but earlier blocks have {self._n_scenarios}; give the "
                "same number everywhere",
                window=window,
                channel=block.start,
            )
        if window not in self._open:
            self._open[window] = OpenWindow(n_scenarios, horizon, self._directions)
            self._states[window] = OpenStates(self.layout.n_channels)
        open_window = self._open[window]
        if open_window.arrived[block].any():
            channel = block.start + int(np.flatnonzero(open_window.arrived[block])[0])
            raise ForecastError(
                "already scored; add every channel of a window once", window=window, channel=channel
            )
        return open_window

    def _score(
        self,
        window: int,
        open_window: OpenWindow,
        first: int,
        scenarios: Scenarios,
        target: Float[Tensor, "1 H C"],
        observed: Bool[Tensor, "1 H C"] | None,
    ) -> None:
        """Score one block, of the channels from `first` on."""
        open_window.add(first, scenarios, target, observed)
        points = channel_points(scenarios, target)
        seen = None if observed is None else observed[0]
        scores = torch.cat([points[name] for name in CHANNEL_SCORES])
        self._channel_sums.add(window, first, scores, observed=seen)
        block = slice(first, first + target.shape[-1])
        products = daily_products(points["mean"], target, self._day_steps, observed)
        self._daily_products[:, block] += products
        voltages = slice((V - first) % KINDS, None, KINDS)
        if voltages.start >= target.shape[-1]:
            return
        voltage, bus = target[..., voltages], (first + voltages.start) // KINDS
        low, high = (limit[bus : bus + voltage.shape[-1]].to(voltage) for limit in self._band)
        points = voltage_points(scenarios.of_channels(voltages), voltage, (low, high))
        scores = torch.cat([points[name] for name in VOLTAGE_SCORES])
        seen = None if seen is None else seen[..., voltages]
        self._voltage_sums.add(window, first + voltages.start, scores, KINDS, seen)
        self._add_to_bins(points["violation_probability"], points["violation"], seen)

    def _add_to_bins(
        self,
        probability: Float[Tensor, "1 H N"],
        violated: Float[Tensor, "1 H N"],
        observed: Bool[Tensor, "H N"] | None,
    ) -> None:
        """Count observed points in bins of their violation probability."""
        if observed is not None:
            probability, violated = (part[0][observed] for part in (probability, violated))
        # Subtract what rounding may add: five scenarios of twenty are exactly a quarter.
        above = (probability.double() - ROUNDING).clamp(min=0)
        bins = (above * RELIABILITY_BINS).ceil().long().flatten()
        columns = torch.stack([torch.ones_like(probability), probability, violated], dim=-1)
        self._reliability.index_add_(0, bins, columns.reshape(-1, 3).double())

    def _close(self, window: int) -> None:
        open_window = self._open.pop(window)
        scores = {"distortion": open_window.distortion(), "energy": open_window.energy()}
        self._closed[window] = {
            f"{name} {part}": values.cpu().numpy()
            for name, parts in scores.items()
            for part, values in parts.items()
        }
        self._closed[window]["distortion channel"] = open_window.channel_distortion.cpu().numpy()
        self._lines.add(window, self._states.pop(window), open_window.weights, self.device)

    def _average(self, card: Scorecard, sums: Sums, name: str) -> None:
        by_window = sums.by_window(name)
        card.by_step[name], card.by_bus[name] = sums.by_step(name), sums.by_bus(name)
        for part in (by_window, card.by_step[name], card.by_bus[name]):
            if name in VOLTAGE_SCORES:
                part[:, np.arange(KINDS) != V] = np.nan
            if name == "fair_crps" and not self._are_samples:
                part[:] = np.nan
        card.by_type[name] = by_window.mean(axis=0)
        card.by_window[name] = by_window[:, V] if name in VOLTAGE_SCORES else _mean(by_window.T)

    def _check_observed(self) -> None:
        """Raise if a window has nothing observed of a variable that other windows have."""
        counts = self._channel_sums.observed
        lacking = (counts == 0) & (counts > 0).any(axis=0)
        if lacking.any():
            window, kind = (int(k) for k in np.argwhere(lacking)[0])
            raise ForecastError(
                f"no {VARIABLES[kind]} of the target is observed, so the window cannot be scored; "
                "choose other windows or fill the record from another source",
                window=window,
            )

    def _reliability_curve(self) -> Float64[np.ndarray, "bins 3"]:
        """Points, mean probability and share of violations of each bin; NaN in empty bins."""
        points, probability, violated = self._reliability.cpu().numpy().T
        share = np.full((2, len(points)), np.nan)
        np.divide([probability, violated], points, out=share, where=points > 0)
        return np.stack([points, *share], axis=1)


def _mean(parts: Sequence[np.ndarray] | np.ndarray) -> np.ndarray:
    """The mean along the first axis of what exists; NaN where nothing does."""
    stacked = np.asarray(parts)
    missing = np.isnan(stacked)
    if not missing.any():
        return stacked.mean(axis=0)
    count = (~missing).sum(axis=0)
    total = np.where(missing, 0.0, stacked).sum(axis=0)
    return np.divide(total, count, out=np.full(total.shape, np.nan), where=count > 0)
