"""The states before the first step, against dense least squares."""

import pytest
import torch
from torch import Tensor

from powerphase.models.ets import fit_states, forward_plain, initial_states
from tests.models.ets import process, random, some_gains, waves


def least_squares(record: Tensor, gains: Tensor, n_states: int) -> Tensor:
    """Each channel's least sum of squared errors, by a dense solver."""
    sums = []
    for channel in range(record.shape[1]):
        column = slice(channel, channel + 1)
        offset, _ = forward_plain(
            record[:, column], gains[:, column], torch.zeros(n_states, 1).double()
        )
        alone = gains[:, column].expand(3, n_states)
        zeros = torch.zeros(len(record), n_states)
        matrix, _ = forward_plain(zeros, alone, torch.eye(n_states).double())
        best = torch.linalg.lstsq(matrix, -offset, driver="gelsd").solution
        sums.append((offset + matrix @ best).square().sum())
    return torch.stack(sums)


@pytest.mark.parametrize("season", [4, 5, 24])
def test_fitted_states_solve_the_least_squares_problem(season: int) -> None:
    record, gains = 2 + random(9 * season, 6), some_gains(6)
    errors = torch.empty_like(record)
    result = fit_states(record, gains, initial_states(record, season), errors, 40, 1e-14)
    expected = least_squares(record, gains, 2 + season)
    assert torch.allclose(result.sse, expected, rtol=1e-9)


@pytest.mark.parametrize(
    "parameters",
    [(0.9, 0.001, 0.01), (0.5, 0, 0), (0.05, 0.01, 0.5), (0.98, 0.2, 0.001), (0, 0, 0), (1, 0, 0)],
    ids=str,
)
def test_ten_iterations_are_enough_for_a_week_with_any_gains(
    parameters: tuple[float, float, float],
) -> None:
    alpha, beta, gamma = parameters
    gains = torch.tensor([[alpha], [alpha * beta], [gamma]], dtype=torch.float64).repeat(1, 3)
    states = waves(96, 3)
    record, _ = process(gains, states, 0.1 * random(672, 3))
    errors = torch.empty_like(record)
    first = torch.zeros_like(states)
    few, many = (fit_states(record, gains, first, errors, n, 0.0).sse for n in (10, 60))
    assert torch.allclose(few, many, rtol=1e-6)
    assert (many <= 0.01 * 672 * 1.3).all()


def test_channels_are_fitted_independently() -> None:
    """Iterations beyond a channel's minimum, which others need, do not worsen it."""
    record, gains = random(120, 5), some_gains(5)
    record[:, 2] = 1.5
    record[:, 3] *= 1e-9
    errors = torch.empty_like(record)
    result = fit_states(record, gains, initial_states(record, 12), errors, 40, 1e-14)
    assert result.states.isfinite().all()
    assert result.sse[2] < 1e-24
    for channel in range(5):
        column = slice(channel, channel + 1)
        alone = fit_states(
            record[:, column],
            gains[:, column],
            initial_states(record[:, column], 12),
            errors[:, column],
            40,
            1e-14,
        )
        assert torch.allclose(alone.sse, result.sse[column], rtol=1e-9, atol=1e-24)
