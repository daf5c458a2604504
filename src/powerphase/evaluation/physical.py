"""Physical scenarios: any model's forecast, made to satisfy the AC equations of its grid.

A forecaster gives P, Q, V and θ of every bus independently, so the four need not agree. Here the
power flow of every scenario and step is solved. P and Q at PQ buses and P at PV buses are taken as
forecast, slack and PV buses are held at the data set's set-points, and the rest is solved: V and θ,
Q at PV buses, P and Q at the slack bus. The record itself was made in the same way. A step without
a solution is backed off (its P and Q are scaled down); a step that still has none is left as
forecast. Both are counted.
"""

import os
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, UInt8

from powerphase.axes import KINDS, THETA, P, Q, V
from powerphase.cost import Stopwatch
from powerphase.dataset.certificate import AcCheck
from powerphase.dataset.recipe import Recipe, setpoints_pu
from powerphase.dataset.solving import WORK_STEPS
from powerphase.errors import ForecastError
from powerphase.evaluation.forecasting import (
    Forecast,
    Piece,
    Progress,
    load_forecast,
    write_forecast,
)
from powerphase.evaluation.scoring import check_task
from powerphase.grid.admittance import consumption_mva
from powerphase.grid.case import PQ, SLACK
from powerphase.grid.powerflow import (
    BACKED_OFF,
    CARRIED,
    PowerFlow,
    RescuedSolution,
    solve_with_rescue,
)
from powerphase.models.framework.base import Description
from powerphase.scenarios import Scenarios
from powerphase.synthesis.injections import Injections
from powerphase.synthesis.signals import Signals
from powerphase.task.windows import Task

TYPICAL_DAYS = 14
"""The days of an imported record by which its typical state is known."""

VARIANT = "physical"
"""Added to a forecaster's variant, to distinguish it from the plain one."""


@dataclass(frozen=True)
class Balance:
    """How far scenarios were from the AC equations before and after solving, and the effort.

    A residual is |ΔP + jΔQ| [MVA]: the forecast consumption of a bus, less the power that the
    network delivers at the forecast voltages. Steps are counted over all scenarios; *after* refers
    to those that were solved.
    """

    steps: int
    newton: int
    """Steps solved as forecast, with frozen or full Jacobians."""
    iwamoto: int
    """Steps solved as forecast, by damped Newton."""
    backed_off: int
    """Steps that could only be solved with P and Q scaled down."""
    unsolved: int
    """Steps that could not be solved, left as forecast."""
    least_scale: float
    """The smallest scale of a backed-off step; 1 if there is none."""
    before_largest_mva: float
    before_rms_mva: float
    after_largest_mva: float | None
    after_rms_mva: float | None
    rounding_share: float | None
    """The largest residual afterwards, as a share of what float32 rounding can explain."""
    seconds: float
    """For setting up the solver, all solutions and both residuals."""

    def __str__(self) -> str:
        after = "nothing solved"
        if self.after_largest_mva is not None and self.after_rms_mva is not None:
            after = f"{_mva(self.after_largest_mva)} and {_mva(self.after_rms_mva)}, "
            after += f"{self.rounding_share:.0%} of what float32 rounding can explain"
        before = f"{_mva(self.before_largest_mva)} at most, {_mva(self.before_rms_mva)} RMS"
        rescued = f"{self.iwamoto:,} by damped Newton, {self.backed_off:,} backed off"
        if self.backed_off:
            rescued += f" (least scale {self.least_scale:.2f})"
        return (
            f"power balance  {before}; after: {after}\n"
            f"power flow     {self.steps:,} steps in {self.seconds:.1f} s, "
            f"{self.steps / self.seconds:,.0f} per second; {rescued}, "
            f"{self.unsolved:,} unsolved and left as forecast"
        )


def _mva(value: float) -> str:
    return f"{value:,.0f} MVA" if value >= 100 else f"{value:.3g} MVA"


def physical(
    forecast: Forecast | str | Path,
    task: Task,
    *,
    out: str | Path | None = None,
    on_progress: Progress | None = None,
) -> Forecast:
    """The same forecast with the power flow of every scenario and step solved.

    It is as joint as its source: each step becomes one state of the grid, but which P and Q, and
    which steps, come together is as before. Its weights are unchanged, its variant ends in
    `physical`, and its `balance` has the fields of `Balance` once all scenarios have been iterated.

    Args:
        forecast: of any model, live or in a directory, for the same task on the same data set.
        task: its data set has the grid and the voltage set-points.
        out: a directory for the scenarios, as for `powerphase.forecast`.
        on_progress: called with the number of windows written, and the number of all.
    """
    source = forecast if isinstance(forecast, Forecast) else load_forecast(forecast)
    check_task(source, task)
    cost, balance = dict(source.cost), dict[str, Any]()
    live = Forecast(
        source.facts,
        _physical_description(source.description),
        cost,
        lambda skip: _solve_windows(source, task, cost, balance, skip),
        balance,
        training=source.training,
        failed=source.failed,
    )
    return live if out is None else write_forecast(live, out, on_progress)


def _physical_description(plain: Description) -> Description:
    if is_physical(plain.variant):
        raise ForecastError(f"the forecast of {plain.model} is already physical; use it as it is")
    return plain.with_word(VARIANT)


def is_physical(variant: str | None) -> bool:
    """Whether a forecast of this variant has its power flow solved."""
    return VARIANT in (variant or "").split("-")


def _solve_windows(
    source: Forecast,
    task: Task,
    cost: dict[str, Any],
    balance: dict[str, Any],
    skip: Collection[int],
) -> Iterator[Piece]:
    """Solve one window after another, and update cost and balance."""
    watch, solved = Stopwatch(), list[SolvedSteps]()
    with watch.running():
        solver = AcSolver(task)
    for window, values, weights in join_channels(source.pieces(skip), task.layout.n_channels):
        with watch.running():
            solved.append(solver.solve(values))
        cost.update(source.cost)
        if cost["predict_s"] is not None:
            cost["predict_s"] += watch.seconds
        balance.update(asdict(_make_balance(solved, watch.seconds)))
        scenarios = Scenarios(torch.from_numpy(values)[None], torch.from_numpy(weights)[None])
        del values, weights
        yield window, slice(0, task.layout.n_channels), scenarios
        del scenarios


@dataclass(frozen=True, eq=False)
class SolvedSteps:
    """Some steps: the largest and mean square residual, and how each step was solved."""

    before: Float[np.ndarray, "S 2"]
    after: Float[np.ndarray, "S 2"]
    """NaN, like the share, if a step was not solved."""
    share: Float[np.ndarray, " S"]
    provenance: UInt8[np.ndarray, " S"]
    backoff: Float[np.ndarray, " S"]


class AcSolver:
    """The power flow of a task's grid, for scenarios in the task's units.

    Args:
        task: its data set holds the grid and the set-points of its slack and PV buses.
        checks: whether residuals are computed, which takes nearly as long as solving; else NaN.
    """

    def __init__(self, task: Task, checks: bool = True) -> None:
        grid = task.store.grid
        p_mw, q_mvar, setpoint_pu = _typical_state(task)
        self._p_solved = np.flatnonzero(grid.bus_type == SLACK)
        self._q_solved = np.flatnonzero(grid.bus_type != PQ)
        self._clear_solved(p_mw[None], q_mvar[None])
        self._flow = PowerFlow(grid, setpoint_pu, p_mw, q_mvar)
        self._base_mva = grid.base_mva
        self._scale = task.layout.scale.astype(np.float64)
        self._check = AcCheck(grid) if checks else None

    def solve(self, values: Float32[np.ndarray, "M H C"]) -> SolvedSteps:
        """Solve all steps of a window's scenarios in place."""
        rows, threads = values.reshape(-1, values.shape[-1]), os.cpu_count() or 1
        size = min(WORK_STEPS, -(-len(rows) // threads))
        parts = [rows[first : first + size] for first in range(0, len(rows), size)]
        with ThreadPoolExecutor(threads) as pool:
            return _concatenate(list(pool.map(self._solve_part, parts)))

    def _solve_part(self, rows: Float32[np.ndarray, "S C"]) -> SolvedSteps:
        state = rows * self._scale
        p_mw, q_mvar = state[:, P::KINDS].copy(), state[:, Q::KINDS].copy()
        self._clear_solved(p_mw, q_mvar)
        solution = solve_with_rescue(self._flow, p_mw, q_mvar)
        solved = solution.provenance != CARRIED
        before = self._residual(state) if self._check else np.full((len(rows), 2), np.nan)
        self._write_solution(rows, solution, solved)
        after, share = np.full((len(rows), 2), np.nan), np.full(len(rows), np.nan)
        if self._check and solved.any():
            state = rows[solved] * self._scale
            after[solved] = self._residual(state)
            share[solved] = self._check.mismatch(state.astype(np.float32))[1]
        return SolvedSteps(before, after, share, solution.provenance, solution.backoff)

    def _clear_solved(
        self, p_mw: Float[np.ndarray, "S N"], q_mvar: Float[np.ndarray, "S N"]
    ) -> None:
        """Set what is to be solved to zero, so that it does not affect the solver's start."""
        p_mw[:, self._p_solved] = 0.0
        q_mvar[:, self._q_solved] = 0.0

    def _write_solution(
        self,
        rows: Float32[np.ndarray, "S C"],
        solution: RescuedSolution,
        solved: Bool[np.ndarray, " S"],
    ) -> None:
        """Write only what was solved: specified values stay identical to the last bit."""
        power_mva = consumption_mva(self._flow.ybus, self._base_mva, solution.voltage)
        moved = solution.provenance == BACKED_OFF
        for kind, power, specified, free in (
            (P, power_mva.real, solution.p_mw, self._p_solved),
            (Q, power_mva.imag, solution.q_mvar, self._q_solved),
        ):
            column, scale = rows[:, kind::KINDS], self._scale[kind]
            column[moved] = specified[moved] / scale
            cells = np.ix_(solved, free)
            column[cells] = power[cells] / scale
        rows[:, V::KINDS][solved] = np.abs(solution.voltage[solved])
        rows[:, THETA::KINDS][solved] = np.angle(solution.voltage[solved])

    def _residual(self, state: Float[np.ndarray, "S C"]) -> Float[np.ndarray, "S 2"]:
        """Largest residual [MVA] of each step, and the mean of its squares [MVA²]."""
        p_mw, q_mvar, v, theta = (state[:, kind::KINDS] for kind in (P, Q, V, THETA))
        delivered = consumption_mva(self._flow.ybus, self._base_mva, v * np.exp(1j * theta))
        residual = abs(delivered - (p_mw + 1j * q_mvar))
        return np.stack([residual.max(axis=1), (residual**2).mean(axis=1)], axis=1)


def _typical_state(
    task: Task,
) -> tuple[Float[np.ndarray, " N"], Float[np.ndarray, " N"], Float[np.ndarray, " N"]]:
    """Mean P and Q, and the voltages that slack and PV buses hold.

    Nothing is from the test split: not even the start of Newton may use the future. Those of an
    imported record are means over the last weeks before it, which are read in a moment however long
    the record is.
    """
    store, known = task.store, slice(task.splits.first, task.splits.train_stop)
    if store.is_imported:
        first = max(known.start, known.stop - TYPICAL_DAYS * store.manifest.steps_per_day)
        states = store.read_states(slice(first, known.stop), slice(None))
        mean = states.mean(axis=0, dtype=np.float64).reshape(-1, KINDS)
        return mean[:, P].copy(), mean[:, Q].copy(), mean[:, V].copy()
    recipe = Recipe(**store.manifest.recipe)
    signals = Signals(store.time[known], store.signals_mw[known], store.manifest.edition, "")
    p_mw, q_mvar = Injections(store.grid, signals, recipe.seed, recipe.dispatch).mean()
    return p_mw, q_mvar, setpoints_pu(recipe, store.grid)


def _concatenate(parts: Sequence[SolvedSteps]) -> SolvedSteps:
    arrays = zip(*(vars(part).values() for part in parts), strict=True)
    return SolvedSteps(*(np.concatenate(array) for array in arrays))


def _make_balance(parts: Sequence[SolvedSteps], seconds: float) -> Balance:
    """The balance of all steps so far."""
    steps = _concatenate(parts)
    newton, iwamoto, backed_off, unsolved = np.bincount(steps.provenance, minlength=4).tolist()
    solved = steps.provenance != CARRIED
    before = _largest_and_rms(steps.before)
    after = _largest_and_rms(steps.after[solved]) if solved.any() else (None, None)
    return Balance(
        steps=len(solved),
        newton=newton,
        iwamoto=iwamoto,
        backed_off=backed_off,
        unsolved=unsolved,
        least_scale=float(np.min(steps.backoff[solved], initial=1.0)),
        before_largest_mva=before[0],
        before_rms_mva=before[1],
        after_largest_mva=after[0],
        after_rms_mva=after[1],
        rounding_share=float(steps.share[solved].max()) if solved.any() else None,
        seconds=seconds,
    )


def _largest_and_rms(residual: Float[np.ndarray, "S 2"]) -> tuple[float, float]:
    """Largest and root mean square over all buses and steps."""
    return float(residual[:, 0].max()), float(np.sqrt(residual[:, 1].mean()))


@dataclass(eq=False)
class _Window:
    """The scenarios of a window, copied block by block."""

    number: int
    values: Float32[np.ndarray, "M H C"]
    weights: Float32[np.ndarray, "M C"]
    is_set: Bool[np.ndarray, " C"]

    @classmethod
    def empty(cls, number: int, like: Scenarios, n_channels: int) -> "_Window":
        """Arrays for all channels of as many scenarios."""
        _, n_scenarios, horizon, _ = like.values.shape
        values = np.empty((n_scenarios, horizon, n_channels), dtype=np.float32)
        weights = np.empty((n_scenarios, n_channels), dtype=np.float32)
        return cls(number, values, weights, np.zeros(n_channels, dtype=bool))

    def add(self, window: int, channels: slice, block: Scenarios) -> None:
        """Copy a block of channels, which must be new and of this window."""
        if window != self.number:
            raise self.incomplete_error()
        n_found, n_expected = block.values.shape[1], len(self.values)
        if n_found != n_expected or self.is_set[channels].any():
            problem = "forecast twice"
            if n_found != n_expected:
                problem = f"{n_found} scenarios, but other channels have {n_expected}"
            raise ForecastError(problem, window=window, channel=channels.start)
        torch.from_numpy(self.values)[..., channels] = block.values[0].detach()  # on all cores
        self.weights[..., channels] = block.weights[0].detach().cpu().numpy()
        self.is_set[channels] = True

    def incomplete_error(self) -> ForecastError:
        """The error for a window that lacks channels."""
        missing = int(self.is_set.argmin())
        problem = "the forecast has no scenarios for this channel"
        return ForecastError(problem, window=self.number, channel=missing)


def join_channels(
    pieces: Iterator[Piece], n_channels: int
) -> Iterator[tuple[int, Float32[np.ndarray, "M H C"], Float32[np.ndarray, "M C"]]]:
    """Values and weights of one window after another, with all channels."""
    partial: _Window | None = None
    for window, channels, scenarios in pieces:
        partial = partial or _Window.empty(window, scenarios, n_channels)
        partial.add(window, channels, scenarios)
        del scenarios
        if partial.is_set.all():
            complete, partial = partial, None
            yield window, complete.values, complete.weights
            del complete
    if partial is not None:
        raise partial.incomplete_error()
