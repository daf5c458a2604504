"""How far all hypotheses of a channel are from what happened, without making any of them.

Hypothesis (n, k) is trend n plus season k. With r_n, what happened less trend n, its error is
r_n − s_k, and ‖r_n − s_k‖² = ‖r_n‖² + ‖s_k‖² − 2 r_n·s_k takes 25 + 25 rows and one small product
in place of 625 rows. The slopes of any weighted sum of these distances are small products too.
"""

from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor


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
