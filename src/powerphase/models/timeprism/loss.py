"""How far all hypotheses of a channel are from what happened, without making any of them.

Hypothesis (n, k) is trend n plus season k. With r_n, what happened less trend n, its error is
r_n − s_k, and ‖r_n − s_k‖² = ‖r_n‖² + ‖s_k‖² − 2 r_n·s_k takes 25 + 25 rows and one small product
in place of 625 rows. The slopes of any weighted sum of these distances are small products too.
"""

from math import inf
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from powerphase.models.framework.choice import shares
from powerphase.models.framework.products import exact_products
from powerphase.models.framework.scaling import mean_sizes
from powerphase.models.timeprism.config import TimePrismConfig


class Sides(NamedTuple):
    """Of each row, a window's channel: the two between which distances are."""

    rest: Float[Tensor, "R N H"]
    """What happened, less each trend."""
    season: Float[Tensor, "R K H"]


def distances(sides: Sides) -> Float[Tensor, "R M"]:
    """The squared distance of hypothesis (n, k), at n · K + k, summed over steps."""
    found = (sides.rest @ sides.season.mT).mul_(-2)
    # Norms are one pass each; squares to be summed would be a copy of all that there is.
    found += torch.linalg.vector_norm(sides.rest, dim=2).square_().unsqueeze(2)
    found += torch.linalg.vector_norm(sides.season, dim=2).square_().unsqueeze(1)
    return found.clamp_(min=0).flatten(1)


def nearest(
    sides: Sides, distance: Float[Tensor, "R M"]
) -> tuple[Int[Tensor, "R 1"], Float[Tensor, "R 1"]]:
    """The hypothesis at the least distance, and that distance as the sum of squares it is.

    The product loses what two long rows have in common, and between no two is that more than
    between the nearest.
    """
    winner = distance.argmin(1, keepdim=True)
    n, k = winner // sides.season.shape[1], winner % sides.season.shape[1]
    rest = torch.take_along_dim(sides.rest, n.unsqueeze(2), 1)
    season = torch.take_along_dim(sides.season, k.unsqueeze(2), 1)
    return winner, (rest - season).square_().sum(2)


def put_slopes(sides: Sides, share: Float[Tensor, "R M"]) -> None:
    """Write, in place of both sides, the slopes of Σ share · distance along trends and seasons."""
    twice = share.unflatten(1, (sides.rest.shape[1], -1)) * 2  # R N K
    across = twice.mT @ sides.rest
    sides.rest.mul_(-twice.sum(2, keepdim=True)).baddbmm_(twice, sides.season)
    sides.season.mul_(twice.sum(1).unsqueeze(2)).sub_(across)


PARTS = ("distance", "score", "largest input", "zero channels", "winning share")


class Folded(NamedTuple):
    """One linear map in place of all heads: trends, seasons, logits, and zeros that fill it up.

    A hypothesis is the sum of a trend and a season, so what seasons have in common can be the
    trends'. Here it is: distances of sums come from products, which lose digits on what is common.
    """

    weight: Float[Tensor, "J T"]
    bias: Float[Tensor, " J"]


class Terms(NamedTuple):
    """By what hypotheses are judged."""

    config: TimePrismConfig
    temperature: Float[Tensor, ""]
    at_once: int
    """Channels of a block."""


class Tally(NamedTuple):
    """What is known of all blocks so far."""

    distance: Float[Tensor, ""]
    score: Float[Tensor, ""]
    largest: Float[Tensor, ""]
    """The largest number that went in, scaled."""
    still: Float[Tensor, ""]
    """How many contexts were zero all along."""
    won: Float[Tensor, " M"]
    """1 for each hypothesis that was the nearest somewhere."""


def judged(
    folded: Folded, past: Float[Tensor, "B T C"], target: Float[Tensor, "B H C"], terms: Terms
) -> tuple[Float[Tensor, ""], Float[Tensor, " 5"]]:
    """The loss, with gradients along the folded heads, and its parts for reading."""
    learns = torch.is_grad_enabled() and folded.weight.requires_grad
    apply: Any = _Judged.apply
    loss, parts = apply(*folded, past, target, terms, learns)
    return loss, parts


class _Judged(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *given: Any) -> tuple[Tensor, Tensor]:
        weight, bias, past, target, terms, learns = given
        slope = Folded(torch.zeros_like(weight), torch.zeros_like(bias)) if learns else None
        tally = _tally(Folded(weight, bias), past, target, terms, slope)
        count = past.shape[0] * past.shape[2]
        if slope is not None:
            ctx.save_for_backward(*(part / count for part in slope))
        shown = (
            tally.distance / count,
            tally.score / count,
            tally.largest,
            tally.still / count,
            tally.won.mean(),
        )
        parts = torch.stack([part.to(past.dtype) for part in shown])
        ctx.mark_non_differentiable(parts)
        return parts[0] + terms.config.score_weight * parts[1], parts

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        return *torch._foreach_mul(ctx.saved_tensors, upstream), *[None] * 4


def _tally(
    folded: Folded,
    past: Float[Tensor, "B T C"],
    target: Float[Tensor, "B H C"],
    terms: Terms,
    slope: Folded | None,
) -> Tally:
    """Go through all blocks; where a slope is asked for, it is added up on the way."""
    zero = torch.zeros((), dtype=torch.float64, device=past.device)
    tally = Tally(zero, zero, past.new_zeros(()), zero, past.new_zeros(terms.config.hypotheses))
    blocks = zip(past.split(terms.at_once, 2), target.split(terms.at_once, 2), strict=True)
    for before, after in blocks:
        tally = _with_block(tally, folded, *scaled(before, after, terms.config), terms, slope)
    return tally


def _with_block(
    tally: Tally,
    folded: Folded,
    rows: Float[Tensor, "R T"],
    truth: Float[Tensor, "R H"],
    terms: Terms,
    slope: Folded | None,
) -> Tally:
    """The tally with a block, which is forgotten."""
    made = torch.addmm(folded.bias, rows, folded.weight.T).to(rows.dtype)
    tally = _judge(tally, made, truth, terms, slope is not None)
    if slope is not None:
        slope.weight.addmm_(made.T, rows)
        slope.bias.add_(made.sum(0))
    largest = [torch.linalg.vector_norm(part, ord=inf, dim=1) for part in (rows, truth)]
    return tally._replace(
        largest=torch.maximum(tally.largest, torch.stack(largest).amax()),
        still=tally.still + (largest[0] == 0).sum(),
    )


def scaled(
    past: Float[Tensor, "B T W"], target: Float[Tensor, "B H W"], config: TimePrismConfig
) -> tuple[Float[Tensor, "R T"], Float[Tensor, "R H"]]:
    """Contexts and targets in units of each context's size, one row for every window's channel."""
    scale = mean_sizes(past, config.least_scale, config.zero_scale)
    return rows_of(past, scale), rows_of(target, scale)


def rows_of(series: Float[Tensor, "B S W"], scale: Float[Tensor, "B W"]) -> Float[Tensor, "R S"]:
    """The series divided by its scale, one row for every window's channel."""
    windows, steps, width = series.shape
    rows = series.new_empty(windows, width, steps)
    torch.div(series.mT, scale.unsqueeze(2), out=rows)
    return rows.flatten(0, 1)


def split(
    made: Float[Tensor, "R J"], config: TimePrismConfig, horizon: int
) -> tuple[Float[Tensor, "R N H"], Float[Tensor, "R K H"], Float[Tensor, "R M"]]:
    """Trends, seasons and logits of what the heads made, where it is."""
    sizes = [config.trends * horizon, config.seasons * horizon, config.hypotheses]
    trend, season, logit = made[:, : sum(sizes)].split(sizes, dim=1)
    return trend.unflatten(1, (-1, horizon)), season.unflatten(1, (-1, horizon)), logit


def _judge(
    tally: Tally,
    made: Float[Tensor, "R J"],
    truth: Float[Tensor, "R H"],
    terms: Terms,
    learns: bool,
) -> Tally:
    """The tally with these hypotheses; what was made is overwritten by slopes, if it learns."""
    trend, season, logit = split(made, terms.config, truth.shape[1])
    sides = Sides(torch.sub(truth.unsqueeze(1), trend, out=trend), season)
    with exact_products():
        distance = distances(sides)
        winner, least = nearest(sides, distance)
        distance.scatter_(1, winner, least)
        share = shares(distance, winner, terms.temperature, terms.config)
        log = torch.log_softmax(logit, dim=1)
        tally = tally._replace(
            distance=tally.distance + (share * distance).sum(1).sum(dtype=torch.float64),
            score=tally.score - log.gather(1, winner).sum(dtype=torch.float64),
            won=tally.won.scatter(0, winner.flatten(), 1),
        )
        if learns:
            put_slopes(sides, share)
            weights = log.exp_().scatter_add_(1, winner, torch.full_like(least, -1))
            torch.mul(weights, terms.config.score_weight, out=logit)
    return tally
