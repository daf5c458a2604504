"""A task on a data set: its training record, its forecast windows and its scales."""

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Float32, Int

from powerphase.circuit import Circuit, Limits
from powerphase.clock import GERMANY, Calendar
from powerphase.dataset.store import Store, open_store
from powerphase.errors import TaskError
from powerphase.grid.case import BASE_KV, Grid
from powerphase.grid.limits import common_band, limits_of
from powerphase.issued import Issued
from powerphase.resolution import (
    DAY_S,
    MINUTE_S,
    PAPER_STEP_S,
    Duration,
    time_of_day,
)
from powerphase.scenarios import Context, Layout, Record, Training, Windows
from powerphase.task import exports
from powerphase.task.known import KnownInput, KnownSource, read_known
from powerphase.task.protocol import (
    PAPER_CONTEXT,
    PAPER_HORIZON,
    PAPER_ORIGIN,
    PAPER_WINDOWS,
    RECORD_END,
    Protocol,
    Splits,
    WindowCount,
)


class Task:
    """What to forecast on one data set; by default exactly as in the paper.

    Everything that is read of the data set is compared with its checksums; damage raises.

    Args:
        store: the data set, or its path.
        context: how much a forecaster sees before each window: steps, or text such as `7d`.
        horizon: how much it forecasts: steps, or text such as `24h`.
        windows: number of test windows, or "all" for every day of the test split. With ten windows,
            differences between models are often noise; with all windows, seldom.
        origin: the time of day at which windows start, UTC, such as `12:00`; `end` is that at which
            the record ends.
        limits: voltages that count as safe: "normal" for 0.95 to 1.05 p.u., "case" for each bus's
            limits in the case file, or another band of all buses, such as "0.9-1.1".
        rating: the rating of branches in the case file by which overloads count: "a", "b" or "c".
        country: the country whose holidays models know, or "none"; by default the data set's.
        zone: the time zone by whose clock they count days; by default that of the country.
        as_of: an earlier fingerprint of an imported record that has grown since: training, scales
            and test windows are those of then, so that a model that was fitted then can be used
            again; `tomorrow` follows the newest rows.
        known: forecasts of load, sun and wind that models are given: "made" from the true signals
            of a generated data set, "record" for those of OPSD, a file of forecasts, or an object;
            without it models see past states only.
    """

    def __init__(
        self,
        store: Store | str | Path,
        *,
        context: Duration = PAPER_CONTEXT,
        horizon: Duration = PAPER_HORIZON,
        windows: WindowCount = PAPER_WINDOWS,
        origin: str = PAPER_ORIGIN,
        limits: str = "normal",
        rating: str = "a",
        country: str | None = None,
        zone: str | None = None,
        as_of: str | None = None,
        known: KnownInput = None,
    ) -> None:
        self.store = store if isinstance(store, Store) else open_store(store)
        self.store.verify_files()
        self.fingerprint = as_of or self.store.manifest.fingerprint
        """That of the record on which models are fitted: it may have grown since."""
        n_steps = self.store.steps_of(self.fingerprint)
        self.calendar = self.store.calendar.override(country, zone)
        self.protocol = Protocol.of(
            self.store.step_s,
            context=context,
            horizon=horizon,
            windows=windows,
            origin=self._record_end if origin == RECORD_END else origin,
            limits=limits,
            rating=rating,
            country=country,
            zone=zone,
            calendar=self.store.calendar,
            known=read_known(known),
        )
        self.splits: Splits = self.protocol.splits(self.store.time[:n_steps])
        self._origins = self.protocol.test_origins(self.splits)

    @classmethod
    def of_protocol(cls, store: Store | str | Path, protocol: Protocol) -> "Task":
        """The task of this protocol on a data set with its step."""
        task = cls(
            store,
            context=protocol.context,
            horizon=protocol.horizon,
            windows=protocol.windows,
            origin=protocol.origin,
            limits=protocol.limits,
            rating=protocol.rating,
            country=protocol.country,
            zone=protocol.zone,
            known=protocol.known,
        )
        if task.protocol.step_s != protocol.step_s:
            raise TaskError(
                f"{protocol.name}: its steps are of {protocol.step_s // MINUTE_S} minutes, those "
                f"of {task.store.path} of {task.protocol.step_s // MINUTE_S}; use other data"
            )
        return task

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
        if not self.store.has_grid:
            return _layout_without_grid(self, *(value or 1.0 for value in largest))
        grid, protocol = self.store.grid, self.protocol
        limits = limits_of(grid, protocol.limits, protocol.rating)
        p_scale_mw, q_scale_mvar = (value or 1.0 for value in largest)
        return layout_of(grid, limits, p_scale_mw, q_scale_mvar, self.calendar)

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
        # Contains no test step. Like the record, it may start before a table of forecasts.
        validation = self._windows(origins, self.splits.train_stop, complete=False)
        record = self._record(self.splits.first, self.splits.fit_stop)
        return Training(record, validation, self._data, self.protocol.origin_s)

    @property
    def tomorrow(self) -> Context:
        """The context before the day after the record, whose states are unknown.

        It starts where the record ends or, if that is another time of day than that of the test
        windows, at the last such time before. The record is used even beyond the paper's end.
        """
        protocol, time = self.protocol, self.store.time
        n_past, step = protocol.context, np.timedelta64(protocol.step_s, "s")
        if protocol.known is not None and protocol.known.kind == "made":
            raise TaskError(
                f"{self.name}: forecasts are made from what happened, which nobody knows of the "
                "day after the record; give a file of forecasts"
            )
        too_late = (time_of_day(time[-1] + step) - protocol.origin_s) % DAY_S // protocol.step_s
        stop = len(time) - too_late
        if stop < n_past:
            raise TaskError(
                f"{self.name}: {stop} steps before the last origin for a context of {n_past}; "
                "shorten the context or make a longer record"
            )
        past = self._record(stop - n_past, stop)
        offsets = np.arange(n_past + protocol.horizon) * step
        observed = past.read_observed()
        mask = None if observed is None else observed[None]
        time = (past.time[0] + offsets)[None]
        known = past.known_at(np.array([n_past]), n_past, protocol.horizon)
        return Context(past.read()[None], time, self.layout, mask, known)

    def to_gluonts(self, channels: Sequence[int] | None = None, *, targets: bool = False) -> Any:
        """The task for GluonTS: `train` and `test` data sets of univariate series.

        An entry of `test` is what a channel was before a test window, for `predictor.predict`.

        Args:
            channels: the numbers of the channels; by default all.
            targets: whether the entries of `test` go on to the end of their window.
        """
        return exports.to_gluonts(self, channels, targets)

    def to_nixtla(
        self, channels: Sequence[int] | None = None, *, targets: bool = False
    ) -> exports.LongFrames:
        """The task for Nixtla's libraries: tables of `unique_id`, `ds` and `y`.

        Args:
            channels: the numbers of the channels; by default all.
            targets: whether what happened in the test windows goes out as well.
        """
        return exports.to_nixtla(self, channels, targets)

    def to_darts(
        self, channels: Sequence[int] | None = None, *, targets: bool = False
    ) -> exports.DartsSeries:
        """The task for Darts: multivariate series of the training record and of the contexts.

        Args:
            channels: the numbers of the channels; by default all.
            targets: whether what happened in the test windows goes out as well.
        """
        return exports.to_darts(self, channels, targets)

    def to_datasets(self, channels: Sequence[int] | None = None, *, targets: bool = False) -> Any:
        """The task as a Hugging Face `DatasetDict`: a row for each window.

        `train` has a window for each day of the record, `validation` and `test` those of the task.
        A row has `start`, `past` (steps × channels) and `target`, which `test` lacks by default.

        Args:
            channels: the numbers of the channels; by default all.
            targets: whether what happened in the test windows goes out as well.
        """
        return exports.to_datasets(self, channels, targets)

    def to_fev(self, folder: str | Path, channels: Sequence[int], *, targets: bool = False) -> Path:
        """Write the task for fev: series in a Parquet file, and tasks in the file that is returned.

        By default it is a task on the validation windows, since fev reads what happened from the
        series. `fev.Benchmark.from_yaml` reads the file.

        Args:
            folder: where to write.
            channels: the numbers of the channels; fev holds all of them in memory.
            targets: whether to write the test windows, and what happened in them, instead.
        """
        return exports.to_fev(self, folder, channels, targets)

    @property
    def _record_end(self) -> str:
        """The time of day at which the step after the record starts."""
        last = self.store.time[-1] + np.timedelta64(self.store.step_s, "s")
        return str(last.astype("datetime64[m]"))[-5:]

    @property
    def _data(self) -> dict[str, Any]:
        """What identifies the data of a training; it does not depend on the test windows."""
        manifest, protocol = self.store.manifest, self.protocol
        facets = {
            "step_s": (protocol.step_s, PAPER_STEP_S),
            "origin_s": (protocol.origin_s, 0),
            "country": (protocol.country, None),
            "zone": (protocol.zone, None),
            "known": (self._known_words, None),
        }
        return {
            "grid": manifest.grid,
            "edition": manifest.edition,
            "fingerprint": self.fingerprint,
            "task_version": protocol.version,
            "context": protocol.context,
            "horizon": protocol.horizon,
            # Only where they differ: trainings of the paper's task have always had the rest.
            **{name: value for name, (value, usual) in facets.items() if value != usual},
        }

    @property
    def _known_words(self) -> str | None:
        """What identifies the forecasts that a model is fitted on: a table may grow afterwards."""
        source = self.protocol.known
        if source is not None and source.kind == "file":
            # Up to the end of the validation windows, by which networks choose their weights.
            end = self.store.time[self.splits.train_stop]
            source = KnownSource.of_sha256(self._forecasts.sha256_before(end))
        return None if source is None else source.words.removeprefix("-")

    def _windows(
        self, origins: Int[np.ndarray, " B"], stop: int, *, complete: bool = True
    ) -> Windows:
        context, horizon = self.protocol.context, self.protocol.horizon
        return Windows(self._record(0, stop), origins, context, horizon, complete=complete)

    def _record(self, first: int, stop: int) -> Record:
        def read(steps: slice, channels: slice) -> Float32[np.ndarray, "S C"]:
            shifted = slice(first + steps.start, first + steps.stop)
            return self.store.read_states(shifted, channels)

        def read_observed(steps: slice, channels: slice) -> Bool[np.ndarray, "S C"] | None:
            shifted = slice(first + steps.start, first + steps.stop)
            return self.store.read_observed(shifted, channels)

        mask = read_observed if self.store.is_imported else None
        known = None if self.protocol.known is None else self._read_forecasts
        return Record(self.layout, self.store.time[first:stop], read, mask, known)

    def _read_forecasts(self) -> Issued:
        return self._forecasts

    @cached_property
    def _forecasts(self) -> Issued:
        """The forecasts of national signals, which are made or read when they are needed."""
        assert self.protocol.known is not None
        return self.protocol.known.forecasts(self.store, self.protocol.horizon)


def _layout_without_grid(task: Task, p_scale_mw: float, q_scale_mvar: float) -> Layout:
    """The layout of an imported record without a grid: no lines, and one band for all buses."""
    store, band = task.store, common_band(task.protocol.limits)
    if band is None:
        raise TaskError(
            f"{store.path}: has no grid, so its buses have no voltage limits of their own; use "
            "the normal limits, or a band such as 0.9-1.1"
        )
    circuit = Circuit.none(store.manifest.n_buses)
    return Layout(
        grid=store.manifest.grid,
        bus_id=store.bus_id,
        bus_type=np.asarray(store.array("grid/bus_type")[...]),
        nominal_kv=np.asarray(store.array("grid/nominal_kv")[...]),
        circuit=circuit,
        limits=Limits.equal(circuit, band, np.inf),
        p_scale_mw=p_scale_mw,
        q_scale_mvar=q_scale_mvar,
        calendar=task.calendar,
    )


def layout_of(
    grid: Grid,
    limits: Limits,
    p_scale_mw: float,
    q_scale_mvar: float,
    calendar: Calendar = GERMANY,
) -> Layout:
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
        calendar=calendar,
    )
