"""How a long forecast of single series is shown: its time and its progress."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from powerphase.cli.display import problems

if TYPE_CHECKING:
    from powerphase.adapters import Estimate
    from powerphase.models.framework.base import Forecaster

SHORT_S = 10.0
"""Forecasts that take less are not announced."""


class SeriesDisplay:
    """Watches a forecaster of single series; any other one is left alone.

    Args:
        report: shows the number of windows done, and of all.
        windows: the number of all windows.
    """

    def __init__(self, report: Callable[[Any, int], None], windows: int) -> None:
        self._report, self._total, self._done = report, windows, 0

    def watch(self, model: "Forecaster") -> None:
        """Watch this model, whether coupled or not."""
        from powerphase.adapters import SeriesForecaster
        from powerphase.models.framework import unwrap

        inner = unwrap(model)
        if isinstance(inner, SeriesForecaster):
            inner.on_progress, inner.on_estimate = self._show_channels, self._show_estimate

    def show_windows(self, done: int, total: int) -> None:
        """Show the windows that are done."""
        self._done, self._total = done, total
        self._report(done, total)

    def _show_channels(self, done: int, total: int) -> None:
        self._report(self._done + done / total, self._total)

    def _show_estimate(self, estimate: "Estimate") -> None:
        if estimate.seconds * self._total >= SHORT_S:
            problems.print(f"{estimate}; {self._total} windows")
