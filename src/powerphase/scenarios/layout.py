"""The meaning of the channels of a record, and the grid that they belong to."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float32, Int

from powerphase.axes import VARIABLES, P, Q
from powerphase.circuit import Circuit, Limits
from powerphase.clock import GERMANY, Calendar
from powerphase.graph import pyg_data


@dataclass(frozen=True, eq=False)
class Layout:
    """The meaning of the channels, [P, Q, V, θ] of bus after bus, and the grid of the buses."""

    grid: str
    bus_id: Int[np.ndarray, " N"]
    """Bus numbers as in the case file."""
    bus_type: Int[np.ndarray, " N"]
    """MATPOWER's codes: 1 load (PQ), 2 generator with a voltage set-point (PV), 3 slack."""
    nominal_kv: Float[np.ndarray, " N"]
    circuit: Circuit
    """Branches and shunts; buses are positions in `bus_id`."""
    limits: Limits
    """What counts as a violation when a forecast is scored."""
    p_scale_mw: float
    q_scale_mvar: float
    calendar: Calendar = GERMANY
    """Holidays and the wall clock of the people who use the grid."""

    @property
    def n_buses(self) -> int:
        """Number of buses, N."""
        return len(self.bus_id)

    @property
    def n_channels(self) -> int:
        """Number of channels, C = 4N."""
        return len(VARIABLES) * self.n_buses

    @property
    def channel_type(self) -> Int[np.ndarray, " C"]:
        """The variable of each channel, as a position in `axes.VARIABLES`."""
        return np.tile(np.arange(len(VARIABLES)), self.n_buses)

    @property
    def scale(self) -> Float32[np.ndarray, " C"]:
        """The divisor of each channel's state: MW, MVAr, 1 and 1."""
        one_bus = np.ones(len(VARIABLES), dtype=np.float32)
        one_bus[[P, Q]] = self.p_scale_mw, self.q_scale_mvar
        return np.tile(one_bus, self.n_buses)

    def to_pyg(self) -> Any:
        """The grid for PyTorch Geometric: buses as nodes, branches in both directions as edges.

        `powerphase.graph` names the columns of `x` and `edge_attr`; `branch` is the branch of each
        edge.
        """
        return pyg_data(self.circuit, self.limits, self.bus_id, self.bus_type, self.nominal_kv)

    def name_of(self, channel: int) -> str:
        """The name of a channel, such as `V of bus 104`."""
        bus, kind = divmod(channel, len(VARIABLES))
        return f"{VARIABLES[kind]} of bus {self.bus_id[bus]}"
