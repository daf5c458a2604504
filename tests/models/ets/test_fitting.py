"""The search for parameters, against known processes and statsmodels."""

import warnings
from typing import Any

import torch
from statsmodels.tsa.holtwinters import ExponentialSmoothing
from torch import Tensor

from powerphase.models.ets import FINE_TOLERANCE, Fit, descend, fit, forward_plain, gains_of
from tests.models.ets import process, random, waves


def processes(smoothing: list[list[float]], season: int, steps: int, seed: int = 0) -> Tensor:
    """Processes with these α, β and γ, and errors of 0.1."""
    parameters = torch.tensor(smoothing, dtype=torch.float64).T
    states = waves(season, parameters.shape[1])
    errors = 0.1 * random(steps, parameters.shape[1], seed=seed)
    return process(gains_of(parameters), states, errors)[0]


def test_a_known_process_is_recovered() -> None:
    expected = [[0.5, 0.1, 0.2], [0.2, 0.0, 0.4], [0.8, 0.02, 0.05], [0.3, 0.3, 0.0]]
    record = processes(expected, season=8, steps=6000)
    result = fit(record, season=8)
    assert torch.allclose(result.smoothing.T, torch.tensor(expected).double(), atol=0.05)
    assert torch.allclose(result.sse / (6000 - 13), torch.tensor(0.01).double(), rtol=0.06)


def test_a_following_season_is_found_in_short_records() -> None:
    """A fixed season is a local minimum too, and the search reaches it first."""
    record = processes([[0.5, 0.1, 0.2], [0.05, 0.0, 0.5]], season=12, steps=360)
    assert (fit(record, season=12).smoothing[2] > 0.1).all()


def test_the_fit_is_a_minimum_within_the_bounds() -> None:
    """The gradient is 0, or points out of the bounds."""
    record = processes([[0.5, 0.1, 0.2], [0.7, 0.0, 0.0]], season=6, steps=900)
    result = fit(record, season=6)
    alpha, beta, gamma = result.smoothing
    assert (alpha > 0).all()
    assert (alpha < 1).all()
    assert (beta >= 0).all()
    assert (gamma >= 0).all()
    assert (gamma <= 1 - alpha).all()
    smoothing, states = (
        part.clone().requires_grad_() for part in (result.smoothing, result.states)
    )
    sse = forward_plain(record, gains_of(smoothing), states)[0].square().sum(0)
    assert torch.allclose(sse, result.sse, rtol=1e-12)
    gradient, states_gradient = torch.autograd.grad(sse.log().sum(), (smoothing, states))
    assert states_gradient.abs().max() < 1e-2
    inner = result.smoothing > 0
    assert (gradient[inner].abs() < 1e-2).all()
    assert (gradient[~inner] >= 0).all()


def test_the_fit_is_no_worse_than_statsmodels() -> None:
    record = processes([[0.5, 0.1, 0.2], [0.3, 0.0, 0.0], [0.05, 0.0, 0.5]], season=12, steps=360)
    result = fit(record, season=12)
    for series, sse in zip(record.T.numpy(), result.sse, strict=True):
        options: dict[str, Any] = {"trend": "add", "seasonal": "add", "seasonal_periods": 12}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns where it does not converge
            model = ExponentialSmoothing(series, **options, initialization_method="estimated")
            assert sse <= 1.001 * model.fit().sse


def test_the_scale_and_offset_of_a_channel_do_not_matter() -> None:
    record = processes([[0.4, 0.05, 0.1]], season=6, steps=500)
    scaled = torch.cat([record, 1e-9 * record, 1e6 * record, record + 40], dim=1)
    result = fit(scaled, season=6)
    assert torch.allclose(result.smoothing, result.smoothing[:, :1], atol=1e-4)
    sizes = torch.tensor([1, 1e-18, 1e12, 1]).double()
    assert torch.allclose(result.sse / sizes, result.sse[0], rtol=1e-6)


def test_channels_are_fitted_independently() -> None:
    record = processes([[0.5, 0.1, 0.2], [0.7, 0.0, 0.0], [0.1, 0.0, 0.6]], season=6, steps=400)
    together = fit(record, season=6)
    for channel in range(3):
        alone = fit(record[:, channel : channel + 1].contiguous(), season=6)
        assert torch.allclose(alone.sse, together.sse[channel], rtol=1e-6)


def test_an_exactly_periodic_record_leaves_no_error() -> None:
    shape = random(6, 2).repeat(20, 1)
    shape[:, 1] += 0.01 * torch.arange(120)
    result = fit(shape, season=6)
    assert result.states.isfinite().all()
    assert result.smoothing.isfinite().all()
    assert (result.sse < 1e-12 * shape.square().sum(0)).all()


def test_records_with_rare_jumps_give_finite_fits() -> None:
    record = torch.zeros(300, 3, dtype=torch.float32)
    record[150, 0], record[200:, 1], record[:, 2] = 1e-30, 1e20, torch.linspace(0, 1e-7, 300)
    result = fit(record, season=6)
    for part in (result.smoothing, result.states, result.sse):
        assert part.isfinite().all()


def test_a_step_that_overflows_is_rejected() -> None:
    """Some parameters within the bounds let errors grow without limit."""
    record = processes([[0.5, 0.1, 0.2]], season=24, steps=4000)
    start = torch.tensor([[2.0], [1.0], [-1.0]], dtype=torch.float64)
    states = torch.zeros(26, 1, dtype=torch.float64)
    result = descend(record, Fit(start, states, states[0]), FINE_TOLERANCE)
    assert result.sse.isfinite().all()
