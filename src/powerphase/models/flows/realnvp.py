"""The flow: couplings that turn values of all channels into independent normal numbers, and back.

Each row, a step of a window, is one draw of all channels given what is known of it. Channels are
standardised by fixed numbers; then even and odd ones take turns in being moved, even ones first.

What a coupling adds to a channel wanders by a few hundredths from one step of training to the next.
The batch's mean takes that off again, running averages come too late for it. Standardised channels
hardly feel it; a voltage as it is, which moves by a thousandth of its size, would be lost in it.
"""

from math import log, pi

import torch
from jaxtyping import Float
from torch import Tensor, nn

from powerphase.models.flows.coupling import Coupling, Half
from powerphase.models.flows.kernels.moments import moments_of
from powerphase.models.flows.normalisation import Affine, Moments
from powerphase.models.recurrent.blocks import blocks
from powerphase.models.recurrent.inputs import Given

EVEN, ODD = 0, 1
HALVES = slice(EVEN, None, 2), slice(ODD, None, 2)


class RealNVP(nn.Module):
    """A conditional flow.

    Args:
        condition: numbers that are known of a row, K.
        n_channels: channels, C.
        couplings: how many.
        hidden: width of their networks.
    """

    centre: Tensor
    width: Tensor

    def __init__(self, condition: int, n_channels: int, couplings: int, hidden: int) -> None:
        super().__init__()
        self.n_channels = n_channels
        sizes = len(range(EVEN, n_channels, 2)), len(range(ODD, n_channels, 2))
        self.couplings = nn.ModuleList(
            Coupling(condition, hidden, sizes[k % 2], sizes[1 - k % 2]) for k in range(couplings)
        )
        self.register_buffer("centre", torch.zeros(n_channels))
        self.register_buffer("width", torch.ones(n_channels))

    def standardise(self, found: Moments, noise: float) -> None:
        """Take values with such moments, and noise of such a spread on top, to mean 0 and size 1.

        Without noise, a channel that never moves would have no size.
        """
        self.centre.copy_(found.mean)
        self.width.copy_((found.variance + noise**2).sqrt())

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
        affine = Affine(1 / self.width, self.centre, torch.zeros_like(self.centre))
        moving, still = _halves_whole(given, affine) if fast else _halves(given, affine, at_once)
        determinants, last = [-self.width.log().sum()], len(self.couplings) - 1
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
        return torch.addcmul(self.centre, drawn, self.width)


def _halves(given: Given, affine: Affine, at_once: int) -> list[Half]:
    """Even and odd channels as they are given, in blocks, and what they are to go through."""
    halves = []
    for here in HALVES:
        half, own = given.of(here), Affine(*(one[here] for one in affine))
        values = [half.of(block) for block in blocks(half.size[2], at_once)]
        moments = Moments.joined([Moments.of(value.made()) for value in values])
        halves.append(Half(values, own, moments))
    return halves


def _halves_whole(given: Given, affine: Affine) -> list[Half]:
    """The same, each in one; their moments are found in one pass over all channels."""
    moments = moments_of(given)
    return [
        Half(
            [given.of(here)],
            Affine(*(one[here] for one in affine)),
            Moments(*(one[here] for one in moments)),
        )
        for here in HALVES
    ]
