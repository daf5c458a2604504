"""From a model to a row: exact, blind to the target, and strict about what it is given."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import zarr

from powerphase.axes import KINDS, VARIABLES, V
from powerphase.dataset import Store, open_store
from powerphase.errors import ForecastError, PowerphaseError, ResultError
from powerphase.evaluation.forecasting import Forecast, forecast, load_forecast
from powerphase.evaluation.scoring import Evaluation, score
from powerphase.evaluation.sidecar import SHOWN_SCENARIOS, thinned
from powerphase.models.naive import Climatology, LastSevenDays, LastWeek
from powerphase.records.result import RISK_LEVELS, read_result, read_sidecar
from powerphase.records.scores import NORMAL_BAND_PU, SCORES
from powerphase.scenarios import Context, Scenarios, Training
from powerphase.task.windows import Task


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days)


@pytest.fixture(scope="module")
def evaluation(task: Task) -> Evaluation:
    return score(forecast(LastSevenDays(), task), task)


class Answers:
    """A model that gives whatever it is told to."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def fit(self, train: Training) -> None:
        pass

    def predict(self, context: Context) -> Scenarios:
        return self.answer(context)  # type: ignore[operator]


class ByBlock:
    """Last seven days, answered in uneven blocks of channels."""

    name = "last-7-days"

    def fit(self, train: Training) -> None:
        pass

    def predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:
        whole = LastSevenDays().predict(context)
        for first, stop in ((0, 5), (5, 6), (6, 41), (41, 56)):
            yield slice(first, stop), whole.of_channels(slice(first, stop))


def test_a_row_is_the_plain_mean_of_its_windows(task: Task, evaluation: Evaluation) -> None:
    errors = []
    for window in range(len(task.test)):
        values = LastSevenDays().predict(task.test.context(window)).values[0].double()
        errors.append((values.mean(0) - task.test.target(window)[0]).square().mean().item())
    assert evaluation.scores["mse"] == pytest.approx(np.mean(errors), rel=1e-5)
    assert evaluation.row.by_window["mse"] == pytest.approx(errors, rel=1e-5)
    assert evaluation.row.scenarios == 7
    assert evaluation.row.windows[0] == task.test.start(0)


def test_scored_by_block_is_scored_whole(task: Task, evaluation: Evaluation) -> None:
    blocked = score(forecast(ByBlock(), task), task)
    for name, value in evaluation.scores.items():
        assert blocked.scores[name] == pytest.approx(value, rel=1e-9, abs=1e-15), name
    for name, array in evaluation.sidecar.items():
        np.testing.assert_allclose(blocked.sidecar[name], array, rtol=1e-6, err_msg=name)


def test_predict_cannot_see_the_target(task: Task, tmp_path: Path) -> None:
    """Change everything from a window's origin on; no forecast for it may change."""
    window = 3
    origin = int(task.test.origins[window])
    changed = shutil.copytree(task.store.path, tmp_path / "changed")
    state = zarr.open_array(changed / "state", mode="r+")
    state[origin:] = np.asarray(state[origin:]) * 3 + 1
    other = Task(open_store(changed))
    assert not torch.equal(other.test.target(window), task.test.target(window))
    for model in (LastWeek, LastSevenDays, Climatology):
        seen = []
        for given in (task, other):
            fitted = model()
            fitted.fit(given.training)
            seen.append(fitted.predict(given.test.context(window)).values)
        assert torch.equal(*seen), model.name


def test_a_file_gives_the_scores_that_the_model_gave(
    task: Task, evaluation: Evaluation, tmp_path: Path
) -> None:
    written = forecast(LastSevenDays(), task, out=tmp_path / "f")
    again = score(tmp_path / "f", task)
    assert again.scores == pytest.approx(evaluation.scores, rel=1e-9, nan_ok=True)
    assert again.row.cost["hardware"] == written.cost["hardware"]


def test_a_row_and_its_sidecar_come_back_from_disk(evaluation: Evaluation, tmp_path: Path) -> None:
    path = evaluation.save(tmp_path)
    assert path == tmp_path / "powerphase-day-ahead/exact/ieee14/last-7-days-0.json"
    assert read_result(path) == evaluation.row
    found = read_sidecar(path)
    assert set(found) == set(evaluation.sidecar)
    assert found["by_bus/crps"].shape == (14, 4)
    assert found["by_bus/brier"].shape == (14,)
    assert found["by_step/crps"].shape == (96, 4)
    assert found["by_bus/crps"].mean() == pytest.approx(evaluation.scores["crps"], rel=1e-5)
    assert found["reliability"][:, 0].sum() == 10 * 96 * 14


def test_the_sidecar_shows_what_was_forecast(task: Task, evaluation: Evaluation) -> None:
    found = evaluation.sidecar
    assert list(found["shown/window"]) == [0, 4, 9]
    rows = task.store.grid.rows(found["shown/bus_id"])
    assert len(set(rows)) == 14  # all of them, where there are no more
    channels = 4 * rows[:, None] + np.arange(4)
    for k, window in enumerate((0, 4, 9)):
        values = LastSevenDays().predict(task.test.context(window)).values[0].numpy()
        shown = found["shown/target"][k] + found["shown/error"][k].astype(np.float32)
        np.testing.assert_allclose(shown, values[..., channels], atol=2e-3)
    assert found["shown/weight"].shape == (3, 7, 14, 4)


def test_every_score_is_told_with_its_question(evaluation: Evaluation) -> None:
    for name, info in SCORES.items():
        assert info.question in str(evaluation), name
    assert set(evaluation.row.by_type) == set(VARIABLES)


def test_a_forecast_of_other_data_is_refused(task: Task, tmp_path: Path) -> None:
    given = forecast(LastWeek(), task)
    for name, value in (
        ("fingerprint", "0" * 64),
        ("task_version", 2),
        ("scale", [1.0, 1.0]),
    ):
        other = Forecast({**given.facts, name: value}, given.description, given.cost, given.pieces)
        with pytest.raises(ForecastError, match=f"made for {name}"):
            score(other, task)


def test_a_forecast_with_another_or_a_missing_window_is_refused(task: Task) -> None:
    given = forecast(LastWeek(), task)
    windows = given.facts["windows"]
    for other, where in (
        ([*windows[:-1], "2031-01-01T00:00"], "window 9: forecast for 2031-01-01T00:00"),
        (windows[:-1], "window 9: forecast for nothing"),
        ([windows[0], *windows[:-1]], f"window 1: forecast for {windows[0]}"),
    ):
        facts = {**given.facts, "windows": other}
        with pytest.raises(ForecastError, match=where):
            score(Forecast(facts, given.description, given.cost, given.pieces), task)


def test_a_forecast_for_another_task_is_refused(sixty_days: Store, task: Task) -> None:
    with pytest.raises(ForecastError, match="powerphase-day-ahead-all"):
        score(forecast(LastWeek(), Task(sixty_days, windows="all")), task)


def test_what_a_model_does_wrong_is_told_with_window_step_and_channel(task: Task) -> None:
    def spoilt(context: Context) -> Scenarios:
        values = LastSevenDays().predict(context).values.clone()
        if str(context.future_time[0, 0]) == f"{task.test.start(2)}:00":
            values[0, 4, 17, 30] = float("nan")
        return Scenarios.equal(values)

    with pytest.raises(ForecastError, match="window 2, step 17, channel 30: scenario 4 is nan"):
        score(forecast(Answers(spoilt), task), task)


def test_a_nan_in_a_later_block_is_told_with_its_channel(task: Task) -> None:
    def spoilt(context: Context) -> Iterator[tuple[slice, Scenarios]]:
        values = LastSevenDays().predict(context).values.clone()
        values[0, 0, 3, 50] = float("inf")
        yield slice(0, 40), Scenarios.equal(values[..., :40])
        yield slice(40, 56), Scenarios.equal(values[..., 40:])

    with pytest.raises(ForecastError, match="window 0, step 3, channel 50: scenario 0 is inf"):
        score(forecast(Answers(spoilt), task), task)


def test_a_forecast_beyond_all_measure_is_told_as_such(task: Task) -> None:
    def astray(context: Context) -> Scenarios:
        return Scenarios.equal(LastSevenDays().predict(context).values + 1e30)

    with pytest.raises(ForecastError, match="so large that mse cannot be computed; normalised"):
        score(forecast(Answers(astray), task), task)


def test_a_model_may_forget_that_it_needs_no_gradients(task: Task) -> None:
    def trained(context: Context) -> Scenarios:
        factor = torch.ones((), requires_grad=True)
        return Scenarios.equal(factor * context.past[:, None, -96:])

    assert score(forecast(Answers(trained), task), task).scores["crps"] > 0


def test_an_answer_of_the_wrong_kind_is_refused(task: Task) -> None:
    with pytest.raises(ForecastError, match="window 0: predict gave Tensor"):
        score(forecast(Answers(lambda context: context.past), task), task)


ODD = "scenarios 1, steps"
NEEDED = "channels 56; needed are windows 1, scenarios any number, steps 96, channels 56"


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (lambda s: torch_pair(s), "window 0: a block must be .*found tuple"),
        (lambda s: iter([s]), "window 0: a block must be .*found Scenarios"),
        (
            lambda s: Scenarios.equal(s.values.repeat(2, 1, 1, 1)),
            f"gave windows 2, {ODD} 96, {NEEDED}",
        ),
        (
            lambda s: Scenarios.equal(s.values[:, :, 1:]),
            f"window 0: predict gave windows 1, {ODD} 95, {NEEDED}",
        ),
        (lambda s: iter([(slice(2, None, 4), s.of_channels(slice(2, None, 4)))]), "consecutive"),
        (lambda s: iter([]), "window 0: "),
    ],
)
def test_an_odd_answer_is_refused_in_words(
    task: Task, tmp_path: Path, answer: object, says: str, written: bool
) -> None:
    model = Answers(lambda context: answer(LastWeek().predict(context)))  # type: ignore[operator]
    with pytest.raises(ForecastError, match=says):
        score(forecast(model, task, out=tmp_path / "f" if written else None), task)


def torch_pair(scenarios: Scenarios) -> Iterator[tuple[slice, torch.Tensor]]:
    yield slice(None), scenarios.values


@pytest.mark.parametrize(
    ("attribute", "value", "says"),
    [
        ("name", "My_Model", "lower-case letters, digits and hyphens"),
        ("variant", "v1.2", "lower-case letters, digits and hyphens"),
        ("config", {"path": Path("x")}, "what JSON can hold"),
    ],
)
def test_what_a_row_cannot_say_is_refused_before_the_fit(
    task: Task, attribute: str, value: object, says: str
) -> None:
    class Proud(LastWeek):
        def fit(self, train: Training) -> None:
            raise AssertionError("fitted")

    setattr(Proud, attribute, value)
    with pytest.raises(ForecastError, match=says):
        forecast(Proud(), task)


def test_numbers_and_tuples_of_a_model_become_plain(task: Task) -> None:
    class Plain(LastWeek):
        name, config, seed, n_parameters = "plain", {"sizes": (1, 2)}, np.int64(3), np.int64(4)

    row = score(forecast(Plain(), task), task).row
    assert (row.config, row.seed, row.parameters) == ({"sizes": [1, 2]}, 3, 4)


def test_a_class_in_place_of_an_object_is_refused(task: Task) -> None:
    with pytest.raises(ForecastError, match=r"LastWeek.* is no forecaster; give an object"):
        forecast(LastWeek, task)  # type: ignore[arg-type]


def test_a_model_cannot_turn_the_clock(task: Task) -> None:
    def meddling(context: Context) -> Scenarios:
        context.time[:] += np.timedelta64(1, "h")
        return LastWeek().predict(context)

    with pytest.raises(ValueError, match="read-only"):
        score(forecast(Answers(meddling), task), task)


def test_an_answer_with_channels_missing_is_refused(task: Task) -> None:
    def short(context: Context) -> Iterator[tuple[slice, Scenarios]]:
        yield slice(0, 52), LastWeek().predict(context).of_channels(slice(0, 52))

    with pytest.raises(ForecastError, match="window 0, channel 52: the forecast has no scenarios"):
        score(forecast(Answers(short), task), task)


def test_an_interrupted_forecast_goes_on_where_it_stopped(task: Task, tmp_path: Path) -> None:
    asked = []

    class Stubborn(LastWeek):
        patience = 4

        def predict(self, context: Context) -> Scenarios:
            asked.append(str(context.future_time[0, 0]))
            if len(asked) == self.patience:
                raise KeyboardInterrupt
            return super().predict(context)

    with pytest.raises(KeyboardInterrupt):
        forecast(Stubborn(), task, out=tmp_path / "f")
    begun = asked.copy()
    done = forecast(Stubborn(), task, out=tmp_path / "f")
    assert len(begun) == 4
    # Window 0 once more, to learn how many scenarios there are; then the seven that were missing.
    assert asked[4:] == [begun[0], *(f"{task.test.start(k)}:00" for k in range(3, 10))]
    undisturbed = forecast(LastWeek(), task, out=tmp_path / "g")
    for piece, other in zip(done.pieces(()), undisturbed.pieces(()), strict=True):
        assert torch.equal(piece[2].values, other[2].values)
    assert done.cost["predict_s"] is None


def test_another_model_of_the_same_name_does_not_pass_for_the_old_one(
    task: Task, tmp_path: Path
) -> None:
    def day(back: int) -> Answers:
        return Answers(lambda c: Scenarios.equal(c.past[:, None, -96 * back :][:, :, :96]))

    forecast(day(1), task, out=tmp_path / "f")
    assert forecast(day(1), task, out=tmp_path / "f").description.model == "answers"
    with pytest.raises(ForecastError, match="the model now forecasts something else"):
        forecast(day(2), task, out=tmp_path / "f")


def test_a_row_is_not_written_over_by_one_of_other_data(
    task: Task, evaluation: Evaluation, tmp_path: Path
) -> None:
    evaluation.save(tmp_path)
    evaluation.save(tmp_path)  # scored again, the same row
    other = replace(evaluation.row, fingerprint="0" * 64)
    with pytest.raises(ResultError, match="holds a row with another fingerprint"):
        Evaluation(other, evaluation.sidecar).save(tmp_path)


@pytest.mark.parametrize(("name", "says"), [("gpu", "no device 'gpu'"), ("cuda", "no GPU here")])
def test_a_device_that_is_not_there_is_told_plainly(task: Task, name: str, says: str) -> None:
    if name == "cuda" and torch.cuda.is_available():
        pytest.skip("there is one")
    with pytest.raises(PowerphaseError, match=says):
        forecast(LastWeek(), task, device=name)


def test_nan_in_a_file_is_refused_with_its_place(task: Task, tmp_path: Path) -> None:
    forecast(LastSevenDays(), task, out=tmp_path / "f")
    values = zarr.open_array(tmp_path / "f/values", mode="r+")
    spoilt = np.asarray(values[5])
    spoilt[1, 2, 3] = np.nan
    values[5] = spoilt
    with pytest.raises(ForecastError, match="window 5, step 2, channel 3: scenario 1 is nan"):
        score(load_forecast(tmp_path / "f"), task)


def test_the_sidecar_tells_the_risk_of_every_voltage(task: Task) -> None:
    """Three of seven days, with 6 of 28 parts of the weight, are far below the band everywhere."""

    def lowered(context: Context) -> Scenarios:
        values = LastSevenDays().predict(context).values.clone()
        values[:, :3, 48:, V::KINDS] -= 0.2
        weights = torch.arange(1.0, 8.0)[None, :, None] / 28
        return Scenarios(values, weights.expand(1, -1, values.shape[-1]))

    class Lowered(Answers):
        name = "lowered"

    found = score(forecast(Lowered(lowered), task), task).sidecar
    risk, happened = found["risk/by_bus_step"], found["risk/happened"]
    assert risk.dtype == happened.dtype == np.uint8
    assert risk.shape == happened.shape == (3, 14, 96)
    low, high = NORMAL_BAND_PU
    for k, window in enumerate((0, 4, 9)):
        scenarios = lowered(task.test.context(window))
        voltage = scenarios.values[0, ..., V::KINDS].numpy()
        outside = (voltage < low) | (voltage > high)
        weights = scenarios.weights[0, :, V::KINDS].numpy()
        expected = np.einsum("mhn,mn->nh", outside, weights)
        assert abs(risk[k] / RISK_LEVELS - expected).max() <= 0.5 / RISK_LEVELS + 1e-6
        truth = task.test.target(window)[0, :, V::KINDS].numpy().T
        np.testing.assert_array_equal(happened[k], (truth < low) | (truth > high))
    assert risk[..., 48:].min() == round(RISK_LEVELS * 6 / 28)


def test_thinned_scenarios_stand_for_each_channel_s_own_weights() -> None:
    draw = torch.Generator().manual_seed(3)
    weights = torch.rand((30, 5), generator=draw) ** 4
    weights /= weights.sum(0)
    values = torch.arange(30.0)[:, None, None].expand(-1, 2, 5)  # each tells its number
    shown, equal = thinned(values, weights)
    assert shown.shape == (SHOWN_SCENARIOS, 2, 5)
    assert torch.equal(equal, torch.full((SHOWN_SCENARIOS, 5), 1 / SHOWN_SCENARIOS))
    for channel in range(5):
        counts = shown[:, 0, channel].long().bincount(minlength=30)
        assert (counts - SHOWN_SCENARIOS * weights[:, channel]).abs().max() < 1
        assert torch.equal(shown[:, 0, channel], shown[:, 1, channel])
