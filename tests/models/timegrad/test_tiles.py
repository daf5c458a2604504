"""Tiles of the ring of channels."""

import pytest
import torch

from powerphase.models.timegrad import (
    PIECE_NUMBERS,
    gather,
    make_tiles,
    piece_size,
    scatter_add,
)


def ring(n_channels: int) -> list[int]:
    """Channels in ring order: the last two, all, the first two."""
    return [n_channels - 2, n_channels - 1, *range(n_channels), 0, 1]


@pytest.mark.parametrize("n_channels", [2, 3, 5, 8, 41])
@pytest.mark.parametrize("tile_size", [1, 3, 41])
@pytest.mark.parametrize("halo", [0, 2, 14])
def test_a_tile_has_its_channels_and_their_surroundings_on_the_ring(
    n_channels: int, tile_size: int, halo: int
) -> None:
    positions, values = ring(n_channels), torch.arange(n_channels)[None].double()
    covered: list[int] = []
    for tile in make_tiles(n_channels, tile_size, halo):
        channels = range(n_channels)[tile.channels]
        around = range(channels.start + 2 - halo, channels.stop + 2 + halo)
        assert gather(values, tile)[0].tolist() == [positions[k % len(positions)] for k in around]
        covered += channels
    assert covered == list(range(n_channels))


@pytest.mark.parametrize("tile_size", [2, 9])
def test_scatter_add_is_the_adjoint_of_gather(tile_size: int) -> None:
    values = torch.randn(3, 9, dtype=torch.float64, requires_grad=True)
    for tile in make_tiles(9, tile_size, 14):
        gathered = gather(values, tile)
        upstream = torch.randn_like(gathered)
        (expected,) = torch.autograd.grad(gathered, values, upstream)
        total = torch.ones(3, 9, dtype=torch.float64)
        scatter_add(total, upstream, tile)
        torch.testing.assert_close(total, 1 + expected)


def test_a_piece_is_many_rows_or_a_part_of_one() -> None:
    positions = PIECE_NUMBERS["cpu"] // 16
    assert piece_size(100, None, 16, "cpu") == (positions // 100, 100)
    assert piece_size(100, 10, 16, "cpu") == (positions // 100, 10)
    assert piece_size(10 * positions, None, 16, "cpu") == (1, positions)
    assert piece_size(10, 20, 16, "cpu")[1] == 10
