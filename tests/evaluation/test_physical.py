"""Scenarios made physical: they obey the AC equations, and what was specified is as forecast."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from powerphase import cli
from powerphase.dataset import AcCheck, Store, generate
from powerphase.errors import ForecastError
from powerphase.evaluation.forecasting import Forecast, forecast, load_forecast
from powerphase.evaluation.physical import Balance, physical
from powerphase.evaluation.scoring import score
from powerphase.grid import BACKOFF_SCALES, PQ, PV, SLACK
from powerphase.models.naive import LastSevenDays, LastWeek
from powerphase.records.result import read_result, read_sidecar
from powerphase.scenarios import Context, Scenarios, Training
from powerphase.task.windows import Task
from tests.dataset.exact import exact_signals

P, Q, V, THETA = range(4)


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, windows=2)


class Noisy:
    """The last seven days with noise on every channel alike, so that nothing fits together."""

    def fit(self, train: Training) -> None:
        pass

    def predict(self, context: Context) -> Scenarios:
        days = LastSevenDays().predict(context).values
        generator = torch.Generator().manual_seed(14)
        noise = 1 + 0.05 * torch.randn(days.shape, generator=generator)
        weights = torch.rand((1, 7, days.shape[-1]), generator=generator)
        return Scenarios(days * noise, weights / weights.sum(1, keepdim=True))


class Growing(LastWeek):
    """Last week, with P and Q growing from twice to ten times what they were in a day.

    The grid carries the first steps; a little less of the next ones; and none of the last.
    """

    name, variant = "growing", "steep"

    def predict(self, context: Context) -> Scenarios:
        values = super().predict(context).values.clone()
        growth = torch.linspace(2, 10, 96)[:, None]
        values[..., P::4] *= growth
        values[..., Q::4] *= growth
        return Scenarios.equal(values)


def scenarios_of(given: Forecast) -> list[Scenarios]:
    return [scenarios for _, _, scenarios in given.pieces(())]


def pair(model: object, task: Task) -> tuple[Scenarios, Scenarios, Balance]:
    """The first window's scenarios as they are and as they become, and the account of all."""
    plain = forecast(model, task)  # type: ignore[arg-type]
    made = physical(plain, task)
    after = scenarios_of(made)[0]
    return scenarios_of(plain)[0], after, Balance(**made.balance or {})


def states(scenarios: Scenarios, task: Task) -> np.ndarray:
    rows = scenarios.values[0].flatten(0, 1).numpy()
    return (rows.astype(float) * task.layout.scale).astype(np.float32)


def test_a_true_state_comes_back_as_itself(task: Task) -> None:
    before, after, balance = pair(LastSevenDays(), task)
    torch.testing.assert_close(after.values, before.values, rtol=0, atol=1e-6)
    assert balance.newton == balance.steps == 2 * 7 * 96
    assert balance.before_largest_mva < 1e-3


def test_what_was_off_obeys_the_equations_as_well_as_the_record(task: Task) -> None:
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


def test_what_is_specified_keeps_its_bits_and_the_rest_is_solved(task: Task) -> None:
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


def test_weights_stay_as_they_are(task: Task) -> None:
    before, after, _ = pair(Noisy(), task)
    assert torch.equal(after.weights, before.weights)


def test_a_held_voltage_is_the_one_of_the_recipe(tmp_path: Path) -> None:
    """Of a record that was cut from longer signals, too."""
    store = generate(
        "ieee14", tmp_path / "s", signals=exact_signals(45), setpoint="case", end="2015-02-12"
    )
    task = Task(store, windows=1)
    _, after, balance = pair(Noisy(), task)
    held = store.grid.bus_type == PV
    voltage = after.values[0].unflatten(-1, (-1, 4))[..., held, V]
    wanted = torch.from_numpy(store.grid.setpoint_pu[held]).float()
    assert len(set(wanted.tolist())) > 1
    torch.testing.assert_close(voltage, wanted.expand_as(voltage), rtol=0, atol=1e-7)
    assert balance.newton == balance.steps


def test_a_step_without_solution_is_backed_off_or_stays_and_is_counted(sixty_days: Store) -> None:
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
    assert "unsolved and left as forecast" in str(balance)


def test_where_nothing_solves_nothing_changes(task: Task) -> None:
    class Hopeless(LastWeek):
        def predict(self, context: Context) -> Scenarios:
            return Scenarios.equal(1e3 * super().predict(context).values)

    before, after, balance = pair(Hopeless(), task)
    assert torch.equal(before.values, after.values)
    assert balance.unsolved == balance.steps == 192
    assert balance.after_largest_mva is balance.after_rms_mva is balance.rounding_share is None
    assert "nothing solved" in str(balance)
    assert np.isnan(score(physical(forecast(Hopeless(), task), task), task).sidecar[
        "physical/after_rms_mva"
    ])  # fmt: skip


def test_blocks_of_channels_are_put_together_first(task: Task) -> None:
    class ByBlock(Noisy):
        def predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:  # type: ignore[override]
            whole = super().predict(context)
            for first, stop in ((6, 41), (0, 5), (5, 6), (41, 56)):
                yield slice(first, stop), whole.of_channels(slice(first, stop))

    blocked, whole = (scenarios_of(physical(forecast(m, task), task)) for m in (ByBlock(), Noisy()))
    for ours, theirs in zip(blocked, whole, strict=True):
        assert torch.equal(ours.values, theirs.values)
        assert torch.equal(ours.weights, theirs.weights)


@pytest.mark.parametrize(
    ("blocks", "says"),
    [
        (((0, 20, 3), (24, 56, 3)), "window 0, channel 20: "),
        (((0, 20, 3), (16, 56, 3)), "window 0, channel 16: "),
        (((0, 20, 3), (20, 56, 2)), "window 0, channel 20: 2 scenarios"),
    ],
)
def test_blocks_that_do_not_make_a_window_are_refused(
    task: Task, blocks: tuple[tuple[int, int, int], ...], says: str
) -> None:
    class Odd(Noisy):
        def predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:  # type: ignore[override]
            days = LastSevenDays().predict(context).values
            for first, stop, n in blocks:
                yield slice(first, stop), Scenarios.equal(days[:, :n, :, first:stop])

    with pytest.raises(ForecastError, match=says):
        scenarios_of(physical(forecast(Odd(), task), task))


def test_the_row_is_one_of_a_variant_and_says_what_was_found(task: Task, tmp_path: Path) -> None:
    made = physical(forecast(Growing(), task), task)
    evaluation = score(made, task)
    path = evaluation.save(tmp_path)
    assert path.name == "growing+steep-physical-0.json"
    assert read_result(path).variant == "steep-physical"
    sidecar, balance = read_sidecar(path), evaluation.balance or {}
    for name, value in balance.items():
        assert sidecar[f"physical/{name}"] == value
    assert evaluation.row.cost["predict_s"] > balance["seconds"]
    assert physical(forecast(LastWeek(), task), task).description.variant == "physical"


def test_the_model_s_own_row_knows_nothing_of_it(task: Task) -> None:
    plain = forecast(LastWeek(), task)
    scenarios_of(physical(plain, task))
    row = score(plain, task)
    assert row.row.variant is row.balance is None
    assert not [name for name in row.sidecar if name.startswith("physical/")]


def test_a_forecast_of_other_data_or_physical_already_is_refused(task: Task) -> None:
    plain = forecast(LastWeek(), task)
    other = replace(plain, facts={**plain.facts, "fingerprint": "0" * 64})
    with pytest.raises(ForecastError, match="made for fingerprint"):
        physical(other, task)
    with pytest.raises(ForecastError, match="last-week is physical already"):
        physical(physical(plain, task), task)


def test_from_a_file_and_into_a_file_it_is_the_same(task: Task, tmp_path: Path) -> None:
    forecast(LastSevenDays(), task, out=tmp_path / "plain")
    written = physical(tmp_path / "plain", task, out=tmp_path / "physical")
    live = physical(forecast(LastSevenDays(), task), task)
    for ours, theirs in zip(scenarios_of(written), scenarios_of(live), strict=True):
        assert torch.equal(ours.values, theirs.values)
    evaluation = score(tmp_path / "physical", task)
    assert evaluation.row.name == "last-7-days+physical"
    assert evaluation.balance == written.balance
    assert (evaluation.balance or {})["newton"] == 2 * 7 * 96


def test_an_interrupted_one_goes_on_and_does_not_guess_its_balance(
    task: Task, tmp_path: Path
) -> None:
    class Stubborn(LastWeek):
        asked = 0

        def predict(self, context: Context) -> Scenarios:
            self.asked += 1
            if self.asked == 2:
                raise KeyboardInterrupt
            return super().predict(context)

    model = Stubborn()
    with pytest.raises(KeyboardInterrupt):
        physical(forecast(model, task), task, out=tmp_path / "f")
    physical(forecast(model, task), task, out=tmp_path / "f")
    found = load_forecast(tmp_path / "f")
    assert (found.balance, found.cost["predict_s"]) == (None, None)
    whole = physical(forecast(LastWeek(), task), task)
    for ours, theirs in zip(scenarios_of(found), scenarios_of(whole), strict=True):
        assert torch.equal(ours.values, theirs.values)
    assert score(found, task).balance is None
    shown = command("score", tmp_path / "f", "--data", task.store.path, "--windows", "2")
    assert "power balance  not known" in shown.stdout


def command(*arguments: object) -> Result:
    done = CliRunner().invoke(cli.app, [*map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done


def test_the_command_takes_it_as_an_option(sixty_days: Store, tmp_path: Path) -> None:
    data = ("--data", sixty_days.path, "--windows", "2")
    made = command("forecast", "last-7-days", *data, "--out", tmp_path / "f", "--physical")
    live = command("score", "last-week", *data, "--out", tmp_path / "results", "--physical")
    scored = command("score", tmp_path / "f", *data, "--out", tmp_path / "results")
    for done, n_steps in ((made, 1344), (live, 192), (scored, 1344)):
        assert "of what float32 rounding can explain" in done.stdout
        assert f"{n_steps:,} steps in" in done.stdout
    assert "last-7-days+physical" in made.stdout
    shown = command("leaderboard", tmp_path / "results").stdout
    assert "last-week+physical" in shown
    assert "last-7-days+physical" in shown
    names = sorted(path.name for path in tmp_path.rglob("results/**/*.json"))
    assert names == ["last-7-days+physical-0.json", "last-week+physical-0.json"]
