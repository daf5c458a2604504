"""What lies beside a row, for pages and figures: scores by bus and step, and a few forecasts.

Every model of a task shows the same buses in the same windows, so that forecasts can be laid over
each other: the buses whose voltage came closest to leaving the band, and others spread evenly.
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
"""The scores that are kept for every single bus, beside how often it violates."""

FLOAT16_MAX = float(np.finfo(np.float16).max)


class Display:
    """Collects the forecasts of the chosen buses and windows as they pass by."""

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
        """Keep what is to be shown of a block of channels."""
        if window not in self.windows:
            return
        self._add_risk(window, channels, scenarios)
        inside = (channels.start <= self._channels) & (self._channels < channels.stop)
        if not inside.any():
            return
        chosen = torch.from_numpy(self._channels[inside] - channels.start)
        chosen = chosen.to(scenarios.values.device)
        values, weights = scenarios.values[0][..., chosen], scenarios.weights[0][..., chosen]
        kept = (np.flatnonzero(inside), values.float().cpu(), weights.float().cpu())
        self._parts.setdefault(window, []).append(kept)

    def _add_risk(self, window: int, channels: slice, scenarios: Scenarios) -> None:
        """Keep how probable it is that each voltage of the block leaves the band."""
        first = (V - channels.start) % KINDS
        voltages = scenarios.values[0, ..., first::KINDS]
        weights = scenarios.weights[0, :, first::KINDS]
        # One after the other: all at once would be as large again as the forecast.
        pairs = zip(voltages, weights, strict=True)
        probability = sum(violates(voltage) * weight for voltage, weight in pairs)
        levels = (probability * RISK_LEVELS).round().clamp(0, RISK_LEVELS).to(torch.uint8)
        bus = (channels.start + first) // KINDS
        here = slice(bus, bus + levels.shape[1])
        self._risk[self.windows == window, here] = levels.T.cpu().numpy()

    def arrays(self) -> dict[str, np.ndarray]:
        """Target, scenarios and weights of the chosen buses, in the chosen windows; risk of all.

        Scenarios are stored as float16 differences from the target, which keeps four digits of a
        voltage's deviation where float16 alone would keep none.
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
            values, weights = thinned(values, weights)
        return values.numpy(), weights.numpy()


def choose_buses(voltage: Float[Tensor, "shown H N"]) -> Int[np.ndarray, " buses"]:
    """The buses to show: half of them nearest to the band's limits or beyond, half anywhere."""
    lowest, highest = NORMAL_BAND_PU
    beyond = torch.maximum(lowest - voltage, voltage - highest).amax(dim=(0, 1)).numpy()
    order = np.argsort(-beyond, kind="stable")
    n_risky, n_buses = SHOWN_BUSES // 2, len(order)
    risky = order[:n_risky]
    others = np.setdiff1d(np.arange(n_buses), risky)
    spread = np.linspace(0, len(others) - 1, min(SHOWN_BUSES - n_risky, len(others)))
    return np.concatenate([risky, others[spread.round().astype(np.int64)]])


def thinned(
    values: Float[Tensor, "M H C"], weights: Float[Tensor, "M C"]
) -> tuple[Float[Tensor, "m H C"], Float[Tensor, "m C"]]:
    """Fewer scenarios of equal weight, at even distances along the cumulative weight.

    Each channel has its own, as its weights are its own: pages draw channels one by one.
    """
    places = (torch.arange(SHOWN_SCENARIOS) + 0.5) / SHOWN_SCENARIOS
    cumulative = weights.cumsum(0).T.contiguous()
    chosen = torch.searchsorted(cumulative, places.expand(len(cumulative), -1).contiguous())
    chosen = chosen.clamp(max=len(weights) - 1).T[:, None].expand(-1, values.shape[1], -1)
    equal = torch.full((SHOWN_SCENARIOS, weights.shape[1]), 1 / SHOWN_SCENARIOS)
    return values.gather(0, chosen), equal


def sidecar_of(card: Scorecard, display: Display) -> dict[str, np.ndarray]:
    """The arrays beside a row, by name."""
    arrays = {"reliability": card.reliability}
    for name in (*SCORES, "violation_probability", "violation"):
        arrays[f"by_step/{name}"] = card.by_step[name].astype(np.float32)
    for name in (*BY_BUS, "violation_probability", "violation"):
        found = card.by_bus[name].astype(np.float32)
        on_voltages = name not in SCORES or SCORES[name].voltage_only
        arrays[f"by_bus/{name}"] = found[:, V] if on_voltages else found
    return arrays | display.arrays()
