"""The diffusion: identities of its numbers, and a Gaussian that it must find again."""

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.models.timegrad.config import TimeGradConfig
from powerphase.models.timegrad.network import TimeGradNetwork
from powerphase.models.timegrad.schedule import Schedule

PAGE = (Path(__file__).parents[3] / "docs" / "timegrad.md").read_text()
STEPS = 100


def schedule() -> Schedule:
    return Schedule(STEPS, 1e-4, 0.1)


def test_a_step_back_is_the_mean_and_the_variance_between_values_and_noise() -> None:
    """With x₀ = (x − √(1−ᾱ) ε) / √ᾱ: the textbook's posterior of the step before."""
    beta = np.linspace(1e-4, 0.1, STEPS)
    left = np.cumprod(1 - beta)
    before = np.append(1, left[:-1])
    x, noise = 0.7, -1.3
    for step, back in enumerate(schedule().returns):
        start = (x - np.sqrt(1 - left[step]) * noise) / np.sqrt(left[step])
        of_start = beta[step] * np.sqrt(before[step]) / (1 - left[step])
        of_x = (1 - before[step]) * np.sqrt(1 - beta[step]) / (1 - left[step])
        found = (x - back.noise * noise) * back.stretch
        assert found == pytest.approx(of_start * start + of_x * x, rel=1e-9)
        variance = beta[step] * (1 - before[step]) / (1 - left[step])
        assert back.spread == pytest.approx(np.sqrt(variance))
    assert schedule().returns[0].spread == 0


def test_signal_and_noise_keep_a_variance_of_one_and_signal_fades() -> None:
    found = schedule()
    torch.testing.assert_close(found.signal**2 + found.noise**2, torch.ones(STEPS).double())
    assert float(found.signal[0] ** 2) == pytest.approx(1 - 1e-4)
    assert float(found.signal[-1]) < 0.08
    assert (found.signal.diff() < 0).all()


def test_values_become_noisy_row_by_row_in_their_own_place() -> None:
    found, values, noise = schedule(), torch.randn(3, 4), torch.randn(3, 4)
    step = torch.tensor([0, 99, 40])
    expected = found.signal[step, None] * values + found.noise[step, None] * noise
    made = found.noisy_(values, noise, step)
    assert made is values
    torch.testing.assert_close(made, expected.float())


def test_what_is_learned_has_no_part_of_the_schedule() -> None:
    assert not schedule().state_dict()
    assert schedule().float().signal.shape == (STEPS,)


class Planted:
    """A Gaussian, and the best that can be said of the noise in its values after some steps."""

    def __init__(
        self,
        of: Schedule,
        mean: Sequence[float] = (0.0, 2.0, -1.0),
        spread: Sequence[float] = (1.0, 0.5, 0.2),
    ) -> None:
        self.of = of
        self.mean, self.spread = (torch.tensor(one).double() for one in (mean, spread))

    def predict(self, values: Tensor, step: int) -> Tensor:
        signal, noise = self.of.signal[step], self.of.noise[step]
        return noise * (values - signal * self.mean) / (signal**2 * self.spread**2 + noise**2)

    def found(self) -> tuple[Tensor, Tensor]:
        """Mean and spread of what a chain makes of it, which is Gaussian too."""
        none = mean = torch.zeros_like(self.mean)
        variance = torch.ones_like(self.mean)
        for step in reversed(range(len(self.of.returns))):
            back = self.of.returns[step]
            slope = self.predict(none + 1, step) - self.predict(none, step)
            mean = (mean - back.noise * self.predict(mean, step)) * back.stretch
            variance = ((1 - back.noise * slope) * back.stretch) ** 2 * variance + back.spread**2
        return mean, variance.sqrt()


def test_the_best_predictor_of_a_gaussian_s_noise_gives_that_gaussian() -> None:
    """As far as a hundred steps do: small spreads become a little smaller."""
    planted, generator = Planted(schedule()), torch.Generator().manual_seed(8)

    def fresh() -> Tensor:
        return torch.randn(20_000, 3, generator=generator, dtype=torch.float64)

    drawn, (mean, spread) = planted.of.sample(planted.predict, fresh(), fresh), planted.found()
    assert ((drawn.mean(0) - mean).abs() < 4 * spread / 20_000**0.5).all()
    torch.testing.assert_close(drawn.std(0), spread, rtol=4 / 40_000**0.5, atol=0)
    torch.testing.assert_close(mean, planted.mean, rtol=0, atol=0.01)
    torch.testing.assert_close(spread, planted.spread, rtol=0.1, atol=0)


def test_more_steps_come_closer_to_it() -> None:
    planted = Planted(Schedule(4000, 1e-6, 0.005))
    mean, spread = planted.found()
    torch.testing.assert_close(mean, planted.mean, rtol=0, atol=0.01)
    torch.testing.assert_close(spread, planted.spread, rtol=0.01, atol=0)


def test_the_page_says_how_much_of_a_spread_the_default_s_chain_leaves() -> None:
    cells = re.findall(r"^\| (?:spread of z|what is drawn, of it) \| (.*) \|$", PAGE, re.MULTILINE)
    spreads, shown = (line.split(" | ") for line in cells)
    of = TimeGradNetwork(TimeGradConfig(), 8, 672, 96).schedule
    planted = Planted(of, [1.0] * len(spreads), [float(one) for one in spreads])
    shares = 100 * planted.found()[1] / planted.spread
    assert shown == [f"{share:.0f} %" for share in shares.tolist()]
