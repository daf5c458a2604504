"""A task on a data set: its training record, its forecast windows and its scales."""

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Int

from powerphase.axes import STEP_S
from powerphase.circuit import Limits
from powerphase.dataset.store import Store, open_store
from powerphase.grid.case import BASE_KV, Grid
from powerphase.grid.limits import limits_of
from powerphase.scenarios import Context, Layout, Record, Training, Windows
from powerphase.task.protocol import (
    PAPER_CONTEXT,
    PAPER_HORIZON,
    PAPER_WINDOWS,
    Protocol,
    Splits,
    WindowCount,
)


class Task:
    """What to forecast on one data set; by default exactly as in the paper.

    Everything that is read of the data set is compared with its checksums; damage raises.

    Args:
        store: the data set, or its path.
        context: steps that a forecaster sees before each window.
        horizon: steps that it forecasts.
        windows: number of test windows, or "all" for every day of the test split. With ten windows,
            differences between models are often noise; with all windows, seldom.
        limits: voltages that count as safe: "normal" for 0.95 to 1.05 p.u., "case" for each bus's
            limits in the case file, or another band of all buses, such as "0.9-1.1".
        rating: the rating of branches in the case file by which overloads count: "a", "b" or "c".
    """

    def __init__(
        self,
        store: Store | str | Path,
        *,
        context: int = PAPER_CONTEXT,
        horizon: int = PAPER_HORIZON,
        windows: WindowCount = PAPER_WINDOWS,
        limits: str = "normal",
        rating: str = "a",
    ) -> None:
        self.store = store if isinstance(store, Store) else open_store(store)
        self.store.verify_files()
        self.protocol = Protocol(context, horizon, windows, limits, rating)
        self.splits: Splits = self.protocol.splits(self.store.time)
        self._origins = self.protocol.test_origins(self.splits)

    def __repr__(self) -> str:
        m = self.store.manifest
        return f"<powerphase.Task {self.name} on {m.grid} {m.edition}, {len(self.test)} windows>"

    @property
    def name(self) -> str:
        """The task's name, which contains every option that differs from the paper's."""
        return self.protocol.name

    @cached_property
    def layout(self) -> Layout:
        """The channels; P and Q are divided by their largest size in the training split."""
        largest = self.store.largest_power(slice(self.splits.first, self.splits.train_stop))
        grid, protocol = self.store.grid, self.protocol
        limits = limits_of(grid, protocol.limits, protocol.rating)
        return layout_of(grid, limits, *(value or 1.0 for value in largest))

    @cached_property
    def test(self) -> Windows:
        """The windows that are scored."""
        return self._windows(self._origins, self.splits.stop)

    @property
    def targets_verified(self) -> bool:
        """Whether the targets of all test windows were read, and agree with their checksums."""
        steps = [slice(int(k), int(k) + self.protocol.horizon) for k in self._origins]
        return all(self.store.is_verified(target) for target in steps)

    @cached_property
    def training(self) -> Training:
        """The record that a model may be fitted on, and the validation windows."""
        origins = self.protocol.validation_origins(self.splits)
        validation = self._windows(origins, self.splits.train_stop)  # contains no test step
        record = self._record(self.splits.first, self.splits.fit_stop)
        return Training(record, validation, self._data)

    @property
    def tomorrow(self) -> Context:
        """The context before the day after the record, whose states are unknown.

        The record is used to its end, even if it is longer than the paper's.
        """
        n_steps, n_past = len(self.store.time), self.protocol.context
        past = self._record(n_steps - n_past, n_steps)
        offsets = np.arange(n_past + self.protocol.horizon) * np.timedelta64(STEP_S, "s")
        return Context(past.read()[None], (past.time[0] + offsets)[None], self.layout)

    @property
    def _data(self) -> dict[str, Any]:
        """What identifies the data of a training; it does not depend on the test windows."""
        manifest, protocol = self.store.manifest, self.protocol
        return {
            "grid": manifest.grid,
            "edition": manifest.edition,
            "fingerprint": manifest.fingerprint,
            "task_version": protocol.version,
            "context": protocol.context,
            "horizon": protocol.horizon,
        }

    def _windows(self, origins: Int[np.ndarray, " B"], stop: int) -> Windows:
        record = self._record(0, stop)
        return Windows(record, origins, self.protocol.context, self.protocol.horizon)

    def _record(self, first: int, stop: int) -> Record:
        def read(steps: slice, channels: slice) -> Float32[np.ndarray, "S C"]:
            shifted = slice(first + steps.start, first + steps.stop)
            return self.store.read_states(shifted, channels)

        return Record(self.layout, self.store.time[first:stop], read)


def layout_of(grid: Grid, limits: Limits, p_scale_mw: float, q_scale_mvar: float) -> Layout:
    """The layout of a grid's channels with these limits and scales."""
    return Layout(
        grid=grid.name,
        bus_id=grid.bus_id,
        bus_type=grid.bus_type,
        nominal_kv=grid.bus[:, BASE_KV].copy(),
        circuit=grid.circuit,
        limits=limits,
        p_scale_mw=p_scale_mw,
        q_scale_mvar=q_scale_mvar,
    )
