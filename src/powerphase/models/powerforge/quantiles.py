"""The levels of the quantiles: an even grid, bent by a Beta distribution that is learned."""

from math import expm1, log

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.powerforge.config import PowerForgeConfig

NODES = 16
"""Of Gauss and Legendre, between two neighbours of the grid."""


class QuantileLaw(nn.Module):
    """τ_m = F(u_m): F is the distribution function of Beta(α, β), u is even.

    It begins with α = β = 1, where τ = u. The integral is a sum of Gauss-Legendre pieces between
    neighbours of the grid, so that τ ascends strictly from 0 to 1 whatever α and β are. With
    x = sin²φ the density is 2 sin^(2α−1)φ cos^(2β−1)φ, which is tame at both ends.
    """

    def __init__(self, config: PowerForgeConfig) -> None:
        super().__init__()
        self._mean_weight = config.law_mean_weight
        self._concentration_weight = config.law_concentration_weight
        self.raw = nn.Parameter(torch.full((2,), log(expm1(1.0))))
        grid = np.linspace(config.lowest_level, config.highest_level, config.scenarios)
        border = np.arcsin(np.sqrt(np.concatenate([[0.0], grid, [1.0]])))
        node, weight = np.polynomial.legendre.leggauss(NODES)
        half = np.diff(border)[:, None] / 2
        angle = border[:-1, None] + half * (1 + node)
        for name, values in (
            ("_log_sine", np.log(np.sin(angle))),
            ("_log_cosine", np.log(np.cos(angle))),
            ("_weight", half * weight),
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
