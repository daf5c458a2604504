"""Factors: they are recovered from records with known factors."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from powerphase.axes import KINDS, STEPS_PER_DAY, V
from powerphase.models.factorforge import (
    DEVIATION,
    MIN_NOISE,
    PASSES,
    FactorForgeConfig,
    Factors,
    find_factors,
)
from powerphase.models.factorforge import factors as factors_module
from powerphase.scenarios import READ_STEPS
from tests.models.factorforge import autocorrelated, training_of

CONFIG = FactorForgeConfig()
N_BUSES, N_STEPS = 10, 30 * STEPS_PER_DAY
CORRELATIONS = (0.99, 0.95, 0.85)


def hidden_series(n_steps: int = N_STEPS, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Three slow series, and the loading of each on every channel."""
    rng = np.random.default_rng(seed)
    return autocorrelated(n_steps, CORRELATIONS, rng), rng.normal(size=(3, KINDS * N_BUSES))


def white(n_steps: int = N_STEPS, n_channels: int = KINDS * N_BUSES, seed: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n_steps, n_channels))


def factors_of(
    states: np.ndarray, seed: int = 42, config: FactorForgeConfig = CONFIG
) -> tuple[Factors, np.ndarray]:
    return find_factors(training_of(states), config, seed)


def explained_variance(series: np.ndarray, by: np.ndarray) -> np.ndarray:
    """The share of each series' variance that a regression on others explains."""
    centred, others = series - series.mean(0), by - by.mean(0)
    residual = centred - others @ np.linalg.lstsq(others, centred, rcond=None)[0]
    return 1 - residual.var(0) / centred.var(0)


@pytest.fixture(scope="module")
def noisy() -> tuple[np.ndarray, np.ndarray]:
    """The hidden series, and states that follow them with some noise."""
    series, loads = hidden_series()
    return series, (0.5 + series @ loads + 0.3 * white()).astype(np.float32)


@pytest.fixture(scope="module")
def fit(noisy: tuple[np.ndarray, np.ndarray]) -> tuple[Factors, np.ndarray]:
    return factors_of(noisy[1])


def test_the_hidden_series_are_found_and_nothing_else(
    noisy: tuple[np.ndarray, np.ndarray], fit: tuple[Factors, np.ndarray]
) -> None:
    factors, series = fit
    assert len(factors) == series.shape[1] == 3
    assert explained_variance(noisy[0], by=series).min() > 0.98
    assert explained_variance(series, by=noisy[0]).min() > 0.98


def test_a_slow_series_is_found_under_larger_noise() -> None:
    """Shared noise has more variance, so principal components miss the slow series."""
    series, loads = hidden_series()
    loads[2] *= 0.3
    shared = white(n_channels=6) @ np.random.default_rng(5).normal(size=(6, KINDS * N_BUSES))
    slow = series @ loads
    states = slow + shared + 0.05 * white(seed=7)
    assert shared.var(0).sum() > 10 * (series[:, 2:] @ loads[2:]).var(0).sum()
    vectors = np.linalg.svd(states - states.mean(0), full_matrices=False)[0]
    assert explained_variance(series, by=vectors[:, :3]).min() < 0.1
    factors, recovered = factors_of(states)
    assert len(factors) == 3
    assert explained_variance(series, by=recovered).min() > 0.95


def test_factors_have_unit_variance_no_mean_and_no_correlation(
    noisy: tuple[np.ndarray, np.ndarray], fit: tuple[Factors, np.ndarray]
) -> None:
    _, series = fit
    np.testing.assert_allclose(series.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(series.T @ series / len(series), np.eye(3), atol=1e-9)


def test_the_factors_of_the_record_equal_the_returned_series(
    noisy: tuple[np.ndarray, np.ndarray], fit: tuple[Factors, np.ndarray]
) -> None:
    factors, series = fit
    again = factors.of(torch.from_numpy(noisy[1])).numpy()
    np.testing.assert_allclose(again, series, atol=1e-4)


def test_persistence_is_the_autocorrelation_of_one_step(
    fit: tuple[Factors, np.ndarray],
) -> None:
    factors, series = fit
    expected = [np.corrcoef(factor[1:], factor[:-1])[0, 1] for factor in series.T]
    np.testing.assert_allclose(factors.persistence, expected, atol=1e-3)
    assert (factors.persistence > CONFIG.persistence).all()


def test_shares_of_variance_weight_all_variables_equally() -> None:
    """For any units: here V hardly changes, and P a thousand times as much as Q."""
    series, loads = hidden_series()
    units = np.tile([1000.0, 1.0, 1e-3, 0.1], N_BUSES)
    states = (series @ loads + 0.3 * white()) * units
    factors, recovered = factors_of(states)
    parts = states.reshape(N_STEPS, N_BUSES, KINDS)
    total = parts.var(0).mean(0)
    expected = []
    for factor in recovered.T:
        follows = np.einsum("s,snk->nk", factor, parts - parts.mean(0)) / N_STEPS
        expected.append(((follows**2).mean(0) / total).mean())
    np.testing.assert_allclose(factors.share, expected, rtol=1e-4)
    assert (np.diff(factors.share) <= 0).all()
    assert 0.85 < factors.share.sum() < 0.99


def test_a_record_without_noise_is_reproduced() -> None:
    series, loads = hidden_series()
    states = (2 + series @ loads).astype(np.float32)
    factors, _ = factors_of(states)
    record = torch.from_numpy(states)
    values = factors.of(record)
    torch.testing.assert_close(factors.states(values), record, rtol=0, atol=1e-4)
    assert factors.deviation(values).max() < 1e-4
    assert float(factors.share.sum()) == pytest.approx(1, abs=1e-5)


def test_constant_channels_are_reproduced_bit_for_bit_and_without_noise() -> None:
    series, loads = hidden_series()
    states = (series @ loads + 0.3 * white()).astype(np.float32)
    constant = [0, 7, 18, 31]
    states[:, constant] = np.array([0.0, 1.02, -1 / 3, 1e6], dtype=np.float32)
    factors, _ = factors_of(states)
    record = torch.from_numpy(states)
    values = factors.of(record)
    assert torch.equal(factors.states(values)[:, constant], record[:, constant])
    assert (factors.deviation(values)[:, constant] == 0).all()
    moving = np.delete(np.arange(KINDS * N_BUSES), constant)
    assert (factors.deviation(values)[:, moving] > 0).all()


def test_a_constant_variable_is_reproduced() -> None:
    series, loads = hidden_series()
    states = (series @ loads + 0.3 * white()).astype(np.float32)
    states[:, V::KINDS] = np.linspace(0.98, 1.02, N_BUSES)
    factors, recovered = factors_of(states)
    assert explained_variance(series, by=recovered).min() > 0.97
    record = torch.from_numpy(states)
    assert torch.equal(factors.states(factors.of(record))[:, V::KINDS], record[:, V::KINDS])


def test_a_constant_record_has_no_factors() -> None:
    states = np.tile(np.array([0.1, -0.2, 1.02, 0.3], dtype=np.float32), (N_STEPS, 2))
    factors, series = factors_of(states)
    assert len(factors) == series.shape[1] == 0
    record = torch.from_numpy(states)
    assert torch.equal(factors.states(factors.of(record)), record)


@pytest.mark.parametrize("size", [7, 1000, N_STEPS])
def test_the_block_size_does_not_matter(
    noisy: tuple[np.ndarray, np.ndarray],
    fit: tuple[Factors, np.ndarray],
    monkeypatch: pytest.MonkeyPatch,
    size: int,
) -> None:
    monkeypatch.setattr(factors_module, "READ_STEPS", size)
    factors, series = factors_of(noisy[1])
    np.testing.assert_allclose(series, fit[1], atol=1e-4)
    for name, expected in vars(fit[0]).items():
        torch.testing.assert_close(getattr(factors, name), expected, rtol=1e-3, atol=1e-4)


def test_the_same_seed_gives_the_same_bits_and_another_seed_the_same_factors(
    noisy: tuple[np.ndarray, np.ndarray], fit: tuple[Factors, np.ndarray]
) -> None:
    factors, series = factors_of(noisy[1])
    np.testing.assert_array_equal(series, fit[1])
    assert all(torch.equal(tensor, vars(fit[0])[name]) for name, tensor in vars(factors).items())
    for seed in range(6):
        _, again = factors_of(noisy[1], seed=seed)
        np.testing.assert_allclose(again, series, atol=1e-3)


def test_a_record_may_have_fewer_channels_than_directions() -> None:
    rng = np.random.default_rng(9)
    slow = autocorrelated(N_STEPS, (0.95,), rng)
    states = slow @ rng.normal(size=(1, KINDS)) + 0.2 * white(n_channels=KINDS)
    assert CONFIG.rank > KINDS
    factors, series = factors_of(states)
    assert len(factors) == 1
    assert explained_variance(slow, by=series)[0] > 0.95


def test_a_record_of_noise_has_one_factor() -> None:
    factors, series = factors_of(white())
    assert len(factors) == series.shape[1] == 1
    assert factors.persistence[0] < CONFIG.persistence
    assert factors.share[0] < 0.1


def test_the_largest_factors_are_kept_up_to_the_maximum_number(
    noisy: tuple[np.ndarray, np.ndarray], fit: tuple[Factors, np.ndarray]
) -> None:
    factors, series = factors_of(noisy[1], config=replace(CONFIG, factors=2))
    assert len(factors) == 2
    np.testing.assert_allclose(series, fit[1][:, :2], atol=1e-9)
    torch.testing.assert_close(factors.share, fit[0].share[:2])


def test_the_size_of_every_channel_s_noise_is_recovered() -> None:
    """With many channels, so that the factors are estimated precisely."""
    n_channels = 100 * KINDS
    series, _ = hidden_series()
    loads = np.random.default_rng(6).normal(size=(3, n_channels))
    size = np.linspace(0.3, 0.9, n_channels)
    factors, _ = factors_of(series @ loads + size * white(n_channels=n_channels))
    np.testing.assert_allclose(factors.noise[0], size * np.sqrt(2 / np.pi), rtol=0.1)
    assert abs(np.mean(factors.noise[0].numpy() / size) - np.sqrt(2 / np.pi)) < 0.01
    at_rest = factors.deviation(torch.zeros(1, len(factors)))[0]
    np.testing.assert_allclose(at_rest, size, rtol=0.1)


def test_shared_noise_is_recovered() -> None:
    """The loadings of the restless directions have the covariance of the shared noise."""
    series, loads = hidden_series()
    sharing = np.random.default_rng(5).normal(size=(6, KINDS * N_BUSES))
    factors, _ = factors_of(series @ loads + white(n_channels=6) @ sharing + 0.02 * white(seed=7))
    actual, expected = factors.restless.T @ factors.restless, sharing.T @ sharing
    np.testing.assert_allclose(actual, expected, atol=0.05 * np.abs(expected).max())


def test_noise_that_grows_with_a_factor_is_recovered() -> None:
    """In half of the channels, it falls to a fifth and back with a daily wave."""
    wave = np.sqrt(2) * np.sin(2 * np.pi * np.arange(N_STEPS) / STEPS_PER_DAY)
    rng = np.random.default_rng(4)
    loads = rng.uniform(0.5, 1, (1, KINDS * N_BUSES))
    growth = np.where(np.arange(KINDS * N_BUSES) % 2, 0.55, 0.0)
    size = 0.2 * (1 + growth * wave[:, None])
    factors, series = factors_of(wave[:, None] @ loads + size * white())
    (sign,) = np.sign(series.T @ wave)
    for value in (-1.2, 0.0, 1.2):
        actual = factors.deviation(torch.tensor([[sign * value]], dtype=torch.float32))[0]
        np.testing.assert_allclose(actual, 0.2 * (1 + growth * value), rtol=0.1, atol=0.01)


def test_noise_has_a_lower_bound(fit: tuple[Factors, np.ndarray]) -> None:
    factors, _ = fit
    for far in (-1e4, 1e4):
        values = factors.deviation(torch.full((1, len(factors)), far))[0]
        lower_bound = DEVIATION * MIN_NOISE * factors.noise[0]
        assert (values >= lower_bound * (1 - 1e-6)).all()


def test_a_record_is_read_in_blocks_in_the_stated_number_of_passes() -> None:
    series, loads = hidden_series()
    read: list[int] = []
    progress: list[tuple[int, int]] = []
    training = training_of(
        series @ loads, on_read=lambda steps: read.append(steps.stop - steps.start)
    )
    find_factors(training, CONFIG, 42, lambda done, total: progress.append((done, total)))
    assert max(read) == READ_STEPS < N_STEPS
    assert sum(read) == PASSES * N_STEPS
    np.testing.assert_array_equal([done for done, _ in progress], np.cumsum(read))
    assert {total for _, total in progress} == {PASSES * N_STEPS}
