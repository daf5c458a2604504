"""The noise network against the plain one, values and gradients, in tiles and without."""

from math import cos, sin, sqrt

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.timegrad import tiles as tiles_module
from powerphase.models.timegrad.config import TimeGradConfig
from powerphase.models.timegrad.convolution import convolved
from powerphase.models.timegrad.denoiser import Denoiser
from powerphase.models.timegrad.objective import Noisy, Pieces, mean_error, predicted
from powerphase.models.timegrad.tiles import tiles
from tests.models.timegrad.plain import denoiser_of, plain_noise

ROWS = 5
SIZES = [(2, None), (5, None), (5, 2), (8, 1), (13, 5), (40, None), (41, 7), (80, 30)]
"""Channels, fewer than a halo has or more, and channels of a tile."""


def given_rows(n_channels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Noisy rows, their noise, what is known of them, and the diffusion step of each."""
    generator = torch.Generator().manual_seed(4)
    size = [(ROWS, n_channels), (ROWS, n_channels), (ROWS, 6)]
    made = [torch.randn(one, generator=generator, dtype=torch.float64) for one in size]
    return made[0], made[1], made[2].requires_grad_(), torch.tensor([0, 8, 3, 3, 5])


def pieces_of(denoiser: Denoiser, n_channels: int, at_once: int | None, rows: int = 2) -> Pieces:
    return Pieces(rows, tiles(n_channels, at_once or n_channels, denoiser.halo))


@pytest.mark.parametrize(("n_channels", "at_once"), SIZES)
def test_tiles_give_the_loss_and_the_gradients_of_the_plain_network(
    n_channels: int, at_once: int | None
) -> None:
    denoiser = denoiser_of(n_channels)
    noisy, noise, known, step = given_rows(n_channels)
    expected = (plain_noise(denoiser, noisy, known, step) - noise).square().mean()
    added = denoiser.steps()[step]
    conditioner, pieces = denoiser.conditioner(known), pieces_of(denoiser, n_channels, at_once)
    found = mean_error(denoiser, Noisy(noisy, noise), conditioner, added, pieces)
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=0)
    learned = [known, *denoiser.parameters()]
    # Times two, as whatever stands behind the loss may have it.
    slopes, wanted = (torch.autograd.grad(2 * one, learned) for one in (found, expected))
    for one, other in zip(slopes, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-11)
    with torch.no_grad():
        again = mean_error(denoiser, Noisy(noisy, noise), conditioner, added, pieces)
    torch.testing.assert_close(again, expected, rtol=1e-11, atol=0)


@pytest.mark.parametrize(("n_channels", "at_once"), SIZES)
def test_noise_that_is_predicted_in_tiles_is_that_of_the_plain_network(
    n_channels: int, at_once: int | None
) -> None:
    denoiser = denoiser_of(n_channels)
    noisy, _, known, _ = given_rows(n_channels)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        with torch.no_grad():
            expected = plain_noise(denoiser.double(), noisy, known, torch.full((ROWS,), 3))
            denoiser.to(dtype)
            conditioner = denoiser.conditioner(known.to(dtype))
            pieces = pieces_of(denoiser, n_channels, at_once)
            step = denoiser.steps()[3:4]
            found = predicted(denoiser, noisy.to(dtype), conditioner, step, pieces)
        torch.testing.assert_close(
            found.double(), expected, rtol=tolerance, atol=10 * tolerance * float(expected.std())
        )


def test_half_precision_touches_neither_the_loss_nor_its_gradients() -> None:
    denoiser = denoiser_of(8).float()
    noisy, noise, known = (one.float() for one in given_rows(8)[:3])
    conditioner = denoiser.conditioner(known).detach().requires_grad_()
    added, pieces = denoiser.steps()[:ROWS].detach(), pieces_of(denoiser, 8, 3)
    found = []
    for half in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = mean_error(denoiser, Noisy(noisy, noise), conditioner, added, pieces)
        found.append([loss, *torch.autograd.grad(loss, [conditioner, *denoiser.filters()])])
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def test_the_noise_network_looks_fourteen_channels_to_either_side() -> None:
    denoiser = Denoiser(TimeGradConfig(), 60)
    assert denoiser.halo == 14
    denoiser = denoiser_of(60)
    noisy, _, known, step = given_rows(60)
    moved = noisy.clone()
    moved[:, 30] += 1
    change = plain_noise(denoiser, moved, known, step) != plain_noise(denoiser, noisy, known, step)
    assert change.any(0).nonzero().flatten().tolist() == list(range(16, 45))


def test_rows_do_not_meet() -> None:
    denoiser, (noisy, _, known, _) = denoiser_of(7), given_rows(7)
    pieces, step = pieces_of(denoiser, 7, 3, rows=3), denoiser.steps()[3:4]
    conditioner = denoiser.conditioner(known).detach()
    with torch.no_grad():
        before = predicted(denoiser, noisy, conditioner, step, pieces)
        noisy[1], conditioner[1] = torch.nan, torch.inf
        after = predicted(denoiser, noisy, conditioner, step, pieces)
    assert after[1].isnan().all()
    others = [0, 2, 3, 4]
    assert torch.equal(after[others], before[others])


@pytest.mark.parametrize(("taps", "dilation"), [(1, 1), (3, 1), (3, 2)])
def test_matrix_products_are_a_convolution_with_its_slopes(taps: int, dilation: int) -> None:
    torch.manual_seed(2)
    sizes = [(2, 11), (4, 2, taps), (4,), (3, 11), (4, 3)]
    given = [torch.randn(one, dtype=torch.float64, requires_grad=True) for one in sizes]
    features, weight, bias, more, matrix = given
    found = convolved(features, weight, bias, dilation, (more, matrix))
    expected = F.conv1d(features, weight, bias, padding=taps // 2 * dilation, dilation=dilation)
    torch.testing.assert_close(found, expected + matrix @ more)
    assert torch.autograd.gradcheck(
        lambda *one: convolved(*one[:3], dilation, one[3:]), given
    )  # fmt: skip


def test_a_network_begins_by_predicting_the_same_noise_everywhere() -> None:
    denoiser = Denoiser(TimeGradConfig(condition=6), 8)
    noisy, _, known, _ = (one.float() for one in given_rows(8))
    with torch.no_grad():
        pieces, step = pieces_of(denoiser, 8, None), denoiser.steps()[:1]
        found = predicted(denoiser, noisy, denoiser.conditioner(known), step, pieces)
    torch.testing.assert_close(found, denoiser.leave.bias.detach().expand_as(found))


def test_a_diffusion_step_is_told_by_sines_and_then_cosines_of_rising_frequency() -> None:
    """The k-th of sixteen turns by 10^(4k/16) with every step, as in the reference."""
    waves = Denoiser(TimeGradConfig(), 8).waves
    for step in range(100):
        turned = [step * 10 ** (4 * k / 16) for k in range(16)]
        expected = [*map(sin, turned), *map(cos, turned)]
        assert waves[step].tolist() == pytest.approx(expected, abs=1e-9)
    assert waves.shape == (100, 32)


def test_weights_begin_as_the_reference_s_do() -> None:
    """Those of what enters, is told, leaves a block and is collected by He's way."""
    torch.manual_seed(0)
    width = 300
    denoiser = Denoiser(TimeGradConfig(width=width, blocks=1), 8)
    (block,) = denoiser.blocks
    layers = (denoiser.enter, block.told, block.leave, denoiser.collect)
    for layer, inputs in zip(layers, (1, 1, width, 3 * width), strict=True):
        assert float(layer.weight.detach().std()) == pytest.approx(sqrt(2 / inputs), rel=0.15)
    bound = 1 / sqrt(3 * width)
    assert 0.99 * bound < block.mix.weight.abs().max() <= bound


def test_a_gpu_s_pieces_are_larger() -> None:
    denoiser = denoiser_of(40)
    sizes = [Pieces.of(denoiser, 40, None, device).rows for device in ("cpu", "cuda")]
    assert sizes == [tiles_module.PIECE_NUMBERS[one] // 16 // 40 for one in ("cpu", "cuda")]
