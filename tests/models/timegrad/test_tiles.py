"""Tiles of the ring of channels."""

import pytest
import torch

from powerphase.models.timegrad.tiles import PIECE_NUMBERS, add_back, cut, piece_size, tiles


def ring(n_channels: int) -> list[int]:
    """Which channel is where: two of the end, all, two of the beginning."""
    return [n_channels - 2, n_channels - 1, *range(n_channels), 0, 1]


@pytest.mark.parametrize("n_channels", [2, 3, 5, 8, 41])
@pytest.mark.parametrize("at_once", [1, 3, 41])
@pytest.mark.parametrize("halo", [0, 2, 14])
def test_a_tile_has_its_channels_and_what_is_around_them_on_the_ring(
    n_channels: int, at_once: int, halo: int
) -> None:
    places, values = ring(n_channels), torch.arange(n_channels)[None].double()
    covered = []
    for tile in tiles(n_channels, at_once, halo):
        channels = range(n_channels)[tile.channels]
        around = range(channels.start + 2 - halo, channels.stop + 2 + halo)
        assert cut(values, tile)[0].tolist() == [places[k % len(places)] for k in around]
        covered += channels
    assert covered == list(range(n_channels))


@pytest.mark.parametrize("at_once", [2, 9])
def test_slopes_are_added_back_to_every_place_they_came_from(at_once: int) -> None:
    values = torch.randn(3, 9, dtype=torch.float64, requires_grad=True)
    for tile in tiles(9, at_once, 14):
        made = cut(values, tile)
        slopes = torch.randn_like(made)
        (expected,) = torch.autograd.grad(made, values, slopes)
        found = torch.ones(3, 9, dtype=torch.float64)
        add_back(found, slopes, tile)
        torch.testing.assert_close(found, 1 + expected)


def test_a_piece_is_many_rows_of_few_channels_or_a_part_of_one_row() -> None:
    positions = PIECE_NUMBERS["cpu"] // 16
    assert piece_size(100, None, 16, "cpu") == (positions // 100, 100)
    assert piece_size(100, 10, 16, "cpu") == (positions // 100, 10)
    assert piece_size(10 * positions, None, 16, "cpu") == (1, positions)
    assert piece_size(10, 20, 16, "cpu")[1] == 10
