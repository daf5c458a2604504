"""Margins: the distribution of each token alone, as a smooth ascending function to (0, 1).

A layer of the flow is a mixture of logistic distributions and gives the logit of its distribution
function, so that layers can follow each other: x → logit Σ w σ(a x + b), a > 0, Σ w = 1. All is
done with logarithms, so that neither end of a margin is rounded away.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from powerphase.models.tactis.config import TactisConfig

LEAST_SLOPE = 1e-6
"""Added to the slopes, so that no margin is ever flat."""

INVERSION_NUMBERS = 2**22
"""In one tensor of values × units that are sought together."""

FAR = 60.0
"""How far above its target a part's logit is told apart from further ones; beyond, eᵈ would be too
large a number."""

CHECKED = 4
"""Iterations of a search after which what is found leaves it."""

LIMIT = 160
"""Most iterations of a search; every third one halves what is left, so that nothing is left."""


class Layer(NamedTuple):
    """The mixtures of one layer of many flows."""

    slope: Float[Tensor, "*N units"]
    shift: Float[Tensor, "*N units"]
    log_weight: Float[Tensor, "*N units"]

    def __call__(
        self, x: Float[Tensor, "*#N"]
    ) -> tuple[Float[Tensor, "*#N"], Float[Tensor, "*#N"]]:
        """The logit, and the logarithm of its derivative by x."""
        inner = torch.addcmul(self.shift, self.slope, x[..., None])
        below, above = F.logsigmoid(inner), F.logsigmoid(-inner)
        dense = self.log_weight + self.slope.log() + below + above
        low = (self.log_weight + below).logsumexp(-1)
        high = (self.log_weight + above).logsumexp(-1)
        return low - high, dense.logsumexp(-1) - low - high

    @torch.no_grad()
    def inverse(self, logit: Float[Tensor, "*N"]) -> Float[Tensor, "*N"]:
        """The x of each logit, as near as rounding lets it be.

        What is found leaves the search, so that it does not matter what else is sought with it.
        """
        found, here = torch.empty_like(logit), torch.ones_like(logit, dtype=torch.bool)
        search = Search.begin(self, logit)
        for number in range(1, LIMIT + 1):
            search, left = search.step(halve=number % 3 == 0)
            if number % CHECKED == 0:
                found[here] = search.x.flatten()
                if not left.any():
                    break
                here[here.clone()] = left.flatten()
                search = search.of(left)
        return found

    def unsqueeze(self) -> "Layer":
        """The same for several values of each token, in a last axis."""
        return Layer(*(part.unsqueeze(-2) for part in self))


class Search(NamedTuple):
    """Where quantiles of mixtures are looked for.

    With t below 0, p = σ(t) is sought as the sum of w σ(t + d), where d = a x + b − t. Divided by p
    the parts are (1 + eᵗ) / (eᵗ + e⁻ᵈ), which neither vanish nor overflow, however far out t is.
    With t above 0 it is the same from the other side.
    """

    slope: Float[Tensor, "*N units"]
    """All that has units may be the same for several x."""
    shift: Float[Tensor, "*N units"]
    weight: Float[Tensor, "*N units"]
    logit: Float[Tensor, "*n"]
    x: Float[Tensor, "*n"]
    low: Float[Tensor, "*n"]
    high: Float[Tensor, "*n"]

    @classmethod
    def begin(cls, layer: Layer, logit: Float[Tensor, "*n"]) -> "Search":
        """Between the quantiles of the parts, at their mean: a mixture's own lies there."""
        weight = layer.log_weight.exp()
        edges = (logit[..., None] - layer.shift) / layer.slope
        low, high = edges.amin(-1), edges.amax(-1)
        start = (weight * edges).sum(-1).clamp(low, high)
        return cls(layer.slope, layer.shift, weight, logit, start, low, high)

    def of(self, some: Bool[Tensor, "*n"]) -> "Search":
        """The search for some of them."""
        mixtures = (part.expand(*some.shape, -1)[some] for part in self[:3])
        return Search(*mixtures, *(part[some] for part in self[3:]))

    def step(self, halve: bool) -> tuple["Search", Bool[Tensor, "*n"]]:
        """Go on by Newton's method, or to the middle where it would leave; and what is left."""
        error, steep = self.error()
        low = torch.where(error <= 0, self.x, self.low)
        high = torch.where(error >= 0, self.x, self.high)
        middle, newton = low + (high - low) / 2, self.x - error / steep
        trusted = (newton > low) & (newton < high) & (not halve)
        near = 8 * torch.finfo(error.dtype).eps * (1 + self.logit.abs())
        left = (error.abs() > near) & (low < middle) & (middle < high)
        x = torch.where(left, torch.where(trusted, newton, middle), self.x)
        return self._replace(x=x, low=low, high=high), left

    def error(self) -> tuple[Float[Tensor, "*n"], Float[Tensor, "*n"]]:
        """By how much the logit of x is above the one that is sought, and its slope."""
        side = 1 - 2 * (self.logit > 0).to(self.logit)
        sought = -self.logit.abs()
        small = sought.exp()
        apart = torch.addcmul(self.shift, self.slope, self.x[..., None])
        apart = apart.sub_(self.logit[..., None]).mul_(-side[..., None]).clamp_(min=-FAR)
        parts = apart.exp_().add_(small[..., None]).reciprocal_()
        weighted = parts * self.weight
        total = (1 + small) * weighted.sum(-1)
        inner = weighted.mul_(self.slope).mul_(parts.mul_(-small[..., None]).add_(1))
        steep = (1 + small) * inner.sum(-1)
        rest = (1 - total * torch.sigmoid(sought)).clamp(min=torch.finfo(sought.dtype).tiny)
        error = total.log() - rest.log() + F.logsigmoid(-sought)
        return side * error, steep / (total * rest)


class Margin(NamedTuple):
    """The distributions of many tokens."""

    layers: tuple[Layer, ...]

    def logit(self, x: Float[Tensor, "*#N"]) -> tuple[Float[Tensor, "*#N"], Float[Tensor, "*#N"]]:
        """The logit of the distribution function, and the logarithm of its derivative."""
        log_slope = torch.zeros_like(x)
        for layer in self.layers:
            x, more = layer(x)
            log_slope = log_slope + more
        return x, log_slope

    def distribution(self, x: Float[Tensor, "*#N"]) -> Float[Tensor, "*#N"]:
        """F(x)."""
        return torch.sigmoid(self.logit(x)[0])

    def log_density(self, x: Float[Tensor, "*#N"]) -> Float[Tensor, "*#N"]:
        """The logarithm of dF/dx."""
        logit, log_slope = self.logit(x)
        return log_slope + F.logsigmoid(logit) + F.logsigmoid(-logit)

    def quantile(self, u: Float[Tensor, "*#N"]) -> Float[Tensor, "*#N"]:
        """The x with F(x) = u, 0 < u < 1."""
        x = torch.logit(u)
        for layer in reversed(self.layers):
            x = layer.inverse(x)
        return x


class Margins(nn.Module):
    """Makes the margin of each token from what the encoder knows of it."""

    def __init__(self, config: TactisConfig) -> None:
        super().__init__()
        self.config = config
        numbers = 3 * config.flow_layers * config.flow_units
        self.network = perceptron(config.width, config.margin_hidden, numbers)

    def forward(self, encoded: Float[Tensor, "*N width"]) -> Margin:
        """The margins, in the encoder's precision or better."""
        numbers = self.network(encoded)
        # What was multiplied in half precision is not to be summed in it.
        numbers = numbers.to(torch.promote_types(numbers.dtype, torch.float32))
        sizes = (self.config.flow_layers, 3, self.config.flow_units)
        layers = numbers.unflatten(-1, sizes).unbind(-3)
        return Margin(tuple(_layer(*one.unbind(-2)) for one in layers))

    @torch.no_grad()
    def draws(
        self, encoded: Float[Tensor, "N width"], u: Float[Tensor, "N M"]
    ) -> Float[Tensor, "N M"]:
        """The quantiles of each token at its own levels, some tokens at a time."""
        at_once = max(1, INVERSION_NUMBERS // (u.shape[1] * self.config.flow_units))
        found = torch.empty_like(u)
        for first in range(0, len(u), at_once):
            part = slice(first, first + at_once)
            margin = Margin(tuple(one.unsqueeze() for one in self(encoded[part]).layers))
            found[part] = margin.quantile(u[part])
        return found


def perceptron(width: int, hidden: int, out: int) -> nn.Sequential:
    """Two hidden layers."""
    sizes = ((width, hidden), (hidden, hidden))
    inner = [layer for size in sizes for layer in (nn.Linear(*size), nn.ReLU())]
    return nn.Sequential(*inner, nn.Linear(hidden, out))


def _layer(
    slope: Float[Tensor, "*N units"],
    shift: Float[Tensor, "*N units"],
    weight: Float[Tensor, "*N units"],
) -> Layer:
    """The mixtures of any numbers."""
    return Layer(F.softplus(slope) + LEAST_SLOPE, shift, weight.log_softmax(-1))
