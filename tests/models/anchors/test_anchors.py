"""What the anchors have in common: repeatable, independent of blocks, clear about bad input."""

from typing import Any

import numpy as np
import pytest
import torch

from powerphase.errors import ConfigError, ForecastError, TrainingError
from powerphase.models import (
    Analogs,
    AnalogsConfig,
    Boosting,
    BoostingConfig,
    Climatology,
    ConformalClimatology,
    ConformalClimatologyConfig,
    DynamicFactors,
    DynamicFactorsConfig,
)
from powerphase.models.factorforge import past_days
from powerphase.scenarios import Context
from tests.models.anchors import DAY, WORLD, training, window_of, windows
from tests.models.factorforge import training_of
from tests.models.planted import whole

MAKERS: dict[str, Any] = {
    "analogs": lambda seed=42: Analogs(AnalogsConfig(analogs=7), seed=seed),
    "boosting": lambda seed=42: Boosting(
        BoostingConfig(trees=5, learning_rate=0.5, scenarios=9), seed=seed
    ),
    "dynamic-factors": lambda seed=42: DynamicFactors(DynamicFactorsConfig(scenarios=9), seed=seed),
    "conformal-climatology": lambda seed=42: ConformalClimatology(
        ConformalClimatologyConfig(quantiles=8, channels_at_once=10)
    ),
}
OF_FACTORS = ("analogs", "boosting", "dynamic-factors")
DRAWN = ("boosting", "dynamic-factors")


@pytest.fixture(scope="module")
def fitted() -> dict[str, Any]:
    models = {name: make() for name, make in MAKERS.items()}
    for model in models.values():
        model.fit(training())
    return models


def values_of(model: Any, context: Context) -> torch.Tensor:
    return whole(model.predict(context)).values


@pytest.mark.parametrize("name", MAKERS)
def test_a_second_fit_with_the_same_seed_gives_the_same_bits(
    name: str, fitted: dict[str, Any]
) -> None:
    context = window_of(windows()[0], 3)
    again = MAKERS[name]()
    again.fit(training())
    assert torch.equal(values_of(fitted[name], context), values_of(again, context))


@pytest.mark.parametrize("name", DRAWN)
def test_another_seed_draws_other_scenarios(name: str, fitted: dict[str, Any]) -> None:
    context = window_of(windows()[0], 3)
    other = MAKERS[name](seed=43)
    other.fit(training())
    assert not torch.allclose(values_of(fitted[name], context), values_of(other, context))


@pytest.mark.parametrize("name", MAKERS)
def test_a_window_does_not_depend_on_the_others(name: str, fitted: dict[str, Any]) -> None:
    context = windows()[0]
    together = values_of(fitted[name], context)
    alone = values_of(fitted[name], window_of(context, 3))
    torch.testing.assert_close(together[3:4], alone, rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", MAKERS)
def test_blocks_of_channels_change_nothing(
    name: str, fitted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    context = window_of(windows()[0], 1)
    whole_grid = values_of(fitted[name], context)
    monkeypatch.setattr(past_days, "CHANNELS_AT_ONCE", 5)
    monkeypatch.setattr("powerphase.models.anchors.analogs.CHANNELS_AT_ONCE", 5)
    torch.testing.assert_close(values_of(fitted[name], context), whole_grid, rtol=0, atol=1e-6)


def test_climatologies_do_not_depend_on_how_many_channels_are_fitted_at_once() -> None:
    values = []
    for size in (1, 256):
        config = ConformalClimatologyConfig(quantiles=8, channels_at_once=size)
        model = ConformalClimatology(config)
        model.fit(training())
        values.append(values_of(model, window_of(windows()[0], 0)))
    assert torch.equal(*values)


@pytest.mark.parametrize("name", OF_FACTORS)
def test_the_first_hours_are_better_than_climatology(name: str, fitted: dict[str, Any]) -> None:
    context, target = windows(30)
    climatology = Climatology()
    climatology.fit(training())
    errors = [
        (values_of(model, context).mean(1) - target)[:, :8].square().mean()
        for model in (fitted[name], climatology)
    ]
    assert errors[0] < 0.8 * errors[1]


@pytest.mark.parametrize("name", MAKERS)
def test_predict_before_fit_raises(name: str) -> None:
    with pytest.raises(ForecastError, match=name):
        whole(MAKERS[name]().predict(windows()[0]))


@pytest.mark.parametrize("name", OF_FACTORS)
def test_windows_of_another_kind_raise(name: str, fitted: dict[str, Any]) -> None:
    context = windows()[0]
    longer = Context(context.past[:, DAY:], context.time[:, DAY:], context.layout)
    later = Context(context.past, context.time + np.timedelta64(1, "h"), context.layout)
    for other in (longer, later):
        with pytest.raises(ForecastError, match=name):
            whole(fitted[name].predict(other))


@pytest.mark.parametrize("name", OF_FACTORS)
def test_the_shortest_record_has_eight_windows(name: str) -> None:
    days = 8 + 2
    model = MAKERS[name]()
    model.fit(training(days))
    assert values_of(model, window_of(windows()[0], 0)).isfinite().all()
    with pytest.raises(TrainingError, match=name):
        MAKERS[name]().fit(training(days - 1))


@pytest.mark.parametrize("name", OF_FACTORS)
def test_a_record_in_which_nothing_varies_raises(name: str) -> None:
    constant = training_of(np.full((20 * DAY, 8), 1.5), 2 * DAY, DAY)
    with pytest.raises(TrainingError, match=name):
        MAKERS[name]().fit(constant)


@pytest.mark.parametrize("name", ["boosting", "dynamic-factors"])
@pytest.mark.parametrize("horizon", [DAY // 2, 2 * DAY + 5])
def test_any_horizon_can_be_forecast(name: str, horizon: int) -> None:
    model = MAKERS[name]()
    model.fit(training(30, 2 * DAY, horizon))
    context, _ = windows(12, 2 * DAY, horizon)
    values = values_of(model, window_of(context, 0))
    assert values.shape == (1, 9, horizon, 4 * WORLD.n_buses)


@pytest.mark.parametrize(
    ("config", "options"),
    [
        (AnalogsConfig, {"analogs": 0}),
        (AnalogsConfig, {"sharpness": -1.0}),
        (AnalogsConfig, {"lookback_hours": 0}),
        (BoostingConfig, {"quantiles": 1}),
        (BoostingConfig, {"learning_rate": 0.0}),
        (BoostingConfig, {"trees": 0}),
        (DynamicFactorsConfig, {"modes": 0}),
        (DynamicFactorsConfig, {"strength": 0.0}),
        (ConformalClimatologyConfig, {"calibration_share": 1.0}),
        (ConformalClimatologyConfig, {"calibration": "first"}),
        (ConformalClimatologyConfig, {"quantiles": 0}),
    ],
)
def test_impossible_options_raise(config: Any, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(options))):
        config(**options)
