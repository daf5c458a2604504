"""The noise schedule: identities of its coefficients, and a Gaussian that it must recover."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.models.timegrad import Schedule, TimeGradConfig, TimeGradNetwork

PAGE = (Path(__file__).parents[3] / "docs" / "timegrad.md").read_text()
STEPS = 100


def default_schedule() -> Schedule:
    return Schedule(STEPS, 1e-4, 0.1)


def test_a_reverse_step_has_the_posterior_mean_and_variance() -> None:
    """The textbook's posterior of the previous step, with x₀ = (x − √(1−ᾱ) ε) / √ᾱ."""
    beta = np.linspace(1e-4, 0.1, STEPS)
    alpha_bar = np.cumprod(1 - beta)
    previous = np.append(1, alpha_bar[:-1])
    x, noise = 0.7, -1.3
    for step, reverse in enumerate(default_schedule().reverse_steps):
        start = (x - np.sqrt(1 - alpha_bar[step]) * noise) / np.sqrt(alpha_bar[step])
        start_weight = beta[step] * np.sqrt(previous[step]) / (1 - alpha_bar[step])
        x_weight = (1 - previous[step]) * np.sqrt(1 - beta[step]) / (1 - alpha_bar[step])
        mean = (x - reverse.noise * noise) * reverse.scale
        assert mean == pytest.approx(start_weight * start + x_weight * x, rel=1e-9)
        variance = beta[step] * (1 - previous[step]) / (1 - alpha_bar[step])
        assert reverse.spread == pytest.approx(np.sqrt(variance))
    assert default_schedule().reverse_steps[0].spread == 0


def test_the_variance_is_preserved_and_the_signal_fades() -> None:
    signal, noise = default_schedule().signal, default_schedule().noise
    torch.testing.assert_close(signal**2 + noise**2, torch.ones(STEPS).double())
    assert float(signal[0] ** 2) == pytest.approx(1 - 1e-4)
    assert float(signal[-1]) < 0.08
    assert (signal.diff() < 0).all()


def test_noise_is_added_in_place_by_row() -> None:
    schedule, values, noise = default_schedule(), torch.randn(3, 4), torch.randn(3, 4)
    step = torch.tensor([0, 99, 40])
    expected = schedule.signal[step, None] * values + schedule.noise[step, None] * noise
    noisy = schedule.add_noise_(values, noise, step)
    assert noisy is values
    torch.testing.assert_close(noisy, expected.float())


def test_the_schedule_is_not_saved() -> None:
    assert not default_schedule().state_dict()
    assert default_schedule().float().signal.shape == (STEPS,)


class GaussianTarget:
    """A Gaussian, and the optimal prediction of the noise in its diffused values."""

    def __init__(
        self,
        schedule: Schedule,
        mean: Sequence[float] = (0.0, 2.0, -1.0),
        spread: Sequence[float] = (1.0, 0.5, 0.2),
    ) -> None:
        self.schedule = schedule
        self.mean, self.spread = (torch.tensor(part).double() for part in (mean, spread))

    def predict(self, values: Tensor, step: int) -> Tensor:
        signal, noise = self.schedule.signal[step], self.schedule.noise[step]
        return noise * (values - signal * self.mean) / (signal**2 * self.spread**2 + noise**2)

    def sampled_moments(self) -> tuple[Tensor, Tensor]:
        """Mean and spread of the samples of a chain, which are Gaussian too."""
        zero = mean = torch.zeros_like(self.mean)
        variance = torch.ones_like(self.mean)
        for step in reversed(range(len(self.schedule.reverse_steps))):
            reverse = self.schedule.reverse_steps[step]
            derivative = self.predict(zero + 1, step) - self.predict(zero, step)
            mean = (mean - reverse.noise * self.predict(mean, step)) * reverse.scale
            factor = (1 - reverse.noise * derivative) * reverse.scale
            variance = factor**2 * variance + reverse.spread**2
        return mean, variance.sqrt()


def test_the_optimal_predictor_of_a_gaussian_recovers_it() -> None:
    """Up to the error of a hundred steps: small spreads become a little smaller."""
    target, generator = GaussianTarget(default_schedule()), torch.Generator().manual_seed(8)

    def new_noise() -> Tensor:
        return torch.randn(20_000, 3, generator=generator, dtype=torch.float64)

    samples = target.schedule.sample(target.predict, new_noise(), new_noise)
    mean, spread = target.sampled_moments()
    assert ((samples.mean(0) - mean).abs() < 4 * spread / 20_000**0.5).all()
    torch.testing.assert_close(samples.std(0), spread, rtol=4 / 40_000**0.5, atol=0)
    torch.testing.assert_close(mean, target.mean, rtol=0, atol=0.01)
    torch.testing.assert_close(spread, target.spread, rtol=0.1, atol=0)


def test_more_steps_recover_it_better() -> None:
    target = GaussianTarget(Schedule(4000, 1e-6, 0.005))
    mean, spread = target.sampled_moments()
    torch.testing.assert_close(mean, target.mean, rtol=0, atol=0.01)
    torch.testing.assert_close(spread, target.spread, rtol=0.01, atol=0)


def test_the_page_has_the_spreads_of_the_default_chain() -> None:
    cells = re.findall(r"^\| (?:spread of z|spread of samples) \| (.*) \|$", PAGE, re.MULTILINE)
    spreads, shown = (line.split(" | ") for line in cells)
    schedule = TimeGradNetwork(TimeGradConfig(), 8, 672, 96).schedule
    target = GaussianTarget(schedule, [1.0] * len(spreads), [float(spread) for spread in spreads])
    shares = 100 * target.sampled_moments()[1] / target.spread
    assert shown == [f"{share:.0f} %" for share in shares.tolist()]
