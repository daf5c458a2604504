"""Tomorrow's overloads: from planted scenarios to a table, CSV, JSON and an exit status."""

import csv
import json
from collections.abc import Callable
from dataclasses import replace
from io import StringIO
from typing import Any

import numpy as np
import pytest
import torch

from powerphase import (
    Context,
    Outlook,
    Scenarios,
    Store,
    Task,
    Training,
    calibrate,
    couple,
    outlook,
)
from powerphase.axes import KINDS, THETA, P, V
from powerphase.cli.outlook_display import RISK_STATUS, as_csv, as_json, sheets, show_outlook
from powerphase.errors import ForecastError
from powerphase.grid import RATE_B
from tests.command_line import error_of, invoke, run

WEIGHTS = torch.tensor([0.5, 0.3, 0.2])
NOON = 48
BUSIEST = "6-10"
"""The only line that is overloaded at a rating of 96 % of the case file's."""


def task_at(store: Store, share: float) -> Task:
    """A task with this share of all ratings."""
    task = Task(store, windows=1)
    limits = task.layout.limits
    task.layout = replace(task.layout, limits=replace(limits, rating_mva=share * limits.rating_mva))
    return task


class Planted:
    """The last three days as scenarios, changed by a function of the values."""

    def __init__(
        self, change: Callable[[torch.Tensor], Any] = lambda values: None, joint: bool | None = True
    ) -> None:
        self.change, self.joint_scenarios = change, joint

    def fit(self, train: Training) -> None: ...

    def predict(self, context: Context) -> Scenarios:
        values = context.past[0].unflatten(0, (7, 96))[-3:].clone()
        self.change(values)
        return Scenarios(values[None], WEIGHTS[None, :, None].expand(1, 3, values.shape[-1]))


@pytest.fixture(scope="module")
def task(rated: Store) -> Task:
    return task_at(rated, 0.96)


@pytest.fixture(scope="module")
def loading(task: Task) -> np.ndarray:
    """The loading of the last three days, by the formula in NumPy."""
    states = task.tomorrow.past[0].unflatten(0, (7, 96))[-3:].double().numpy()
    circuit, limits = task.layout.circuit, task.layout.limits
    return circuit.loading(states[..., V::KINDS], states[..., THETA::KINDS], limits.rating_mva)


@pytest.fixture(scope="module")
def planted(task: Task) -> Outlook:
    return outlook(Planted(), task, device="cpu")


def test_a_past_day_is_overloaded_as_it_was(planted: Outlook, loading: np.ndarray) -> None:
    weights, lines = WEIGHTS.double().numpy(), planted.lines
    overload = loading > 1
    assert 0 < (weights @ overload.any(1)).max() < 1
    assert lines.ever == pytest.approx(weights @ overload.any(1), abs=1e-6)
    assert lines.violated == pytest.approx(np.einsum("M,MHL->HL", weights, overload), abs=1e-6)
    assert lines.hours == pytest.approx(np.einsum("M,MHL->L", weights, overload) / 4, abs=1e-5)
    assert lines.loading == pytest.approx(np.einsum("M,MHL->HL", weights, loading), abs=1e-5)
    assert np.array_equal(lines.worst_scenario, loading.max(1).argmax(0))
    assert lines.worst_loading == pytest.approx(loading.max((0, 1)), abs=1e-5)
    assert planted.layout.circuit.name[lines.branch[lines.order[0]]] == BUSIEST


def test_joint_scenarios_are_solved_so_that_their_own_angles_do_not_matter(
    task: Task, planted: Outlook
) -> None:
    def disturb(values: torch.Tensor) -> None:
        values[..., THETA::KINDS] = 0
        loads = torch.from_numpy(np.flatnonzero(task.layout.bus_type == 1))
        values[..., KINDS * loads + V] = 1

    loads = task.layout.bus_type == 1
    for joint, fan in ((True, planted.buses.low), (None, np.ones_like(planted.buses.low))):
        day = outlook(Planted(disturb, joint), task, device="cpu")
        np.testing.assert_allclose(day.lines.loading, planted.lines.loading, atol=1e-5)
        np.testing.assert_allclose(day.buses.low[:, loads], fan[:, loads], atol=1e-5)


def test_scenarios_that_are_not_joint_are_coupled_before_they_are_solved(task: Task) -> None:
    day = outlook(Planted(joint=False), task, device="cpu")
    coupled = couple(Planted(joint=False), "schaake", scenarios=4)  # of the record's five days
    expected = outlook(coupled, task, device="cpu")
    assert np.array_equal(day.lines.loading, expected.lines.loading)
    assert np.array_equal(day.lines.ever, expected.lines.ever)
    assert {row["joint"] for row in day.rows} == {"yes"}


def no_solution(*scenarios: int) -> Callable[[torch.Tensor], None]:
    """Plant loads that no power flow has into these scenarios, at noon."""

    def plant(values: torch.Tensor) -> None:
        values[list(scenarios), NOON, P::KINDS] *= 50

    return plant


def test_a_scenario_without_a_power_flow_is_left_out_and_counted(
    task: Task, loading: np.ndarray
) -> None:
    day = outlook(Planted(no_solution(1)), task, device="cpu")
    assert day.lines.n_unsolved == 1
    expected = np.array([0.5, 0.2]) / 0.7 @ (loading[[0, 2]] > 1).any(1)
    assert day.lines.ever == pytest.approx(expected, abs=1e-6)
    assert set(day.lines.worst_scenario) <= {0, 2}
    _, shown = sheets(day, 5)
    assert any("1 of 3 scenarios" in note for note in shown.below)


def test_lines_without_any_power_flow_are_unknown_and_never_safe(
    task: Task, capsys: pytest.CaptureFixture[str]
) -> None:
    day = outlook(Planted(no_solution(0, 1, 2)), task, device="cpu")
    lines = [row for row in day.rows if row["kind"] == "line"]
    assert len(lines) == 38
    assert {row["chance"] for row in lines} == {None}
    _, shown = sheets(day, 5)
    assert "unknown" in shown.above
    assert show_outlook(lambda: day, 5, "json", fail_above=1.0)
    captured = capsys.readouterr()
    assert all(row["loading_then"] is None for row in json.loads(captured.out)["rows"])
    assert "unknown" in captured.err
    with pytest.raises(ForecastError, match="power flow"):
        calibrate(Planted(no_solution(0, 1, 2)), task, subject="lines", device="cpu")


def test_all_formats_say_the_same(planted: Outlook) -> None:
    rows = planted.rows
    assert json.loads(as_json(planted))["rows"] == rows
    by_csv = list(csv.DictReader(StringIO(as_csv(planted))))
    texts = [{k: "" if v is None else str(v) for k, v in row.items()} for row in rows]
    assert by_csv == texts
    frame = planted.to_pandas()
    assert list(frame.columns) == list(rows[0])
    again = frame.assign(riskiest_time_utc=frame.riskiest_time_utc.dt.strftime("%Y-%m-%dT%H:%M"))
    assert again.astype(object).where(frame.notna(), None).to_dict("records") == rows
    assert (frame.kind == "line").sum() == 38
    _, shown = sheets(planted, 40)
    busiest = next(row for row in rows if row["kind"] == "line")
    first = [text for text, _ in shown.groups[0][0]]
    assert first[0] == busiest["name"] == BUSIEST
    assert first[2] == f"{busiest['chance']:.0%}"
    assert first[4] == busiest["riskiest_time_utc"][-5:]
    assert first[-1] == f"{busiest['worst_loading']:.0%} ({busiest['worst_scenario']})"


def test_unrated_lines_are_counted_and_not_listed(rated: Store) -> None:
    task = Task(rated, windows=1)
    rating = task.layout.limits.rating_mva.copy()
    rating[:3] = np.inf
    task.layout = replace(task.layout, limits=replace(task.layout.limits, rating_mva=rating))
    day = outlook(Planted(), task, device="cpu")
    names = {row["name"] for row in day.rows if row["kind"] == "line"}
    assert names == set(task.layout.circuit.name[3:])
    assert json.loads(as_json(day))["unrated_lines"] == 3


def test_the_exit_status_tells_risk_only_if_asked(rated: Store) -> None:
    """Generators are held at 1.02 p.u., so the upper limit is certainly exceeded."""
    start = ("tomorrow", "last-7-days", "--data", rated.path, "--format", "json")
    command = (*start, "--limits", "0.9-1.01")
    answer = run(*command).stdout
    assert max(row["chance"] for row in json.loads(answer)["rows"]) == 1
    assert run(*command, "--fail-above", 1).stdout == answer
    risky = invoke(*command, "--fail-above", 0.99)
    assert (risky.exit_code, risky.stdout) == (RISK_STATUS, answer)
    assert "0.99" in risky.stderr
    assert len({0, 1, 2, RISK_STATUS}) == 4


def test_the_rating_is_the_chosen_one(rated: Store) -> None:
    start = ("tomorrow", "last-week", "--data", rated.path, "--format", "json", "--rating", "B")
    answer = json.loads(run(*start).stdout)
    rating = {row["name"]: row["rating_mva"] for row in answer["rows"] if row["kind"] == "line"}
    names = rated.grid.circuit.name
    assert rating == dict(zip(names, rated.grid.branch[:, RATE_B], strict=True))
    assert answer["rating"] == "b"
    assert "lines" in error_of("calibration", *start[1:4], "--lines", "--windows", 1)


@pytest.mark.parametrize("wrong", ["nan", "-0.1", "1.5"])
def test_a_limit_of_the_chance_is_a_probability(rated: Store, wrong: str) -> None:
    start = ("tomorrow", "last-week", "--data", rated.path, "--fail-above")
    assert wrong in error_of(*start, wrong)
