"""Voltages and loadings in the scenarios of one day, from states in which they have a meaning.

Loading follows from small differences of angles. A forecast may have the right P and Q and angles
that do not fit them, as draws of FactorForge and ETS do, and its own loadings are then absurd. The
power flow of every step is therefore solved first, which changes nothing for a past day. Joint
scenarios have better voltages after solving, too; those of other scenarios are read as forecast.
docs/tomorrow.md has the measurements.
"""

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int, UInt8
from torch import Tensor

from powerphase.axes import KINDS, THETA, V
from powerphase.cost import Stopwatch
from powerphase.errors import ForecastError
from powerphase.evaluation.forecasting import predict_blocks
from powerphase.evaluation.physical import AcSolver, join_channels
from powerphase.grid.powerflow import BACKED_OFF, CARRIED
from powerphase.models.framework.base import Forecaster
from powerphase.scenarios import Context, Layout, Scenarios
from powerphase.task.windows import Task

MAX_THREADS = 4
"""The most scenarios whose flows are computed at a time."""

States = Float32[np.ndarray, "M H C"]
Weights = Float32[np.ndarray, "M C"]


@dataclass(frozen=True, eq=False)
class LineStates:
    """The loading of the R rated branches in the scenarios that have one."""

    number: Int[np.ndarray, " M"]
    """The scenarios: all, or those of which every step has a solution."""
    loading: Float32[Tensor, "1 M H R"]
    weights: Float64[Tensor, "1 M R"]
    """The weight of a scenario is its mean weight over all channels, whatever the branch."""
    n_backed_off: int
    """Steps, of all scenarios, that were solved with P and Q scaled down."""

    @property
    def overload(self) -> Bool[Tensor, "1 M H R"]:
        """Where the loading is above 1."""
        return self.loading > 1


class StateReader:
    """Reads voltages and loadings from scenarios of a task's grid.

    Args:
        task: its layout has circuit and ratings, its data set the grid and the set-points.
    """

    def __init__(self, task: Task) -> None:
        self._layout = task.layout
        self._solver = AcSolver(task, checks=False) if task.store.has_grid else None

    def read(
        self, values: States, weights: Weights, joint: bool | None
    ) -> tuple[Scenarios, LineStates]:
        """Voltages and loadings in these scenarios, which are solved in place.

        Without a grid there is nothing to solve: voltages are as forecast, and no line is known.
        """
        if self._solver is None:
            pair = (
                torch.from_numpy(part[None])
                for part in (values[..., V::KINDS], weights[..., V::KINDS])
            )
            solved = np.zeros(values.shape[:2], dtype=np.uint8)
            return Scenarios(*pair), self._read_lines(values, weights, solved)
        forecast = values[..., V::KINDS].copy()
        provenance = self._solver.solve(values).provenance.reshape(values.shape[:2])
        voltage = values[..., V::KINDS] if joint else forecast
        pair = (torch.from_numpy(part[None]) for part in (voltage, weights[..., V::KINDS]))
        return Scenarios(*pair), self._read_lines(values, weights, provenance)

    def _read_lines(
        self, values: States, weights: Weights, provenance: UInt8[np.ndarray, "M H"]
    ) -> LineStates:
        number = np.flatnonzero((provenance != CARRIED).all(1))
        n_backed_off = int((provenance == BACKED_OFF).sum())
        loading = torch.from_numpy(rated_loading(self._layout, values[number]))[None]
        mean = torch.from_numpy(weights[number].mean(1, dtype=np.float64))
        columns = mean[None, :, None].expand(1, -1, loading.shape[-1])
        return LineStates(number, loading, columns, n_backed_off)


def rated_loading(
    layout: Layout, states: Float[np.ndarray, "M H C"]
) -> Float32[np.ndarray, "M H R"]:
    """The loading of the rated branches in normalised states."""
    limits = layout.limits
    loading = np.empty((*states.shape[:2], int(limits.is_rated.sum())), np.float32)

    def read(scenario: int) -> None:
        v, theta = (states[scenario][:, kind::KINDS].astype(np.float64) for kind in (V, THETA))
        all_branches = layout.circuit.loading(v, theta, limits.rating_mva)
        loading[scenario] = all_branches[:, limits.is_rated]

    # Few scenarios at a time: the flows of all would need much more memory than the result.
    with ThreadPoolExecutor(min(MAX_THREADS, os.cpu_count() or 1)) as pool:
        list(pool.map(read, range(len(states))))
    return loading


def predict_states(model: Forecaster, context: Context, window: int = 0) -> tuple[States, Weights]:
    """A model's scenarios for one window, with all channels."""
    blocks = predict_blocks(model, context, Stopwatch(), window)
    pieces = ((window, *block) for block in blocks)
    for _, values, weights in join_channels(pieces, context.layout.n_channels):
        return values, weights
    raise ForecastError("the model returned no scenarios", window=window)
