"""The anchor against its equations in loops and computed by hand."""

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
from powerphase.models.powerforge import PowerForgeConfig, subtract_anchor, tile_day, wrap
from powerphase.models.powerforge.kernels import anchor_context
from tests.models.powerforge import TINY, grid_states

TWO_DAYS = replace(TINY, segments=2, segment_steps=2, query_steps=2, bias_steps=1)

Series = NDArray[np.float64]


def by_loops(series: Series, config: PowerForgeConfig, horizon: int) -> tuple[Series, Series]:
    """Residual and future reference of one channel other than an angle."""
    n_past, length, n_query = len(series), config.segment_steps, config.query_steps
    first = n_past - config.segments * length
    days = [series[first + s * length : first + (s + 1) * length] for s in range(config.segments)]
    query = series[-n_query:]
    correlations = []
    for day in days:
        key = day[-n_query:]
        covariance = sum(
            (k - key.mean()) * (q - query.mean()) for k, q in zip(key, query, strict=True)
        )
        variance = (key.var() + config.stabiliser) * (query.var() + config.stabiliser)
        correlations.append(covariance / n_query / sqrt(variance))
    weight = np.exp(np.array(correlations) / config.temperature)
    day = np.sum([w * d for w, d in zip(weight / weight.sum(), days, strict=True)], axis=0)
    tiled = np.array([day[(t - n_past) % length] for t in range(n_past)])
    bias = (series - tiled)[-config.bias_steps :].mean()
    return series - tiled - bias, np.array([day[t % length] for t in range(horizon)]) + bias


def one_bus(kind: int, *series: float) -> Tensor:
    """The past of one bus with a single varying channel."""
    past = torch.zeros(1, len(series), 4, dtype=torch.float64)
    past[0, :, kind] = torch.tensor(series)
    return past


@pytest.mark.parametrize("n_past", [36, 41, 60])
@pytest.mark.parametrize("horizon", [7, 12, 30])
def test_residual_and_reference_equal_the_loops(n_past: int, horizon: int) -> None:
    past = grid_states(n_past)
    residual, day = subtract_anchor(past, TINY)
    future = tile_day(day, horizon)
    assert future.shape == (2, horizon, 20)
    for window in range(2):
        for channel in (c for c in range(20) if c % 4 != THETA):
            expected = by_loops(past[window, :, channel].numpy(), TINY, horizon)
            np.testing.assert_allclose(residual[window, :, channel], expected[0], atol=1e-12)
            np.testing.assert_allclose(future[window, :, channel], expected[1], atol=1e-12)


@pytest.mark.parametrize("kind", [P, Q, V])
def test_two_days_with_similar_ends_have_equal_weights(kind: int) -> None:
    # Both rise, so both correlations are 1 and the mean day is (0, 3); it ends 1 below the last 4.
    residual, day = subtract_anchor(one_bus(kind, 0, 2, 0, 4), replace(TWO_DAYS, stabiliser=0.0))
    np.testing.assert_allclose(day[0, :, kind], [1, 4])
    np.testing.assert_allclose(residual[0, :, kind], [-1, -2, -1, 0])


def test_angles_on_both_sides_of_pi_are_averaged_correctly() -> None:
    # As above, about π: 0.02 and 0.04 above it are written as angles below −π + 0.05.
    past = wrap(pi + one_bus(THETA, 0, 0.02, 0, 0.04))
    residual, day = subtract_anchor(past, replace(TWO_DAYS, stabiliser=0.0))
    np.testing.assert_allclose(wrap(day[0, :, THETA]), [0.01 - pi, 0.04 - pi])
    np.testing.assert_allclose(residual[0, :, THETA], [-0.01, -0.02, -0.01, 0], atol=1e-12)


def test_a_day_with_an_opposite_end_has_little_weight() -> None:
    residual, day = subtract_anchor(one_bus(P, 2, 0, 0, 4), replace(TWO_DAYS, stabiliser=0.0))
    share = exp(-2) / (exp(-2) + exp(2))
    bias = 4 * share
    np.testing.assert_allclose(day[0, :, P], [2 * share + bias, 4], rtol=1e-12)
    assert residual[0, -1, P] == pytest.approx(0, abs=1e-15)


def test_nearly_constant_channels_average_all_days_equally() -> None:
    past = grid_states(36)
    days = past.unflatten(1, (3, 12))
    config = replace(TINY, bias_steps=36)  # for a plain mean, the bias is then 0 up to rounding
    for size, is_equal in ((1e-7, True), (1.0, False)):
        _, day = subtract_anchor(past * size, config)
        difference = (day / size - days.mean(1))[..., P::4].abs().amax((0, 1))
        assert difference[0] == 0  # the constant bus
        assert ((difference[2:] < 1e-4) == is_equal).all()


def test_a_constant_channel_equals_its_reference() -> None:
    past = torch.tensor([0.7, -0.3, 1.02, pi]).expand(1, 41, 4).double()
    residual, day = subtract_anchor(past, TINY)
    torch.testing.assert_close(day, past[:, :12])
    assert residual.abs().max() < 1e-15


def test_zeros_have_a_zero_reference() -> None:
    residual, day = subtract_anchor(torch.zeros(1, 36, 4), TINY)
    assert not residual.any()
    assert not day.any()


def test_the_input_is_not_modified() -> None:
    past = grid_states(36)
    before = past.clone()
    subtract_anchor(past, TINY)
    assert torch.equal(past, before)


def test_angles_far_from_pi_are_treated_like_other_channels() -> None:
    past = grid_states(41)
    past[..., THETA::4] = past[..., P::4] / 8
    residual, day = subtract_anchor(past, TINY)
    for channel in range(THETA, 20, 4):
        expected = by_loops(past[0, :, channel].numpy(), TINY, 12)
        np.testing.assert_allclose(residual[0, :, channel], expected[0], atol=1e-12)
        np.testing.assert_allclose(day[0, :, channel], expected[1], atol=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.floats(-10, 10))
def test_rotating_all_angles_rotates_only_the_reference(turn: float) -> None:
    past = grid_states(36)
    past[..., THETA::4] = 0.4 * past[..., Q::4]
    rotated = past.clone()
    rotated[..., THETA::4] = wrap(past[..., THETA::4] + turn)
    residual, day = subtract_anchor(past, TINY)
    rotated_residual, rotated_day = subtract_anchor(rotated, TINY)
    torch.testing.assert_close(rotated_residual, residual, rtol=0, atol=1e-12)
    difference = wrap(rotated_day - day)[..., THETA::4]
    torch.testing.assert_close(
        wrap(difference - turn), torch.zeros_like(difference), rtol=0, atol=1e-12
    )


def test_without_the_anchor_the_reference_is_zero_and_one_for_voltages() -> None:
    past = grid_states(41)
    residual, day = subtract_anchor(past, replace(TINY, anchor=False))
    expected = torch.tensor([0.0, 0.0, 1.0, 0.0]).double().repeat(5)
    assert torch.equal(day, expected.expand(2, 12, 20))
    torch.testing.assert_close(residual, past - expected, rtol=0, atol=1e-15)


def test_a_context_of_too_few_days_is_rejected() -> None:
    with pytest.raises(ForecastError, match=r"3 days of 12 steps.* 35 steps"):
        subtract_anchor(grid_states(35), TINY)


GATES = torch.tensor([[0.3, -0.7], [0.0, 1.1]], dtype=torch.float64)


def test_the_context_by_kind_has_the_same_values_and_padding() -> None:
    past = grid_states(41)
    residual, day = subtract_anchor(past, TINY)
    anchored = anchor_context(past, GATES, TINY, width=8, fast=False)
    assert anchored.residual.shape == (2, 4, 41, 8)
    assert not anchored.residual[..., 5:].any()
    for kind in range(4):
        assert torch.equal(anchored.residual[:, kind, :, :5], residual[..., kind::4])
        assert torch.equal(anchored.day[kind], day[..., kind::4])


def test_sizes_include_the_context_gates() -> None:
    past = grid_states(36)
    size = anchor_context(past, GATES, TINY, width=5, fast=False).size
    states = subtract_anchor(past, TINY)[0].numpy().reshape(2, 36, 5, 4)
    for kind in (P, Q):
        np.testing.assert_allclose(size[:, kind], np.abs(states[..., kind]).mean(1))
    for kind, (p_gate, q_gate) in ((V, GATES[0].tolist()), (THETA, GATES[1].tolist())):
        series = states[..., kind] + p_gate * states[..., P] + q_gate * states[..., Q]
        np.testing.assert_allclose(size[:, kind], np.abs(series).mean(1))


def test_sizes_have_gradients_along_the_gates() -> None:
    past = grid_states(36)

    def sizes(gates: Tensor) -> Tensor:
        return anchor_context(past, gates, TINY, width=5, fast=False).size

    assert torch.autograd.gradcheck(sizes, GATES.clone().requires_grad_())


@given(st.floats(-1e3, 1e3))
def test_a_wrapped_angle_is_the_same_angle(angle: float) -> None:
    wrapped = wrap(torch.tensor(angle, dtype=torch.float64)).item()
    assert abs(wrapped) <= pi + 1e-12
    assert np.exp(1j * wrapped) == pytest.approx(np.exp(1j * angle), abs=1e-12)


@given(st.floats(-float(np.float32(pi)), float(np.float32(pi)), width=32))
def test_angles_in_range_keep_every_bit(angle: float) -> None:
    assert wrap(torch.tensor(angle, dtype=torch.float32)).item() == angle
