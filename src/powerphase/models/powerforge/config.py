"""Every constant of PowerForge; the defaults are the paper's."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, Literal

from powerphase.models.framework.configuration import (
    SHORT,
    NetworkConfig,
    Rescaling,
    Variants,
    rescale_widths,
)
from powerphase.resolution import rescale_steps

ABLATIONS = {
    "anchor": "no-anchor",
    "quantile_regularisation": "no-quantile-regularisation",
    "objective": "winner-takes-all",
    "physics": "no-physics",
    "bridge": "no-bridge",
    "mixer": "no-mixer",
}
"""The paper's six ablations: the field that is switched, and the variant's name."""

READINGS: Variants = MappingProxyType(
    {
        "clamp": {"voltage_gate": "clamp"},
        "moving-channels": {"still_channels": "skip", "deviation_floor": 1e-4},
        "fine-deviation": {"deviation_floor": 1e-4},
        "crps-checkpoint": {"training.criterion": "crps"},
    }
)
"""Other readings of what the paper leaves open."""


@dataclass(frozen=True)
class PowerForgeConfig(NetworkConfig):
    """Settings of the network, the objective and the training; its steps are quarter-hours."""

    # The anchor: the reference day from which residuals are taken.
    anchor: bool = True
    segments: int = 7
    """Past days that are averaged."""
    segment_steps: int = 96
    query_steps: int = 8
    """Last steps of each day that are compared with the last steps of the context."""
    bias_steps: int = 8
    """Last steps over which the bias correction averages."""
    temperature: float = 0.5
    stabiliser: float = 1e-8
    """Added to each variance in the correlation, so that constant channels have none."""

    # The encoder.
    hidden: int = 128
    kernels: tuple[int, ...] = (5, 25, 97)
    informed: bool = False
    """Whether channel states know how forecasts of load, sun and wind differ from the last week.
    The task must have forecasts."""
    scale_hidden: int = 16
    """Width of the small network that computes the scale token."""
    node_embedding: int = 8
    type_embedding: int = 2
    dropout: float = 0.1

    # The mixer.
    mixer: bool = True
    tokens: int = 64

    # The decoder.
    scenarios: int = 16
    scenario_start: float = 1.0
    """Size of the scenario embeddings before training."""
    head_start: float = 0.01
    """Factor on the heads' initial weights, so that forecasts start near the reference day."""
    bridge: bool = True
    bridge_scale: float = 1.0
    voltage_range: float = 0.05
    """Initial value of Δ_V, the learned bound of a voltage's residual [p.u.]."""
    voltage_range_floor: float = 1e-4
    voltage_gate: Literal["softplus", "clamp"] = "softplus"
    """How Δ_V keeps above its floor: floor + softplus of the parameter, or the parameter clamped at
    the floor. The clamp cuts the gradient, so a Δ_V that has once reached the floor stays there."""
    noise: Literal["gaussian", "student-t"] = "gaussian"
    student_degrees: float = 3.0
    noise_start: float = 1e-3
    """Size of the noise on P and Q before training, normalised."""
    noise_at_prediction: bool = False

    # The objective.
    objective: Literal["ordered-quantile", "winner-takes-all"] = "ordered-quantile"
    lowest_level: float = 0.05
    highest_level: float = 0.95
    law_mean_weight: float = 5e-3
    law_concentration_weight: float = 1e-3
    quantile_regularisation: bool = True
    width_weight: float = 0.002
    width_cap: float = 1.0
    """Standard deviations of the target that the fan may span without a penalty."""
    width_levels: tuple[float, ...] = (0.1, 0.9)
    jitter_weight: float = 0.001
    deviation_floor: float = 1e-2
    """Least standard deviation of a target by which width and jitter are divided. Half of all P and
    Q are constant, so it matters."""
    still_channels: Literal["floor", "skip"] = "floor"
    """Channels whose deviation is below the floor are divided by the floor, or have neither width
    nor jitter."""
    physics: bool = True
    voltage_weight: float = 0.05
    angle_weight: float = 0.01
    type_weight_penalty: float = 2e-4
    type_weight_range: tuple[float, ...] = (0.3, 3.0)
    calibration_batches: int = 40
    volatility_floor: float = 1e-4
    """Least volatility of a kind from which its initial weight is computed."""
    gate_weight: float = 2e-4

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "tuned": {"training.learning_rate": 3e-3},
            **{word: {name: False} for name, word in ABLATIONS.items()},
            "winner-takes-all": {"objective": "winner-takes-all"},
            **READINGS,
            "informed": {"informed": True},
            **SHORT,
        }
    )
    IN_QUARTER_HOURS: ClassVar[Mapping[str, Rescaling]] = MappingProxyType(
        {
            **dict.fromkeys(("segment_steps", "query_steps", "bias_steps"), rescale_steps),
            "kernels": rescale_widths,
        }
    )
    LATER: ClassVar[frozenset[str]] = frozenset({"informed"})
    """What older rows do not state."""
    EARLIER: ClassVar[Mapping[str, Any]] = MappingProxyType(
        {"voltage_gate": "clamp", "training.criterion": "crps"}
    )

    def _rules(self) -> list[tuple[bool, str]]:
        counts = ("segments", "segment_steps", "query_steps", "bias_steps", "hidden", "tokens")
        more = ("scale_hidden", "node_embedding", "type_embedding", "calibration_batches")
        positive = (
            *("noise_start", "scenario_start", "head_start", "voltage_range_floor"),
            *("temperature", "deviation_floor", "volatility_floor", "width_cap", "student_degrees"),
        )
        low, high = self.lowest_level, self.highest_level
        return [
            *((getattr(self, n) < 1, f"{n} must be 1 or more") for n in counts + more),
            (self.scenarios < 2, "scenarios must be 2 or more"),
            (any(k < 1 or k % 2 == 0 for k in self.kernels), "kernels must be odd numbers"),
            (self.query_steps > self.segment_steps, "query_steps must lie within a segment"),
            (not 0 <= self.dropout < 1, "dropout must be in [0, 1)"),
            (not 0 < low < high < 1, "0 < lowest_level < highest_level < 1 must hold"),
            (not _is_range(self.width_levels), "width_levels must be two ascending numbers"),
            (
                not _is_range(self.type_weight_range),
                "type_weight_range must be two ascending numbers",
            ),
            *((getattr(self, name) <= 0, f"{name} must be above 0") for name in positive),
            (
                self.voltage_range <= self.voltage_range_floor,
                "voltage_range must be above voltage_range_floor",
            ),
            (self.stabiliser < 0, "stabiliser must be 0 or more"),
            (
                self.bias_steps > self.segments * self.segment_steps,
                "bias_steps must lie within the segments",
            ),
        ]


def _is_range(pair: tuple[float, ...]) -> bool:
    return len(pair) == 2 and pair[0] < pair[1]
