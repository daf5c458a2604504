"""A Newton power flow in plain SciPy: the oracle for the solver of the package.

It shares only the admittance matrix with it, which `test_admittance.py` checks. Power is generation
here, the unknowns are angles and magnitudes, and every iteration factorises the Jacobian.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import block_array, csc_array, csr_array, diags_array
from scipy.sparse.linalg import splu

STOP_PU = 1e-11
MAX_ITERATIONS = 30


def newton(
    ybus: csr_array,
    p_pu: NDArray[np.float64],
    q_pu: NDArray[np.float64],
    pv: NDArray[np.int64],
    pq: NDArray[np.int64],
    start: NDArray[np.complex128],
) -> NDArray[np.complex128] | None:
    """Voltages at which buses inject p at `pv` and `pq` and q at `pq`, or None if it diverges.

    Magnitudes at `pv`, and magnitude and angle of the slack bus, stay as in `start`.
    """
    angle, magnitude = np.angle(start), np.abs(start)
    with_p = np.concatenate([pv, pq])
    for _ in range(MAX_ITERATIONS):
        voltage = magnitude * np.exp(1j * angle)
        current = ybus @ voltage
        power = voltage * current.conj()
        error = np.concatenate([(power.real - p_pu)[with_p], (power.imag - q_pu)[pq]])
        if not np.isfinite(error).all():
            return None
        if np.abs(error).max() < STOP_PU:
            return voltage
        step = splu(_jacobian(ybus, voltage, current, with_p, pq)).solve(-error)
        angle[with_p] += step[: len(with_p)]
        magnitude[pq] += step[len(with_p) :]
    return None


def _jacobian(
    ybus: csr_array,
    voltage: NDArray[np.complex128],
    current: NDArray[np.complex128],
    with_p: NDArray[np.int64],
    pq: NDArray[np.int64],
) -> csc_array:
    """Derivatives of P at `with_p` and Q at `pq` by angle at `with_p` and magnitude at `pq`."""
    at_bus, unit = diags_array(voltage), diags_array(voltage / np.abs(voltage))
    currents = diags_array(current)
    by_angle = csr_array(1j * at_bus @ (currents - ybus @ at_bus).conj())
    by_magnitude = csr_array(at_bus @ (ybus @ unit).conj() + currents.conj() @ unit)
    return csc_array(
        block_array(
            [
                [by_angle.real[with_p][:, with_p], by_magnitude.real[with_p][:, pq]],
                [by_angle.imag[pq][:, with_p], by_magnitude.imag[pq][:, pq]],
            ]
        )
    )
