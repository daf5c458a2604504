"""Scenarios made physical: they obey the AC equations, and what was specified is as forecast."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase import (
    Context,
    Forecast,
    Scenarios,
    Store,
    Task,
    Training,
    forecast,
    generate,
    load_forecast,
    physical,
    score,
)
from powerphase.dataset import AcCheck
from powerphase.errors import ForecastError
from powerphase.evaluation import Balance
from powerphase.grid import BACKOFF_SCALES, PQ, PV, SLACK
from powerphase.models import Climatology, Forecaster, LastSevenDays, LastWeek
from powerphase.records import read_result, read_sidecar
from tests.command_line import run
from tests.dataset.exact import exact_signals

P, Q, V, THETA = range(4)


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, windows=2)


class Noisy:
    """The last seven days with independent noise on every channel, hence inconsistent."""

    def fit(self, train: Training) -> None:
        pass

    def predict(self, context: Context) -> Scenarios:
        days = LastSevenDays().predict(context).values
        generator = torch.Generator().manual_seed(14)
        noise = 1 + 0.05 * torch.randn(days.shape, generator=generator)
        weights = torch.rand((1, 7, days.shape[-1]), generator=generator)
        return Scenarios(days * noise, weights / weights.sum(1, keepdim=True))


class Growing(LastWeek):
    """Last week, with P and Q growing within a day from twice to ten times their values.

    The first steps can be solved, the next ones with reduced loads, and the last not at all.
    """

    name, variant = "growing", "steep"

    def predict(self, context: Context) -> Scenarios:
        values = super().predict(context).values.clone()
        growth = torch.linspace(2, 10, 96)[:, None]
        values[..., P::4] *= growth
        values[..., Q::4] *= growth
        return Scenarios.equal(values)


def scenarios_of(source: Forecast) -> list[Scenarios]:
    return [scenarios for _, _, scenarios in source.pieces(())]


def pair(model: Forecaster, task: Task) -> tuple[Scenarios, Scenarios, Balance]:
    """The scenarios of the first window before and after, and the balance of all windows."""
    plain = forecast(model, task)
    solved = physical(plain, task)
    after = scenarios_of(solved)[0]
    return scenarios_of(plain)[0], after, Balance(**solved.balance or {})


def states(scenarios: Scenarios, task: Task) -> np.ndarray:
    rows = scenarios.values[0].flatten(0, 1).numpy()
    return (rows.astype(float) * task.layout.scale).astype(np.float32)


def test_a_solved_state_does_not_change(task: Task) -> None:
    before, after, balance = pair(LastSevenDays(), task)
    torch.testing.assert_close(after.values, before.values, rtol=0, atol=1e-6)
    assert balance.newton == balance.steps == 2 * 7 * 96
    assert balance.before_largest_mva < 1e-3


def test_inconsistent_scenarios_become_as_consistent_as_the_record(task: Task) -> None:
    before, after, balance = pair(Noisy(), task)
    check = AcCheck(task.store.grid)
    assert (check.mismatch(states(before, task))[1] > 1e4).all()
    (largest, share) = check.mismatch(states(after, task))
    assert share.max() <= 1
    assert balance.rounding_share is not None
    assert share.max() <= balance.rounding_share <= 1
    assert balance.before_rms_mva > 10
    assert balance.after_largest_mva is not None
    assert largest.max() <= balance.after_largest_mva < 1e-3


def test_specified_values_keep_their_bits_and_the_rest_is_solved(task: Task) -> None:
    before, after, _ = pair(Noisy(), task)
    kind = task.store.grid.bus_type
    old, new = (s.values[0].unflatten(-1, (-1, 4)) for s in (before, after))
    assert torch.equal(new[..., kind != SLACK, P], old[..., kind != SLACK, P])
    assert torch.equal(new[..., kind == PQ, Q], old[..., kind == PQ, Q])
    assert (new[..., kind != PQ, V] == np.float32(1.02)).all()
    assert (new[..., kind == SLACK, THETA] == 0).all()
    for solved in (
        (kind == SLACK, P),
        (kind != PQ, Q),
        (kind == PQ, V),
        (kind != SLACK, THETA),
    ):
        assert not (new[..., *solved] == old[..., *solved]).any()


def test_weights_do_not_change(task: Task) -> None:
    before, after, _ = pair(Noisy(), task)
    assert torch.equal(after.weights, before.weights)


def test_a_held_voltage_is_the_set_point_of_the_recipe(tmp_path: Path) -> None:
    """Also if the record was cut from longer signals."""
    store = generate(
        "ieee14", tmp_path / "s", signals=exact_signals(45), setpoint="case", end="2015-02-12"
    )
    task = Task(store, windows=1)
    _, after, balance = pair(Noisy(), task)
    held = store.grid.bus_type == PV
    voltage = after.values[0].unflatten(-1, (-1, 4))[..., held, V]
    expected = torch.from_numpy(store.grid.setpoint_pu[held]).float()
    assert len(set(expected.tolist())) > 1
    torch.testing.assert_close(voltage, expected.expand_as(voltage), rtol=0, atol=1e-7)
    assert balance.newton == balance.steps


def test_steps_without_a_solution_are_backed_off_or_left_and_counted(sixty_days: Store) -> None:
    task = Task(sixty_days, windows=1)
    before, after, balance = pair(Growing(), task)
    share = AcCheck(task.store.grid).mismatch(states(after, task))[1]
    load = torch.from_numpy(task.store.grid.bus_type == PQ)
    old, new = (s.values[0, 0, :, P::4][:, load].double() for s in (before, after))
    scale = ((new * old).sum(1) / (old * old).sum(1)).numpy()
    kept = torch.eq(after.values, before.values)[0, 0].all(-1).numpy()
    assert kept.any()
    assert (share[kept] > 1).all()
    assert (share[~kept] <= 1).all()
    moved = ~kept & ~np.isclose(scale, 1)
    assert moved.any()
    assert {round(float(s), 6) for s in scale[moved]} <= set(BACKOFF_SCALES)
    assert balance.least_scale == pytest.approx(scale[moved].min())
    assert (balance.backed_off, balance.unsolved) == (moved.sum(), kept.sum())
    assert balance.newton + balance.iwamoto == (~moved & ~kept).sum() > 0
    assert f"{balance.unsolved:,} unsolved" in str(balance)


def test_scenarios_that_cannot_be_solved_do_not_change(task: Task) -> None:
    class Hopeless(LastWeek):
        name = "hopeless"

        def predict(self, context: Context) -> Scenarios:
            return Scenarios.equal(1e3 * super().predict(context).values)

    before, after, balance = pair(Hopeless(), task)
    assert torch.equal(before.values, after.values)
    assert balance.unsolved == balance.steps == 192
    assert balance.after_largest_mva is balance.after_rms_mva is balance.rounding_share is None
    assert np.isnan(score(physical(forecast(Hopeless(), task), task), task).sidecar[
        "physical/after_rms_mva"
    ])  # fmt: skip


def test_blocks_of_channels_are_joined_first(task: Task) -> None:
    class ByBlock(Noisy):
        def predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:  # type: ignore[override]
            whole = super().predict(context)
            for first, stop in ((6, 41), (0, 5), (5, 6), (41, 56)):
                yield slice(first, stop), whole.of_channels(slice(first, stop))

    blocked, whole = (scenarios_of(physical(forecast(m, task), task)) for m in (ByBlock(), Noisy()))
    for first, second in zip(blocked, whole, strict=True):
        assert torch.equal(first.values, second.values)
        assert torch.equal(first.weights, second.weights)


@pytest.mark.parametrize(
    ("blocks", "fact"),
    [
        (((0, 20, 3), (24, 56, 3)), "window 0, channel 20: "),
        (((0, 20, 3), (16, 56, 3)), "window 0, channel 16: "),
        (((0, 20, 3), (20, 56, 2)), "window 0, channel 20: 2 scenarios"),
    ],
)
def test_blocks_that_do_not_make_up_a_window_are_rejected(
    task: Task, blocks: tuple[tuple[int, int, int], ...], fact: str
) -> None:
    class Odd(Noisy):
        def predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:  # type: ignore[override]
            days = LastSevenDays().predict(context).values
            for first, stop, n in blocks:
                yield slice(first, stop), Scenarios.equal(days[:, :n, :, first:stop])

    with pytest.raises(ForecastError, match=fact):
        scenarios_of(physical(forecast(Odd(), task), task))


@pytest.mark.parametrize(
    ("model", "joint"), [(LastWeek(), True), (Climatology(), False), (Noisy(), None)]
)
def test_physical_scenarios_are_joint_only_if_their_source_is(
    task: Task, model: Any, joint: bool | None, tmp_path: Path
) -> None:
    solved = physical(forecast(model, task), task, out=tmp_path / "solved")
    assert solved.description.joint is joint
    assert score(solved, task).row.joint is joint


def test_the_row_has_the_variant_physical_and_its_balance(task: Task, tmp_path: Path) -> None:
    evaluation = score(physical(forecast(Growing(), task), task), task)
    path = evaluation.save(tmp_path)
    assert path.name == "growing+steep-physical-0.json"
    assert read_result(path).variant == "steep-physical"
    sidecar, balance = read_sidecar(path), evaluation.balance or {}
    for name, value in balance.items():
        assert sidecar[f"physical/{name}"] == value
    assert float(evaluation.row.cost["predict_s"] or 0) > balance["seconds"]
    assert physical(forecast(LastWeek(), task), task).description.variant == "physical"


def test_the_plain_row_has_no_balance(task: Task) -> None:
    plain = forecast(LastWeek(), task)
    scenarios_of(physical(plain, task))
    row = score(plain, task)
    assert row.row.variant is None
    assert row.balance is None
    assert not [name for name in row.sidecar if name.startswith("physical/")]


def test_a_forecast_that_is_physical_or_of_other_data_is_rejected(task: Task) -> None:
    plain = forecast(LastWeek(), task)
    other = replace(plain, facts={**plain.facts, "fingerprint": "0" * 64})
    with pytest.raises(ForecastError, match="fingerprint"):
        physical(other, task)
    with pytest.raises(ForecastError, match="last-week"):
        physical(physical(plain, task), task)


def test_files_and_live_forecasts_give_the_same_scenarios(task: Task, tmp_path: Path) -> None:
    forecast(LastSevenDays(), task, out=tmp_path / "plain")
    written = physical(tmp_path / "plain", task, out=tmp_path / "physical")
    live = physical(forecast(LastSevenDays(), task), task)
    for first, second in zip(scenarios_of(written), scenarios_of(live), strict=True):
        assert torch.equal(first.values, second.values)
    evaluation = score(tmp_path / "physical", task)
    assert evaluation.row.name == "last-7-days+physical"
    assert evaluation.balance == written.balance
    assert (evaluation.balance or {})["newton"] == 2 * 7 * 96


def test_a_continued_forecast_has_no_balance(task: Task, tmp_path: Path) -> None:
    class Stubborn(LastWeek):
        name, asked = "stubborn", 0

        def predict(self, context: Context) -> Scenarios:
            self.asked += 1
            if self.asked == 2:
                raise KeyboardInterrupt
            return super().predict(context)

    model = Stubborn()
    with pytest.raises(KeyboardInterrupt):
        physical(forecast(model, task), task, out=tmp_path / "f")
    physical(forecast(model, task), task, out=tmp_path / "f")
    continued = load_forecast(tmp_path / "f")
    assert (continued.balance, continued.cost["predict_s"]) == (None, None)
    whole = physical(forecast(LastWeek(), task), task)
    for first, second in zip(scenarios_of(continued), scenarios_of(whole), strict=True):
        assert torch.equal(first.values, second.values)
    assert score(continued, task).balance is None
    shown = run("score", tmp_path / "f", "--data", task.store.path, "--windows", "2")
    assert "power balance  unknown" in shown.stdout


def test_the_commands_have_an_option_for_it(sixty_days: Store, tmp_path: Path) -> None:
    data = ("--data", sixty_days.path, "--windows", "2")
    made = run("forecast", "last-7-days", *data, "--out", tmp_path / "f", "--physical")
    live = run("score", "last-week", *data, "--out", tmp_path / "results", "--physical")
    scored = run("score", tmp_path / "f", *data, "--out", tmp_path / "results")
    for done, n_steps in ((made, 1344), (live, 192), (scored, 1344)):
        assert "float32 rounding" in done.stdout
        assert f"{n_steps:,} steps in" in done.stdout
    assert "last-7-days+physical" in made.stdout
    shown = run("leaderboard", tmp_path / "results").stdout
    assert "last-week+physical" in shown
    assert "last-7-days+physical" in shown
    names = sorted(path.name for path in tmp_path.rglob("results/**/*.json"))
    assert names == ["last-7-days+physical-0.json", "last-week+physical-0.json"]
