"""The search for parameters: what it finds, against known processes and statsmodels."""

import warnings

import torch
from statsmodels.tsa.holtwinters import ExponentialSmoothing
from torch import Tensor

from powerphase.models.ets import fitting
from powerphase.models.ets.fitting import Fit, fit, gains_of
from powerphase.models.ets.scans import forward_plain
from tests.models.ets import process, random, waves


def made(smoothing: list[list[float]], season: int, steps: int, seed: int = 0) -> Tensor:
    """Processes of these α, β and γ; errors of 0.1."""
    chosen = torch.tensor(smoothing, dtype=torch.float64).T
    states = waves(season, chosen.shape[1])
    errors = 0.1 * random(steps, chosen.shape[1], seed=seed)
    return process(gains_of(chosen), states, errors)[0]


def test_a_known_process_is_recovered() -> None:
    wanted = [[0.5, 0.1, 0.2], [0.2, 0.0, 0.4], [0.8, 0.02, 0.05], [0.3, 0.3, 0.0]]
    record = made(wanted, season=8, steps=6000)
    found = fit(record, season=8)
    assert torch.allclose(found.smoothing.T, torch.tensor(wanted).double(), atol=0.05)
    assert torch.allclose(found.sse / (6000 - 13), torch.tensor(0.01).double(), rtol=0.06)


def test_a_season_that_follows_is_found_in_short_records_too() -> None:
    """Where a season that stays is a bottom as well, and the search comes to it first."""
    record = made([[0.5, 0.1, 0.2], [0.05, 0.0, 0.5]], season=12, steps=360)
    assert (fit(record, season=12).smoothing[2] > 0.1).all()


def test_what_is_found_is_a_bottom_within_the_bounds() -> None:
    """The slope is 0 in all directions, or leads out of the bounds."""
    record = made([[0.5, 0.1, 0.2], [0.7, 0.0, 0.0]], season=6, steps=900)
    found = fit(record, season=6)
    alpha, beta, gamma = found.smoothing
    assert (alpha > 0).all()
    assert (alpha < 1).all()
    assert (beta >= 0).all()
    assert (gamma >= 0).all()
    assert (gamma <= 1 - alpha).all()
    smoothing, states = (part.clone().requires_grad_() for part in (found.smoothing, found.states))
    sse = forward_plain(record, gains_of(smoothing), states)[0].square().sum(0)
    assert torch.allclose(sse, found.sse, rtol=1e-12)
    slopes, of_states = torch.autograd.grad(sse.log().sum(), (smoothing, states))
    assert of_states.abs().max() < 1e-2
    inner = found.smoothing > 0
    assert (slopes[inner].abs() < 1e-2).all()
    assert (slopes[~inner] >= 0).all()


def test_it_is_no_worse_than_statsmodels() -> None:
    record = made([[0.5, 0.1, 0.2], [0.3, 0.0, 0.0], [0.05, 0.0, 0.5]], season=12, steps=360)
    found = fit(record, season=12)
    for series, sse in zip(record.T.numpy(), found.sse, strict=True):
        options = {"trend": "add", "seasonal": "add", "seasonal_periods": 12}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that it did not converge, at times
            model = ExponentialSmoothing(series, **options, initialization_method="estimated")
            assert sse <= 1.001 * model.fit().sse


def test_neither_size_nor_place_of_a_channel_matters() -> None:
    record = made([[0.4, 0.05, 0.1]], season=6, steps=500)
    together = torch.cat([record, 1e-9 * record, 1e6 * record, record + 40], dim=1)
    found = fit(together, season=6)
    assert torch.allclose(found.smoothing, found.smoothing[:, :1], atol=1e-4)
    sizes = torch.tensor([1, 1e-18, 1e12, 1]).double()
    assert torch.allclose(found.sse / sizes, found.sse[0], rtol=1e-6)


def test_channels_are_fitted_as_if_alone() -> None:
    record = made([[0.5, 0.1, 0.2], [0.7, 0.0, 0.0], [0.1, 0.0, 0.6]], season=6, steps=400)
    together = fit(record, season=6)
    for channel in range(3):
        alone = fit(record[:, channel : channel + 1].contiguous(), season=6)
        assert torch.allclose(alone.sse, together.sse[channel], rtol=1e-6)


def test_a_season_that_repeats_exactly_leaves_no_error() -> None:
    shape = random(6, 2).repeat(20, 1)
    shape[:, 1] += 0.01 * torch.arange(120)
    found = fit(shape, season=6)
    assert found.states.isfinite().all()
    assert found.smoothing.isfinite().all()
    assert (found.sse < 1e-12 * shape.square().sum(0)).all()


def test_rare_jumps_and_single_steps_stay_finite() -> None:
    record = torch.zeros(300, 3, dtype=torch.float32)
    record[150, 0], record[200:, 1], record[:, 2] = 1e-30, 1e20, torch.linspace(0, 1e-7, 300)
    found = fit(record, season=6)
    for part in (found.smoothing, found.states, found.sse):
        assert part.isfinite().all()


def test_a_step_that_overflows_is_not_taken() -> None:
    """Some parameters within the bounds let errors grow without end."""
    record = made([[0.5, 0.1, 0.2]], season=24, steps=4000)
    start = torch.tensor([[2.0], [1.0], [-1.0]], dtype=torch.float64)
    states = torch.zeros(26, 1, dtype=torch.float64)
    found = fitting.descend(record, Fit(start, states, states[0]), fitting.FINE)
    assert found.sse.isfinite().all()
