"""The electrical data of a grid that cross the border to models and scores, and its limits.

`grid` builds them from a case file, `scenarios.Layout` holds them, and everything that needs a line
flow computes it from here. Flows follow from V and θ alone: P and Q of a forecast may disagree with
them, and how far they disagree is a score of its own.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Complex, Float, Int


@dataclass(frozen=True, eq=False)
class Circuit:
    """The L branches in service and the shunts of the buses, as MATPOWER models them.

    A branch is a series impedance with half of its charging at each end, behind an ideal
    transformer at its from end. Parallel branches are separate branches.
    """

    base_mva: float
    shunt_pu: Complex[np.ndarray, " N"]
    """Admittance of the shunts at each bus."""
    ends: Int[np.ndarray, "L 2"]
    """The from and the to bus of each branch, as positions in the case file's order of buses."""
    r_pu: Float[np.ndarray, " L"]
    x_pu: Float[np.ndarray, " L"]
    b_pu: Float[np.ndarray, " L"]
    """Line charging of both ends together."""
    ratio: Float[np.ndarray, " L"]
    """Turns ratio of the transformer; 1 for a line."""
    shift_rad: Float[np.ndarray, " L"]
    """Phase shift of the transformer."""
    name: tuple[str, ...]
    """The bus numbers of the ends, such as `4-9`; a second branch between them is `4-9/2`."""

    @classmethod
    def chain(cls, n_buses: int, x_pu: float = 0.1, base_mva: float = 100.0) -> "Circuit":
        """Buses in a row, numbered from 1, with equal lines between them; for examples."""
        ends = np.stack([np.arange(n_buses - 1), np.arange(1, n_buses)], axis=1)
        zeros = np.zeros(len(ends))
        names = tuple(f"{start + 1}-{end + 1}" for start, end in ends.tolist())
        shunt = np.zeros(n_buses, dtype=np.complex128)
        return cls(base_mva, shunt, ends, zeros, zeros + x_pu, zeros, zeros + 1.0, zeros, names)

    @classmethod
    def none(cls, n_buses: int) -> "Circuit":
        """No branches: buses of which nothing is known but their states."""
        nothing = np.zeros(0)
        shunt = np.zeros(n_buses, dtype=np.complex128)
        ends = np.zeros((0, 2), dtype=np.int64)
        return cls(100.0, shunt, ends, nothing, nothing, nothing, nothing, nothing, ())

    @property
    def n_branches(self) -> int:
        """Number of branches in service, L."""
        return len(self.ends)

    @property
    def series_pu(self) -> Complex[np.ndarray, " L"]:
        """Series admittance of each branch."""
        return 1 / (self.r_pu + 1j * self.x_pu)

    @property
    def admittance_pu(self) -> Complex[np.ndarray, "4 L"]:
        """The entries from-from, from-to, to-from and to-to of each branch's admittance matrix."""
        series = self.series_pu
        to_to = series + 0.5j * self.b_pu
        tap = self.ratio * np.exp(1j * self.shift_rad)
        return np.stack([to_to / self.ratio**2, -series / tap.conj(), -series / tap, to_to])

    def flow_mva(
        self, vm_pu: Float[np.ndarray, "*S N"], va_rad: Float[np.ndarray, "*S N"]
    ) -> Complex[np.ndarray, "*S L 2"]:
        """P + jQ [MW, MVAr] that enters each branch at its from and at its to end."""
        voltage = vm_pu * np.exp(1j * va_rad)
        start, end = voltage[..., self.ends[:, 0]], voltage[..., self.ends[:, 1]]
        from_from, from_to, to_from, to_to = self.admittance_pu
        currents = (from_from * start + from_to * end, to_from * start + to_to * end)
        power = [v * current.conj() for v, current in zip((start, end), currents, strict=True)]
        return self.base_mva * np.stack(power, axis=-1)

    def loading(
        self,
        vm_pu: Float[np.ndarray, "*S N"],
        va_rad: Float[np.ndarray, "*S N"],
        rating_mva: Float[np.ndarray, " L"],
    ) -> Float[np.ndarray, "*S L"]:
        """|S| at the worse end, as a share of the rating; NaN for a branch without a rating.

        `metrics.branch_loading` is the same for torch.
        """
        rating = np.where(np.isfinite(rating_mva), rating_mva, np.nan)
        size = abs(self.flow_mva(vm_pu, va_rad))
        return np.maximum(size[..., 0], size[..., 1]) / rating


@dataclass(frozen=True, eq=False)
class Limits:
    """The limits that make a state a violation: a band for each bus, a rating for each branch."""

    v_min_pu: Float[np.ndarray, " N"]
    v_max_pu: Float[np.ndarray, " N"]
    rating_mva: Float[np.ndarray, " L"]
    """Infinite for a branch without a rating, which is never overloaded."""

    @classmethod
    def equal(cls, circuit: Circuit, band_pu: tuple[float, float], rating_mva: float) -> "Limits":
        """The same limits at all buses and branches."""
        low, high = (np.full(len(circuit.shunt_pu), limit) for limit in band_pu)
        return cls(low, high, np.full(circuit.n_branches, rating_mva))

    @property
    def is_rated(self) -> Bool[np.ndarray, " L"]:
        """Which branches have a rating."""
        return np.isfinite(self.rating_mva)
