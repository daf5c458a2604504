"""The bus admittance matrix, and the power that the AC equations give for a state.

It is built from the case data without the solver, so that the mismatch of a solved state is an
independent check.
"""

import numpy as np
from jaxtyping import Complex, Float
from scipy.sparse import coo_array, csr_array

from powerphase.grid.case import PQ, SLACK, Grid


def admittance_matrix(grid: Grid) -> csr_array:
    """The complex N x N bus admittance matrix [p.u.] with line charging, taps, shifts and shunts.

    `Grid.circuit` has the model of a branch.
    """
    circuit = grid.circuit
    start, end = circuit.ends.T
    all_rows = np.arange(grid.n_buses)
    values = np.concatenate([*circuit.admittance_pu, circuit.shunt_pu])
    rows = np.concatenate([start, start, end, end, all_rows])
    columns = np.concatenate([start, end, start, end, all_rows])
    shape = (grid.n_buses, grid.n_buses)
    ybus = coo_array((values, (rows, columns)), shape=shape).tocsr()
    ybus.sort_indices()
    return ybus


def consumption_mva(
    ybus: csr_array, base_mva: float, voltage: Complex[np.ndarray, "S N"]
) -> Complex[np.ndarray, "S N"]:
    """Net power P + jQ [MW, MVAr] that each bus draws from the network at these voltages."""
    # The sparse product is fastest with the steps of a bus contiguous; products are in place.
    by_bus = np.array(voltage.T, order="C")
    power = np.conjugate(ybus @ by_bus)
    by_bus *= -base_mva
    power *= by_bus
    return power.T


def mismatch_pu(
    grid: Grid,
    solved_mva: Complex[np.ndarray, "S N"],
    p_mw: Float[np.ndarray, "S N"],
    q_mvar: Float[np.ndarray, "S N"],
) -> Float[np.ndarray, " S"]:
    """Largest deviation [p.u.] per step between solved and specified consumption.

    P is specified at PV and PQ buses, Q at PQ buses.
    """
    worst = np.zeros(len(p_mw))
    for solved, specified, is_free in (
        (solved_mva.real, p_mw, grid.bus_type == SLACK),
        (solved_mva.imag, q_mvar, grid.bus_type != PQ),
    ):
        error = solved - specified
        error[:, is_free] = 0.0  # not specified here
        np.maximum(worst, np.abs(error, out=error).max(axis=1), out=worst)
    return worst / grid.base_mva
