"""Quantiles of boosted trees, against a planted signal and the standard normal distribution."""

import sys

import numpy as np
import pytest
from scipy.stats import norm

from powerphase.errors import TrainingError
from powerphase.models import Boosting, BoostingConfig
from powerphase.models.anchors import interpolate_quantiles
from tests.models.anchors import DAY, training, windows

LEVELS = (np.arange(10) + 0.5) / 10


def pinball(quantiles: np.ndarray, values: np.ndarray) -> float:
    error = values - quantiles
    level = LEVELS.reshape(-1, *np.ones(values.ndim, int))
    return float(np.maximum(level * error, (level - 1) * error).mean())


@pytest.fixture(scope="module")
def model() -> Boosting:
    boosting = Boosting(BoostingConfig(trees=40, learning_rate=0.1))
    boosting.fit(training(120))
    return boosting


def test_quantiles_are_sorted_and_beat_the_unconditional_ones(model: Boosting) -> None:
    context, target = windows()
    quantiles = model.factor_quantiles(context)
    assert (np.diff(quantiles, axis=1) >= 0).all()
    record = model.record
    factors = record.factors.of(target).numpy()
    constant = np.quantile(record.series, LEVELS, axis=0)[:, None, None]
    by_level = quantiles.swapaxes(0, 1)
    assert pinball(by_level, factors) < 0.85 * pinball(constant, factors)


def test_quantiles_cover_what_their_levels_say(model: Boosting) -> None:
    context, target = windows(60)
    record = model.record
    factors = record.factors.of(target).numpy()[:, None, :, :2]
    below = (factors < model.factor_quantiles(context)[..., :2]).mean((0, 2, 3))
    np.testing.assert_allclose(below, LEVELS, atol=0.12)


def test_interpolation_keeps_the_quantiles_of_a_gaussian() -> None:
    few, many = ((np.arange(n) + 0.5) / n for n in (4, 25))
    known = 3 + 2 * norm.ppf(few)[:, None] * np.ones(3)
    expected = 3 + 2 * norm.ppf(many)[:, None] * np.ones(3)
    np.testing.assert_allclose(interpolate_quantiles(known, 25), expected, rtol=1e-12)


def test_interpolation_of_as_many_quantiles_changes_nothing() -> None:
    quantiles = np.sort(np.random.default_rng(0).normal(size=(7, DAY, 2)), axis=0)
    np.testing.assert_allclose(interpolate_quantiles(quantiles, 7), quantiles, rtol=1e-12)


def test_without_lightgbm_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightgbm", None)
    with pytest.raises(TrainingError, match=r"powerphase\[boosting\]"):
        Boosting().fit(training())
