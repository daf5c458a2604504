"""The anchor against its equations, in loops and on paper."""

from dataclasses import replace
from math import exp, pi, sqrt

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from powerphase.axes import THETA, P, Q, V
from powerphase.errors import ForecastError
from powerphase.models.powerforge.anchor import anchored, reference, wrap
from powerphase.models.powerforge.config import PowerForgeConfig
from powerphase.models.powerforge.kernels import anchor as weeks
from tests.models.powerforge import TINY, grid_states

TWO_DAYS = replace(TINY, segments=2, segment_steps=2, query_steps=2, bias_steps=1)

Series = NDArray[np.float64]


def by_loops(series: Series, config: PowerForgeConfig, horizon: int) -> tuple[Series, Series]:
    """Residual and future reference of one channel that is no angle."""
    n_past, length, n_query = len(series), config.segment_steps, config.query_steps
    first = n_past - config.segments * length
    days = [series[first + s * length : first + (s + 1) * length] for s in range(config.segments)]
    query = series[-n_query:]
    likeness = []
    for day in days:
        key = day[-n_query:]
        covariance = sum(
            (k - key.mean()) * (q - query.mean()) for k, q in zip(key, query, strict=True)
        )
        spread = (key.var() + config.stabiliser) * (query.var() + config.stabiliser)
        likeness.append(covariance / n_query / sqrt(spread))
    weight = np.exp(np.array(likeness) / config.temperature)
    day = sum(w * one for w, one in zip(weight / weight.sum(), days, strict=True))
    tiled = np.array([day[(t - n_past) % length] for t in range(n_past)])
    bias = (series - tiled)[-config.bias_steps :].mean()
    return series - tiled - bias, np.array([day[t % length] for t in range(horizon)]) + bias


def one_bus(kind: int, *series: float) -> Tensor:
    """The past of one bus of which one channel moves."""
    past = torch.zeros(1, len(series), 4, dtype=torch.float64)
    past[0, :, kind] = torch.tensor(series)
    return past


@pytest.mark.parametrize("n_past", [36, 41, 60])
@pytest.mark.parametrize("horizon", [7, 12, 30])
def test_residual_and_reference_are_those_of_the_loops(n_past: int, horizon: int) -> None:
    past = grid_states(n_past)
    residual, day = anchored(past, TINY)
    future = reference(day, horizon)
    assert future.shape == (2, horizon, 20)
    for window in range(2):
        for channel in (c for c in range(20) if c % 4 != THETA):
            found = by_loops(past[window, :, channel].numpy(), TINY, horizon)
            np.testing.assert_allclose(residual[window, :, channel], found[0], atol=1e-12)
            np.testing.assert_allclose(future[window, :, channel], found[1], atol=1e-12)


@pytest.mark.parametrize("kind", [P, Q, V])
def test_two_days_that_end_alike_count_the_same(kind: int) -> None:
    # Both rise, so both correlations are 1 and the mean day is (0, 3); it ends 1 below the last 4.
    residual, day = anchored(one_bus(kind, 0, 2, 0, 4), replace(TWO_DAYS, stabiliser=0.0))
    np.testing.assert_allclose(day[0, :, kind], [1, 4])
    np.testing.assert_allclose(residual[0, :, kind], [-1, -2, -1, 0])


def test_angles_on_both_sides_of_a_half_turn_are_neighbours() -> None:
    # As above, about π: 0.02 and 0.04 above it are written as angles below −π + 0.05.
    past = wrap(pi + one_bus(THETA, 0, 0.02, 0, 0.04))
    residual, day = anchored(past, replace(TWO_DAYS, stabiliser=0.0))
    np.testing.assert_allclose(wrap(day[0, :, THETA]), [0.01 - pi, 0.04 - pi])
    np.testing.assert_allclose(residual[0, :, THETA], [-0.01, -0.02, -0.01, 0], atol=1e-12)


def test_a_day_that_ends_the_other_way_hardly_counts() -> None:
    residual, day = anchored(one_bus(P, 2, 0, 0, 4), replace(TWO_DAYS, stabiliser=0.0))
    share = exp(-2) / (exp(-2) + exp(2))
    bias = 4 * share
    np.testing.assert_allclose(day[0, :, P], [2 * share + bias, 4], rtol=1e-12)
    assert residual[0, -1, P] == pytest.approx(0, abs=1e-15)


def test_channels_that_hardly_move_average_all_days_alike() -> None:
    past = grid_states(36)
    days = past.unflatten(1, (3, 12))
    still = replace(TINY, bias_steps=36)  # then the bias is 0, up to rounding, for a plain mean
    for size, alike in ((1e-7, True), (1.0, False)):
        _, day = anchored(past * size, still)
        off = (day / size - days.mean(1))[..., P::4].abs().amax((0, 1))
        assert off[0] == 0  # the dead bus
        assert ((off[2:] < 1e-4) == alike).all()


def test_constant_channels_are_their_own_reference() -> None:
    past = torch.tensor([0.7, -0.3, 1.02, pi]).expand(1, 41, 4).double()
    residual, day = anchored(past, TINY)
    torch.testing.assert_close(day, past[:, :12])
    assert residual.abs().max() < 1e-15


def test_a_dead_bus_stays_dead() -> None:
    residual, day = anchored(torch.zeros(1, 36, 4), TINY)
    assert not residual.any()
    assert not day.any()


def test_the_past_that_is_given_is_left_as_it_is() -> None:
    past = grid_states(36)
    before = past.clone()
    anchored(past, TINY)
    assert torch.equal(past, before)


def test_angles_far_from_a_half_turn_are_like_everything_else() -> None:
    past = grid_states(41)
    past[..., THETA::4] = past[..., P::4] / 8
    residual, day = anchored(past, TINY)
    for channel in range(THETA, 20, 4):
        found = by_loops(past[0, :, channel].numpy(), TINY, 12)
        np.testing.assert_allclose(residual[0, :, channel], found[0], atol=1e-12)
        np.testing.assert_allclose(day[0, :, channel], found[1], atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.floats(-10, 10))
def test_turning_all_angles_turns_the_reference_alone(turn: float) -> None:
    past = grid_states(36)
    past[..., THETA::4] = 0.4 * past[..., Q::4]
    turned = past.clone()
    turned[..., THETA::4] = wrap(past[..., THETA::4] + turn)
    (residual, day), (found, other) = anchored(past, TINY), anchored(turned, TINY)
    torch.testing.assert_close(found, residual, rtol=0, atol=1e-12)
    apart = wrap(other - day)[..., THETA::4]
    torch.testing.assert_close(wrap(apart - turn), torch.zeros_like(apart), rtol=0, atol=1e-12)


def test_without_the_anchor_deviations_are_from_nought_and_one() -> None:
    past = grid_states(41)
    residual, day = anchored(past, replace(TINY, anchor=False))
    wanted = torch.tensor([0.0, 0.0, 1.0, 0.0]).double().repeat(5)
    assert torch.equal(day, wanted.expand(2, 12, 20))
    torch.testing.assert_close(residual, past - wanted, rtol=0, atol=1e-15)


def test_a_past_of_too_few_days_is_refused() -> None:
    with pytest.raises(ForecastError, match=r"back 3 days of 12 steps, .* has 35 steps"):
        anchored(grid_states(35), TINY)


GATES = torch.tensor([[0.3, -0.7], [0.0, 1.1]], dtype=torch.float64)


def test_weeks_are_the_same_by_kind_with_room_for_more_buses() -> None:
    past = grid_states(41)
    residual, day = anchored(past, TINY)
    found = weeks.anchored(past, GATES, TINY, width=8, fast=False)
    assert found.residual.shape == (2, 4, 41, 8)
    assert not found.residual[..., 5:].any()
    for kind in range(4):
        assert torch.equal(found.residual[:, kind, :, :5], residual[..., kind::4])
        assert torch.equal(found.day[kind], day[..., kind::4])


def test_sizes_are_mean_sizes_of_what_gates_let_through() -> None:
    past = grid_states(36)
    found = weeks.anchored(past, GATES, TINY, width=5, fast=False).size
    states = anchored(past, TINY)[0].numpy().reshape(2, 36, 5, 4)
    for kind in (P, Q):
        np.testing.assert_allclose(found[:, kind], np.abs(states[..., kind]).mean(1))
    for kind, (of_p, of_q) in ((V, GATES[0].tolist()), (THETA, GATES[1].tolist())):
        series = states[..., kind] + of_p * states[..., P] + of_q * states[..., Q]
        np.testing.assert_allclose(found[:, kind], np.abs(series).mean(1))


def test_sizes_have_slopes_by_their_gates() -> None:
    past = grid_states(36)

    def sizes(gates: Tensor) -> Tensor:
        return weeks.anchored(past, gates, TINY, width=5, fast=False).size

    assert torch.autograd.gradcheck(sizes, GATES.clone().requires_grad_())


@given(st.floats(-1e3, 1e3))
def test_wrapped_angles_are_the_same_angles(angle: float) -> None:
    found = wrap(torch.tensor(angle, dtype=torch.float64)).item()
    assert abs(found) <= pi + 1e-12
    assert np.exp(1j * found) == pytest.approx(np.exp(1j * angle), abs=1e-12)


@given(st.floats(-np.float32(pi), np.float32(pi), width=32))
def test_angles_within_a_turn_keep_every_bit(angle: float) -> None:
    assert wrap(torch.tensor(angle, dtype=torch.float32)).item() == angle
