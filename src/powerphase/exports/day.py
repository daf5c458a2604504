"""What is exported: the scenarios of one window in physical units, with one weight for each."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Shaped

from powerphase.axes import KINDS, THETA, P, Q, V
from powerphase.errors import ExportError

QUANTITIES = {"p_mw": P, "q_mvar": Q, "vm_pu": V, "va_rad": THETA}
"""The columns of tables, and where each is among the four channels of a bus."""

MAX_WEIGHT_DIFFERENCE = 1e-6
"""Between channels: the rounding of float32 weights that were meant to be equal."""


@dataclass(frozen=True, eq=False)
class Day:
    """The M scenarios of one window: net consumption and voltage of every bus at every step."""

    start: str
    """UTC start of the first step, such as `2016-07-01T00:00`."""
    values: Float32[np.ndarray, "M H C"]
    """In MW, MVAr, p.u. and rad."""
    weight: Float[np.ndarray, " M"]
    """The probability of each scenario; they sum to 1."""
    facts: dict[str, Any]
    """What the scenarios are of, and which model made them."""

    @classmethod
    def from_forecast(
        cls,
        facts: dict[str, Any],
        window: int,
        values: Float32[np.ndarray, "M H C"],
        weights: Float32[np.ndarray, "M C"],
    ) -> "Day":
        """The scenarios of a forecast's window; `values` are normalised, and changed in place."""
        weight = common_weight(weights, window)
        for kind, scale in zip((P, Q), facts["scale"], strict=True):
            values[..., kind::KINDS] *= np.float32(scale)
        return cls(facts["windows"][window], values, weight, facts)

    @property
    def name(self) -> str:
        """The start, as the name of a file: `2016-07-01T0000`."""
        return self.start.replace(":", "")

    @property
    def n_scenarios(self) -> int:
        """Number of scenarios, M."""
        return len(self.values)

    @property
    def step_s(self) -> int:
        """Seconds from one step to the next."""
        return int(self.facts["step_s"])

    @property
    def time(self) -> Shaped[np.ndarray, " H"]:
        """Start of every step, `datetime64[s]`, UTC."""
        steps = np.arange(self.values.shape[1]) * np.timedelta64(self.step_s, "s")
        return np.datetime64(self.start, "s") + steps

    def quantity(self, name: str) -> Float32[np.ndarray, "M H N"]:
        """One of `QUANTITIES`, at all buses; a view."""
        return self.values[..., QUANTITIES[name] :: KINDS]


def common_weight(weights: Float32[np.ndarray, "M C"], window: int) -> Float[np.ndarray, " M"]:
    """The weight of each scenario, which must be the same for all channels."""
    difference = np.abs(weights - weights[:, :1]).max(axis=0)
    channel = int(difference.argmax())
    if difference[channel] > MAX_WEIGHT_DIFFERENCE:
        raise ExportError(
            f"window {window}: the weights of channel {channel} differ by up to "
            f"{difference[channel]:.2g} from those of channel 0; a scenario of the whole grid has "
            "one probability, so couple the forecast (powerphase.couple_forecast)"
        )
    weight = weights.mean(axis=1, dtype=np.float64)
    return np.asarray(weight / weight.sum())
