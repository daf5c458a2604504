"""The outlook: which limits may be violated on the day after the record, where and when.

Windows that are scored lie within the record, which has their targets. This one follows its end.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Float64, Int, Shaped

from powerphase.axes import WEIGHT_TOLERANCE
from powerphase.evaluation.day_risk import (
    DECIMALS,
    Sides,
    ever,
    fit_joint,
    probability,
)
from powerphase.evaluation.day_states import LineStates, StateReader, predict_states
from powerphase.evaluation.forecasting import (
    UNKNOWN_COST,
    Forecast,
    check_forecaster,
    task_facts,
    write_forecast,
)
from powerphase.metrics.marginal import Fan
from powerphase.metrics.safety import bus_band
from powerphase.models.framework.base import Description, Forecaster
from powerphase.models.framework.device import choose_device
from powerphase.resolution import HOUR_S
from powerphase.scenarios import Layout, Scenarios
from powerphase.task.windows import Task

if TYPE_CHECKING:
    import pandas as pd


COLUMNS = (
    *("kind", "name", "bus", "to_bus", "nominal_kv", "rating_mva"),
    *("chance", "chance_below", "chance_above", "hours", "riskiest_time_utc", "chance_then"),
    *("side_then", "low_80_pu_then", "high_80_pu_then"),
    *("loading_then", "worst_scenario", "worst_loading", "joint"),
)
"""The columns of an outlook's rows."""


@dataclass(frozen=True, eq=False)
class DayRisk:
    """How likely each of X buses or lines violates its limits on a day, and when."""

    ever: Float64[np.ndarray, " X"]
    """Probability of a violation at any time of the day; NaN if it is unknown."""
    violated: Float64[np.ndarray, "H X"]
    """Probability of a violation in each step."""
    margin: Float[np.ndarray, "H X"]
    """Distance to the limits; negative beyond them."""
    step_hours: float
    """Length of a step [h]."""

    @cached_property
    def hours(self) -> Float64[np.ndarray, " X"]:
        """Expected number of hours of violation."""
        return np.round(self.violated.sum(0) * self.step_hours, DECIMALS)

    @cached_property
    def riskiest_step(self) -> Int[np.ndarray, " X"]:
        """When a violation is most likely; of several steps, the one with the least margin."""
        return np.where(self.violated == self.violated.max(0), self.margin, np.inf).argmin(0)

    @cached_property
    def always(self) -> Bool[np.ndarray, " X"]:
        """Which violate their limits in every step of every scenario."""
        return np.all(self.violated > 1 - WEIGHT_TOLERANCE, axis=0)

    @cached_property
    def order(self) -> Int[np.ndarray, " X"]:
        """All of them: the most likely violations first, then the longer ones.

        Those that violate no limit are ordered by their margin.
        """
        return np.lexsort((self.margin.min(0), -self.hours, -self.ever))


@dataclass(frozen=True, eq=False)
class BusRisk(DayRisk):
    """How likely the N buses leave their voltage band; margins are of the central 80 % [p.u.]."""

    below: Float32[np.ndarray, "H N"]
    """Probability that a bus is below its band in each step."""
    above: Float32[np.ndarray, "H N"]
    ever_below: Float64[np.ndarray, " N"]
    """Probability of being below the band at any time of the day."""
    ever_above: Float64[np.ndarray, " N"]
    low: Float32[np.ndarray, "H N"]
    """Lower end of the central 80 % in each step."""
    high: Float32[np.ndarray, "H N"]


@dataclass(frozen=True, eq=False)
class LineRisk(DayRisk):
    """How likely the R rated lines are overloaded; margins are of the expected loading."""

    branch: Int[np.ndarray, " R"]
    """Positions in the circuit of the layout."""
    loading: Float64[np.ndarray, "H R"]
    """Expected loading, as a share of the rating."""
    worst_scenario: Int[np.ndarray, " R"]
    """The number, from 0, of the scenario in which a line's loading is highest."""
    worst_loading: Float32[np.ndarray, " R"]
    """The highest loading in that scenario."""
    n_unsolved: int
    """Scenarios that are left out, because the power flow of some step has no solution."""
    n_backed_off: int
    """Steps, of all scenarios, that were solved with P and Q scaled down."""


@dataclass(frozen=True, eq=False)
class Outlook:
    """A model's forecast of the violations of limits on the day after the record."""

    description: Description
    """The model; `joint` is that of the scenarios that were read."""
    n_scenarios: int
    layout: Layout
    limits: str
    """The voltage limits, as a task names them."""
    rating: str
    time: Shaped[np.ndarray, " H"]
    """Start of each step, UTC."""
    buses: BusRisk
    lines: LineRisk
    bus_names: Mapping[int, str] = field(default_factory=dict)
    """Of an imported record, by number, where the source gives buses names."""

    @cached_property
    def rows(self) -> list[dict[str, Any]]:
        """A dictionary for each bus, then for each rated line, the most likely violations first.

        docs/tomorrow.md explains the columns; what a bus or a line does not have is None.
        """
        buses = [self._bus(int(bus)) for bus in self.buses.order]
        lines = [self._line(int(line)) for line in self.lines.order]
        return [dict.fromkeys(COLUMNS) | row for row in (*buses, *lines)]

    @property
    def n_unrated(self) -> int:
        """Branches in service without a rating, which have flows and no loading."""
        return self.layout.circuit.n_branches - len(self.lines.branch)

    def to_pandas(self) -> "pd.DataFrame":
        """The rows as a table."""
        import pandas as pd  # takes a second to load

        frame = pd.DataFrame(self.rows)
        frame["riskiest_time_utc"] = pd.to_datetime(frame["riskiest_time_utc"])
        return frame.astype(dict.fromkeys(("to_bus", "worst_scenario"), "Int64"))

    def _bus(self, bus: int) -> dict[str, Any]:
        risk, step = self.buses, self.buses.riskiest_step[bus]
        below, above = float(risk.below[step, bus]), float(risk.above[step, bus])
        number = int(self.layout.bus_id[bus])
        return {
            **{"kind": "bus", "name": self.bus_names.get(number, str(number))},
            **{"bus": number, "to_bus": None},
            "nominal_kv": float(self.layout.nominal_kv[bus]) or None,
            **self._chances(risk, bus),
            "chance_below": _rounded(risk.ever_below[bus]),
            "chance_above": _rounded(risk.ever_above[bus]),
            "side_then": None if below + above == 0 else "below" if below >= above else "above",
            "low_80_pu_then": _rounded(risk.low[step, bus]),
            "high_80_pu_then": _rounded(risk.high[step, bus]),
        }

    def _line(self, line: int) -> dict[str, Any]:
        risk, step = self.lines, self.lines.riskiest_step[line]
        branch, is_known = risk.branch[line], not np.isnan(risk.ever[line])
        start, end = (int(bus) for bus in self.layout.bus_id[self.layout.circuit.ends[branch]])
        name = self.layout.circuit.name[branch]
        return {
            **{"kind": "line", "name": name, "bus": start, "to_bus": end},
            **self._chances(risk, line),
            "rating_mva": float(self.layout.limits.rating_mva[branch]),
            "loading_then": _rounded(risk.loading[step, line]),
            "worst_scenario": int(risk.worst_scenario[line]) if is_known else None,
            "worst_loading": _rounded(risk.worst_loading[line]),
        }

    def _chances(self, risk: DayRisk, number: int) -> dict[str, Any]:
        """What buses and lines have in common."""
        step, is_known = risk.riskiest_step[number], not np.isnan(risk.ever[number])
        return {
            "chance": _rounded(risk.ever[number]),
            "hours": _rounded(risk.hours[number]),
            "riskiest_time_utc": _minute(self.time[step]) if is_known else None,
            "chance_then": _rounded(risk.violated[step, number]),
            "joint": "yes" if self.description.joint else "unknown",
        }


def _minute(time: np.datetime64) -> str:
    """The time as ISO text, such as `2017-01-01T18:15`."""
    return str(time.astype("datetime64[m]"))


def _rounded(value: np.floating) -> float | None:
    """Five decimals, as all formats show it; None if it is unknown."""
    return None if np.isnan(value) else round(float(value), 5)


def outlook(
    model: Forecaster, task: Task, *, out: str | Path | None = None, device: str = "auto"
) -> Outlook:
    """Fit the model, and forecast the violations of limits on the day after the record.

    Scenarios that are not joint say nothing of whole days: they are replaced by joint ones of the
    model (`joint_form`), or else coupled to past days, as by `couple`.

    Args:
        model: any object with `fit` and `predict`.
        task: has the record, what a model is fitted on, and the limits.
        out: a directory for the scenarios of the day, which is made as `forecast` makes one.
        device: cpu, cuda, or auto for a GPU if there is one.
    """
    torch_device = choose_device(device)
    check_forecaster(model)
    context = task.tomorrow  # raises before the fit if there is none
    form, description = fit_joint(model, task.training)
    joint = description.joint
    with ThreadPoolExecutor(1) as pool:
        reader = pool.submit(StateReader, task)  # prepares the power flow meanwhile
        values, weights = predict_states(form, context.to(torch_device))
    if out is not None:
        pair = (torch.from_numpy(part[None]) for part in (values, weights))
        _write_day(task, description, context.future_time[0, 0], Scenarios(*pair), out)
    voltages, lines = reader.result().read(values, weights, joint)
    return Outlook(
        description,
        len(values),
        task.layout,
        task.protocol.limits,
        task.protocol.rating,
        context.future_time[0],
        _bus_risk(task.layout, voltages, joint, context.step_s / HOUR_S),
        _line_risk(task.layout, len(values), lines, joint, context.step_s / HOUR_S),
        task.store.bus_names,
    )


def _write_day(
    task: Task,
    description: Description,
    start: np.datetime64,
    scenarios: Scenarios,
    out: str | Path,
) -> None:
    """Write the scenarios of the day after the record."""
    facts = {**task_facts(task), "windows": [str(start.astype("datetime64[m]"))]}
    piece = (0, slice(0, task.layout.n_channels), scenarios)
    live = Forecast(
        facts, description, dict(UNKNOWN_COST), lambda skip: iter([] if 0 in skip else [piece])
    )
    write_forecast(live, out)


def _bus_risk(
    layout: Layout, voltages: Scenarios, joint: bool | None, step_hours: float
) -> BusRisk:
    """The risk of all buses."""
    band = bus_band(layout.limits, voltages.values)
    sides = Sides.of(voltages.values, band)
    below, above = (probability(voltages.weights, side) for side in (sides.below, sides.above))
    low, high = Fan.of(voltages).central_interval
    return BusRisk(
        ever=ever(voltages.weights, sides.outside, joint)[0].numpy(),
        ever_below=ever(voltages.weights, sides.below, joint)[0].numpy(),
        ever_above=ever(voltages.weights, sides.above, joint)[0].numpy(),
        violated=(below + above).round(decimals=DECIMALS)[0].numpy(),
        margin=torch.minimum(low - band[0], band[1] - high)[0].numpy(),
        step_hours=step_hours,
        **{
            name: part[0].float().numpy()
            for name, part in {"below": below, "above": above, "low": low, "high": high}.items()
        },
    )


def _line_risk(
    layout: Layout, n_scenarios: int, states: LineStates, joint: bool | None, step_hours: float
) -> LineRisk:
    """The risk of all rated lines; unknown if no scenario has a solution."""
    facts: dict[str, Any] = {
        "branch": np.flatnonzero(layout.limits.is_rated),
        "n_unsolved": n_scenarios - len(states.number),
        "n_backed_off": states.n_backed_off,
        "step_hours": step_hours,
    }
    if not len(states.number):
        return _unknown_lines(facts, states.loading.shape[2])
    loading = states.loading[0]
    share = states.weights[0] / states.weights[0].sum(0)
    expected = torch.einsum("MHR,MR->HR", loading.double(), share).numpy()
    peak, worst = loading.amax(1).max(0)
    return LineRisk(
        ever=ever(states.weights, states.overload, joint)[0].numpy(),
        violated=probability(states.weights, states.overload)[0].numpy(),
        margin=1 - expected,
        loading=expected,
        worst_scenario=states.number[worst.numpy()],
        worst_loading=peak.numpy(),
        **facts,
    )


def _unknown_lines(facts: dict[str, Any], horizon: int) -> LineRisk:
    n_lines = len(facts["branch"])
    by_line, by_step = np.full(n_lines, np.nan), np.full((horizon, n_lines), np.nan)
    return LineRisk(
        ever=by_line,
        violated=by_step,
        margin=by_step,
        loading=by_step,
        worst_scenario=np.full(n_lines, -1),
        worst_loading=by_line.astype(np.float32),
        **facts,
    )
