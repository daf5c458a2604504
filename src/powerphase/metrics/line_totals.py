"""Averages of the scores of lines, and the states of a window until it is complete."""

from collections.abc import Collection, Mapping

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from powerphase.axes import KINDS, V
from powerphase.metrics.lines import (
    BRANCH_FACTS,
    BRANCH_SCORES,
    STATE_SCORES,
    Lines,
    branch_points,
    state_points,
)
from powerphase.scenarios import Layout, Scenarios

LINE_SCORES = (*BRANCH_SCORES, *STATE_SCORES)
BALANCE = "balance_rms_mva"
COUNTS = ("any_violation_brier", "violation_count_crps")
"""Scores of how many voltages and lines violate their limits."""


class OpenStates:
    """The scenarios and the target of a window; copied only if they arrive in blocks.

    Args:
        n_channels: channels, C.
    """

    def __init__(self, n_channels: int) -> None:
        self._n_channels = n_channels
        self._values: Tensor | None = None
        self._target: Tensor | None = None
        self.observed: Tensor | None = None
        """Which values of the target are observed; None if all are."""

    def add(
        self,
        channels: slice,
        scenarios: Scenarios,
        target: Float[Tensor, "1 H C"],
        observed: Bool[Tensor, "1 H C"] | None = None,
    ) -> None:
        """Add the channels, which may be all."""
        values = scenarios.values[0].detach()
        if observed is not None:
            if self.observed is None:
                self.observed = torch.ones((values.shape[1], self._n_channels), dtype=torch.bool)
            self.observed[..., channels] = observed[0].cpu()
        if values.shape[-1] == self._n_channels:
            self._values, self._target = values.to(target.dtype), target[0]
            return
        if self._values is None or self._target is None:
            shape = (*values.shape[:2], self._n_channels)
            self._values = torch.empty(shape, dtype=target.dtype, device=values.device)
            self._target = torch.empty(shape[1:], dtype=target.dtype, device=target.device)
        self._values[..., channels] = values.to(self._values)
        self._target[..., channels] = target[0]

    @property
    def complete(self) -> tuple[Float[Tensor, "M H C"], Float[Tensor, "H C"]]:
        """The states of all channels."""
        assert self._values is not None, "the scorer adds all channels first"
        assert self._target is not None
        return self._values, self._target


class LineTotals:
    """Running float64 averages of the scores of lines: by window, by step and by branch.

    Args:
        layout: the circuit and the limits.
        horizon: steps, H.
        n_windows: windows, B.
        shown: the windows whose risk of lines is kept.
    """

    def __init__(
        self, layout: Layout, horizon: int, n_windows: int, shown: Collection[int] = ()
    ) -> None:
        self._lines = Lines(layout)
        self._window = {name: np.full(n_windows, np.nan) for name in (*LINE_SCORES, *BRANCH_FACTS)}
        self._step = {name: np.zeros(horizon) for name in self._window}
        self._step_count = {name: np.zeros(horizon) for name in self._window}
        names = (*BRANCH_SCORES, *BRANCH_FACTS)
        self._branch = {name: np.zeros(self._lines.n_rated) for name in names}
        self._branch_count = np.zeros(self._lines.n_rated)
        self._shown = shown
        self.risk: dict[int, Float[np.ndarray, "2 H R"]] = {}
        """Of each shown window, the probability of overload and the loading that happened."""

    def add(
        self, window: int, states: OpenStates, weights: Float64[Tensor, " M"], device: torch.device
    ) -> None:
        """Score a complete window, whose scenarios have these weights."""
        values, target = states.complete
        observed = None if states.observed is None else states.observed.to(device)
        sums = self._lines.sums(values, weights, target.to(device), observed)
        if window in self._shown:
            self.risk[window] = sums.points[[1, 3]].cpu().numpy()
        seen = None if observed is None else self._lines.seen_branches(observed)
        self._branch_count += 1 if seen is None else seen.any(0).cpu().numpy()
        for name, points in branch_points(sums).items():
            exact = points.double()
            if seen is None:
                self._branch[name] += exact.mean(0).cpu().numpy()
                self._add(name, window, exact.mean(1))
            else:
                exact = exact.where(seen, torch.nan)
                self._branch[name] += exact.nanmean(0).where(seen.any(0), 0.0).cpu().numpy()
                self._add(name, window, exact.nanmean(1))
        for name, steps in state_points(sums, weights).items():
            if name in COUNTS and observed is not None:
                steps = steps.where(observed[:, V::KINDS].any(1), torch.nan)
            self._add(name, window, steps)

    def _add(self, name: str, window: int, steps: Float64[Tensor, " H"]) -> None:
        """Add the steps of a window; those in which nothing is observed are NaN."""
        known = ~steps.isnan()
        self._window[name][window] = steps.mean().item() if known.all() else steps.nanmean().item()
        self._step[name] += steps.where(known, 0.0).cpu().numpy()
        self._step_count[name] += known.cpu().numpy()

    @property
    def by_window(self) -> Mapping[str, Float64[np.ndarray, " B"]]:
        """Means over steps, and over rated branches; NaN if a score needs ratings and has none."""
        return self._roots(self._window)

    @property
    def by_step(self) -> Mapping[str, Float64[np.ndarray, " H"]]:
        """Means over windows, and over rated branches; NaN where nothing is known."""
        means = {
            name: np.divide(sums, count, out=np.full(len(sums), np.nan), where=count > 0)
            for name, sums, count in (
                (name, sums, self._step_count[name]) for name, sums in self._step.items()
            )
        }
        return self._roots(means)

    @property
    def by_branch(self) -> Mapping[str, Float64[np.ndarray, " L"]]:
        """Means over windows and steps, in the layout's order; NaN without a rating."""
        result = {}
        for name, sums in self._branch.items():
            result[name] = np.full(len(self._lines.order), np.nan)
            count = np.where(self._branch_count > 0, self._branch_count, np.nan)
            result[name][self._lines.order[: len(sums)]] = sums / count
        return result

    @staticmethod
    def _roots(means: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The same with the root of the mean square of the power balance."""
        return {**means, BALANCE: np.sqrt(means[BALANCE])}
