"""The smallest grid; its power flow has a closed form."""

import numpy as np

from powerphase.grid import (
    BASE_KV,
    BR_R,
    BR_STATUS,
    BR_X,
    BUS_I,
    BUS_TYPE,
    F_BUS,
    PD,
    T_BUS,
    VM,
    Grid,
)


def two_buses(r: float, x: float) -> Grid:
    """A slack bus and a load at the end of one line."""
    bus = np.zeros((2, 13))
    bus[:, [BUS_I, BUS_TYPE, PD, VM, BASE_KV]] = [[1, 3, 0, 1, 220], [2, 1, 50, 1, 220]]
    gen = np.array([[1, 0, 0, 99, -99, 1.0, 100, 1, 99, 0]], dtype=float)
    branch = np.zeros((1, 11))
    branch[0, [F_BUS, T_BUS, BR_R, BR_X, BR_STATUS]] = [1, 2, r, x, 1]
    return Grid("two buses", 100.0, bus, gen, branch)


def nose_pu(r: float, x: float, q_per_p: float) -> float:
    """The largest P [p.u.] that the line can carry to the load from a slack bus at 1 p.u."""
    z, direction = abs(complex(r, x)), abs(1 + 1j * q_per_p)
    return 1 / (2 * (r + x * q_per_p + z * direction))
