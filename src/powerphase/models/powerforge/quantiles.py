"""The levels of the quantiles: an even grid, bent by a Beta distribution that is learned."""

from math import expm1, log

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.powerforge.config import PowerForgeConfig

NODES = 24
"""Of Gauss and Legendre, between two neighbours of the grid."""

CROWDING = 8
"""Power by which they crowd at 0 and 1, where the density of a Beta law may be infinite."""


class QuantileLaw(nn.Module):
    """τ_m = F(u_m): F is the distribution function of Beta(α, β), u is even.

    It begins with α = β = 1, where τ = u. The integral is a sum of Gauss-Legendre pieces between
    neighbours of the grid, so that τ ascends whatever α and β are. With x = sin²φ the density is
    2 sin^(2α−1)φ cos^(2β−1)φ; with φ ∝ s⁸ in the first piece, and likewise in the last, it is
    smooth.
    """

    def __init__(self, config: PowerForgeConfig) -> None:
        super().__init__()
        self._mean_weight = config.law_mean_weight
        self._concentration_weight = config.law_concentration_weight
        self.raw = nn.Parameter(torch.full((2,), log(expm1(1.0))))
        grid = np.linspace(config.lowest_level, config.highest_level, config.scenarios)
        border = np.arcsin(np.sqrt(np.concatenate([[0.0], grid, [1.0]])))
        node, weight = (part / 2 for part in np.polynomial.legendre.leggauss(NODES))
        node, width = node + 0.5, np.diff(border)[:, None]
        angle, weight = border[:-1, None] + width * node, width * weight
        sine, cosine = np.sin(angle), np.cos(angle)
        edge = width[[0, -1]] * node**CROWDING  # angles from 0, and from the other end
        sine[[0, -1]] = np.sin(edge[0]), np.cos(edge[1])
        cosine[[0, -1]] = np.cos(edge[0]), np.sin(edge[1])
        weight[[0, -1]] *= CROWDING * node ** (CROWDING - 1)
        for name, values in (
            ("_log_sine", np.log(sine)),
            ("_log_cosine", np.log(cosine)),
            ("_weight", weight),
        ):
            self.register_buffer(name, torch.from_numpy(values), persistent=False)

    @property
    def shape(self) -> Float[Tensor, " 2"]:
        """α and β."""
        return F.softplus(self.raw)

    def levels(self) -> Float[Tensor, " M"]:
        """τ_1 < … < τ_M."""
        alpha, beta = self.shape.double()
        density = (2 * alpha - 1) * self._log_sine + (2 * beta - 1) * self._log_cosine
        piece = (density.exp() * self._weight).sum(1)
        whole = piece.cumsum(0)
        return (whole[:-1] / whole[-1]).to(self.raw.dtype)

    def weights(self) -> Float[Tensor, " M"]:
        """Of the scenarios: each stands for the levels that are nearest to its own."""
        level = self.levels().double()
        between = (level[1:] + level[:-1]) / 2
        border = torch.cat([level.new_zeros(1), between, level.new_ones(1)])
        return border.diff().to(self.raw.dtype)

    def prior(self) -> Float[Tensor, ""]:
        """The price of moving mean and concentration away from where they began."""
        alpha, beta = self.shape
        mean, concentration = alpha / (alpha + beta), alpha + beta
        return (
            self._mean_weight * (mean - 0.5).square()
            + self._concentration_weight * (concentration / 2).log().square()
        )
