"""How much each hypothesis learns: relaxed, annealed, plain; and how well scores foretell it."""

import pytest
import torch
from torch.nn import functional as F

from powerphase.models.framework.ops import annealing_temperature, choice_weights
from powerphase.models.timemcl import TimeMCLConfig, cross_entropy
from tests.models.recurrent.toys import budget

ERRORS = torch.tensor([[3.0, 1.0, 2.0], [0.5, 4.0, 4.0]], dtype=torch.float64)


def steps(number: int) -> torch.Tensor:
    return torch.tensor(number)


def shared(errors: torch.Tensor, after: int, config: TimeMCLConfig) -> torch.Tensor:
    winner = errors.argmin(1, keepdim=True)
    return choice_weights(errors, winner, annealing_temperature(steps(after), config), config)


def test_the_winner_takes_all_but_the_slack() -> None:
    found = shared(ERRORS, 0, TimeMCLConfig(slack=0.2))
    expected = torch.tensor([[0.1, 0.8, 0.1], [0.8, 0.1, 0.1]], dtype=torch.float64)
    torch.testing.assert_close(found, expected)


def test_a_plain_winner_takes_all() -> None:
    found = shared(ERRORS, 0, TimeMCLConfig(objective="plain"))
    assert found.tolist() == [[0, 1, 0], [1, 0, 0]]


def test_annealing_ends_with_a_winner_that_takes_all() -> None:
    """As the reference meant it and did not do it; 5e-4 is passed after epoch 193."""
    config = TimeMCLConfig(objective="annealed", training=budget(batches_per_epoch=30))
    first = shared(ERRORS, 29, config)
    torch.testing.assert_close(first, torch.softmax(-ERRORS / 10, dim=1))
    second = shared(ERRORS, 30, config)
    torch.testing.assert_close(second, torch.softmax(-ERRORS / 9.5, dim=1))
    almost_equal = torch.tensor([[1.0, 1.00001]], dtype=torch.float64)
    before, after = (shared(almost_equal, 30 * epoch, config) for epoch in (193, 194))
    assert 0.4 < before[0, 1] < 0.6
    assert after.tolist() == [[1, 0]]


def test_the_temperature_needs_no_number_from_the_device() -> None:
    found = annealing_temperature(
        steps(7), TimeMCLConfig(cooling=0.5, training=budget(batches_per_epoch=3))
    )
    assert float(found) == pytest.approx(2.5)


def test_no_gradient_goes_through_the_shares() -> None:
    errors = ERRORS.clone().requires_grad_()
    for objective in ("relaxed", "annealed", "plain"):
        assert not shared(errors, 0, TimeMCLConfig(objective=objective)).requires_grad


def test_cross_entropy_is_pytorch_s_own_where_nothing_is_certain() -> None:
    likely = torch.tensor([[0.2, 0.9], [1e-9, 0.5]], dtype=torch.float64, requires_grad=True)
    won = torch.tensor([[0.0, 1.0], [1.0, 0.0]], dtype=torch.float64)
    found, expected = cross_entropy(likely, won), F.binary_cross_entropy(likely, won)
    torch.testing.assert_close(found, expected)
    slopes = [torch.autograd.grad(one, likely)[0] for one in (found, expected)]
    torch.testing.assert_close(*slopes)


def test_cross_entropy_of_what_is_certain_has_finite_gradients() -> None:
    likely = torch.tensor([[1.0, 0.0, 1.0, 0.0, 0.3]], requires_grad=True)
    won = torch.tensor([[1.0, 0.0, 0.0, 1.0, 0.0]])
    found = cross_entropy(likely, won)
    (slope,) = torch.autograd.grad(found, likely)
    assert found.isfinite()
    assert slope[0, :4].tolist() == [0, 0, 0, 0]
    assert slope[0, 4] > 0


def test_cross_entropy_hands_on_what_is_no_number() -> None:
    assert cross_entropy(torch.tensor([[torch.nan]]), torch.ones(1, 1)).isnan()
