"""Factors: records that were made from known ones give them back."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from powerphase.axes import KINDS, STEPS_PER_DAY, V
from powerphase.models.factorforge import factors as factors_module
from powerphase.models.factorforge.config import FactorForgeConfig
from powerphase.models.factorforge.factors import (
    DEVIATION,
    LEAST_NOISE,
    PASSES,
    Factors,
    find_factors,
)
from powerphase.scenarios import READ_STEPS
from tests.models.factorforge import training_of, wandering

CONFIG = FactorForgeConfig()
N_BUSES, N_STEPS = 10, 30 * STEPS_PER_DAY
CORRELATIONS = (0.99, 0.95, 0.85)


def hidden(n_steps: int = N_STEPS, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Three slow series, and what each does to every channel."""
    rng = np.random.default_rng(seed)
    return wandering(n_steps, CORRELATIONS, rng), rng.normal(size=(3, KINDS * N_BUSES))


def white(n_steps: int = N_STEPS, n_channels: int = KINDS * N_BUSES, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n_steps, n_channels))


def found_in(
    states: np.ndarray, seed: int = 42, config: FactorForgeConfig = CONFIG
) -> tuple[Factors, np.ndarray]:
    return find_factors(training_of(states), config, seed)


def explained(series: np.ndarray, by: np.ndarray) -> np.ndarray:
    """The part of each series' variance that a regression on others explains."""
    centred, others = series - series.mean(0), by - by.mean(0)
    left = centred - others @ np.linalg.lstsq(others, centred, rcond=None)[0]
    return 1 - left.var(0) / centred.var(0)


@pytest.fixture(scope="module")
def noisy() -> tuple[np.ndarray, np.ndarray]:
    """The hidden series, and states that follow them but for some noise at every channel."""
    series, loads = hidden()
    return series, (0.5 + series @ loads + 0.3 * white()).astype(np.float32)


@pytest.fixture(scope="module")
def found(noisy: tuple[np.ndarray, np.ndarray]) -> tuple[Factors, np.ndarray]:
    return found_in(noisy[1])


def test_the_hidden_series_are_found_and_nothing_else(
    noisy: tuple[np.ndarray, np.ndarray], found: tuple[Factors, np.ndarray]
) -> None:
    factors, series = found
    assert len(factors) == series.shape[1] == 3
    assert explained(noisy[0], by=series).min() > 0.98
    assert explained(series, by=noisy[0]).min() > 0.98


def test_a_slow_series_is_found_beneath_noise_that_is_larger() -> None:
    """Noise that a region shares has more variance, so that principal components take it."""
    series, loads = hidden()
    loads[2] *= 0.3
    shared = white(n_channels=6) @ np.random.default_rng(5).normal(size=(6, KINDS * N_BUSES))
    slow = series @ loads
    states = slow + shared + 0.05 * white(seed=7)
    assert shared.var(0).sum() > 10 * (series[:, 2:] @ loads[2:]).var(0).sum()
    vectors = np.linalg.svd(states - states.mean(0), full_matrices=False)[0]
    assert explained(series, by=vectors[:, :3]).min() < 0.1
    factors, ours = found_in(states)
    assert len(factors) == 3
    assert explained(series, by=ours).min() > 0.95


def test_factors_have_unit_variance_no_mean_and_no_correlation(
    noisy: tuple[np.ndarray, np.ndarray], found: tuple[Factors, np.ndarray]
) -> None:
    _, series = found
    np.testing.assert_allclose(series.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(series.T @ series / len(series), np.eye(3), atol=1e-9)


def test_the_factors_of_the_record_are_its_series(
    noisy: tuple[np.ndarray, np.ndarray], found: tuple[Factors, np.ndarray]
) -> None:
    factors, series = found
    again = factors.of(torch.from_numpy(noisy[1])).numpy()
    np.testing.assert_allclose(again, series, atol=1e-4)


def test_persistence_is_the_correlation_with_a_step_earlier(
    found: tuple[Factors, np.ndarray],
) -> None:
    factors, series = found
    wanted = [np.corrcoef(one[1:], one[:-1])[0, 1] for one in series.T]
    np.testing.assert_allclose(factors.persistence, wanted, atol=1e-3)
    assert (factors.persistence > CONFIG.persistence).all()


def test_shares_are_of_the_variance_with_all_variables_weighted_alike() -> None:
    """Whatever the units: here V hardly moves, and P moves a thousand times as far."""
    series, loads = hidden()
    units = np.tile([1000.0, 1.0, 1e-3, 0.1], N_BUSES)
    states = (series @ loads + 0.3 * white()) * units
    factors, ours = found_in(states)
    parts = states.reshape(N_STEPS, N_BUSES, KINDS)
    total = parts.var(0).mean(0)
    wanted = []
    for one in ours.T:
        follows = np.einsum("s,snk->nk", one, parts - parts.mean(0)) / N_STEPS
        wanted.append(((follows**2).mean(0) / total).mean())
    np.testing.assert_allclose(factors.share, wanted, rtol=1e-4)
    assert (np.diff(factors.share) <= 0).all()
    assert 0.85 < factors.share.sum() < 0.99


def test_a_record_of_few_hidden_series_comes_back_whole() -> None:
    series, loads = hidden()
    states = (2 + series @ loads).astype(np.float32)
    factors, _ = found_in(states)
    given = torch.from_numpy(states)
    seen = factors.of(given)
    torch.testing.assert_close(factors.states(seen), given, rtol=0, atol=1e-4)
    assert factors.deviation(seen).max() < 1e-4
    assert float(factors.share.sum()) == pytest.approx(1, abs=1e-5)


def test_channels_that_never_move_come_back_bit_for_bit_and_without_noise() -> None:
    series, loads = hidden()
    states = (series @ loads + 0.3 * white()).astype(np.float32)
    still = [0, 7, 18, 31]
    states[:, still] = np.float32([0.0, 1.02, -1 / 3, 1e6])
    factors, _ = found_in(states)
    given = torch.from_numpy(states)
    seen = factors.of(given)
    assert torch.equal(factors.states(seen)[:, still], given[:, still])
    assert (factors.deviation(seen)[:, still] == 0).all()
    moving = np.delete(np.arange(KINDS * N_BUSES), still)
    assert (factors.deviation(seen)[:, moving] > 0).all()


def test_a_variable_that_never_moves_is_no_trouble() -> None:
    series, loads = hidden()
    states = (series @ loads + 0.3 * white()).astype(np.float32)
    states[:, V::KINDS] = np.linspace(0.98, 1.02, N_BUSES)
    factors, ours = found_in(states)
    assert explained(series, by=ours).min() > 0.97
    given = torch.from_numpy(states)
    assert torch.equal(factors.states(factors.of(given))[:, V::KINDS], given[:, V::KINDS])


def test_a_record_that_never_moves_has_no_factors() -> None:
    states = np.tile(np.float32([0.1, -0.2, 1.02, 0.3]), (N_STEPS, 2))
    factors, series = found_in(states)
    assert len(factors) == series.shape[1] == 0
    given = torch.from_numpy(states)
    assert torch.equal(factors.states(factors.of(given)), given)


@pytest.mark.parametrize("size", [7, 1000, N_STEPS])
def test_the_blocks_in_which_a_record_is_read_do_not_matter(
    noisy: tuple[np.ndarray, np.ndarray],
    found: tuple[Factors, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    size: int,
) -> None:
    monkeypatch.setattr(factors_module, "READ_STEPS", size)
    factors, series = found_in(noisy[1])
    np.testing.assert_allclose(series, found[1], atol=1e-4)
    for name, wanted in vars(found[0]).items():
        torch.testing.assert_close(getattr(factors, name), wanted, rtol=1e-3, atol=1e-4)


def test_the_same_seed_gives_the_same_bits_and_another_one_the_same_factors(
    noisy: tuple[np.ndarray, np.ndarray], found: tuple[Factors, np.ndarray]
) -> None:
    factors, series = found_in(noisy[1])
    np.testing.assert_array_equal(series, found[1])
    assert all(torch.equal(one, vars(found[0])[name]) for name, one in vars(factors).items())
    for seed in range(6):
        _, other = found_in(noisy[1], seed=seed)
        np.testing.assert_allclose(other, series, atol=1e-3)


def test_fewer_channels_than_directions_are_enough() -> None:
    rng = np.random.default_rng(9)
    slow = wandering(N_STEPS, (0.95,), rng)
    states = slow @ rng.normal(size=(1, KINDS)) + 0.2 * white(n_channels=KINDS)
    assert CONFIG.rank > KINDS
    factors, series = found_in(states)
    assert len(factors) == 1
    assert explained(slow, by=series)[0] > 0.95


def test_at_least_one_factor_is_kept_where_all_is_noise() -> None:
    factors, series = found_in(white())
    assert len(factors) == series.shape[1] == 1
    assert factors.persistence[0] < CONFIG.persistence
    assert factors.share[0] < 0.1


def test_no_more_factors_are_kept_than_asked_for_and_the_largest_of_them(
    noisy: tuple[np.ndarray, np.ndarray], found: tuple[Factors, np.ndarray]
) -> None:
    factors, series = found_in(noisy[1], config=replace(CONFIG, factors=2))
    assert len(factors) == 2
    np.testing.assert_allclose(series, found[1][:, :2], atol=1e-9)
    torch.testing.assert_close(factors.share, found[0].share[:2])


def test_the_noise_of_every_channel_has_the_size_that_it_has() -> None:
    """With many channels, so that the factors themselves are read without much noise."""
    n_channels = 100 * KINDS
    series, _ = hidden()
    loads = np.random.default_rng(6).normal(size=(3, n_channels))
    size = np.linspace(0.3, 0.9, n_channels)
    factors, _ = found_in(series @ loads + size * white(n_channels=n_channels))
    np.testing.assert_allclose(factors.noise[0], size * np.sqrt(2 / np.pi), rtol=0.1)
    assert abs(np.mean(factors.noise[0].numpy() / size) - np.sqrt(2 / np.pi)) < 0.01
    at_rest = factors.deviation(torch.zeros(1, len(factors)))[0]
    np.testing.assert_allclose(at_rest, size, rtol=0.1)


def test_noise_that_channels_share_is_known_as_such() -> None:
    """What restless directions do to channels has the covariance of the noise that they share."""
    series, loads = hidden()
    sharing = np.random.default_rng(5).normal(size=(6, KINDS * N_BUSES))
    factors, _ = found_in(series @ loads + white(n_channels=6) @ sharing + 0.02 * white(seed=7))
    found, wanted = factors.restless.T @ factors.restless, sharing.T @ sharing
    np.testing.assert_allclose(found, wanted, atol=0.05 * np.abs(wanted).max())


def test_noise_that_grows_with_a_factor_is_known_to_do_so() -> None:
    """Of half of the channels, down to a fifth of its size and back with a daily wave."""
    wave = np.sqrt(2) * np.sin(2 * np.pi * np.arange(N_STEPS) / STEPS_PER_DAY)
    rng = np.random.default_rng(4)
    loads = rng.uniform(0.5, 1, (1, KINDS * N_BUSES))
    slope = np.where(np.arange(KINDS * N_BUSES) % 2, 0.55, 0.0)
    size = 0.2 * (1 + slope * wave[:, None])
    factors, series = found_in(wave[:, None] @ loads + size * white())
    (sign,) = np.sign(series.T @ wave)
    for value in (-1.2, 0.0, 1.2):
        found = factors.deviation(torch.tensor([[sign * value]], dtype=torch.float32))[0]
        np.testing.assert_allclose(found, 0.2 * (1 + slope * value), rtol=0.1, atol=0.01)


def test_noise_never_falls_below_a_part_of_its_mean(found: tuple[Factors, np.ndarray]) -> None:
    factors, _ = found
    for far in (-1e4, 1e4):
        seen = factors.deviation(torch.full((1, len(factors)), far))[0]
        least = DEVIATION * LEAST_NOISE * factors.noise[0]
        assert (seen >= least * (1 - 1e-6)).all()


def test_a_record_is_read_in_blocks_so_often_as_it_says_and_never_as_a_whole() -> None:
    series, loads = hidden()
    read: list[int] = []
    told: list[tuple[int, int]] = []
    training = training_of(
        series @ loads, on_read=lambda steps: read.append(steps.stop - steps.start)
    )
    find_factors(training, CONFIG, 42, lambda now, of: told.append((now, of)))
    assert max(read) == READ_STEPS < N_STEPS
    assert sum(read) == PASSES * N_STEPS
    np.testing.assert_array_equal([now for now, _ in told], np.cumsum(read))
    assert {of for _, of in told} == {PASSES * N_STEPS}
