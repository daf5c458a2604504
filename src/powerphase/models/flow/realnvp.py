"""The flow: couplings that turn values of all channels into independent normal numbers, and back.

Each row, a step of a window, is one draw of all channels given what is known of it. Even and odd
channels take turns in being moved, even ones first.
"""

from math import log, pi

import torch
from jaxtyping import Float
from torch import Tensor, nn

from powerphase.models.flow.coupling import Coupling, Half
from powerphase.models.flow.kernels.moments import moments_of
from powerphase.models.flow.normalisation import Affine, Moments
from powerphase.models.recurrent.blocks import blocks
from powerphase.models.recurrent.inputs import Given

EVEN, ODD = 0, 1


class RealNVP(nn.Module):
    """A conditional flow.

    Args:
        condition: numbers that are known of a row, K.
        n_channels: channels, C.
        couplings: how many.
        hidden: width of their networks.
    """

    def __init__(self, condition: int, n_channels: int, couplings: int, hidden: int) -> None:
        super().__init__()
        self.n_channels = n_channels
        sizes = len(range(EVEN, n_channels, 2)), len(range(ODD, n_channels, 2))
        self.couplings = nn.ModuleList(
            Coupling(condition, hidden, sizes[k % 2], sizes[1 - k % 2]) for k in range(couplings)
        )

    def negative_log_likelihood(
        self, known: Float[Tensor, "B steps K"], given: Given, at_once: int, fast: bool = False
    ) -> Float[Tensor, ""]:
        """Minus log p of the values, summed over channels, mean over rows.

        Where they end, the mean of their squares follows from their moments.

        Args:
            known: the condition of each row.
            given: the values; read again whenever they are needed.
            at_once: channels of a block.
            fast: by kernels, which need Triton and a GPU.
        """
        moving, still = _halves_whole(given) if fast else _halves(given, at_once)
        determinants, last = [], len(self.couplings) - 1
        for number, coupling in enumerate(self.couplings):
            moved, left, found = coupling(known, moving, still, at_once, number < last, fast)
            moving, still = left, moved
            determinants.append(found)
        ends = [half.affine.moments(half.moments) for half in (moving, still)]
        squares = torch.stack([(end.variance + end.mean.square()).sum() for end in ends]).sum()
        return (self.n_channels * log(2 * pi) + squares) / 2 - torch.stack(determinants).sum()

    def draw(
        self, known: Float[Tensor, "B P K"], normal: Float[Tensor, "B P C"]
    ) -> Float[Tensor, "B P C"]:
        """The values that the flow turns into these normal numbers, by its running averages."""
        halves = [normal[..., EVEN::2], normal[..., ODD::2]]
        for number, coupling in reversed(list(enumerate(self.couplings))):
            moves = number % 2
            assert isinstance(coupling, Coupling)
            halves[moves], halves[1 - moves] = coupling.inverse(
                known, halves[moves], halves[1 - moves]
            )
        drawn = torch.empty_like(normal)
        drawn[..., EVEN::2], drawn[..., ODD::2] = halves
        return drawn


def _halves(given: Given, at_once: int) -> list[Half]:
    """Even and odd channels as they are given, in blocks."""
    halves = []
    for parity in (EVEN, ODD):
        half = given.of(slice(parity, None, 2))
        values = [half.of(here) for here in blocks(half.size[2], at_once)]
        halves.append(_unchanged(values, Moments.joined([Moments.of(v.made()) for v in values])))
    return halves


def _halves_whole(given: Given) -> list[Half]:
    """The same, each in one; their moments are found in one pass over all channels."""
    moments = moments_of(given)
    parts = [slice(parity, None, 2) for parity in (EVEN, ODD)]
    return [_unchanged([given.of(here)], Moments(*(m[here] for m in moments))) for here in parts]


def _unchanged(values: list[Given], moments: Moments) -> Half:
    none = torch.zeros_like(moments.mean)
    return Half(values, Affine(none + 1, none, none), moments)
