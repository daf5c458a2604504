"""Lines in rows: from the branches of a store to scores, and limits of one's own."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from powerphase import Evaluation, Task, forecast, physical, score
from powerphase.axes import THETA, V
from powerphase.dataset import Store
from powerphase.errors import CaseError, TaskError, UnknownName
from powerphase.evaluation import array_differences, recheck_rows
from powerphase.grid import RATE_A, RATE_B, limits_of
from powerphase.metrics import LINE_SCORES
from powerphase.models import LastSevenDays, LastWeek
from powerphase.records import (
    BY_BRANCH,
    LINE,
    LINE_AXIS,
    LINE_BUSES,
    LINE_HAPPENED,
    LINE_NUMBER,
    LINE_PEAK,
    LINE_RISK,
    LINE_TOTALS,
    RATING,
    RISK_LEVELS,
    SCORES,
    Result,
    find_results,
    first_lines,
)
from tests.records.rows import NEW_FACTS


@pytest.fixture(scope="module")
def task(rated: Store) -> Task:
    return Task(rated, windows=2)


@pytest.fixture(scope="module")
def row(task: Task) -> Result:
    return score(forecast(LastSevenDays(), task), task).row


@pytest.fixture(scope="module")
def tight(rated: Store) -> Task:
    """The task with lower ratings, so that several lines are overloaded at times."""
    task = Task(rated, windows=2)
    limits = replace(task.layout.limits, rating_mva=0.6 * task.layout.limits.rating_mva)
    vars(task)["layout"] = replace(task.layout, limits=limits)
    return task


@pytest.fixture(scope="module")
def evaluation(tight: Task) -> Evaluation:
    return score(forecast(LastSevenDays(), tight), tight)


def test_a_layout_has_the_branches_of_the_store(task: Task) -> None:
    grid, circuit = task.store.grid, task.layout.circuit
    assert circuit.n_branches == len(grid.branch) == len(circuit.name)
    np.testing.assert_array_equal(task.layout.limits.rating_mva, grid.branch[:, RATE_A])
    assert task.layout.bus_id[circuit.ends[0]].tolist() == grid.branch[0, :2].tolist()


def test_a_row_has_all_scores_of_lines(row: Result) -> None:
    for name in LINE_SCORES:
        assert row.scores[name] is not None, name
        assert len(row.by_window[name] or []) == 2
        assert not any(name in scores for scores in row.by_type.values())


def test_the_share_of_overloads_is_that_of_the_stored_states(task: Task, row: Result) -> None:
    limits, circuit = task.layout.limits, task.layout.circuit
    overloads = []
    for window in range(2):
        target = task.test.target(window)[0].double().numpy()
        loading = circuit.loading(target[:, V::4], target[:, THETA::4], limits.rating_mva)
        overloads.append((loading > 1).mean())
    assert row.truth["overloads"] == pytest.approx(np.mean(overloads), abs=1e-9)


def test_the_sidecar_has_the_risk_of_the_lines_at_risk(tight: Task, evaluation: Evaluation) -> None:
    arrays, layout = evaluation.sidecar, tight.layout
    loading = []  # of the scenarios and, last, of what happened
    for window in range(2):
        scenarios = LastSevenDays().predict(tight.test.context(window)).values[0]
        states = torch.cat([scenarios, tight.test.target(window)]).double().numpy()
        v, theta = states[..., V::4], states[..., THETA::4]
        loading.append(layout.circuit.loading(v, theta, layout.limits.rating_mva))
    overloaded = np.stack(loading).transpose(0, 1, 3, 2) > 1
    probability, happened = overloaded[:, :-1].mean(axis=1), overloaded[:, -1]
    at_risk = np.flatnonzero((probability + happened).any(axis=(0, 2)))
    assert sorted(arrays[LINE]) == at_risk.tolist()  # all branches are in service
    lines = arrays[LINE]
    assert abs(arrays[LINE_RISK] / RISK_LEVELS - probability[:, lines]).max() < 1 / RISK_LEVELS
    np.testing.assert_array_equal(arrays[LINE_HAPPENED], happened[:, lines])
    peak = np.stack(loading)[:, -1].max(axis=1)[:, lines]
    np.testing.assert_allclose(arrays[LINE_PEAK], peak, rtol=1e-5)
    share = arrays["by_branch/overload"]
    assert share == pytest.approx(happened[:, lines].mean(axis=(0, 2)), rel=2**-9)
    assert (np.diff(share) <= 0).all()


def test_stored_lines_are_those_of_the_branch_matrix(rated: Store, evaluation: Evaluation) -> None:
    arrays, branch = evaluation.sidecar, rated.grid.branch
    rows = branch[arrays[LINE]]
    np.testing.assert_array_equal(arrays[LINE_BUSES], rows[:, :2])
    np.testing.assert_allclose(arrays[RATING], 0.6 * rows[:, RATE_A])
    pairs = np.sort(branch[:, :2], axis=1)
    for row, number in zip(arrays[LINE], arrays[LINE_NUMBER], strict=True):
        assert number == (pairs[: row + 1] == pairs[row]).all(axis=1).sum()
    assert arrays[LINE_TOTALS].tolist() == [len(rows), len(branch), len(branch)]


def test_a_changed_line_is_noticed_and_a_line_less_is_not_lost_silently(
    evaluation: Evaluation,
) -> None:
    stored = evaluation.sidecar
    assert {f"by_branch/{name}" for name in BY_BRANCH} < set(stored)
    for name in (LINE_TOTALS, *LINE_AXIS):
        changed = stored[name].copy()
        changed.flat[0] += 9
        (difference,) = array_differences({**stored, name: changed}, stored)
        assert difference.name.startswith(name)
    assert list(array_differences(first_lines(stored, len(stored[LINE]) - 1), stored))


def test_a_past_day_satisfies_the_power_balance(row: Result) -> None:
    """Its scenarios are states of the record: what is left is the rounding to float32."""
    assert 0 < (row.scores["balance_rms_mva"] or 0) < 1e-3


def test_solving_removes_the_imbalance_of_mixed_channels(task: Task) -> None:
    class Mixed(LastWeek):
        """Last week, with the angles of one bus shifted."""

        name = "mixed"

        def predict(self, context):  # type: ignore[no-untyped-def]
            scenarios = super().predict(context)
            scenarios.values[..., 4 * 5 + THETA] += 0.05
            return scenarios

    plain = forecast(Mixed(), task)
    before, after = (
        score(source, task).scores["balance_rms_mva"] for source in (plain, physical(plain, task))
    )
    assert before is not None
    assert after is not None
    assert before > 1
    assert after < 1e-3


def test_other_limits_are_another_task_for_the_same_forecast(
    rated: Store, task: Task, row: Result, tmp_path: Path
) -> None:
    written = forecast(LastSevenDays(), task, out=tmp_path / "forecast")
    strict = Task(rated, windows=2, limits="case", rating="b")
    other = score(written, strict)
    assert other.row.task == f"{task.name}-case-limits-rating-b"
    assert other.row.path != row.path
    rating = limits_of(rated.grid, rating="b").rating_mva
    np.testing.assert_array_equal(rating, rated.grid.branch[:, RATE_B])
    assert (other.scores["loading_crps"] or 0) < (row.scores["loading_crps"] or 0)
    assert other.scores["crps"] == row.scores["crps"]
    for evaluation in (other, score(written, task)):
        evaluation.save(tmp_path / "results")
    checks = list(recheck_rows(find_results([tmp_path / "results"]), tmp_path, rated.path))
    assert [check.outcome for check in checks] == ["matches", "matches"]


def test_a_row_of_the_first_schema_is_checked_by_the_scores_that_it_has(
    rated: Store, task: Task, tmp_path: Path
) -> None:
    written = forecast(LastSevenDays(), task, out=tmp_path / "forecast")
    file = score(written, task).save(tmp_path / "results")
    values = json.loads(file.read_text()) | {"schema": 1}
    for key in NEW_FACTS:
        del values[key]
    del values["truth"]["overloads"]
    for block in (values["scores"], values["by_window"]):
        for name in LINE_SCORES:
            del block[name]
    file.write_text(json.dumps(values))
    (check,) = recheck_rows(find_results([tmp_path / "results"]), tmp_path, rated.path)
    assert (check.row.schema, check.outcome) == (1, "matches")


def test_limits_that_do_not_exist_raise(rated: Store, sixty_days: Store) -> None:
    with pytest.raises(UnknownName):
        Task(rated, limits="wide")
    with pytest.raises(UnknownName):
        Task(rated, rating="d")
    for text in ("0.9-", "0.9-1.1234", "-1.1"):
        with pytest.raises(UnknownName, match="LOW-HIGH"):
            Task(rated, limits=text)
    for text in ("1.1-0.9", "1-1.0"):
        with pytest.raises(TaskError, match="lower"):
            Task(rated, limits=text)
    with pytest.raises(CaseError, match="rating C"):
        _ = Task(sixty_days, windows=2, rating="c").layout


def test_a_grid_without_ratings_has_rows_without_loading(sixty_days: Store) -> None:
    task = Task(sixty_days, windows=2)
    row = score(forecast(LastSevenDays(), task), task).row
    missing = {name for name, value in row.scores.items() if value is None}
    assert missing == {name for name, about in SCORES.items() if about.needs_ratings}
    assert row.truth["overloads"] is None
    assert Result.from_json(row.to_json(), "row.json") == row
