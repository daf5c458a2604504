"""The loss of contexts and targets, and its gradient, one block of channels at a time.

Hypothesis (n, k) is trend n plus season k. With r_n, the target less trend n, its error is
r_n − s_k, and ‖r_n − s_k‖² = ‖r_n‖² + ‖s_k‖² − 2 r_n·s_k needs 25 + 25 rows and one small product
instead of 625 rows. The gradients of any weighted sum of these distances are small products too.

The loss is a mean over windows and channels. The forward pass therefore computes the hypotheses of
a block, their loss and its gradient with respect to the heads, and discards the hypotheses; what it
keeps is as small as the heads.
"""

from math import inf
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from powerphase.models.framework.ops import (
    ZeroScale,
    choice_weights,
    exact_matmul,
    mean_scale,
)
from powerphase.models.timeprism.config import TimePrismConfig

PARTS = ("distance", "score", "largest input", "zero channels", "winning share")


class Residuals(NamedTuple):
    """For each row, a window's channel: the vectors whose differences are the errors."""

    rest: Float[Tensor, "R N H"]
    """The target less each trend."""
    season: Float[Tensor, "R K H"]


def distances(residuals: Residuals) -> Float[Tensor, "R M"]:
    """The squared distance of hypothesis (n, k), at n · K + k, summed over steps."""
    distance = (residuals.rest @ residuals.season.mT).mul_(-2)
    # A norm takes one pass; summing squares would copy the whole tensor.
    distance += torch.linalg.vector_norm(residuals.rest, dim=2).square_().unsqueeze(2)
    distance += torch.linalg.vector_norm(residuals.season, dim=2).square_().unsqueeze(1)
    return distance.clamp_(min=0).flatten(1)


def nearest(
    residuals: Residuals, distance: Float[Tensor, "R M"]
) -> tuple[Int[Tensor, "R 1"], Float[Tensor, "R 1"]]:
    """The nearest hypothesis, and its distance computed directly as a sum of squares.

    The product loses the digits that two long rows have in common, and the nearest pair has the
    most in common.
    """
    winner = distance.argmin(1, keepdim=True)
    n, k = winner // residuals.season.shape[1], winner % residuals.season.shape[1]
    rest = torch.take_along_dim(residuals.rest, n.unsqueeze(2), 1)
    season = torch.take_along_dim(residuals.season, k.unsqueeze(2), 1)
    return winner, (rest - season).square_().sum(2)


def overwrite_by_gradients(residuals: Residuals, share: Float[Tensor, "R M"]) -> None:
    """Replace the residuals by the gradients of Σ share · distance along trends and seasons."""
    twice = share.unflatten(1, (residuals.rest.shape[1], -1)) * 2  # R N K
    cross = twice.mT @ residuals.rest
    residuals.rest.mul_(-twice.sum(2, keepdim=True)).baddbmm_(twice, residuals.season)
    residuals.season.mul_(twice.sum(1).unsqueeze(2)).sub_(cross)


class LinearMap(NamedTuple):
    """One linear map for all heads: its rows are trends, seasons, logits, and padding with zeros.

    A hypothesis is the sum of a trend and a season, so the mean of all seasons can be moved to the
    trends. This map does so, because distances come from products, which lose common digits.
    """

    weight: Float[Tensor, "J T"]
    bias: Float[Tensor, " J"]


class LossSettings(NamedTuple):
    """The settings of the loss at one step."""

    config: TimePrismConfig
    temperature: Float[Tensor, ""]
    at_once: int
    """Channels of a block."""


class Totals(NamedTuple):
    """Sums over the blocks so far."""

    distance: Float[Tensor, ""]
    score: Float[Tensor, ""]
    largest: Float[Tensor, ""]
    """The largest absolute input, scaled."""
    zero_channels: Float[Tensor, ""]
    """Number of contexts that are zero at every step."""
    won: Float[Tensor, " M"]
    """1 for each hypothesis that was the nearest somewhere."""


def loss_and_parts(
    heads: LinearMap,
    past: Float[Tensor, "B T C"],
    target: Float[Tensor, "B H C"],
    settings: LossSettings,
) -> tuple[Float[Tensor, ""], Float[Tensor, " 5"]]:
    """The loss, with gradients along the heads' linear map, and its parts for the log."""
    needs_gradient = torch.is_grad_enabled() and heads.weight.requires_grad
    apply: Any = _Loss.apply
    loss, parts = apply(*heads, past, target, settings, needs_gradient)
    return loss, parts


class _Loss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        weight, bias, past, target, settings, needs_gradient = inputs
        heads = LinearMap(weight, bias)
        gradient = LinearMap(*map(torch.zeros_like, heads)) if needs_gradient else None
        totals = _sum_blocks(heads, past, target, settings, gradient)
        count = past.shape[0] * past.shape[2]
        if gradient is not None:
            ctx.save_for_backward(*(part / count for part in gradient))
        logged = (
            totals.distance / count,
            totals.score / count,
            totals.largest,
            totals.zero_channels / count,
            totals.won.mean(),
        )
        parts = torch.stack([part.to(past.dtype) for part in logged])
        ctx.mark_non_differentiable(parts)
        return parts[0] + settings.config.score_weight * parts[1], parts

    @staticmethod
    def backward(ctx: Any, upstream: Tensor, _: Any) -> tuple[Tensor | None, ...]:
        return *torch._foreach_mul(ctx.saved_tensors, upstream), *[None] * 4


def _sum_blocks(
    heads: LinearMap,
    past: Float[Tensor, "B T C"],
    target: Float[Tensor, "B H C"],
    settings: LossSettings,
    gradient: LinearMap | None,
) -> Totals:
    """The totals over all blocks; their gradients are added to `gradient` if it is given."""
    zero = torch.zeros((), dtype=torch.float64, device=past.device)
    won = past.new_zeros(settings.config.hypotheses)
    totals = Totals(zero, zero, past.new_zeros(()), zero, won)
    blocks = zip(past.split(settings.at_once, 2), target.split(settings.at_once, 2), strict=True)
    for block_past, block_target in blocks:
        rows, targets = scale_rows(block_past, block_target, settings.config)
        totals = _add_block(totals, heads, rows, targets, settings, gradient)
    return totals


def _add_block(
    totals: Totals,
    heads: LinearMap,
    rows: Float[Tensor, "R T"],
    target: Float[Tensor, "R H"],
    settings: LossSettings,
    gradient: LinearMap | None,
) -> Totals:
    """The totals with a block added; nothing else of the block is kept."""
    outputs = torch.addmm(heads.bias, rows, heads.weight.T).to(rows.dtype)
    totals = _add_hypotheses(totals, outputs, target, settings, gradient is not None)
    if gradient is not None:
        gradient.weight.addmm_(outputs.T, rows)
        gradient.bias.add_(outputs.sum(0))
    largest = [torch.linalg.vector_norm(part, ord=inf, dim=1) for part in (rows, target)]
    return totals._replace(
        largest=torch.maximum(totals.largest, torch.stack(largest).amax()),
        zero_channels=totals.zero_channels + (largest[0] == 0).sum(),
    )


class Scale(NamedTuple):
    """Offset and unit of each context."""

    offset: Float[Tensor, "B W"] | None
    unit: Float[Tensor, "B W"]

    @classmethod
    def of(
        cls, past: Float[Tensor, "B T W"], config: TimePrismConfig, zero: ZeroScale = "floor"
    ) -> "Scale":
        """Of these contexts; `zero` is for contexts that are zero throughout."""
        if config.scaler == "mean-size":
            return cls(None, mean_scale(past, config.least_scale, zero))
        deviation, mean = torch.std_mean(past, dim=1, correction=0)
        return cls(mean, deviation.clamp(min=config.least_scale))

    def rows(self, series: Float[Tensor, "B S W"]) -> Float[Tensor, "R S"]:
        """The scaled series, one row per window's channel."""
        windows, steps, width = series.shape
        rows = series.new_empty(windows, width, steps)
        if self.offset is None:
            torch.div(series.mT, self.unit.unsqueeze(2), out=rows)
        else:
            torch.sub(series.mT, self.offset.unsqueeze(2), out=rows).div_(self.unit.unsqueeze(2))
        return rows.flatten(0, 1)


def scale_rows(
    past: Float[Tensor, "B T W"], target: Float[Tensor, "B H W"], config: TimePrismConfig
) -> tuple[Float[Tensor, "R T"], Float[Tensor, "R H"]]:
    """Contexts and targets in units of each context, one row per window's channel."""
    scale = Scale.of(past, config, config.zero_scale)
    return scale.rows(past), scale.rows(target)


def split_outputs(
    outputs: Float[Tensor, "R J"], config: TimePrismConfig, horizon: int
) -> tuple[Float[Tensor, "R N H"], Float[Tensor, "R K H"], Float[Tensor, "R M"]]:
    """Views of the trends, seasons and logits in the heads' outputs."""
    sizes = [config.trends * horizon, config.seasons * horizon, config.hypotheses]
    trend, season, logit = outputs[:, : sum(sizes)].split(sizes, dim=1)
    return trend.unflatten(1, (-1, horizon)), season.unflatten(1, (-1, horizon)), logit


def _add_hypotheses(
    totals: Totals,
    outputs: Float[Tensor, "R J"],
    target: Float[Tensor, "R H"],
    settings: LossSettings,
    needs_gradient: bool,
) -> Totals:
    """The totals with these hypotheses; if needed, the gradient overwrites the outputs."""
    trend, season, logit = split_outputs(outputs, settings.config, target.shape[1])
    residuals = Residuals(torch.sub(target.unsqueeze(1), trend, out=trend), season)
    with exact_matmul():
        distance = distances(residuals)
        winner, least = nearest(residuals, distance)
        distance.scatter_(1, winner, least)
        share = choice_weights(distance, winner, settings.temperature, settings.config)
        log_weight = torch.log_softmax(logit, dim=1)
        totals = totals._replace(
            distance=totals.distance + (share * distance).sum(1).sum(dtype=torch.float64),
            score=totals.score - log_weight.gather(1, winner).sum(dtype=torch.float64),
            won=totals.won.scatter(0, winner.flatten(), 1),
        )
        if needs_gradient:
            overwrite_by_gradients(residuals, share)
            of_logit = log_weight.exp_().scatter_add_(1, winner, torch.full_like(least, -1))
            torch.mul(of_logit, settings.config.score_weight, out=logit)
    return totals
