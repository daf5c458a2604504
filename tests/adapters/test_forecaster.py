"""A function as a forecaster: over channels and factors, in processes, and when it fails."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase import Context, Scenarios, Task, couple, forecast, score
from powerphase.adapters import STAND_IN, SeriesForecaster, from_callable
from powerphase.errors import ConfigError, ForecastError, PowerphaseError
from powerphase.models import FactorForge, LastSevenDays
from tests import command_line
from tests.adapters.functions import Array, deciles, last_days, noise, yesterday

NO_SUCH_SERIES = "ZeroDivisionError: no such series"


def predict(model: SeriesForecaster, task: Task, context: Context) -> Scenarios:
    model.fit(task.training)
    prediction = model.predict(context)
    if isinstance(prediction, Scenarios):
        return prediction
    blocks = [scenarios for _, scenarios in prediction]
    values, weights = (
        torch.cat([getattr(b, k) for b in blocks], -1) for k in ("values", "weights")
    )
    return Scenarios(values, weights)


def failing(
    function: Callable[..., Any], is_bad: Callable[[Array], bool], answer: Any = None
) -> Callable[..., Any]:
    """The function, which raises or answers something else for some series."""

    def model(past: Array, time: Array, horizon: int) -> Any:
        if not is_bad(past):
            return function(past, time, horizon)
        if answer is None:
            raise ZeroDivisionError(NO_SUCH_SERIES.split(": ")[1])
        return answer

    return model


def nth(context: Context, number: int) -> Callable[[Array], bool]:
    """Whether a series is that of the channel."""
    series = context.past[0, :, number].numpy()
    return lambda past: bool(np.array_equal(past, series))


def varying(context: Context) -> list[int]:
    return torch.nonzero(context.past[0].amax(0) > context.past[0].amin(0))[:, 0].tolist()


def test_the_last_days_as_samples_are_the_reference_of_that_name(task: Task) -> None:
    own = score(forecast(from_callable(last_days), task), task).row
    reference = score(forecast(LastSevenDays(), task), task).row
    assert own.scores == reference.scores
    assert (own.model, own.joint, own.scenarios) == ("last-days", False, 7)


@pytest.mark.parametrize("function", [last_days, deciles, yesterday])
def test_a_batch_is_forecast_as_its_series_are(function: Any, task: Task, context: Context) -> None:
    single = predict(from_callable(function), task, context)
    batch = predict(from_callable(function, batch=7), task, context)
    assert torch.equal(single.values, batch.values)
    assert torch.equal(single.weights, batch.weights)


def test_processes_and_blocks_change_nothing(task: Task, context: Context) -> None:
    alone = predict(from_callable(noise, seed=3), task, context)
    together = predict(from_callable(noise, seed=3, workers=2), task, context)
    other = predict(from_callable(noise, seed=4), task, context)
    assert torch.equal(alone.values, together.values)
    assert not torch.equal(alone.values, other.values)


def test_random_numbers_of_the_caller_are_left_alone(task: Task, context: Context) -> None:
    model = from_callable(noise)
    model.fit(task.training)
    np.random.seed(1)  # noqa: NPY002
    expected = np.random.random()  # noqa: NPY002
    np.random.seed(1)  # noqa: NPY002
    list(model.predict(context))  # type: ignore[arg-type]
    assert np.random.random() == expected  # noqa: NPY002


def test_a_constant_channel_stays_constant_without_a_call(task: Task, context: Context) -> None:
    seen: list[Array] = []

    def watch(past: Array, time: Array, horizon: int) -> Array:
        seen.append(past)
        return last_days(past, time, horizon)

    values = predict(from_callable(watch), task, context).values
    numbers = varying(context)
    constant = sorted(set(range(context.layout.n_channels)) - set(numbers))
    assert constant
    assert all(np.ptp(past) > 0 for past in seen)
    expected = context.past[0, -1, constant].expand(7, context.horizon, -1)
    assert torch.equal(values[0][..., constant], expected)


def test_a_channel_that_fails_has_its_last_days_and_is_counted(
    task: Task, context: Context
) -> None:
    number = varying(context)[5]
    bad = failing(last_days, nth(context, number))
    model = from_callable(bad, name="bad", batch=None)
    values = predict(model, task, context).values
    expected = predict(from_callable(last_days), task, context).values
    assert [failure.series for failure in model.failures] == [context.layout.name_of(number)]
    assert model.failures[0].reason == NO_SUCH_SERIES
    # Seven samples of seven days are these days, by their quantiles at the middles of sevenths.
    middles = (torch.arange(7) + 0.5) / 7
    filled = torch.quantile(expected[0, :, :, number], middles, dim=0)
    assert torch.allclose(values[0, :, :, number], filled, atol=1e-5)
    others = [k for k in range(values.shape[-1]) if k != number]
    assert torch.equal(values[..., others], expected[..., others])


def test_a_row_names_what_failed_in_each_window_and_what_it_has_instead(
    task: Task, context: Context, tmp_path: Path
) -> None:
    number = varying(context)[5]
    model = couple(from_callable(failing(last_days, nth(context, number)), name="bad"), "schaake")
    live = forecast(model, task)
    row = score(live, task).row
    name, window = context.layout.name_of(number), task.test.start(0)
    assert row.failed == {"instead": STAND_IN, "series": {window: {name: NO_SUCH_SERIES}}}
    assert score(live, task).row.failed == row.failed  # made a second time
    written = forecast(model, task, out=tmp_path / "whole")
    assert score(written, task).row.failed == row.failed
    assert score(forecast(from_callable(last_days), task), task).row.failed is None


def test_after_an_interruption_it_is_unknown_what_failed_before(
    task: Task, context: Context, tmp_path: Path
) -> None:
    def stop(done: int, total: int) -> None:
        if done == 1:
            raise KeyboardInterrupt

    model = from_callable(failing(last_days, nth(context, varying(context)[5])), name="bad")
    with pytest.raises(KeyboardInterrupt):
        forecast(model, task, out=tmp_path / "days", on_progress=stop)
    continued = forecast(model, task, out=tmp_path / "days")
    row = score(continued, task).row
    assert row.failed == {"instead": STAND_IN, "series": {task.test.start(0): None}}


def test_the_command_shows_what_failed(
    task: Task, context: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    series = context.past[0, :, varying(context)[5]].numpy()
    np.save(tmp_path / "series.npy", series)
    code = """
import numpy as np
from tests.adapters.functions import last_days

series = np.load("series.npy")

def picky(past, time, horizon):
    return None if np.array_equal(past, series) else last_days(past, time, horizon)
"""
    (tmp_path / "picky_module.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    arguments = ("--data", str(task.store.path), "--windows", "2")
    scored = command_line.invoke("score", "picky_module:picky", *arguments)
    written = command_line.invoke("forecast", "picky_module:picky", *arguments, "--out", "days")
    name = context.layout.name_of(varying(context)[5])
    for shown in (scored, written):
        assert shown.exit_code == 0, shown.output
        assert name in shown.stdout
        assert STAND_IN in " ".join(shown.stdout.split())


def test_a_series_that_fails_in_a_batch_does_not_lose_the_batch(
    task: Task, context: Context
) -> None:
    series = context.past[0, :, varying(context)[5]].numpy()
    is_bad = lambda past: bool((past == series).all(1).any())  # noqa: E731
    model = from_callable(failing(last_days, is_bad), name="bad", batch=64)
    predict(model, task, context)
    assert len(model.failures) == 1


BAD = {
    "length": np.zeros((7, 95)),
    "samples": np.zeros((6, 96)),
    "nan": np.full((7, 96), np.nan),
    "form": "seven days",
    "quantiles": {0.1: np.ones(96), 0.5: np.ones(96), 0.9: np.zeros(96)},
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_answer_for_one_channel_is_its_failure(
    kind: str, task: Task, context: Context
) -> None:
    bad = failing(last_days, nth(context, varying(context)[5]), BAD[kind])
    model = from_callable(bad, name="bad")
    predict(model, task, context)
    assert len(model.failures) == 1


@pytest.mark.parametrize("kind", ["length", "nan", "form", "quantiles"])
@pytest.mark.parametrize("on", ["channels", "factors"])
def test_a_model_whose_every_answer_is_bad_raises_with_its_name(
    kind: str, on: Any, task: Task, context: Context
) -> None:
    model = from_callable(lambda past, time, horizon: BAD[kind], name="always-bad", on=on)
    with pytest.raises(ForecastError, match="always-bad"):
        predict(model, task, context)


def test_too_many_failures_raise_with_their_number(task: Task, context: Context) -> None:
    numbers = varying(context)
    bad = [context.past[0, :, number].numpy() for number in numbers[1:-1:2]]
    is_bad = lambda past: any(np.array_equal(past, series) for series in bad)  # noqa: E731
    model = from_callable(failing(last_days, is_bad), name="half-bad")
    with pytest.raises(ForecastError, match=f"half-bad.*{len(bad)}"):
        predict(model, task, context)


def test_crossing_quantiles_are_sorted_on_request(task: Task, context: Context) -> None:
    def crossing(past: Array, time: Array, horizon: int) -> dict[float, Array]:
        return dict(zip((0.9, 0.5, 0.1), deciles(past, time, horizon).values(), strict=True))

    model = from_callable(crossing, rearrange=True)
    expected = predict(from_callable(deciles), task, context)
    assert torch.allclose(predict(model, task, context).values, expected.values)
    with pytest.raises(ForecastError, match="rearrange"):
        predict(from_callable(crossing), task, context)


def test_over_factors_scenarios_are_joint_and_reproducible(task: Task, context: Context) -> None:
    model = from_callable(last_days, on="factors", scenarios=20, seed=5)
    first, again = (predict(model, task, context).values for _ in range(2))
    assert first.shape == (1, 20, 96, context.layout.n_channels)
    assert torch.equal(first, again)
    assert (model.name, model.variant, model.joint_scenarios) == ("last-days", "factors", True)


def test_over_factors_only_the_factors_are_forecast(task: Task, context: Context) -> None:
    calls: list[int] = []

    def count(past: Array, time: Array, horizon: int) -> Array:
        calls.append(len(time))
        return last_days(past, time, horizon)

    forge = FactorForge(seed=42)
    forge.fit(task.training)
    assert forge.fitted is not None
    predict(from_callable(count, on="factors"), task, context)
    assert len(calls) <= 2 * len(forge.fitted.factors)
    assert set(calls) == {context.time.shape[1]}


def test_over_factors_channels_have_the_distribution_of_the_factors(
    task: Task, context: Context
) -> None:
    """With the quantiles of FactorForge's own forecast, its own distribution comes back."""
    forge = FactorForge(seed=42)
    forge.fit(task.training)
    fitted = forge.fitted
    assert fitted is not None
    future = fitted.forecast_factors(context)
    deviation = fitted.forecaster.covariance.diagonal(axis1=1, axis2=2) ** 0.5
    normal = torch.special.ndtri((torch.arange(400, dtype=torch.float64) + 0.5) / 400)
    spread = torch.from_numpy(deviation) * normal[:, None, None]
    ascending = (future + spread[None].to(future)).float()
    values = fitted.draws_with(ascending, context.future_time[:, 0], 1).values
    expected = fitted.deviation(future)
    ratio = values.std(1)[expected > 1e-6] / expected[expected > 1e-6]
    assert ratio.mean() == pytest.approx(1.0, abs=0.1)
    mean_error = (values.mean(1) - fitted.factors.states(future)).abs() / expected.clamp(min=1e-6)
    assert mean_error.mean() < 0.1


def test_an_adapted_model_can_be_coupled(task: Task, context: Context) -> None:
    coupled = couple(from_callable(last_days), "schaake")
    row = score(forecast(coupled, task), task).row
    assert (row.model, row.variant, row.joint) == ("last-days", "schaake", True)


def test_an_estimate_counts_the_series_that_vary(task: Task, context: Context) -> None:
    model = from_callable(last_days)
    model.fit(task.training)
    estimate = model.estimate(context)
    assert estimate.series == len(varying(context))
    assert estimate.seconds == pytest.approx(estimate.series * estimate.series_s)
    assert str(estimate)


def test_progress_and_the_estimate_are_reported(task: Task, context: Context) -> None:
    steps: list[tuple[int, int]] = []
    estimates: list[Any] = []
    model = from_callable(
        last_days,
        on_progress=lambda done, total: steps.append((done, total)),
        on_estimate=estimates.append,
    )
    predict(model, task, context)
    n_channels = context.layout.n_channels
    assert steps[-1] == (n_channels, n_channels)
    assert len(estimates) == 1


@pytest.mark.parametrize(
    "options", [{"on": "buses"}, {"scenarios": 1}, {"workers": 0}, {"batch": 0}]
)
def test_bad_options_raise(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        from_callable(last_days, **options)


def test_what_cannot_be_called_or_sent_to_a_process_raises(task: Task) -> None:
    with pytest.raises(ConfigError, match="cannot be called"):
        from_callable("last_days")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="workers"):
        from_callable(lambda past, time, horizon: past, name="local", workers=2).fit(task.training)


def test_a_forecast_before_the_fit_raises(context: Context) -> None:
    with pytest.raises(PowerphaseError, match="last-days"):
        from_callable(last_days).predict(context)


def test_a_context_of_another_step_raises(task: Task, context: Context) -> None:
    model = from_callable(last_days)
    model.fit(task.training)
    hourly = Context(context.past[:, ::4], context.time[:, ::4], context.layout)
    with pytest.raises(ForecastError, match="3600"):
        model.predict(hourly)
