"""What a model said of past days against what happened, by naive counting."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from powerphase import Store, Task, couple
from powerphase.axes import KINDS, THETA, V
from powerphase.errors import TaskError, UnknownName
from powerphase.evaluation import Calibration, Decomposition, calibrate
from powerphase.models import Climatology, FactorForge, LastSevenDays
from tests.command_line import error_of, run

Array = NDArray[np.float64]


HIGHEST = 1.019
"""The upper limit of these tests [p.u.], which some buses exceed on some days."""


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, windows="all", limits=f"0-{HIGHEST}")


@pytest.fixture(scope="module")
def days(sixty_days: Store) -> Array:
    """The voltages by day, step and bus."""
    voltage: Array = np.asarray(sixty_days.state[...])[:, V::KINDS]
    return voltage.reshape(60, 96, -1)


@pytest.fixture(scope="module")
def week(task: Task) -> Calibration:
    return calibrate(LastSevenDays(), task, device="cpu")


def test_chance_and_hours_are_those_of_the_scenarios(week: Calibration, days: Array) -> None:
    outside = days[:, :, week.counts] > np.float32(HIGHEST)
    hours, first = outside.sum(1) / 4, 60 - len(week.days)
    assert len(week.days) == 15
    for k in range(len(week.days)):
        past, today = slice(first + k - 7, first + k), first + k
        assert week.chance[k] == pytest.approx(outside[past].any(1).mean(0), abs=1e-6)
        assert np.array_equal(week.violated[k], outside[today].any(0))
        assert week.hours[k] == pytest.approx(hours[past].mean(0))
        assert week.hours_violated[k] == pytest.approx(hours[today])
        pairs = np.abs(hours[past][:, None] - hours[past][None]).mean((0, 1))
        naive = np.abs(hours[past] - hours[today]).mean(0) - pairs / 2
        assert week.hours_crps[k] == pytest.approx(naive, abs=1e-9)


def test_the_buses_that_count_left_the_band_on_some_days_that_models_are_fitted_on(
    week: Calibration, task: Task, days: Array
) -> None:
    fitted = days[: task.splits.fit_stop // 96]
    left = (fitted > np.float32(HIGHEST)).any(1)
    assert np.array_equal(week.counts, left.any(0) & ~left.all(0))
    assert 0 < week.counts.sum() < len(week.counts)


def test_bins_hold_every_forecast_once(week: Calibration) -> None:
    for bins, said, happened in (
        (week.chance_bins, week.chance, week.violated),
        (week.hour_bins, week.hours, week.hours_violated),
    ):
        counts = np.array([part.cases for part in bins])
        assert counts.sum() == said.size
        for mean, name in ((said.mean(), "said"), (happened.mean(), "happened")):
            parts = np.array([getattr(part, name) for part in bins])
            assert (counts * parts).sum() / counts.sum() == pytest.approx(mean)
        assert all(part.low <= part.said <= part.high for part in bins)


def naive_monotone(said: Array, happened: Array) -> Array:
    """The best monotone function of the forecasts, by the formula of maxima of minima."""
    values = np.unique(said)
    mean = [
        [
            happened[(said >= low) & (said <= high)].mean() if low <= high else np.inf
            for high in values
        ]
        for low in values
    ]
    fit = [max(min(mean[a][k:]) for a in range(k + 1)) for k in range(len(values))]
    return np.array(fit)[np.searchsorted(values, said)]


@pytest.mark.parametrize("seed", range(5))
def test_the_parts_of_a_score_agree_with_a_naive_monotone_fit(seed: int) -> None:
    random = np.random.default_rng(seed)
    said = random.integers(0, 8, 60) / 7
    happened = (random.random(60) < said**2).astype(float)
    parts, best = Decomposition.of(said, happened), naive_monotone(said, happened)
    assert parts.score == pytest.approx(((said - happened) ** 2).mean())
    assert parts.uncertainty == pytest.approx(happened.var())
    assert parts.reliability == pytest.approx(parts.score - ((best - happened) ** 2).mean())
    assert parts.score == pytest.approx(parts.reliability - parts.resolution + parts.uncertainty)
    assert min(parts.reliability, parts.resolution) >= 0


def test_forecasts_that_come_true_are_reliable_and_a_constant_has_no_resolution() -> None:
    said = np.repeat([0.0, 0.25, 0.75, 1.0], 4)
    happened = np.array([0, 0, 0, 0, 1, 0, 0, 0, 1, 1, 1, 0, 1, 1, 1, 1], dtype=float)
    assert Decomposition.of(said, happened).reliability == pytest.approx(0)
    assert Decomposition.of(np.full(16, 0.5), happened).resolution == pytest.approx(0)


def test_factorforge_is_judged_by_its_joint_draws(task: Task) -> None:
    joint, fan = (
        calibrate(FactorForge(), task, split="validation", joint=joint, device="cpu")
        for joint in (True, False)
    )
    assert (joint.n_scenarios, joint.description.joint) == (100, True)
    assert (fan.n_scenarios, fan.description.joint) == (16, False)
    assert len(joint.days) == 10


def test_marginal_scenarios_are_coupled_unless_those_that_are_scored_are_asked_for(
    task: Task,
) -> None:
    done = calibrate(Climatology(), task, split="validation", device="cpu")
    assert (done.description.variant, done.description.joint) == ("schaake", True)
    coupled = couple(Climatology(), "schaake", scenarios=16)
    expected = calibrate(coupled, task, split="validation", joint=False, device="cpu")
    assert np.array_equal(done.chance, expected.chance)


def test_marginal_scenarios_give_the_chance_of_the_worst_step(task: Task) -> None:
    done = calibrate(Climatology(), task, split="validation", joint=False, device="cpu")
    model = Climatology()
    model.fit(task.training)
    scenarios = model.predict(task.training.validation.context(0))
    outside = (scenarios.values[0, ..., V::KINDS] > HIGHEST).double()
    weights = scenarios.weights[0, :, None, V::KINDS].double()
    worst = (weights * outside).sum(0).amax(0).numpy()[done.counts]
    assert done.chance[0] == pytest.approx(worst, abs=1e-6)


def test_requests_without_an_answer_raise(task: Task, sixty_days: Store) -> None:
    with pytest.raises(TaskError, match="ieee14"):
        calibrate(LastSevenDays(), Task(sixty_days, windows=1, limits="0-2"))
    with pytest.raises(TaskError, match="lines"):
        calibrate(LastSevenDays(), task, subject="lines")
    with pytest.raises(UnknownName, match="validation"):
        calibrate(LastSevenDays(), task, split="valid")
    with pytest.raises(UnknownName, match="lines"):
        calibrate(LastSevenDays(), task, subject="line")


def test_the_command_shows_and_draws(sixty_days: Store, week: Calibration, tmp_path: Path) -> None:
    start = ("calibration", "last-7-days", "--data", sixty_days.path, "--limits", f"0-{HIGHEST}")
    figure = tmp_path / "figures" / "week.svg"
    shown = run(*start, "--format", "json", "--out", figure)
    answer = json.loads(shown.stdout)
    assert answer["brier"]["score"] == pytest.approx(week.brier.score)
    assert answer["hours_crps"] == pytest.approx(week.hours_crps.mean())
    assert len(answer["chance_bins"]) == len(week.chance_bins)
    assert figure.read_text().startswith("<?xml")
    table = run(*start).stdout
    assert f"{week.brier.score:.4f}" in table
    assert f"{week.hours_crps.mean():.4f}" in table


@pytest.mark.parametrize("wrong", [("--format", "cvs"), ("--out", "figure.gif")])
def test_a_wrong_request_fails_before_the_work(wrong: tuple[str, str]) -> None:
    assert wrong[1].rpartition(".")[2] in error_of(
        "calibration", "last-week", "--data", "nowhere", *wrong
    )


def test_overloads_of_past_days_are_compared_with_what_happened(rated: Store) -> None:
    """At 96 % of the ratings of IEEE 24, line 6-10 is overloaded on some days only."""
    task = Task(rated, windows="all")
    limits = replace(
        task.layout.limits, rating_mva=np.float64(0.96) * task.layout.limits.rating_mva
    )
    task.layout = replace(task.layout, limits=limits)
    done = calibrate(LastSevenDays(), task, subject="lines", device="cpu")
    state = np.asarray(rated.state[...]).astype(float)
    v, theta = state[:, V::KINDS], state[:, THETA::KINDS]
    loading = task.layout.circuit.loading(v, theta, limits.rating_mva)
    overload = (loading > 1)[:, done.counts].reshape(20, 96, -1)
    assert np.array(task.layout.circuit.name)[done.counts].tolist() == ["6-10"]
    for k in range(len(done.days)):
        today = 15 + k
        past = overload[today - 7 : today]
        assert done.chance[k] == pytest.approx(past.any(1).mean(0), abs=1e-6)
        assert np.array_equal(done.violated[k], overload[today].any(0))
        assert done.hours[k] == pytest.approx(past.sum(1).mean(0) / 4)
        assert done.hours_violated[k] == pytest.approx(overload[today].sum(0) / 4)
    assert 0 < done.violated.mean() < 1
