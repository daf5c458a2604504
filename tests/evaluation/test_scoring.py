"""From a model to a row: exact scores, no access to targets, strict checks."""

import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

from powerphase import (
    Context,
    Evaluation,
    Scenarios,
    Store,
    Task,
    Training,
    forecast,
    load_forecast,
    score,
)
from powerphase.axes import KINDS, VARIABLES, V
from powerphase.dataset import open_store
from powerphase.errors import ForecastError, PowerphaseError, ResultError
from powerphase.evaluation import SHOWN_BUSES, SHOWN_SCENARIOS, choose_buses, thin_scenarios
from powerphase.metrics import daily_slope
from powerphase.models import Climatology, LastSevenDays, LastWeek
from powerphase.records import (
    EXCURSION_UNIT_PU,
    LEVELS,
    NORMAL_BAND_PU,
    RISK_LEVELS,
    SCORES,
    expand,
    forecast_writer,
    open_forecast,
    read_result,
    read_sidecar,
)
from tests.damage import seal


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days)


@pytest.fixture(scope="module")
def evaluation(task: Task) -> Evaluation:
    return score(forecast(LastSevenDays(), task), task)


def test_a_row_and_a_forecast_file_state_what_the_model_states(task: Task, tmp_path: Path) -> None:
    class Stated(LastWeek):
        name, joint_scenarios, results_version = "stated", False, 5

    live = forecast(Stated(), task)
    stored = forecast(Stated(), task, out=tmp_path / "stated")
    assert stored.description == live.description
    for source in (live, stored):
        row = score(source, task).row
        assert (row.joint, row.model_version, row.data_verified) == (False, 5, True)


class Answers:
    """A model that returns whatever a function of the context returns."""

    def __init__(self, answer: Callable[[Context], Any]) -> None:
        self.answer = answer

    def fit(self, train: Training) -> None:
        pass

    def predict(self, context: Context) -> Any:
        return self.answer(context)


class ByBlock:
    """The last seven days, in uneven blocks of channels."""

    name = "by-block"

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


def test_a_row_has_the_daily_slope_of_its_forecasts(task: Task, evaluation: Evaluation) -> None:
    context = [task.test.context(window) for window in range(len(task.test))]
    means = torch.cat([LastSevenDays().predict(each).values.double().mean(1) for each in context])
    targets = torch.cat([task.test.target(window) for window in range(len(task.test))])
    slopes = dict(zip(VARIABLES, daily_slope(means, targets).tolist(), strict=True))
    assert evaluation.row.daily_slope == pytest.approx(slopes, rel=1e-5)
    blocked = score(forecast(ByBlock(), task), task).row.daily_slope
    assert blocked == pytest.approx(slopes, rel=1e-5)


def test_a_forecast_in_blocks_has_the_same_scores(task: Task, evaluation: Evaluation) -> None:
    blocked = score(forecast(ByBlock(), task), task)
    for name, value in evaluation.scores.items():
        assert blocked.scores[name] == (value and pytest.approx(value, rel=1e-9, abs=1e-15)), name
    for name, array in evaluation.sidecar.items():
        np.testing.assert_allclose(blocked.sidecar[name], array, rtol=1e-6, err_msg=name)


def test_predict_cannot_see_the_target(task: Task, tmp_path: Path) -> None:
    """Change everything from a window's origin on; no forecast for it may change."""
    window = 3
    origin = int(task.test.origins[window])
    changed = shutil.copytree(task.store.path, tmp_path / "changed")
    state = zarr.open_array(changed / "state", mode="r+")
    state[origin:] = np.asarray(state[origin:]) * 3 + 1
    seal(changed)
    other = Task(open_store(changed))
    assert not torch.equal(other.test.target(window), task.test.target(window))
    for model in (LastWeek, LastSevenDays, Climatology):
        values = []
        for each in (task, other):
            fitted = model()
            fitted.fit(each.training)
            values.append(fitted.predict(each.test.context(window)).values)
        assert torch.equal(*values), model.name


def test_a_forecast_from_a_file_has_the_same_scores(
    task: Task, evaluation: Evaluation, tmp_path: Path
) -> None:
    written = forecast(LastSevenDays(), task, out=tmp_path / "f")
    again = score(tmp_path / "f", task)
    for name, value in evaluation.scores.items():
        assert again.scores[name] == (value and pytest.approx(value, rel=1e-9)), name
    assert again.row.cost["hardware"] == written.cost["hardware"]


def test_a_row_and_its_sidecar_are_read_as_written(evaluation: Evaluation, tmp_path: Path) -> None:
    path = evaluation.save(tmp_path)
    assert path == tmp_path / "powerphase-day-ahead/exact/ieee14/last-7-days-0.json"
    assert read_result(path) == evaluation.row
    sidecar = read_sidecar(path)
    assert set(sidecar) == set(evaluation.sidecar)
    assert sidecar["by_bus/crps"].shape == (14, 4)
    assert sidecar["by_bus/brier"].shape == (14,)
    assert sidecar["by_step/crps"].shape == (96, 4)
    assert sidecar["by_bus/crps"].mean() == pytest.approx(evaluation.scores["crps"], rel=2**-9)
    assert sidecar["reliability"][:, 0].sum() == 10 * 96 * 14


def test_the_sidecar_shows_what_was_forecast(task: Task, evaluation: Evaluation) -> None:
    sidecar = expand(evaluation.sidecar)
    assert list(sidecar["shown/window"]) == [0, 4, 9]
    rows = task.store.grid.rows(sidecar["shown/bus_id"])
    assert len(set(rows)) == SHOWN_BUSES
    channels = 4 * rows[:, None] + np.arange(4)
    for k, window in enumerate((0, 4, 9)):
        values = LastSevenDays().predict(task.test.context(window)).values[0].numpy()
        series = values[..., channels]
        level = np.ptp(series, axis=(0, 1)) / LEVELS
        assert (abs(sidecar["shown/scenario"][k] - series) <= 1.001 * level + 1e-6).all()
    assert sidecar["shown/weight"].shape == (3, 7, SHOWN_BUSES, 4)


def test_every_score_is_printed_with_its_question(evaluation: Evaluation) -> None:
    for name, info in SCORES.items():
        assert info.question in str(evaluation), name
    assert set(evaluation.row.by_type) == set(VARIABLES)


def test_a_forecast_of_other_data_is_rejected(task: Task, tmp_path: Path) -> None:
    source = forecast(LastWeek(), task)
    for name, value in (
        ("fingerprint", "0" * 64),
        ("task_version", 2),
        ("scale", [1.0, 1.0]),
    ):
        other = replace(source, facts={**source.facts, name: value})
        with pytest.raises(ForecastError, match=name):
            score(other, task)


def test_a_forecast_with_another_or_a_missing_window_is_rejected(task: Task) -> None:
    source = forecast(LastWeek(), task)
    windows = source.facts["windows"]
    for other, where in (
        ([*windows[:-1], "2031-01-01T00:00"], "window 9: .*2031-01-01T00:00"),
        (windows[:-1], "window 9: "),
        ([windows[0], *windows[:-1]], f"window 1: .*{windows[0]}"),
    ):
        with pytest.raises(ForecastError, match=where):
            score(replace(source, facts={**source.facts, "windows": other}), task)


def test_a_forecast_for_another_task_is_rejected(sixty_days: Store, task: Task) -> None:
    with pytest.raises(ForecastError, match="powerphase-day-ahead-all"):
        score(forecast(LastWeek(), Task(sixty_days, windows="all")), task)


def test_an_invalid_value_is_located_by_window_step_and_channel(task: Task) -> None:
    def broken(context: Context) -> Scenarios:
        values = LastSevenDays().predict(context).values.clone()
        if str(context.future_time[0, 0]) == f"{task.test.start(2)}:00":
            values[0, 4, 17, 30] = float("nan")
        return Scenarios.equal(values)

    with pytest.raises(ForecastError, match=r"window 2, step 17, channel 30: .*nan"):
        score(forecast(Answers(broken), task), task)


def test_an_invalid_value_in_a_later_block_is_located_too(task: Task) -> None:
    def broken(context: Context) -> Iterator[tuple[slice, Scenarios]]:
        values = LastSevenDays().predict(context).values.clone()
        values[0, 0, 3, 50] = float("inf")
        yield slice(0, 40), Scenarios.equal(values[..., :40])
        yield slice(40, 56), Scenarios.equal(values[..., 40:])

    with pytest.raises(ForecastError, match=r"window 0, step 3, channel 50: .*inf"):
        score(forecast(Answers(broken), task), task)


def test_a_forecast_whose_scores_overflow_is_rejected(task: Task) -> None:
    def huge(context: Context) -> Scenarios:
        return Scenarios.equal(LastSevenDays().predict(context).values + 1e30)

    with pytest.raises(ForecastError, match="mse"):
        score(forecast(Answers(huge), task), task)


def test_a_model_may_return_tensors_with_gradients(task: Task) -> None:
    def trained(context: Context) -> Scenarios:
        factor = torch.ones((), requires_grad=True)
        return Scenarios.equal(factor * context.past[:, None, -96:])

    assert (score(forecast(Answers(trained), task), task).scores["crps"] or 0) > 0


def test_a_prediction_of_the_wrong_type_is_rejected(task: Task) -> None:
    with pytest.raises(ForecastError, match=r"window 0: .*Tensor"):
        score(forecast(Answers(lambda context: context.past), task), task)


@pytest.mark.parametrize("written", [True, False])
@pytest.mark.parametrize(
    ("answer", "fact"),
    [
        (lambda s: iter([(slice(None), s.values)]), "tuple"),
        (lambda s: iter([s]), "Scenarios"),
        (lambda s: Scenarios.equal(s.values.repeat(2, 1, 1, 1)), "2 windows"),
        (lambda s: Scenarios.equal(s.values[:, :, 1:]), "95 steps"),
        (lambda s: iter([(slice(2, None, 4), s.of_channels(slice(2, None, 4)))]), "slice"),
        (lambda s: iter([]), "window 0: "),
    ],
)
def test_a_malformed_prediction_is_rejected(
    task: Task, tmp_path: Path, answer: Callable[[Scenarios], object], fact: str, written: bool
) -> None:
    model = Answers(lambda context: answer(LastWeek().predict(context)))
    with pytest.raises(ForecastError, match=f"window 0: .*{fact}" if fact[0] != "w" else fact):
        score(forecast(model, task, out=tmp_path / "f" if written else None), task)


@pytest.mark.parametrize(
    ("attribute", "value", "fact"),
    [
        ("name", "My_Model", "My_Model"),
        ("variant", "v1.2", "v1.2"),
        ("config", {"path": Path("x")}, "Path"),
    ],
)
def test_a_description_that_no_row_can_hold_is_rejected_before_the_fit(
    task: Task, attribute: str, value: object, fact: str
) -> None:
    class Proud(LastWeek):
        name = "proud"

        def fit(self, train: Training) -> None:
            raise AssertionError("fitted")

    setattr(Proud, attribute, value)
    with pytest.raises(ForecastError, match=fact):
        forecast(Proud(), task)


def test_numpy_numbers_and_tuples_of_a_model_become_plain(task: Task) -> None:
    model: Any = LastWeek()
    model.name, model.config = "plain", {"sizes": (1, 2)}
    model.seed, model.n_parameters = np.int64(3), np.int64(4)
    row = score(forecast(model, task), task).row
    assert (row.config, row.seed, row.parameters) == ({"sizes": [1, 2]}, 3, 4)


def test_a_class_instead_of_an_object_is_rejected(task: Task) -> None:
    with pytest.raises(ForecastError, match="LastWeek"):
        forecast(LastWeek, task)  # type: ignore[arg-type]


def test_a_model_cannot_change_the_times(task: Task) -> None:
    def meddling(context: Context) -> Scenarios:
        context.time[:] += np.timedelta64(1, "h")
        return LastWeek().predict(context)

    with pytest.raises(ValueError, match="read-only"):
        score(forecast(Answers(meddling), task), task)


def test_a_prediction_without_some_channels_is_rejected(task: Task) -> None:
    def short(context: Context) -> Iterator[tuple[slice, Scenarios]]:
        yield slice(0, 52), LastWeek().predict(context).of_channels(slice(0, 52))

    with pytest.raises(ForecastError, match="window 0, channel 52: "):
        score(forecast(Answers(short), task), task)


@pytest.mark.parametrize("name", ["climatology", "oracle", "powerforge"])
def test_another_class_cannot_have_the_name_of_a_built_in_model(task: Task, name: str) -> None:
    impostor = type("Impostor", (LastWeek,), {"name": name})
    with pytest.raises(ForecastError, match=name):
        forecast(impostor(), task)


def test_forecasts_and_evaluations_have_a_short_repr(task: Task, evaluation: Evaluation) -> None:
    for shown in (repr(task), repr(forecast(LastWeek(), task)), repr(evaluation)):
        assert len(shown) < 120
        assert {"ieee14", task.name} <= set(re.split("[ ,<>]", shown))


def test_an_interrupted_forecast_continues_where_it_stopped(task: Task, tmp_path: Path) -> None:
    predicted = []

    class Stubborn(LastWeek):
        name, patience = "stubborn", 4

        def predict(self, context: Context) -> Scenarios:
            predicted.append(str(context.future_time[0, 0]))
            if len(predicted) == self.patience:
                raise KeyboardInterrupt
            return super().predict(context)

    with pytest.raises(KeyboardInterrupt):
        forecast(Stubborn(), task, out=tmp_path / "f")
    first = predicted.copy()
    done = forecast(Stubborn(), task, out=tmp_path / "f")
    assert len(first) == 4
    # Window 0 again, for the number of scenarios; then the seven missing windows.
    assert predicted[4:] == [first[0], *(f"{task.test.start(k)}:00" for k in range(3, 10))]
    uninterrupted = forecast(LastWeek(), task, out=tmp_path / "g")
    for piece, other in zip(done.pieces(()), uninterrupted.pieces(()), strict=True):
        assert torch.equal(piece[2].values, other[2].values)
    assert done.cost["predict_s"] is None


def test_another_model_of_the_same_name_cannot_continue_a_forecast(
    task: Task, tmp_path: Path
) -> None:
    def day(back: int) -> Answers:
        return Answers(lambda c: Scenarios.equal(c.past[:, None, -96 * back :][:, :, :96]))

    forecast(day(1), task, out=tmp_path / "f")
    assert forecast(day(1), task, out=tmp_path / "f").description.model == "answers"
    with pytest.raises(ForecastError, match=str(tmp_path / "f")):
        forecast(day(2), task, out=tmp_path / "f")


def test_a_row_is_not_overwritten_by_one_of_other_data(
    task: Task, evaluation: Evaluation, tmp_path: Path
) -> None:
    evaluation.save(tmp_path)
    evaluation.save(tmp_path)  # scored again, the same row
    other = replace(evaluation.row, fingerprint="0" * 64)
    with pytest.raises(ResultError, match="fingerprint"):
        Evaluation(other, evaluation.sidecar).save(tmp_path)


@pytest.mark.parametrize(("name", "fact"), [("gpu", "'gpu'"), ("cuda", "GPU")])
def test_a_missing_device_raises(task: Task, name: str, fact: str) -> None:
    if name == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(PowerphaseError, match=fact):
        forecast(LastWeek(), task, device=name)


def test_an_invalid_value_in_a_file_is_located(task: Task, tmp_path: Path) -> None:
    forecast(LastSevenDays(), task, out=tmp_path / "sound")
    sound = open_forecast(tmp_path / "sound")
    with forecast_writer(tmp_path / "f", sound.header) as writer:
        for window in range(len(sound.header.windows)):
            values, weights = sound.read(window, slice(None))
            if window == 5:
                values[1, 2, 3] = np.nan
            writer.write(window, slice(None), values, weights)
            writer.finish_window(window)
        writer.close(sound.cost)
    with pytest.raises(ForecastError, match=r"window 5, step 2, channel 3: .*nan"):
        score(load_forecast(tmp_path / "f"), task)


def test_the_sidecar_has_the_risk_of_every_voltage(task: Task) -> None:
    """Three of seven days, with 6/28 of the weight, are far below the band everywhere."""

    def lowered(context: Context) -> Scenarios:
        values = LastSevenDays().predict(context).values.clone()
        values[:, :3, 48:, V::KINDS] -= 0.2
        weights = torch.arange(1.0, 8.0)[None, :, None] / 28
        return Scenarios(values, weights.expand(1, -1, values.shape[-1]))

    class Lowered(Answers):
        name = "lowered"

    sidecar = score(forecast(Lowered(lowered), task), task).sidecar
    risk, happened = sidecar["risk/by_bus_step"], sidecar["risk/happened"]
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


def test_thinned_scenarios_represent_the_weights_of_each_channel() -> None:
    draw = torch.Generator().manual_seed(3)
    weights = torch.rand((30, 5), generator=draw) ** 4
    weights /= weights.sum(0)
    values = torch.arange(30.0)[:, None, None].expand(
        -1, 2, 5
    )  # each value is its scenario's number
    shown, equal = thin_scenarios(values, weights)
    assert shown.shape == (SHOWN_SCENARIOS, 2, 5)
    assert torch.equal(equal, torch.full((SHOWN_SCENARIOS, 5), 1 / SHOWN_SCENARIOS))
    for channel in range(5):
        counts = shown[:, 0, channel].long().bincount(minlength=30)
        assert (counts - SHOWN_SCENARIOS * weights[:, channel]).abs().max() < 1
        assert torch.equal(shown[:, 0, channel], shown[:, 1, channel])


def test_the_worst_buses_and_those_that_come_and_go_are_shown_first() -> None:
    """Bus 7 is always far outside, bus 30 half of the time, and all others stay inside."""
    voltage = torch.full((3, 96, 100), 1.0)
    voltage[..., 7], voltage[:, 48:, 30] = 1.3, 1.06
    buses = choose_buses(voltage)
    assert len(set(buses)) == SHOWN_BUSES
    assert list(buses[:2]) == [7, 30]
    assert np.ptp(buses) > 90  # the others are spread over the case file


@pytest.mark.parametrize("n_buses", [1, 5, 14, 57])
def test_the_bus_that_is_outside_for_longest_is_always_shown(n_buses: int) -> None:
    voltage = 1 + 0.05 * torch.randn((3, 96, n_buses), generator=torch.Generator().manual_seed(1))
    outside = ((voltage < 0.95) | (voltage > 1.05)).double().mean((0, 1)).numpy()
    buses = choose_buses(voltage)
    assert len(set(buses)) == len(buses) == min(n_buses, SHOWN_BUSES)
    assert buses[0] == outside.argmax()


def test_the_sidecar_tells_on_which_side_of_the_band_and_how_far(task: Task) -> None:
    """The furthest points of each day, of a forecast as a mean over the scenarios beyond."""

    class Swinging(LastSevenDays):
        """One scenario of seven falls to 0.93 p.u., two rise to 1.0605 and 1.0705."""

        name = "swinging"

        def predict(self, context: Context) -> Scenarios:
            values = super().predict(context).values.clone()
            voltage = values[..., 2::4]
            voltage[:] = 1.0
            voltage[:, 0, 10, 3] = 0.93
            voltage[:, 1, 20, 3] = 1.0605
            voltage[:, 2, 30, 3] = 1.0705
            return Scenarios(values, torch.full((1, 7, values.shape[-1]), 1 / 7))

    arrays = score(forecast(Swinging(), task), task).sidecar
    excursion = arrays["risk/excursion"]
    assert excursion.shape == (3, len(task.layout.bus_id), 2)
    assert (excursion[:, 3] == [20, 16]).all()  # 0.020 below; 0.0155 above, rounded up
    assert not np.delete(excursion, 3, axis=1).any()
    for k, window in enumerate(arrays["shown/window"]):
        voltage = task.test.target(int(window))[0, :, 2::4].numpy()
        beyond = np.stack([0.95 - voltage.min(0), voltage.max(0) - 1.05], axis=1).clip(0)
        units = arrays["risk/excursion_happened"][k] * EXCURSION_UNIT_PU
        assert ((units >= beyond - 1e-6) & (units < beyond + EXCURSION_UNIT_PU)).all()
        assert ((units.max(1) > 0) == arrays["risk/happened"][k].any(1)).all()


def test_the_paper_s_other_seeds_keep_no_forecasts_to_draw(task: Task) -> None:
    original = forecast(LastSevenDays(), task)
    kept = score(
        replace(original, description=replace(original.description, seed=22)), task
    ).sidecar
    assert not [name for name in kept if name.startswith(("shown/", "risk/"))]
    assert "by_bus/safety_mbrier" in kept
