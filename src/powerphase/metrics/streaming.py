"""Scores of a whole forecast, taken in window by window and channel block by channel block.

A forecast of 36,964 channels in 100 scenarios is 1.4 GB per window. So points are scored in blocks
that fit a processor's cache, summed in float64, and forgotten. In what pieces a forecast arrives
changes no score beyond the rounding of those sums. Scores are averaged here and nowhere else.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from powerphase.axes import KINDS, V
from powerphase.errors import ForecastError
from powerphase.metrics.fan import ROUNDING, has_equal_weights
from powerphase.metrics.joint import OpenWindow
from powerphase.metrics.kernels import LANES
from powerphase.metrics.points import channel_points, voltage_points
from powerphase.metrics.proper import projections
from powerphase.metrics.sums import Sums
from powerphase.scenarios import Layout, Scenarios

ON_CHANNELS = ("crps", "mse", "fair_crps", "coverage_80", "width_80")
ON_VOLTAGES = (
    *("safety_mbrier", "necv", "cvar_0.1", "brier", "twcrps", "excursion_error", "excursion_bias"),
    *("violation_probability", "violation", "excursion"),
)
JOINT = ("distortion", "energy")

RELIABILITY_BINS = 20
"""Bins of the violation probability above 0; a bin of its own holds what rounds to 0."""

BLOCK_BYTES = {"cpu": 32 * 2**20, "cuda": 256 * 2**20}
"""Size of the scenarios that are scored at a time, by device."""


@dataclass(frozen=True, eq=False)
class Scorecard:
    """All averages of a forecast. A score that does not exist for it is NaN here."""

    by_window: dict[str, Float64[np.ndarray, " B"]]
    by_type: dict[str, Float64[np.ndarray, " 4"]]
    """Scores of voltages stand in the column of V; their other columns are NaN."""
    by_step: dict[str, Float64[np.ndarray, "H 4"]]
    by_bus: dict[str, Float64[np.ndarray, "N 4"]]
    """Of all scores but the energy score, which has no part of a single bus."""
    reliability: Float64[np.ndarray, "bins 3"]
    """By violation probability: points, mean forecast probability, share that violated."""
    n_scenarios: int

    def __getitem__(self, name: str) -> float:
        """The score as a whole: its mean over windows."""
        return float(self.by_window[name].mean())


def channels_at_once(block_bytes: int, scenarios: Scenarios) -> int:
    """How many channels of one window fit into a block; whole lanes of the sorter if they can."""
    one_channel = scenarios.values[0, ..., 0].numel() * scenarios.values.element_size()
    fit = max(1, block_bytes // one_channel)
    return fit - fit % LANES if fit > LANES else fit


class Scorer:
    """Scores a forecast as it arrives.

    Args:
        layout: the channels.
        horizon: forecast steps, H.
        n_windows: windows, B.
        device: where to compute; scenarios are moved there block by block.
        block_bytes: how much of a forecast to score at a time; by default, what suits the device.
    """

    def __init__(
        self,
        layout: Layout,
        horizon: int,
        n_windows: int,
        device: torch.device | str = "cpu",
        block_bytes: int | None = None,
    ) -> None:
        self.layout, self.horizon, self.n_windows = layout, horizon, n_windows
        self.device = torch.device(device)
        self._block_bytes = block_bytes or BLOCK_BYTES[self.device.type]
        size = (n_windows, horizon, layout.n_channels, self.device)
        self._on_channels = Sums(ON_CHANNELS, *size)
        self._on_voltages = Sums(ON_VOLTAGES, *size)
        self._directions = projections(layout.n_channels).to(self.device)
        self._open: dict[int, OpenWindow] = {}
        self._closed: dict[int, dict[str, np.ndarray]] = {}
        self._reliability = torch.zeros(
            (RELIABILITY_BINS + 1, 3), dtype=torch.float64, device=self.device
        )
        self._samples = True
        self._n_scenarios = 0

    def add(
        self,
        window: int,
        scenarios: Scenarios,
        target: Float[Tensor, "1 H C"],
        channels: slice = slice(None),
    ) -> None:
        """Take in one window's scenarios (B = 1), of all channels or of a block of them."""
        here = slice(*channels.indices(self.layout.n_channels))
        _, n_scenarios, _, n_channels = scenarios.values.shape
        state = self._window(window, scenarios, target, here)
        self._samples &= n_scenarios > 1 and has_equal_weights(scenarios)
        self._n_scenarios = n_scenarios
        at_once = channels_at_once(self._block_bytes, scenarios)
        for first in range(0, n_channels, at_once):
            part = slice(first, first + at_once)
            truth = target[..., part].to(self.device)
            block = scenarios.of_channels(part).like(truth)
            self._score(window, state, here.start + first, block, truth)
        if state.arrived.all():
            self._close(window)

    def result(self) -> Scorecard:
        """The averages, once every channel of every window has arrived."""
        for window in range(self.n_windows):
            missing = "the forecast has no scenarios here"
            if window in self._open:
                channel = int(np.flatnonzero(~self._open[window].arrived)[0])
                raise ForecastError(missing, window=window, channel=channel)
            if window not in self._closed:
                raise ForecastError(missing, window=window)
        card = Scorecard({}, {}, {}, {}, self._binned(), self._n_scenarios)
        for sums in (self._on_channels, self._on_voltages):
            for name in sums.names:
                self._average(card, sums, name)
        for name in JOINT:
            parts = [self._closed[window] for window in range(self.n_windows)]
            card.by_window[name] = np.array([part[f"{name} window"] for part in parts])
            card.by_type[name] = np.mean([part[f"{name} type"] for part in parts], axis=0)
            card.by_step[name] = np.mean([part[f"{name} step"] for part in parts], axis=0)
        distortion = np.mean([part["distortion channel"] for part in parts], axis=0)
        card.by_bus["distortion"] = distortion.reshape(-1, KINDS)
        return card

    def _window(
        self, window: int, scenarios: Scenarios, target: Float[Tensor, "1 H C"], here: slice
    ) -> OpenWindow:
        """The state of the window, if these scenarios fit it and are new."""
        n_windows, n_scenarios, horizon, n_channels = scenarios.values.shape
        wanted = (1, self.horizon, here.stop - here.start)
        if (n_windows, horizon, n_channels) != wanted or target.shape != wanted:
            raise ForecastError(
                f"scenarios of {(n_windows, horizon, n_channels)} and a target of "
                f"{tuple(target.shape)} windows, steps and channels, where {wanted} are asked for",
                window=window,
            )
        if not 0 <= window < self.n_windows:
            raise ForecastError(f"there are {self.n_windows} windows", window=window)
        if window in self._closed:
            raise ForecastError("was forecast already", window=window)
        if not target.isfinite().all():
            _, step, channel = (~target.isfinite()).nonzero()[0].tolist()
            problem = "what happened is no finite number; `powerphase verify` checks the data set"
            raise ForecastError(problem, window=window, step=step, channel=here.start + channel)
        if n_scenarios != (self._n_scenarios or n_scenarios):
            raise ForecastError(
                f"{n_scenarios} scenarios where others have {self._n_scenarios}; give the same "
                "number everywhere",
                window=window,
                channel=here.start,
            )
        if window not in self._open:
            self._open[window] = OpenWindow(n_scenarios, horizon, self._directions)
        state = self._open[window]
        if state.arrived[here].any():
            channel = here.start + int(np.flatnonzero(state.arrived[here])[0])
            raise ForecastError("was forecast already", window=window, channel=channel)
        return state

    def _score(
        self,
        window: int,
        state: OpenWindow,
        first: int,
        scenarios: Scenarios,
        target: Float[Tensor, "1 H C"],
    ) -> None:
        """Score one block, of the channels from `first` on."""
        state.add(first, scenarios, target)
        points = channel_points(scenarios, target)
        self._on_channels.add(window, first, torch.cat([points[name] for name in ON_CHANNELS]))
        voltages = slice((V - first) % KINDS, None, KINDS)
        if voltages.start >= target.shape[-1]:
            return
        points = voltage_points(scenarios.of_channels(voltages), target[..., voltages])
        found = torch.cat([points[name] for name in ON_VOLTAGES])
        self._on_voltages.add(window, first + voltages.start, found, every=KINDS)
        self._count(points["violation_probability"], points["violation"])

    def _count(self, probability: Float[Tensor, "1 H N"], violated: Float[Tensor, "1 H N"]) -> None:
        """Sort points into bins of their violation probability."""
        # Less what rounding may add: five scenarios of twenty are a quarter, not a little more.
        above = (probability.double() - ROUNDING).clamp(min=0)
        number = (above * RELIABILITY_BINS).ceil().long().flatten()
        facts = torch.stack([torch.ones_like(probability), probability, violated], dim=-1)
        self._reliability.index_add_(0, number, facts.reshape(-1, 3).double())

    def _close(self, window: int) -> None:
        state = self._open.pop(window)
        found = {"distortion": state.distortion(), "energy": state.energy()}
        self._closed[window] = {
            f"{name} {part}": values.cpu().numpy()
            for name, parts in found.items()
            for part, values in parts.items()
        }
        self._closed[window]["distortion channel"] = state.channel_distortion.cpu().numpy()

    def _average(self, card: Scorecard, sums: Sums, name: str) -> None:
        by_window = sums.by_window(name)
        card.by_step[name], card.by_bus[name] = sums.by_step(name), sums.by_bus(name)
        for part in (by_window, card.by_step[name], card.by_bus[name]):
            if name in ON_VOLTAGES:
                part[:, np.arange(KINDS) != V] = np.nan
            if name == "fair_crps" and not self._samples:
                part[:] = np.nan
        card.by_type[name] = by_window.mean(axis=0)
        card.by_window[name] = by_window[:, V] if name in ON_VOLTAGES else by_window.mean(axis=1)

    def _binned(self) -> Float64[np.ndarray, "bins 3"]:
        """Points, mean probability and violated share of each bin; NaN where there are none."""
        points, probability, violated = self._reliability.cpu().numpy().T
        share = np.full((2, len(points)), np.nan)
        np.divide([probability, violated], points, out=share, where=points > 0)
        return np.stack([points, *share], axis=1)
