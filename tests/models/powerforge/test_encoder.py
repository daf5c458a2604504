"""The encoder: its linear map against real filters, its gates, scale token and calendar."""

from math import sqrt

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.axes import STEP_S, THETA, P, Q, V
from powerphase.models.powerforge import ChannelEncoder, mean_calendar
from tests.models.powerforge import grid_states, network

CALENDAR = torch.zeros(2, 4, dtype=torch.float64)


@pytest.fixture(scope="module")
def encoder() -> ChannelEncoder:
    return network().encoder


def states_of(
    encoder: ChannelEncoder, residual: Tensor, calendar: Tensor = CALENDAR, width: int = 5
) -> Tensor:
    """The states of residuals given by channel (B T C), padded to `width` buses."""
    kinds = list(residual.unflatten(2, (5, 4)).movedim(3, 0))  # each B T N
    by_kind = F.pad(torch.stack(kinds, dim=1), (0, width - 5))
    for kind, (p_gate, q_gate) in zip((V, THETA), encoder.gates, strict=True):
        kinds[kind] = kinds[kind] + p_gate * kinds[P] + q_gate * kinds[Q]
    size = torch.stack([kind.abs().mean(1) for kind in kinds], dim=1)
    return encoder(by_kind, size, calendar)


def states_with_gates(
    encoder: ChannelEncoder, gates: list[list[float]], residual: Tensor
) -> Tensor:
    """The states with other gates."""
    before = encoder.gates.detach().clone()
    with torch.no_grad():
        encoder.gates.copy_(torch.tensor(gates))
        states = states_of(encoder, residual)
        encoder.gates.copy_(before)
    return states


def test_the_linear_map_equals_filters_and_first_layer(encoder: ChannelEncoder) -> None:
    series = torch.randn(7, 36, dtype=torch.float64)
    views = [series, *(conv(series[:, None])[:, 0] for conv in encoder.filters)]
    expected = encoder.project(torch.cat(views, dim=1))
    torch.testing.assert_close(
        F.linear(series, *encoder.linear_map()), expected, rtol=1e-12, atol=0
    )


def test_a_filter_is_centred_and_padded_with_zeros() -> None:
    encoder = network().encoder
    series = np.random.default_rng(0).normal(size=36)
    kernel, bias = encoder.filters[0].weight.detach().numpy().ravel(), encoder.filters[0].bias
    padded = np.concatenate([[0], series, [0]])
    filtered = np.array([kernel @ padded[t : t + 3] for t in range(36)]) + bias.item()
    with torch.no_grad():  # the layer reads only the first filter
        encoder.project.weight[:, :36] = 0
        encoder.project.weight[:, 72:] = 0
    states = F.linear(torch.from_numpy(series), *encoder.linear_map()).detach()
    weight = encoder.project.weight.detach().numpy()[:, 36:72]
    np.testing.assert_allclose(states, weight @ filtered + encoder.project.bias.detach().numpy())


@pytest.mark.parametrize(("row", "kind"), [(0, V), (1, THETA)])
@pytest.mark.parametrize(("column", "source"), [(0, P), (1, Q)])
def test_a_gate_adds_its_source_to_the_input_of_its_kind(
    encoder: ChannelEncoder, row: int, kind: int, column: int, source: int
) -> None:
    residual = grid_states(36)
    residual[..., kind::4] = -2 * residual[..., source::4]
    gates = [[0.0, 0.0], [0.0, 0.0]]
    closed = states_with_gates(encoder, gates, residual)
    nothing = states_with_gates(encoder, gates, torch.zeros_like(residual))
    gates[row][column] = 2.0
    opened = states_with_gates(encoder, gates, residual)
    # Input and addition cancel, so the scale network's input must be 0 too.
    torch.testing.assert_close(opened[:, kind], nothing[:, kind], rtol=1e-12, atol=1e-14)
    others = [k for k in range(4) if k != kind]
    assert torch.equal(opened[:, others], closed[:, others])


def test_padding_changes_nothing(encoder: ChannelEncoder) -> None:
    narrow, wide = (states_of(encoder, grid_states(36), width=width) for width in (5, 16))
    assert narrow.shape == (2, 4, 5, 8)
    torch.testing.assert_close(wide, narrow, rtol=1e-13, atol=1e-15)


def test_the_scale_token_depends_on_the_size(encoder: ChannelEncoder) -> None:
    size = torch.tensor([0.0, 0.3, 2.0]).double()[:, None, None].expand(3, 4, 5)
    states = encoder(torch.zeros(3, 4, 36, 5).double(), size, torch.zeros(3, 4).double())
    constant = encoder.refine(F.gelu(encoder.linear_map()[1]))
    for window, bus, kind in np.ndindex(3, 5, 4):
        identity = encoder.identity(torch.cat([encoder.node[bus], encoder.kind[kind]]))
        expected = encoder.norm(constant + encoder.scale(size[window, 0, :1])) + identity
        torch.testing.assert_close(
            states[window, kind, bus], expected + encoder.calendar.bias, rtol=1e-12, atol=1e-14
        )


def test_states_are_normalised_before_embeddings_are_added(encoder: ChannelEncoder) -> None:
    calendar = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, -0.6, 0.7, -0.8]]).double()
    state = states_of(encoder, grid_states(36), calendar)
    for window in range(2):
        for bus in range(5):
            for kind in range(4):
                identity = torch.cat([encoder.node[bus], encoder.kind[kind]])
                features = state[window, kind, bus] - encoder.identity(identity)
                features = features - encoder.calendar(calendar[window]) - encoder.norm.bias
                features = features / encoder.norm.weight
                assert features.mean().item() == pytest.approx(0, abs=1e-12)
                assert features.var(correction=0).item() == pytest.approx(1, rel=0.02)


def hours(*hour: float) -> np.ndarray:
    """Times of Thursday, 1970-01-01, the start of a week in the calendar."""
    return np.array([[np.datetime64(int(3600 * h), "s") for h in hour]])


def test_the_calendar_has_sines_and_cosines_of_day_and_week() -> None:
    torch.testing.assert_close(
        mean_calendar(hours(0, 6)),
        torch.tensor(
            [[0.5, 0.5, np.sin(np.pi / 14) / 2, (1 + np.cos(np.pi / 14)) / 2]], dtype=torch.float64
        ),
        check_dtype=False,
    )
    states = mean_calendar(hours(3, 3 + 24 * 7))[0]
    assert states[0].item() == pytest.approx(sqrt(0.5), rel=1e-6)
    assert states[2].item() == pytest.approx(np.sin(2 * np.pi * 3 / 168), rel=1e-6)


def test_the_calendar_has_double_precision() -> None:
    states = mean_calendar(hours(1, 2, 5)).double()
    angle = 2 * np.pi * np.array([1, 2, 5]) / 24
    assert states[0, 0].item() == pytest.approx(np.sin(angle).mean(), rel=1e-14)


def test_the_calendar_of_a_whole_week_is_zero() -> None:
    time = np.datetime64("2016-05-04T03:15", "s") + np.arange(672) * np.timedelta64(STEP_S, "s")
    assert mean_calendar(time[None]).abs().max() < 1e-12
