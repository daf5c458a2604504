"""How often generators leave their reactive limits in a data set, which holds their voltages.

The generator of data sets fixes the voltage at PV buses and solves for Q, without limits: a limit
that is enforced would turn a PV bus into a PQ bus, and change its voltage by a jump. What that
costs in realism is counted here. A stored Q is the net consumption of a bus, so it shows the
generators' Q only where the load does not vary: at PV buses without active load.
"""

import numpy as np
from jaxtyping import Bool, Float

from powerphase.axes import KINDS, Q
from powerphase.grid.case import PD, PV, QD, QMAX, QMIN, Grid


class ReactiveLimits:
    """The reactive limits of the generators of a grid, bus by bus."""

    def __init__(self, grid: Grid) -> None:
        on = grid.generator_on
        lowest, highest = np.zeros(grid.n_buses), np.zeros(grid.n_buses)
        np.add.at(lowest, grid.generator_row[on], grid.gen[on, QMIN])
        np.add.at(highest, grid.generator_row[on], grid.gen[on, QMAX])
        # A bus whose limits are missing or contradict each other has none that it could leave.
        is_known = (grid.bus_type == PV) & (grid.bus[:, PD] == 0) & (lowest <= highest)
        self.buses = np.flatnonzero(is_known)
        """The buses at which the generators' Q is known, as positions in the case file."""
        self._load_mvar = grid.bus[self.buses, QD]
        self._lowest, self._highest = lowest[self.buses], highest[self.buses]

    def outside(self, state: Float[np.ndarray, "S C"]) -> Bool[np.ndarray, "S buses"]:
        """Where the generators of a bus give more or take more Q than they can."""
        produced = self._load_mvar - state[:, Q::KINDS][:, self.buses].astype(np.float64)
        return (produced < self._lowest) | (produced > self._highest)
