"""The states before the first step, against dense least squares."""

import pytest
import torch
from torch import Tensor

from powerphase.models.ets.scans import forward_plain
from powerphase.models.ets.states import guess, settle
from tests.models.ets import process, random, some_gains, waves


def least(record: Tensor, gains: Tensor, n_states: int) -> Tensor:
    """Each channel's least sum of squared errors, by a matrix."""
    found = []
    for channel in range(record.shape[1]):
        here = slice(channel, channel + 1)
        still, _ = forward_plain(record[:, here], gains[:, here], torch.zeros(n_states, 1).double())
        alone = gains[:, here].expand(3, n_states)
        nothing = torch.zeros(len(record), n_states)
        matrix, _ = forward_plain(nothing, alone, torch.eye(n_states).double())
        best = torch.linalg.lstsq(matrix, -still, driver="gelsd").solution
        found.append((still + matrix @ best).square().sum())
    return torch.stack(found)


@pytest.mark.parametrize("season", [4, 5, 24])
def test_states_are_those_of_least_squares(season: int) -> None:
    record, gains = 2 + random(9 * season, 6), some_gains(6)
    errors = torch.empty_like(record)
    found = settle(record, gains, guess(record, season), errors, 40, 1e-14)
    wanted = least(record, gains, 2 + season)
    assert torch.allclose(found.sse, wanted, rtol=1e-9)


@pytest.mark.parametrize(
    "chosen",
    [(0.9, 0.001, 0.01), (0.5, 0, 0), (0.05, 0.01, 0.5), (0.98, 0.2, 0.001), (0, 0, 0), (1, 0, 0)],
    ids=str,
)
def test_ten_turns_are_enough_for_a_week_whatever_the_gains(
    chosen: tuple[float, float, float],
) -> None:
    alpha, beta, gamma = chosen
    gains = torch.tensor([[alpha], [alpha * beta], [gamma]], dtype=torch.float64).repeat(1, 3)
    states = waves(96, 3)
    record, _ = process(gains, states, 0.1 * random(672, 3))
    errors = torch.empty_like(record)
    first = torch.zeros_like(states)
    few, many = (settle(record, gains, first, errors, n, 0.0).sse for n in (10, 60))
    assert torch.allclose(few, many, rtol=1e-6)
    assert (many <= 0.01 * 672 * 1.3).all()


def test_a_channel_s_states_are_its_own() -> None:
    """Turns beyond its best, for the sake of others, do no harm."""
    record, gains = random(120, 5), some_gains(5)
    record[:, 2] = 1.5
    record[:, 3] *= 1e-9
    errors = torch.empty_like(record)
    found = settle(record, gains, guess(record, 12), errors, 40, 1e-14)
    assert found.states.isfinite().all()
    assert found.sse[2] < 1e-24
    for channel in range(5):
        here = slice(channel, channel + 1)
        alone = settle(
            record[:, here], gains[:, here], guess(record[:, here], 12), errors[:, here], 40, 1e-14
        )
        assert torch.allclose(alone.sse, found.sse[here], rtol=1e-9, atol=1e-24)
