"""Coupling: marginal forecasts keep their quantiles and take the rank order of a template."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from scipy.stats import rankdata
from torch import Tensor

from powerphase import (
    Context,
    Forecast,
    Scenarios,
    Store,
    Task,
    Training,
    calibrate,
    couple,
    couple_forecast,
    forecast,
    outlook,
    physical,
    score,
)
from powerphase.clock import berlin_time, day_of_week, is_public_holiday, slot_of_day
from powerphase.errors import ForecastError, TrainingError, UnknownName
from powerphase.evaluation import (
    COUPLINGS,
    PastDays,
    choose_days,
    find_forecast,
    in_rank_order,
    is_coupled,
    make_forecaster,
    predict_states,
    quantiles,
    rank_order,
    request_training,
    resolve_model,
)
from powerphase.evaluation import coupling as coupling_module
from powerphase.metrics import Fan, crps
from powerphase.models import (
    Climatology,
    FactorForge,
    FactorForgeConfig,
    Forecaster,
    LastSevenDays,
    LastWeek,
)
from powerphase.models.framework import describe
from powerphase.records import read_result
from tests.command_line import run


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, windows=2)


@pytest.fixture(scope="module")
def template(task: Task) -> FactorForge:
    """A FactorForge that is fitted once for all tests."""
    model = FactorForge(seed=7)
    model.fit(task.training)
    return model


class Weighted:
    """The last seven days, each weighted differently in every channel."""

    name, joint_scenarios = "weighted", False

    def fit(self, train: Training) -> None:
        pass

    def predict(self, context: Context) -> Scenarios:
        days = LastSevenDays().predict(context).values
        random = torch.rand((1, 7, days.shape[-1]), generator=torch.Generator().manual_seed(1))
        return Scenarios(days, random / random.sum(1, keepdim=True))


class Spread:
    """Last week plus or minus a number that differs in every scenario and channel."""

    name, joint_scenarios = "spread", False

    def fit(self, train: Training) -> None:
        pass

    def predict(self, context: Context) -> Scenarios:
        size = torch.arange(1.0, context.layout.n_channels + 1)
        offset = torch.linspace(-0.3, 0.3, 16)[:, None, None] * size
        return Scenarios.equal(LastWeek().predict(context).values + offset)


class ByBlock(Climatology):
    """Climatology in uneven blocks of channels."""

    def predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:  # type: ignore[override]
        whole = super().predict(context)
        for first, stop in ((0, 5), (5, 6), (6, 41), (41, 56)):
            yield slice(first, stop), whole.of_channels(slice(first, stop))


def states(model: Forecaster, task: Task, window: int = 0) -> Tensor:
    """The values of a fitted model's scenarios for a test window."""
    return torch.from_numpy(predict_states(model, task.test.context(window))[0])[None]


def fitted(model: Any, task: Task) -> Any:
    model.fit(task.training)
    return model


# Quantiles


@hypothesis.given(st.integers(1, 9), st.integers(1, 9), st.integers(0, 99))
def test_quantiles_of_equal_weights_are_hazen_s(n: int, count: int, seed: int) -> None:
    values = torch.randn((2, n, 3, 4), generator=torch.Generator().manual_seed(seed))
    levels = (np.arange(count) + 0.5) / count
    expected = np.quantile(values.numpy(), levels, axis=1, method="hazen").swapaxes(0, 1)
    np.testing.assert_allclose(quantiles(Scenarios.equal(values), count), expected, atol=1e-6)


def test_as_many_quantiles_as_scenarios_are_the_sorted_scenarios() -> None:
    values = torch.randn((1, 16, 4, 5))
    levels = [(m - 0.5) / 16 for m in range(1, 17)]  # their weights are equal but for rounding
    for scenarios in (Scenarios.equal(values), Scenarios.from_quantiles(levels, values)):
        assert torch.equal(quantiles(scenarios, 16), values.sort(1).values)


@hypothesis.given(st.integers(2, 9), st.integers(1, 12), st.integers(0, 99))
def test_weighted_quantiles_interpolate_between_the_middles_of_weights(
    n: int, count: int, seed: int
) -> None:
    random = np.random.default_rng(seed)
    values, weights = random.normal(size=(1, n, 2, 3)), random.random((1, n, 3))
    weights /= weights.sum(1, keepdims=True)
    result = quantiles(Scenarios(torch.from_numpy(values), torch.from_numpy(weights)), count)
    levels = (np.arange(count) + 0.5) / count
    for step, channel in np.ndindex(2, 3):
        order = values[0, :, step, channel].argsort()
        share = weights[0, order, channel]
        middles = share.cumsum() - share / 2
        expected = np.interp(levels, middles, values[0, order, step, channel])
        np.testing.assert_allclose(result[0, :, step, channel], expected, atol=1e-9)


def test_scenarios_without_weight_do_not_count() -> None:
    values = torch.tensor([-9.0, 1.0, 2.0, 9.0]).reshape(1, 4, 1, 1)
    weights = torch.tensor([0.0, 0.5, 0.5, 0.0]).reshape(1, 4, 1)
    kept = Scenarios.equal(values[:, 1:3])
    assert torch.allclose(quantiles(Scenarios(values, weights), 5), quantiles(kept, 5))


# Ranks


@hypothesis.given(st.integers(1, 9), st.integers(0, 99))
def test_ranks_are_those_of_scipy_and_ties_go_by_number(count: int, seed: int) -> None:
    template = torch.randint(0, 4, (1, count, 2, 3), generator=torch.Generator().manual_seed(seed))
    ascending = torch.arange(1.0, count + 1)[None, :, None, None].expand(1, -1, 2, 3)
    ranks = in_rank_order(ascending, rank_order(template.float()))
    expected = rankdata(template.numpy(), method="ordinal", axis=1)
    np.testing.assert_array_equal(ranks, expected)


def test_values_in_their_own_rank_order_are_unchanged() -> None:
    values = torch.randn((2, 300, 3, 4))  # more than a byte can number
    assert torch.equal(in_rank_order(values.sort(1).values, rank_order(values)), values)


# Laws of coupled models


@pytest.mark.parametrize("how", COUPLINGS)
@pytest.mark.parametrize("model", [Climatology(), Weighted()])
def test_every_channel_and_step_keeps_its_quantiles(
    task: Task, template: FactorForge, model: Any, how: str
) -> None:
    given = template if how == "ranked" else None
    coupled = fitted(couple(model, how, scenarios=9, template=given), task)
    plain = model.predict(task.test.context(0))
    result = states(coupled, task)
    assert torch.equal(result.sort(1).values, quantiles(plain, 9).sort(1).values)
    assert not torch.equal(result, quantiles(plain, 9))


def test_the_ranks_are_those_of_the_template(task: Task, template: FactorForge) -> None:
    ranked = fitted(couple(Spread(), template=template), task)
    shuffled = fitted(couple(Spread(), "schaake"), task)
    days = fitted(PastDays(16), task)
    for coupled, source in ((ranked, template.ranked_form(16)), (shuffled, days)):
        result, expected = (
            rankdata(states(model, task).numpy(), method="ordinal", axis=1)
            for model in (coupled, source)
        )
        np.testing.assert_array_equal(result, expected)


def test_a_joint_model_is_the_template_of_itself(task: Task) -> None:
    days = states(fitted(LastSevenDays(), task), task)
    assert torch.equal(states(fitted(couple(LastSevenDays()), task), task), days)
    four = states(fitted(couple(LastSevenDays(), scenarios=4), task), task)
    assert torch.equal(rank_order(four), rank_order(days[:, :4]))
    assert torch.allclose(four.sort(1).values, quantiles(Scenarios.equal(days), 4))


class Drawn(Spread):
    """Random joint scenarios."""

    name, joint_scenarios = "drawn", True

    def __init__(self, count: int) -> None:
        self.count = count

    def predict(self, context: Context) -> Scenarios:
        random = torch.Generator().manual_seed(2)
        shape = (1, self.count, context.horizon, context.layout.n_channels)
        return Scenarios.equal(torch.randn(shape, generator=random))


class Drawing(Spread):
    """A fan that can also be drawn."""

    def joint_form(self, count: int) -> Drawn:
        return Drawn(count)


def test_a_model_that_can_draw_is_the_template_of_itself(task: Task) -> None:
    coupled = fitted(couple(Drawing(), scenarios=12), task)
    assert describe(coupled).config["coupled"]["template"] is None
    expected = rank_order(states(Drawn(12), task))
    assert torch.equal(rank_order(states(coupled, task)), expected)


def test_a_model_that_couples_itself_is_asked_to(task: Task, template: FactorForge) -> None:
    own = couple(template, scenarios=5)
    assert isinstance(own, FactorForge)
    assert (own.config.coupling, own.config.scenarios) == ("ranked", 5)
    assert describe(own) == describe(template.ranked_form(5))
    assert couple(FactorForge(), template=template).variant == "ranked"  # type: ignore[attr-defined]
    with pytest.raises(ForecastError):
        couple(template, scenarios=1)


@pytest.mark.parametrize("how", COUPLINGS)
def test_blocks_of_channels_are_coupled_as_the_whole(
    task: Task, template: FactorForge, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = template if how == "ranked" else None
    whole = states(fitted(couple(Climatology(), how, template=given), task), task)
    blocked = fitted(couple(ByBlock(), how, template=given), task)
    assert torch.equal(states(blocked, task), whole)
    monkeypatch.setattr(coupling_module, "BLOCK_BYTES", 16 * 96 * 4 * 3)
    small = list(blocked.predict(task.test.context(0)))
    assert max(channels.stop - channels.start for channels, _ in small) == 3
    assert torch.equal(torch.cat([part.values for _, part in small], dim=-1), whole)


def test_scenarios_depend_on_the_seed_and_not_on_what_was_forecast_before(task: Task) -> None:
    model = fitted(couple(Climatology(), seed=7), task)
    first, second = states(model, task), states(model, task, window=1)
    assert torch.equal(states(model, task), first)
    assert torch.equal(states(model, task, window=1), second)
    other = fitted(couple(Climatology(), seed=6), task)
    assert not torch.equal(states(other, task), first)


def test_a_fitted_template_is_not_fitted_again(
    task: Task, template: FactorForge, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("fitted again")

    monkeypatch.setattr(FactorForge, "_fit", refuse)
    fitted(couple(Climatology(), template=template), task)
    with pytest.raises(AssertionError, match="again"):
        fitted(couple(Climatology()), task)


# Scores


def planted(n_windows: int, n: int, n_channels: int) -> tuple[Tensor, Tensor, Tensor]:
    """Truths of channels that err together or opposite, draws of the same, and their signs."""
    random = torch.Generator().manual_seed(3)
    sign = torch.where(torch.rand(n_channels, generator=random) < 0.5, -1.0, 1.0)
    noise = torch.randn((n_windows, n + 1, 1, n_channels), generator=random)
    common = torch.randn((n_windows, n + 1, 1, 1), generator=random)
    values = sign * (0.95 * common + 0.31 * noise)
    return values[:, 0], values[:, 1:], sign


def test_coupling_keeps_crps_and_improves_the_energy_score() -> None:
    target, draws, _ = planted(200, 16, 24)
    level = (torch.arange(16) + 0.5) / 16
    fan = torch.special.ndtri(level)[None, :, None, None].expand_as(draws)
    coupled = in_rank_order(fan, rank_order(draws))
    independent = in_rank_order(fan, rank_order(torch.randn(draws.shape)))
    scores = [crps(Fan.of(Scenarios.equal(x)), target) for x in (fan, coupled, independent)]
    for other in scores[1:]:
        torch.testing.assert_close(other, scores[0])
    energy = [energy_of(values, target) for values in (coupled, independent, fan)]
    assert energy[0] < 0.95 * min(energy[1:])


def energy_of(values: Tensor, target: Tensor) -> float:
    """The mean energy score, from its definition."""
    error, scenarios = values - target[:, None], values.flatten(2)
    pairs = torch.cdist(scenarios, scenarios).mean()
    return float(error.flatten(2).norm(dim=2).mean() - pairs / 2)


def test_rows_have_the_same_crps_and_better_energy_scores(
    task: Task, template: FactorForge
) -> None:
    plain = score(forecast(Climatology(), task), task).row
    for how, given in (("ranked", template), ("schaake", None)):
        row = score(forecast(couple(Climatology(), how, template=given), task), task).row
        assert row.scores["crps"] == pytest.approx(plain.scores["crps"], rel=1e-6)
        assert (row.scores["energy"] or 1) < (plain.scores["energy"] or 0)


# Past days


def record(first: str, days: int) -> np.ndarray:
    start = np.datetime64(first, "s")
    return start + np.arange(96 * days) * np.timedelta64(900, "s")


@pytest.mark.parametrize("day", ["2016-07-04", "2016-10-30", "2016-12-25", "2016-03-26"])
def test_past_days_are_of_the_same_kind_and_season(day: str) -> None:
    past, window = record("2015-01-01", 500), record(day, 1)
    starts = choose_days(past, window, 12)
    middle = past[starts + 48]
    is_off = [is_public_holiday(t) | (day_of_week(t) == 6) for t in (middle, window[48:49])]
    saturday = [day_of_week(t) == 5 for t in (middle, window[48:49])]
    assert (is_off[0] == is_off[1]).all()
    assert ((saturday[0] & ~is_off[0]) == (saturday[1] & ~is_off[1])).all()
    assert (slot_of_day(past[starts]) == slot_of_day(window[:1])).all()
    dates = berlin_time(middle).astype("datetime64[D]")
    assert len(np.unique(dates)) == 12
    of_year = (dates - dates.astype("datetime64[Y]")).astype(int)
    target = berlin_time(window[48:49]).astype("datetime64[D]")
    apart = abs(of_year - (target - target.astype("datetime64[Y]")).astype(int))
    season = np.minimum(apart, 365 - apart)
    assert season.max() <= 50
    assert (np.diff(season) >= -1).all()


def test_other_kinds_follow_when_there_are_too_few(task: Task) -> None:
    past = record("2015-01-05", 14)
    starts = choose_days(past, record("2015-02-07", 1), 13)  # a Saturday
    is_saturday = day_of_week(past[starts + 48]) == 5
    assert is_saturday.tolist() == [True] * 2 + [False] * 11


def test_a_day_is_read_as_it_was(task: Task) -> None:
    model = fitted(PastDays(3), task)
    (channels, scenarios), *_ = model.predict(context := task.test.context(0))
    starts = choose_days(task.training.time, context.future_time[0], 3)
    for start, day in zip(starts.tolist(), scenarios.values[0], strict=True):
        assert torch.equal(day, task.training.read(slice(start, start + 96), channels))


# Names and descriptions


def test_a_description_has_what_is_needed_to_make_the_scenarios_again(task: Task) -> None:
    ranked = describe(couple(Climatology(), scenarios=9, seed=5))
    assert (ranked.model, ranked.variant) == ("climatology", "ranked")
    assert (ranked.seed, ranked.joint) == (5, True)
    assert ranked.config["quantiles"] == 16
    made = ranked.config["coupled"]
    assert (made["how"], made["scenarios"]) == ("ranked", 9)
    expected = describe(FactorForge(FactorForgeConfig(informed=False), seed=5))
    assert made["template"]["model"] == expected.model
    assert made["template"]["config"] == expected.config
    assert made["template"]["version"] == expected.version
    days = couple(LastSevenDays(), scenarios=4)
    assert describe(days).config["coupled"]["template"] is None
    assert describe(days) == describe(fitted(days, task))
    assert describe(couple(Climatology(), "schaake")).seed == 0
    seeded = describe(couple(FactorForge(seed=9), "schaake", seed=5))
    assert (seeded.seed, seeded.version) == (9, describe(FactorForge()).version)


TEXTS = {
    "climatology+ranked": ("climatology", "ranked", (22, 42)),
    "climatology+schaake": ("climatology", "schaake", (0,)),
    "powerforge+tuned+ranked": ("powerforge", "tuned-ranked", (22, 42)),
    "factorforge+schaake": ("factorforge", "schaake", (22, 42)),
    "oracle+ranked": ("oracle", "ranked", (22, 42)),
}


@pytest.mark.parametrize(("text", "expected"), TEXTS.items())
def test_a_coupling_is_the_last_word_of_a_name(text: str, expected: tuple[Any, ...]) -> None:
    spec = resolve_model(text)
    made = spec.description("ieee14", 42)
    assert (made.model, made.variant, spec.seeds((22, 42))) == expected
    assert made.joint is True
    plain, _, how = text.rpartition("+")
    assert resolve_model(plain, coupling=how) == spec
    assert spec.uncoupled == resolve_model(plain)
    assert resolve_model(plain).uncoupled == resolve_model(plain)


def test_a_word_of_the_model_s_config_is_no_wrapper(task: Task, tmp_path: Path) -> None:
    """FactorForge couples itself: from its name, from a training and from Python alike."""
    spec = resolve_model("factorforge", coupling="ranked")
    assert (spec.coupling, spec.config.coupling) == (None, "ranked")
    FactorForge(seed=7, run=tmp_path / "run").fit(task.training)
    loaded = make_forecaster(str(tmp_path / "run"), task, 42, coupling="ranked")
    planned = spec.description(task.layout.grid, 7)
    assert replace(describe(loaded), parameters=None) == planned
    assert describe(couple(FactorForge(seed=7))).config == planned.config


def test_the_planned_row_is_the_one_that_is_made(task: Task) -> None:
    for text in ("climatology+ranked", "last-7-days+schaake"):
        made = score(find_forecast(text, task, 42), task).row
        planned = resolve_model(text).description(task.layout.grid, 42)
        assert (made.model, made.variant, made.seed) == (
            *(planned.model, planned.variant),
            planned.seed,
        )
        assert made.config == planned.config


def test_a_training_can_be_coupled_and_is_not_named_with_a_coupling(
    task: Task, tmp_path: Path
) -> None:
    FactorForge(FactorForgeConfig(scenarios=5), seed=3, run=tmp_path / "run").fit(task.training)
    source = find_forecast(str(tmp_path / "run"), task, 42, coupling="schaake")
    row = score(source, task).row
    assert (row.name, row.seed) == ("factorforge+custom-schaake", 3)
    assert float(row.cost["train_s"] or 0) > 0
    with pytest.raises(TrainingError, match="factorforge"):
        request_training("factorforge+schaake")
    with pytest.raises(TrainingError, match="train powerforge --data"):
        make_forecaster("powerforge", task, 42, coupling="ranked")


# Stored forecasts


def pieces(source: Forecast) -> list[Tensor]:
    return [scenarios.values for _, _, scenarios in source.pieces(())]


@pytest.mark.parametrize("how", COUPLINGS)
def test_a_stored_forecast_is_coupled_as_its_model_is(
    task: Task, template: FactorForge, how: str, tmp_path: Path
) -> None:
    given = template if how == "ranked" else None
    forecast(Climatology(), task, out=tmp_path / "plain")
    live = forecast(couple(Climatology(), how, template=given), task)
    written = couple_forecast(
        tmp_path / "plain", task, how, template=given, out=tmp_path / "coupled"
    )
    for first, second in zip(pieces(live), pieces(written), strict=True):
        assert torch.equal(first, second)
    assert replace(written.description, parameters=None) == replace(
        live.description, parameters=None
    )
    assert (written.cost["predict_s"] or 0) > 0
    solved = physical(written, task)
    assert solved.description.variant == f"{how}-physical"
    assert is_coupled(solved.description.variant)


def test_a_live_forecast_is_coupled_with_its_whole_cost(task: Task) -> None:
    live = forecast(LastSevenDays(), task)
    coupled = couple_forecast(live, task, "schaake")
    pieces(coupled)
    assert coupled.cost["peak_memory_gib"] is not None
    assert coupled.cost["peak_memory_gib"] == live.cost["peak_memory_gib"]
    assert coupled.cost["train_s"] > live.cost["train_s"]
    assert coupled.cost["predict_s"] > live.cost["predict_s"]


def test_the_errors_of_a_forecast_name_the_window(task: Task, template: FactorForge) -> None:
    class Odd(Climatology):
        name = "odd"

        def predict(self, context: Context) -> Any:
            later = context.future_time[0, 0] > task.test.context(0).future_time[0, 0]
            return LastWeek().predict(context) if later else super().predict(context)

    joined = couple_forecast(forecast(Odd(), task), task, template=template)
    for source in (joined, forecast(couple(Odd(), template=template), task)):
        with pytest.raises(ForecastError) as error:
            pieces(source)
        assert error.value.window == 1


# Rejections


class Unjoint(Weighted):
    name = "unjoint"


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"how": "shuffled"}, UnknownName),
        ({"scenarios": 1}, ForecastError),
        ({"scenarios": 0}, ForecastError),
        ({"scenarios": 2.5}, ForecastError),
        ({"scenarios": "16"}, ForecastError),
        ({"how": "schaake", "template": LastSevenDays()}, ForecastError),
        ({"template": Unjoint()}, ForecastError),
        ({"model": couple(Climatology())}, ForecastError),
        ({"model": Climatology}, ForecastError),
    ],
)
def test_what_cannot_be_coupled_is_rejected_at_once(
    arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        couple(**{"model": Climatology(), **arguments})


@pytest.mark.parametrize(
    "coupled",
    [
        couple(LastWeek()),
        couple(LastSevenDays(), scenarios=8),
        couple(Climatology(), template=LastSevenDays()),
        couple(Climatology(), "schaake", scenarios=99),
    ],
)
def test_too_few_scenarios_or_days_are_rejected(task: Task, coupled: Forecaster) -> None:
    coupled.fit(task.training)
    with pytest.raises(ForecastError):
        states(coupled, task)


def test_forecasts_that_are_coupled_or_physical_are_rejected(task: Task) -> None:
    plain = forecast(LastSevenDays(), task)
    with pytest.raises(ForecastError, match="last-7-days"):
        couple_forecast(couple_forecast(plain, task), task)
    with pytest.raises(ForecastError, match="last-7-days"):
        couple_forecast(physical(plain, task), task)
    other = replace(plain, facts={**plain.facts, "fingerprint": "0" * 64})
    with pytest.raises(ForecastError, match="fingerprint"):
        couple_forecast(other, task, "schaake")


# Outlook and commands


def test_the_risk_of_a_day_is_read_from_a_model_as_it_is_coupled(
    task: Task, sixty_days: Store
) -> None:
    assert outlook(couple(Climatology(), "ranked"), task).description.variant == "ranked"
    changing = Task(sixty_days, windows=2, limits="0-1.019")
    done = calibrate(couple(LastSevenDays(), "schaake"), changing)
    assert (done.description.variant, done.n_scenarios) == ("schaake", 7)


def test_the_commands_have_an_option_for_it(sixty_days: Store, tmp_path: Path) -> None:
    data = ("--data", sixty_days.path, "--windows", "1")
    out = ("--out", tmp_path / "results")
    plain = tmp_path / "plain"
    run("forecast", "climatology", *data, "--out", plain)
    run("forecast", "climatology", *data, "--out", tmp_path / "c", "--couple", "schaake")
    run("score", tmp_path / "c", *data, *out)
    run("score", plain, *data, *out, "--couple", "ranked", "--physical")
    names = {path.stem: read_result(path) for path in tmp_path.rglob("results/**/*.json")}
    assert set(names) == {"climatology+schaake-0", "climatology+ranked-physical-42"}
    assert all(row.joint for row in names.values())
    shown = run("tomorrow", "climatology", "--data", sixty_days.path, "--couple", "schaake")
    assert "climatology+schaake" in shown.stdout
