"""The sidecar of a row, for pages and figures: scores by bus and step, and a few forecasts.

All models of a task show the same buses in the same windows, so that their forecasts can be drawn
over one another: the buses whose voltages came closest to the limits or left the band, and others
at even distances.
"""

import numpy as np
import torch
from jaxtyping import Float, Float32, Int, UInt8
from torch import Tensor

from powerphase.axes import KINDS, V
from powerphase.metrics.safety import violates
from powerphase.metrics.streaming import Scorecard
from powerphase.records.result import RISK, RISK_LEVELS, shown_windows
from powerphase.records.scores import NORMAL_BAND_PU, SCORES
from powerphase.scenarios import Scenarios
from powerphase.task.windows import Task

SHOWN_BUSES, SHOWN_SCENARIOS = 24, 10

BY_BUS = ("crps", "safety_mbrier", "necv", "cvar_0.1", "brier", "twcrps")
"""The scores that are stored for every bus, in addition to its violations."""

FLOAT16_MAX = float(np.finfo(np.float16).max)


class ShownForecasts:
    """Collects the forecasts of the chosen buses and windows while they are scored."""

    def __init__(self, task: Task) -> None:
        self.windows: Int[np.ndarray, " shown"] = shown_windows(len(task.test))
        targets = torch.cat([task.test.target(int(window)) for window in self.windows])
        self.buses = choose_buses(targets[..., V::KINDS])
        self.bus_id = task.layout.bus_id[self.buses]
        channels = KINDS * self.buses[:, None] + np.arange(KINDS)
        self._channels = channels.ravel()
        self.target: Float32[np.ndarray, "shown H C"] = targets[..., self._channels].numpy()
        self._parts: dict[int, list[tuple[np.ndarray, Tensor, Tensor]]] = {}
        happened = violates(targets[..., V::KINDS]).transpose(1, 2)
        self._happened: UInt8[np.ndarray, "shown N H"] = happened.to(torch.uint8).numpy()
        self._risk = np.zeros_like(self._happened)

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
        # One scenario at a time: all together would need as much memory as the forecast.
        pairs = zip(voltages, weights, strict=True)
        probability = sum(violates(voltage) * weight for voltage, weight in pairs)
        levels = (probability * RISK_LEVELS).round().clamp(0, RISK_LEVELS).to(torch.uint8)
        bus = (channels.start + first) // KINDS
        buses = slice(bus, bus + levels.shape[1])
        self._risk[self.windows == window, buses] = levels.T.cpu().numpy()

    def arrays(self) -> dict[str, np.ndarray]:
        """Target, scenarios and weights of the chosen buses and windows, and the risk of all buses.

        Scenarios are stored as float16 differences from the target: this keeps four digits of a
        voltage's deviation, of which plain float16 would keep none.
        """
        forecasts = [self._forecast(int(window)) for window in self.windows]
        values = np.stack([values for values, _ in forecasts])
        shape = (len(self.buses), KINDS)
        return {
            RISK: self._risk,
            "risk/happened": self._happened,
            "shown/bus_id": self.bus_id,
            "shown/window": self.windows,
            "shown/target": self.target.reshape(*self.target.shape[:2], *shape),
            "shown/error": np.clip(values - self.target[:, None], -FLOAT16_MAX, FLOAT16_MAX)
            .astype(np.float16)
            .reshape(*values.shape[:3], *shape),
            "shown/weight": np.stack([weights for _, weights in forecasts]).reshape(
                *values.shape[:2], *shape
            ),
        }

    def _forecast(
        self, window: int
    ) -> tuple[Float32[np.ndarray, "M H C"], Float32[np.ndarray, "M C"]]:
        parts = self._parts[window]
        order = np.argsort(np.concatenate([where for where, _, _ in parts]))
        values = torch.cat([values for _, values, _ in parts], dim=-1)[..., order]
        weights = torch.cat([weights for _, _, weights in parts], dim=-1)[..., order]
        if len(weights) > SHOWN_SCENARIOS:
            values, weights = thin_scenarios(values, weights)
        return values.numpy(), weights.numpy()


def choose_buses(voltage: Float[Tensor, "shown H N"]) -> Int[np.ndarray, " buses"]:
    """The buses to show: half of them closest to the limits or beyond, half anywhere."""
    lowest, highest = NORMAL_BAND_PU
    beyond = torch.maximum(lowest - voltage, voltage - highest).amax(dim=(0, 1)).numpy()
    order = np.argsort(-beyond, kind="stable")
    n_risky, n_buses = SHOWN_BUSES // 2, len(order)
    risky = order[:n_risky]
    others = np.setdiff1d(np.arange(n_buses), risky)
    spread = np.linspace(0, len(others) - 1, min(SHOWN_BUSES - n_risky, len(others)))
    return np.concatenate([risky, others[spread.round().astype(np.int64)]])


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


def sidecar_arrays(card: Scorecard, shown: ShownForecasts) -> dict[str, np.ndarray]:
    """All arrays of the sidecar, by name."""
    arrays = {"reliability": card.reliability}
    for name in (*SCORES, "violation_probability", "violation"):
        arrays[f"by_step/{name}"] = card.by_step[name].astype(np.float32)
    for name in (*BY_BUS, "violation_probability", "violation"):
        values = card.by_bus[name].astype(np.float32)
        voltage_only = name not in SCORES or SCORES[name].voltage_only
        arrays[f"by_bus/{name}"] = values[:, V] if voltage_only else values
    return arrays | shown.arrays()
