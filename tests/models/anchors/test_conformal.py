"""Conformal corrections give the coverage that they promise, on exchangeable data."""

import numpy as np
import pytest

from powerphase.errors import ForecastError
from powerphase.models import (
    Climatology,
    ClimatologyConfig,
    ConformalClimatology,
    ConformalClimatologyConfig,
)
from powerphase.models.anchors import conformal_shift
from powerphase.scenarios import Training
from tests.models.anchors import DAY
from tests.models.factorforge import training_of, windows_of
from tests.models.planted import whole

LEVELS = (np.arange(8) + 0.5) / 8


def skewed(n_days: int, seed: int) -> np.ndarray:
    """Independent values of another skewed distribution in each channel: exchangeable days."""
    random = np.random.default_rng(seed)
    return random.gamma(np.linspace(0.5, 4, 40), size=(n_days * DAY, 40))


def test_the_shift_is_a_rank_of_the_excesses() -> None:
    values, quantiles = np.arange(1.0, 10.0)[:, None], np.zeros((2, 9, 1))
    # Levels 1/4 and 3/4 of nine values: ranks ⌈2.5⌉ and ⌈7.5⌉.
    np.testing.assert_array_equal(conformal_shift(values, quantiles)[:, 0], [3, 8])


def test_shifted_quantiles_cover_exchangeable_values_at_their_level() -> None:
    random = np.random.default_rng(1)
    n, trials = 39, 20_000
    values = random.normal(size=(n, trials))
    wrong = np.linspace(-0.3, 0.3, 8)[:, None, None] * np.ones((8, n, 1))
    shift = conformal_shift(values, wrong + np.zeros((8, n, trials)))
    further = random.normal(size=trials)
    covered = (further <= wrong[:, 0] + shift).mean(1)
    error = 4 * np.sqrt(0.25 / trials)
    assert (covered >= LEVELS - error).all()
    assert (covered <= LEVELS + 1 / (n + 1) + error).all()


def test_conformal_quantiles_cover_new_days_where_climatology_does_not() -> None:
    train = training_of(skewed(42, seed=2), DAY, DAY)
    context, target = windows_of(skewed(40, seed=3), DAY, DAY)
    models = (
        ConformalClimatology(ConformalClimatologyConfig(quantiles=8, calibration_share=0.5)),
        Climatology(ClimatologyConfig(quantiles=8)),
    )
    outer = []
    for model in models:
        model.fit(train)
        values = whole(model.predict(context)).values
        below = (target[:, None] <= values).double().mean((0, 2, 3)).numpy()
        outer.append(np.abs(below - LEVELS)[[0, -1]].max())
    assert outer[0] < 0.015
    assert outer[1] > 3 * outer[0]


def test_quantiles_are_sorted() -> None:
    model = ConformalClimatology(ConformalClimatologyConfig(quantiles=8, calibration_share=0.4))
    model.fit(training_of(skewed(42, seed=4), DAY, DAY))
    context, _ = windows_of(skewed(3, seed=5), DAY, DAY)
    assert (whole(model.predict(context)).values.diff(dim=1) >= 0).all()


@pytest.mark.parametrize("calibration", ["spread", "last"])
def test_the_corrected_days_are_the_share_that_was_asked_for(calibration: str) -> None:
    config = ConformalClimatologyConfig(calibration_share=0.25, calibration=calibration)  # type: ignore[arg-type]
    held_out = ConformalClimatology(config)._held_out_days(60)
    assert held_out.sum() == 15
    if calibration == "last":
        assert held_out[-15:].all()
    else:
        assert (np.diff(np.flatnonzero(held_out)) == 4).all()


def fit_to(n_days: int, **options: object) -> None:
    train: Training = training_of(skewed(n_days, seed=6), DAY, DAY)
    config = ConformalClimatologyConfig(**options)  # type: ignore[arg-type]
    ConformalClimatology(config).fit(train)


def test_short_records_raise() -> None:
    fit_to(32)
    with pytest.raises(ForecastError, match="quantiles"):
        fit_to(24)
    with pytest.raises(ForecastError, match="672"):
        fit_to(8, quantiles=2)
