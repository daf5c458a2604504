"""The encoder: its fold against real filters, its gates, and its calendar on paper."""

from math import sqrt

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from powerphase.axes import STEP_S, THETA, P, Q, V
from powerphase.models.powerforge.encoder import ChannelEncoder, mean_calendar
from tests.models.powerforge import grid_states, network

CALENDAR = torch.zeros(2, 4, dtype=torch.float64)


@pytest.fixture(scope="module")
def encoder() -> ChannelEncoder:
    return network().encoder


def states_of(
    encoder: ChannelEncoder, residual: Tensor, calendar: Tensor = CALENDAR, width: int = 5
) -> Tensor:
    """The states of deviations given by channel (B T C), with room for so many buses."""
    kinds = list(residual.unflatten(2, (5, 4)).movedim(3, 0))  # each B T N
    by_kind = F.pad(torch.stack(kinds, dim=1), (0, width - 5))
    for kind, (of_p, of_q) in zip((V, THETA), encoder.gates, strict=True):
        kinds[kind] = kinds[kind] + of_p * kinds[P] + of_q * kinds[Q]
    size = torch.stack([kind.abs().mean(1) for kind in kinds], dim=1)
    return encoder(by_kind, size, calendar)


def gated(encoder: ChannelEncoder, gates: list[list[float]], residual: Tensor) -> Tensor:
    """The states with other gates."""
    before = encoder.gates.detach().clone()
    with torch.no_grad():
        encoder.gates.copy_(torch.tensor(gates))
        found = states_of(encoder, residual)
        encoder.gates.copy_(before)
    return found


def test_the_fold_is_filters_and_first_layer(encoder: ChannelEncoder) -> None:
    week = torch.randn(7, 36, dtype=torch.float64)
    views = [week, *(smooth(week[:, None])[:, 0] for smooth in encoder.filters)]
    wanted = encoder.project(torch.cat(views, dim=1))
    torch.testing.assert_close(F.linear(week, *encoder.folded()), wanted, rtol=1e-12, atol=0)


def test_a_filter_reads_both_sides_of_a_step_and_zeros_around_the_week() -> None:
    encoder = network().encoder
    series = np.random.default_rng(0).normal(size=36)
    kernel, bias = encoder.filters[0].weight.detach().numpy().ravel(), encoder.filters[0].bias
    padded = np.concatenate([[0], series, [0]])
    smooth = np.array([kernel @ padded[t : t + 3] for t in range(36)]) + bias.item()
    with torch.no_grad():  # what the first filter gives is all that the layer looks at
        encoder.project.weight[:, :36] = 0
        encoder.project.weight[:, 72:] = 0
    found = F.linear(torch.from_numpy(series), *encoder.folded()).detach()
    weight = encoder.project.weight.detach().numpy()[:, 36:72]
    np.testing.assert_allclose(found, weight @ smooth + encoder.project.bias.detach().numpy())


@pytest.mark.parametrize(("row", "kind"), [(0, V), (1, THETA)])
@pytest.mark.parametrize(("column", "source"), [(0, P), (1, Q)])
def test_a_gate_adds_its_source_to_the_input_of_its_kind(
    encoder: ChannelEncoder, row: int, kind: int, column: int, source: int
) -> None:
    residual = grid_states(36)
    residual[..., kind::4] = -2 * residual[..., source::4]
    gates = [[0.0, 0.0], [0.0, 0.0]]
    closed = gated(encoder, gates, residual)
    nothing = gated(encoder, gates, torch.zeros_like(residual))
    gates[row][column] = 2.0
    opened = gated(encoder, gates, residual)
    # Input and addition cancel: also the size that the scale network sees must be 0.
    torch.testing.assert_close(opened[:, kind], nothing[:, kind], rtol=1e-12, atol=1e-14)
    others = [k for k in range(4) if k != kind]
    assert torch.equal(opened[:, others], closed[:, others])


def test_room_for_more_buses_changes_nothing(encoder: ChannelEncoder) -> None:
    narrow, wide = (states_of(encoder, grid_states(36), width=width) for width in (5, 16))
    assert narrow.shape == (2, 4, 5, 8)
    torch.testing.assert_close(wide, narrow, rtol=1e-13, atol=1e-15)


def test_the_scale_network_tells_sizes_apart(encoder: ChannelEncoder) -> None:
    size = torch.tensor([0.0, 0.3, 2.0]).double()[:, None, None].expand(3, 4, 5)
    found = encoder(torch.zeros(3, 4, 36, 5).double(), size, torch.zeros(3, 4).double())
    still = encoder.refine(F.gelu(encoder.folded()[1]))
    for window, bus, kind in np.ndindex(3, 5, 4):
        name = encoder.identity(torch.cat([encoder.node[bus], encoder.kind[kind]]))
        wanted = encoder.norm(still + encoder.scale(size[window, 0, :1])) + name
        torch.testing.assert_close(
            found[window, kind, bus], wanted + encoder.calendar.bias, rtol=1e-12, atol=1e-14
        )


def test_states_are_normed_before_bus_and_calendar_are_added(encoder: ChannelEncoder) -> None:
    calendar = torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.5, -0.6, 0.7, -0.8]]).double()
    state = states_of(encoder, grid_states(36), calendar)
    for window in range(2):
        for bus in range(5):
            for kind in range(4):
                name = torch.cat([encoder.node[bus], encoder.kind[kind]])
                own = state[window, kind, bus] - encoder.identity(name)
                own = own - encoder.calendar(calendar[window]) - encoder.norm.bias
                own = own / encoder.norm.weight
                assert own.mean().item() == pytest.approx(0, abs=1e-12)
                assert own.var(correction=0).item() == pytest.approx(1, rel=0.02)


def hours(*hour: float) -> np.ndarray:
    """Times of Thursday, 1970-01-01, with which weeks are taken to begin."""
    return np.array([[np.datetime64(int(3600 * h), "s") for h in hour]])


def test_the_calendar_is_sines_and_cosines_of_day_and_week() -> None:
    torch.testing.assert_close(
        mean_calendar(hours(0, 6)),
        torch.tensor(
            [[0.5, 0.5, np.sin(np.pi / 14) / 2, (1 + np.cos(np.pi / 14)) / 2]], dtype=torch.float64
        ),
        check_dtype=False,
    )
    found = mean_calendar(hours(3, 3 + 24 * 7))[0]
    assert found[0].item() == pytest.approx(sqrt(0.5), rel=1e-6)
    assert found[2].item() == pytest.approx(np.sin(2 * np.pi * 3 / 168), rel=1e-6)


def test_the_calendar_is_as_exact_as_the_network() -> None:
    found = mean_calendar(hours(1, 2, 5)).double()
    angle = 2 * np.pi * np.array([1, 2, 5]) / 24
    assert found[0, 0].item() == pytest.approx(np.sin(angle).mean(), rel=1e-14)


def test_the_calendar_of_a_whole_week_says_nothing() -> None:
    time = np.datetime64("2016-05-04T03:15", "s") + np.arange(672) * np.timedelta64(STEP_S, "s")
    assert mean_calendar(time[None]).abs().max() < 1e-12
