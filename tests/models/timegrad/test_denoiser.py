"""The noise network against the plain one: values and gradients, with tiles and without."""

from math import cos, sin, sqrt
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.models.timegrad import (
    PIECE_NUMBERS,
    Denoiser,
    NoisyRows,
    Pieces,
    TimeGradConfig,
    convolve,
    make_tiles,
    noise_loss,
    predict_noise,
)
from tests.models.timegrad.plain import denoiser_of, plain_noise

ROWS = 5
SIZES = [(2, None), (5, None), (5, 2), (8, 1), (13, 5), (40, None), (41, 7), (80, 30)]
"""Channels, fewer or more than the halo, and channels per tile."""


def rows_of(n_channels: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Noisy rows, their noise, their conditions and their diffusion steps."""
    generator = torch.Generator().manual_seed(4)
    noisy, noise, condition = (
        torch.randn(ROWS, size, generator=generator, dtype=torch.float64)
        for size in (n_channels, n_channels, 6)
    )
    return noisy, noise, condition.requires_grad_(), torch.tensor([0, 8, 3, 3, 5])


def pieces_of(denoiser: Denoiser, n_channels: int, tile_size: int | None, rows: int = 2) -> Pieces:
    return Pieces(rows, make_tiles(n_channels, tile_size or n_channels, denoiser.halo))


@pytest.mark.parametrize(("n_channels", "tile_size"), SIZES)
def test_the_loss_and_gradients_of_tiles_match_the_plain_network(
    n_channels: int, tile_size: int | None
) -> None:
    denoiser = denoiser_of(n_channels)
    noisy, noise, condition, step = rows_of(n_channels)
    expected = (plain_noise(denoiser, noisy, condition, step) - noise).square().mean()
    embeddings = denoiser.step_embeddings()[step]
    conditioner, rows = denoiser.conditioner(condition), NoisyRows(noisy, noise)
    pieces = pieces_of(denoiser, n_channels, tile_size)
    loss = noise_loss(denoiser, rows, conditioner, embeddings, pieces)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=0)
    inputs = [condition, *denoiser.parameters()]
    # Times two, to test an upstream gradient other than 1.
    torch.testing.assert_close(
        torch.autograd.grad(2 * loss, inputs),
        torch.autograd.grad(2 * expected, inputs),
        rtol=1e-9,
        atol=1e-11,
    )
    with torch.no_grad():
        loss = noise_loss(denoiser, rows, conditioner, embeddings, pieces)
    torch.testing.assert_close(loss, expected, rtol=1e-11, atol=0)


@pytest.mark.parametrize(("n_channels", "tile_size"), SIZES)
def test_noise_predicted_in_tiles_matches_the_plain_network(
    n_channels: int, tile_size: int | None
) -> None:
    denoiser = denoiser_of(n_channels)
    noisy, _, condition, _ = rows_of(n_channels)
    for dtype, tolerance in ((torch.float64, 1e-10), (torch.float32, 1e-5)):
        with torch.no_grad():
            expected = plain_noise(denoiser.double(), noisy, condition, torch.full((ROWS,), 3))
            denoiser.to(dtype)
            conditioner = denoiser.conditioner(condition.to(dtype))
            pieces = pieces_of(denoiser, n_channels, tile_size)
            step = denoiser.step_embeddings()[3:4]
            noise = predict_noise(denoiser, noisy.to(dtype), conditioner, step, pieces)
        torch.testing.assert_close(
            noise.double(), expected, rtol=tolerance, atol=10 * tolerance * float(expected.std())
        )


def test_half_precision_does_not_affect_the_loss_or_its_gradients() -> None:
    denoiser = denoiser_of(8).float()
    noisy, noise, condition = (part.float() for part in rows_of(8)[:3])
    conditioner = denoiser.conditioner(condition).detach().requires_grad_()
    embeddings, pieces = denoiser.step_embeddings()[:ROWS].detach(), pieces_of(denoiser, 8, 3)
    inputs = [conditioner, *denoiser.convolution_parameters()]
    results = []
    for half in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = noise_loss(denoiser, NoisyRows(noisy, noise), conditioner, embeddings, pieces)
        results.append([loss, *torch.autograd.grad(loss, inputs)])
    assert all(torch.equal(*pair) for pair in zip(*results, strict=True))


def test_the_noise_network_reads_fourteen_channels_on_either_side() -> None:
    denoiser = Denoiser(TimeGradConfig(), 60)
    assert denoiser.halo == 14
    denoiser = denoiser_of(60)
    noisy, _, condition, step = rows_of(60)
    before = plain_noise(denoiser, noisy, condition, step)
    noisy[:, 30] += 1
    after = plain_noise(denoiser, noisy, condition, step)
    assert (after != before).any(0).nonzero().flatten().tolist() == list(range(16, 45))


def test_rows_are_independent() -> None:
    denoiser, (noisy, _, condition, _) = denoiser_of(7), rows_of(7)
    pieces, step = pieces_of(denoiser, 7, 3, rows=3), denoiser.step_embeddings()[3:4]
    conditioner = denoiser.conditioner(condition).detach()
    with torch.no_grad():
        before = predict_noise(denoiser, noisy, conditioner, step, pieces)
        noisy[1], conditioner[1] = torch.nan, torch.inf
        after = predict_noise(denoiser, noisy, conditioner, step, pieces)
    assert after[1].isnan().all()
    others = [0, 2, 3, 4]
    assert torch.equal(after[others], before[others])


@pytest.mark.parametrize(("taps", "dilation"), [(1, 1), (3, 1), (3, 2)])
def test_matrix_products_match_a_convolution_and_its_gradients(taps: int, dilation: int) -> None:
    torch.manual_seed(2)
    sizes = [(2, 11), (4, 2, taps), (4,), (3, 11), (4, 3)]
    inputs = [torch.randn(size, dtype=torch.float64, requires_grad=True) for size in sizes]
    features, weight, bias, more, matrix = inputs
    outputs = convolve(features, weight, bias, dilation, (more, matrix))
    expected = F.conv1d(features, weight, bias, padding=taps // 2 * dilation, dilation=dilation)
    torch.testing.assert_close(outputs, expected + matrix @ more)

    def run(*inputs: Any) -> Tensor:
        features, weight, bias, *extra = inputs
        return convolve(features, weight, bias, dilation, tuple(extra))

    gradcheck: Any = torch.autograd.gradcheck
    assert gradcheck(run, inputs)


def test_an_untrained_network_predicts_the_same_noise_everywhere() -> None:
    denoiser = Denoiser(TimeGradConfig(condition=6), 8)
    noisy, _, condition, _ = (part.float() for part in rows_of(8))
    with torch.no_grad():
        pieces, step = pieces_of(denoiser, 8, None), denoiser.step_embeddings()[:1]
        noise = predict_noise(denoiser, noisy, denoiser.conditioner(condition), step, pieces)
    torch.testing.assert_close(noise, denoiser.leave.bias.detach().expand_as(noise))


def test_the_step_embedding_has_sines_then_cosines_of_rising_frequency() -> None:
    """The k-th of sixteen frequencies is 10^(4k/16) radians per step, as in the reference."""
    waves = Denoiser(TimeGradConfig(), 8).waves
    for step in range(100):
        angles = [step * 10 ** (4 * k / 16) for k in range(16)]
        expected = [*map(sin, angles), *map(cos, angles)]
        assert waves[step].tolist() == pytest.approx(expected, abs=1e-9)
    assert waves.shape == (100, 32)


def test_weights_are_initialised_as_in_the_reference() -> None:
    """He initialisation of the first layer, the conditioner, the outputs and the collection."""
    torch.manual_seed(0)
    width = 300
    denoiser: Any = Denoiser(TimeGradConfig(width=width, blocks=1), 8)
    (block,) = denoiser.blocks
    layers = (denoiser.enter, block.told, block.leave, denoiser.collect)
    for layer, inputs in zip(layers, (1, 1, width, 3 * width), strict=True):
        assert float(layer.weight.detach().std()) == pytest.approx(sqrt(2 / inputs), rel=0.15)
    bound = 1 / sqrt(3 * width)
    assert 0.99 * bound < block.mix.weight.abs().max() <= bound


def test_pieces_are_larger_on_a_gpu() -> None:
    denoiser = denoiser_of(40)
    sizes = [Pieces.of(denoiser, 40, None, device).rows for device in ("cpu", "cuda")]
    assert sizes == [PIECE_NUMBERS[device] // 16 // 40 for device in ("cpu", "cuda")]
