"""What the sidecar of a row contains: scores by bus and step, and a few forecasts to draw.

Every model of a task shows the same buses in the same windows, so that forecasts can be drawn over
each other: the worst buses, those whose voltage comes and goes, and others spread evenly. They are
chosen by what happened, which all rows share. The risk and the furthest excursion of every bus are
stored too, so that a page can show what a model says of any other bus. Of the lines, most are never
overloaded: only those at risk are stored. How the arrays are rounded and stored is the matter of
`records.sidecar`.
"""

from collections.abc import Mapping
from itertools import zip_longest

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, UInt8
from torch import Tensor

from powerphase.axes import KINDS, V
from powerphase.metrics.safety import Band, bus_band, violates
from powerphase.metrics.streaming import Scorecard
from powerphase.records.scores import NORMAL_BAND_PU, SCORES
from powerphase.records.sidecar import (
    BY_BRANCH,
    EXCURSION,
    EXCURSION_HAPPENED,
    EXCURSION_UNIT_PU,
    HAPPENED,
    LINE,
    LINE_BUSES,
    LINE_COUNTS,
    LINE_HAPPENED,
    LINE_NUMBER,
    LINE_PEAK,
    LINE_RISK,
    LINE_TOTALS,
    RATING,
    RISK,
    RISK_LEVELS,
    compact,
    shown_windows,
)
from powerphase.scenarios import Scenarios
from powerphase.task.windows import Task

SHOWN_BUSES, SHOWN_SCENARIOS = 12, 10

BY_BUS = ("crps", "safety_mbrier", "necv", "cvar_0.1", "brier", "twcrps")
"""The scores that are stored for every bus, in addition to its violations."""


class ShownForecasts:
    """Collects the forecasts of the chosen buses and windows while they are scored."""

    def __init__(self, task: Task) -> None:
        self.windows: Int[np.ndarray, " shown"] = shown_windows(len(task.test))
        targets = torch.cat([task.test.target(int(window)) for window in self.windows])
        self._limits = task.layout.limits
        voltages = targets[..., V::KINDS]
        band = bus_band(self._limits, voltages)
        self.buses = choose_buses(voltages, band)
        self.bus_id = task.layout.bus_id[self.buses]
        channels = KINDS * self.buses[:, None] + np.arange(KINDS)
        self._channels = channels.ravel()
        self.target: Float32[np.ndarray, "shown H C"] = targets[..., self._channels].numpy()
        self._parts: dict[int, list[tuple[np.ndarray, Tensor, Tensor]]] = {}
        happened = violates(voltages, band).transpose(1, 2)
        self._happened: UInt8[np.ndarray, "shown N H"] = happened.to(torch.uint8).numpy()
        self._risk = np.zeros_like(self._happened)
        sides = torch.stack(_excursions(voltages, band), dim=-1)
        self._excursion_happened: UInt8[np.ndarray, "shown N side"] = _in_units(sides)
        self._excursion = np.zeros_like(self._excursion_happened)

    def add(self, window: int, channels: slice, scenarios: Scenarios) -> None:
        """Store what is shown of a block of channels."""
        if window not in self.windows:
            return
        self._add_risk(window, channels, scenarios)
        inside = (channels.start <= self._channels) & (self._channels < channels.stop)
        if not inside.any():
            return
        chosen = torch.from_numpy(self._channels[inside] - channels.start)
        chosen = chosen.to(scenarios.values.device)
        values, weights = scenarios.values[0][..., chosen], scenarios.weights[0][..., chosen]
        part = (np.flatnonzero(inside), values.float().cpu(), weights.float().cpu())
        self._parts.setdefault(window, []).append(part)

    def _add_risk(self, window: int, channels: slice, scenarios: Scenarios) -> None:
        """Store the probability that each voltage of the block is outside the band."""
        first = (V - channels.start) % KINDS
        voltages = scenarios.values[0, ..., first::KINDS]
        weights = scenarios.weights[0, :, first::KINDS]
        bus = (channels.start + first) // KINDS
        buses = slice(bus, bus + voltages.shape[-1])
        band = bus_band(self._limits, voltages, buses)
        # One scenario at a time: all together would need as much memory as the forecast.
        probability = torch.zeros_like(voltages[0])
        far, weight_far = torch.zeros((2, 2, voltages.shape[-1]), device=voltages.device)
        for voltage, weight in zip(voltages, weights, strict=True):
            probability += violates(voltage, band) * weight
            sides = torch.stack(_excursions(voltage, band))
            far += weight * sides
            weight_far += weight * (sides > 0)
        self._risk[self.windows == window, buses] = _in_levels(probability.T.cpu().numpy())
        mean = torch.where(weight_far > 0, far / weight_far, 0)
        self._excursion[self.windows == window, buses] = _in_units(mean.T)

    def arrays(self) -> dict[str, np.ndarray]:
        """Risk of all buses; target, scenarios and weights of those shown."""
        forecasts = [self._forecast(int(window)) for window in self.windows]
        values = np.stack([values for values, _ in forecasts])
        weights = np.stack([weights for _, weights in forecasts])
        shape = (len(self.buses), KINDS)
        return {
            RISK: self._risk,
            HAPPENED: self._happened,
            EXCURSION: self._excursion,
            EXCURSION_HAPPENED: self._excursion_happened,
            "shown/bus_id": self.bus_id,
            "shown/window": self.windows,
            "shown/target": self.target.reshape(*self.target.shape[:2], *shape),
            "shown/scenario": values.reshape(*values.shape[:3], *shape),
            "shown/weight": weights.reshape(*weights.shape[:2], *shape),
        }

    def _forecast(
        self, window: int
    ) -> tuple[Float32[np.ndarray, "M H C"], Float32[np.ndarray, "M C"]]:
        parts = self._parts[window]
        order = np.argsort(np.concatenate([positions for positions, _, _ in parts]))
        values = torch.cat([values for _, values, _ in parts], dim=-1)[..., order]
        weights = torch.cat([weights for _, _, weights in parts], dim=-1)[..., order]
        if len(weights) > SHOWN_SCENARIOS:
            values, weights = thin_scenarios(values, weights)
        return values.numpy(), weights.numpy()


def choose_buses(
    voltage: Float[Tensor, "shown H N"], band: Band = NORMAL_BAND_PU
) -> Int[np.ndarray, " buses"]:
    """The buses to show, from the most to the least worth a look, so that the first few suffice.

    In turn: one that is outside the band for longest, one that comes and goes, and one of the
    others, which are spread evenly over the case file. Among equals, the bus that goes furthest
    beyond the band, or comes closest to its limits, is first.
    """
    low, high = band
    beyond = torch.maximum(low - voltage, voltage - high).amax(dim=(0, 1)).numpy()
    outside = violates(voltage, band).double().mean(dim=(0, 1)).numpy()
    worst = np.lexsort((-beyond, -outside))
    changing = np.lexsort((-beyond, -outside * (1 - outside)))
    third = SHOWN_BUSES // 3
    at_risk = np.concatenate([worst[:third], changing[:third]])
    others = np.setdiff1d(np.arange(len(beyond)), at_risk)
    spread = np.linspace(0, max(len(others) - 1, 0), third).round().astype(np.int64)
    turns = zip_longest(worst, changing, others[spread] if others.size else others)
    in_turn = dict.fromkeys(int(bus) for turn in turns for bus in turn if bus is not None)
    return np.array(list(in_turn)[:SHOWN_BUSES])


def _excursions(
    voltage: Float[Tensor, "*shown H N"], band: Band
) -> tuple[Float[Tensor, "*shown N"], Float[Tensor, "*shown N"]]:
    """How far each voltage goes below and above the band at most [p.u.]."""
    low, high = band
    below, above = low - voltage.amin(dim=-2), voltage.amax(dim=-2) - high
    return below.clamp(min=0), above.clamp(min=0)


def _in_units(excursion: Float[Tensor, "*shown"]) -> UInt8[np.ndarray, "*shown"]:
    """Excursions [p.u.] in whole units; none that exists becomes 0."""
    units = (excursion.double() / EXCURSION_UNIT_PU - 1e-6).ceil()
    return units.clamp(0, 255).to(torch.uint8).cpu().numpy()


def thin_scenarios(
    values: Float[Tensor, "M H C"], weights: Float[Tensor, "M C"]
) -> tuple[Float[Tensor, "m H C"], Float[Tensor, "m C"]]:
    """Fewer scenarios of equal weight, at even distances along the cumulative weight.

    Each channel has its own weights, hence its own selection: pages draw channels one by one.
    """
    levels = (torch.arange(SHOWN_SCENARIOS) + 0.5) / SHOWN_SCENARIOS
    cumulative = weights.cumsum(0).T.contiguous()
    chosen = torch.searchsorted(cumulative, levels.expand(len(cumulative), -1).contiguous())
    chosen = chosen.clamp(max=len(weights) - 1).T[:, None].expand(-1, values.shape[1], -1)
    equal = torch.full((SHOWN_SCENARIOS, weights.shape[1]), 1 / SHOWN_SCENARIOS)
    return values.gather(0, chosen), equal


def make_sidecar(
    card: Scorecard, task: Task, shown: ShownForecasts | None, extra: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """The arrays of a sidecar, rounded as they are stored; forecasts only if some are shown."""
    arrays = {"reliability": card.reliability}
    for name in (*SCORES, "violation_probability", "violation"):
        arrays[f"by_step/{name}"] = card.by_step[name].astype(np.float32)
    for name in (*BY_BUS, "violation_probability", "violation"):
        values = card.by_bus[name].astype(np.float32)
        voltage_only = name not in SCORES or SCORES[name].voltage_only
        arrays[f"by_bus/{name}"] = values[:, V] if voltage_only else values
    lines = _line_arrays(card, task)
    return compact({**arrays, **lines, **extra, **(shown.arrays() if shown else {})})


def _line_arrays(card: Scorecard, task: Task) -> dict[str, np.ndarray]:
    """Of the lines at risk, what they are, their scores, and the risks of the shown windows."""
    circuit, limits = task.layout.circuit, task.layout.limits
    lines, n_at_risk = _worst_lines(card)
    numbers = [int(circuit.name[line].partition("/")[2] or 1) for line in lines]
    scores = {f"by_branch/{name}": card.by_branch[name][lines] for name in BY_BRANCH}
    return {
        LINE: np.flatnonzero(task.store.grid.branch_on)[lines] if len(lines) else lines,
        LINE_BUSES: task.layout.bus_id[circuit.ends[lines]],
        LINE_NUMBER: np.array(numbers, dtype=np.int64),
        RATING: limits.rating_mva[lines].astype(np.float32),
        LINE_TOTALS: np.array([n_at_risk, limits.is_rated.sum(), circuit.n_branches]),
        **{name: values.astype(np.float32) for name, values in scores.items()},
        **_line_risk(card, np.searchsorted(np.flatnonzero(limits.is_rated), lines)),
    }


def _worst_lines(card: Scorecard) -> tuple[Int[np.ndarray, " lines"], int]:
    """Lines at risk, first those overloaded longest, then the likeliest; how many there are."""
    happened, probability = card.by_branch["overload"], card.by_branch["overload_probability"]
    at_risk = np.flatnonzero((happened > 0) | (probability > 0))
    # Rounded, because sums in another order must not change which lines are stored.
    worst = np.lexsort((-probability[at_risk].round(6), -happened[at_risk]))
    return at_risk[worst[: LINE_COUNTS[0]]], len(at_risk)


def _line_risk(card: Scorecard, rated: Int[np.ndarray, " lines"]) -> dict[str, np.ndarray]:
    """Risks of the lines at these positions among the rated ones, if forecasts are shown."""
    if not card.line_risk:
        return {}
    windows = [card.line_risk[window][..., rated] for window in sorted(card.line_risk)]
    probability, loading = np.stack(windows).transpose(1, 0, 3, 2)
    return {
        LINE_RISK: _in_levels(probability),
        LINE_HAPPENED: (loading > 1).astype(np.uint8),
        LINE_PEAK: loading.max(axis=-1).astype(np.float32),
    }


def _in_levels(probability: Float[np.ndarray, "*S"]) -> UInt8[np.ndarray, "*S"]:
    """Probabilities in whole levels."""
    return np.rint(probability * RISK_LEVELS).clip(0, RISK_LEVELS).astype(np.uint8)
