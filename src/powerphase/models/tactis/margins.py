"""Marginals: the distribution of each token by itself, as a smooth increasing map onto (0, 1).

A layer of the flow is a mixture of logistic distributions. It returns the logit of its distribution
function, so that layers compose: x → logit Σ w σ(a x + b), a > 0, Σ w = 1. All computations use
logarithms, so that neither tail of a marginal is lost to rounding.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.tactis.config import TactisConfig

LEAST_SLOPE = 1e-6
"""Added to the slopes a, so that no marginal is flat."""

INVERSION_NUMBERS = 2**22
"""Values × units that are inverted together."""

FAR = 60.0
"""Largest difference d at which a component's logit lies above its target; beyond it, eᵈ would
overflow, so larger differences are clamped to it."""

CHECK_INTERVAL = 4
"""Iterations of a search between two removals of the values that have converged."""

MAX_ITERATIONS = 160
"""Of a search; every third iteration halves the bracket, so that all values converge."""


class Layer(NamedTuple):
    """The mixtures of one layer of many flows."""

    slope: Float[Tensor, "*N units"]
    shift: Float[Tensor, "*N units"]
    log_weight: Float[Tensor, "*N units"]

    def __call__(
        self, x: Float[Tensor, "*#N"]
    ) -> tuple[Float[Tensor, "*#N"], Float[Tensor, "*#N"]]:
        """The logit, and the logarithm of its derivative with respect to x."""
        inner = torch.addcmul(self.shift, self.slope, x[..., None])
        below, above = F.logsigmoid(inner), F.logsigmoid(-inner)
        density = self.log_weight + self.slope.log() + below + above
        low = (self.log_weight + below).logsumexp(-1)
        high = (self.log_weight + above).logsumexp(-1)
        return low - high, density.logsumexp(-1) - low - high

    @torch.no_grad()
    def inverse(self, logit: Float[Tensor, "*N"]) -> Float[Tensor, "*N"]:
        """The x of each logit, up to rounding.

        Converged values leave the search, so a result does not depend on the other values.
        """
        x, active = torch.empty_like(logit), torch.ones_like(logit, dtype=torch.bool)
        search = Search.start(self, logit)
        for number in range(1, MAX_ITERATIONS + 1):
            search, unfinished = search.step(halve=number % 3 == 0)
            if number % CHECK_INTERVAL == 0:
                x[active] = search.x.flatten()
                if not unfinished.any():
                    break
                active[active.clone()] = unfinished.flatten()
                search = search.select(unfinished)
        return x

    def unsqueeze(self) -> "Layer":
        """The same mixtures for several values of each token, along a new last axis."""
        return Layer(*(part.unsqueeze(-2) for part in self))


class Search(NamedTuple):
    """A bracketed search for quantiles of mixtures.

    With the target t below 0, the search solves σ(t) = Σ w σ(t + d), where d = a x + b − t. Divided
    by σ(t), the terms are (1 + eᵗ) / (eᵗ + e⁻ᵈ), which neither vanish nor overflow however far out
    t is. A target above 0 is solved from the other side in the same way.
    """

    slope: Float[Tensor, "*N units"]
    """Tensors with units may be shared by several x."""
    shift: Float[Tensor, "*N units"]
    weight: Float[Tensor, "*N units"]
    logit: Float[Tensor, "*n"]
    x: Float[Tensor, "*n"]
    low: Float[Tensor, "*n"]
    high: Float[Tensor, "*n"]

    @classmethod
    def start(cls, layer: Layer, logit: Float[Tensor, "*n"]) -> "Search":
        """Bracket by the components' quantiles, which enclose the mixture's, from their mean."""
        weight = layer.log_weight.exp()
        edges = (logit[..., None] - layer.shift) / layer.slope
        low, high = edges.amin(-1), edges.amax(-1)
        start = (weight * edges).sum(-1).clamp(low, high)
        return cls(layer.slope, layer.shift, weight, logit, start, low, high)

    def select(self, mask: Bool[Tensor, "*n"]) -> "Search":
        """The search for the selected values alone."""
        mixtures = (part.expand(*mask.shape, -1)[mask] for part in self[:3])
        return Search(*mixtures, *(part[mask] for part in self[3:]))

    def step(self, halve: bool) -> tuple["Search", Bool[Tensor, "*n"]]:
        """One step of Newton's method, or of bisection where Newton's would leave the bracket.

        Also returns which values have not converged yet.
        """
        error, derivative = self.error()
        low = torch.where(error <= 0, self.x, self.low)
        high = torch.where(error >= 0, self.x, self.high)
        middle, newton = low + (high - low) / 2, self.x - error / derivative
        trusted = (newton > low) & (newton < high) & (not halve)
        tolerance = 8 * torch.finfo(error.dtype).eps * (1 + self.logit.abs())
        unfinished = (error.abs() > tolerance) & (low < middle) & (middle < high)
        x = torch.where(unfinished, torch.where(trusted, newton, middle), self.x)
        return self._replace(x=x, low=low, high=high), unfinished

    def error(self) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
        """The logit of x less the target, and its derivative."""
        side = 1 - 2 * (self.logit > 0).to(self.logit)
        target = -self.logit.abs()
        small = target.exp()
        difference = torch.addcmul(self.shift, self.slope, self.x[..., None])
        difference = difference.sub_(self.logit[..., None]).mul_(-side[..., None]).clamp_(min=-FAR)
        terms = difference.exp_().add_(small[..., None]).reciprocal_()
        weighted = terms * self.weight
        total = (1 + small) * weighted.sum(-1)
        inner = weighted.mul_(self.slope).mul_(terms.mul_(-small[..., None]).add_(1))
        derivative = (1 + small) * inner.sum(-1)
        rest = (1 - total * torch.sigmoid(target)).clamp(min=torch.finfo(target.dtype).tiny)
        error = total.log() - rest.log() + F.logsigmoid(-target)
        return side * error, derivative / (total * rest)


class Margin(NamedTuple):
    """The marginal distributions of many tokens."""

    layers: tuple[Layer, ...]

    def logit(self, x: Float[Tensor, "*#N"]) -> tuple[Float[Tensor, "*#N"], Float[Tensor, "*#N"]]:
        """The logit of the distribution function, and the logarithm of its derivative."""
        log_derivative = torch.zeros_like(x)
        for layer in self.layers:
            x, of_layer = layer(x)
            log_derivative = log_derivative + of_layer
        return x, log_derivative

    def distribution(self, x: Float[Tensor, "*#N"]) -> Float[Tensor, "*#N"]:
        """F(x)."""
        return torch.sigmoid(self.logit(x)[0])

    def log_density(self, x: Float[Tensor, "*#N"]) -> Float[Tensor, "*#N"]:
        """The logarithm of dF/dx."""
        logit, log_derivative = self.logit(x)
        return log_derivative + F.logsigmoid(logit) + F.logsigmoid(-logit)

    def quantile(self, u: Float[Tensor, "*#N"]) -> Float[Tensor, "*#N"]:
        """The x with F(x) = u, 0 < u < 1."""
        x = torch.logit(u)
        for layer in reversed(self.layers):
            x = layer.inverse(x)
        return x

    def unsqueeze(self) -> "Margin":
        """The same distributions for several values of each token, along a new last axis."""
        return Margin(tuple(layer.unsqueeze() for layer in self.layers))


class Margins(nn.Module):
    """Computes the marginal of each token from its encoding."""

    def __init__(self, config: TactisConfig) -> None:
        super().__init__()
        self.config = config
        numbers = 3 * config.flow_layers * config.flow_units
        self.network = perceptron(config.width, config.margin_hidden, numbers)

    def forward(self, encoded: Float[Tensor, "*N width"]) -> Margin:
        """The marginals, in the encoder's precision or better."""
        numbers = self.network(encoded)
        # Products may be in half precision; sums must not be.
        numbers = numbers.to(torch.promote_types(numbers.dtype, torch.float32))
        sizes = (self.config.flow_layers, 3, self.config.flow_units)
        layers = numbers.unflatten(-1, sizes).unbind(-3)
        return Margin(tuple(_mixture_layer(*layer.unbind(-2)) for layer in layers))

    @torch.no_grad()
    def quantiles(
        self, encoded: Float[Tensor, "N width"], u: Float[Tensor, "N M"]
    ) -> Float[Tensor, "N M"]:
        """The quantiles of each token at its levels, a part of the tokens at a time."""
        at_once = max(1, INVERSION_NUMBERS // (u.shape[1] * self.config.flow_units))
        quantiles = torch.empty_like(u)
        for first in range(0, len(u), at_once):
            part = slice(first, first + at_once)
            quantiles[part] = self(encoded[part]).unsqueeze().quantile(u[part])
        return quantiles


def perceptron(width: int, hidden: int, out: int) -> nn.Sequential:
    """A network with two hidden layers."""
    sizes = ((width, hidden), (hidden, hidden))
    inner = [layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())]
    return nn.Sequential(*inner, nn.Linear(hidden, out))


def _mixture_layer(
    slope: Float[Tensor, "*N units"],
    shift: Float[Tensor, "*N units"],
    weight: Float[Tensor, "*N units"],
) -> Layer:
    """Mixtures from unconstrained numbers."""
    return Layer(F.softplus(slope) + LEAST_SLOPE, shift, weight.log_softmax(-1))
