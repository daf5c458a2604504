"""The day after a record: what a planted forecast says of it, and how it is shown."""

import csv
from collections.abc import Iterator
from dataclasses import replace
from io import StringIO

import numpy as np
import pytest
import torch

from powerphase import Context, Outlook, Scenarios, Store, Task, Training, outlook
from powerphase.axes import KINDS, V
from powerphase.cli.outlook_display import as_csv, sheet
from powerphase.errors import ForecastError, TaskError
from powerphase.models import Climatology, FactorForge, LastSevenDays

WEIGHTS = (0.5, 0.3, 0.2)
NOON = 48


class Planted:
    """Three scenarios at 1 p.u., except for the second, third and fourth bus.

    The second bus is too low at noon in the second scenario, and an hour earlier in the third. The
    third bus is always too high. The fourth is on the limit, which counts as inside.
    """

    def __init__(self, block_size: int | None = None, n_channels: int | None = None) -> None:
        self.block_size, self.n_channels = block_size, n_channels

    def fit(self, train: Training) -> None: ...

    def predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:
        n_channels = context.layout.n_channels
        values = torch.ones(1, 3, context.horizon, n_channels)
        values[0, 1, NOON, KINDS + V] = 0.94
        values[0, 2, NOON - 4, KINDS + V] = 0.93
        values[..., 2 * KINDS + V] = 1.06
        values[..., 3 * KINDS + V] = torch.tensor(1.05, dtype=torch.float32)
        weights = torch.tensor(WEIGHTS)[None, :, None].expand(1, 3, n_channels)
        scenarios = Scenarios(values, weights)
        stop, size = self.n_channels or n_channels, self.block_size or n_channels
        for first in range(0, stop, size):
            channels = slice(first, min(first + size, stop))
            yield channels, scenarios.of_channels(channels)


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, windows=1)


@pytest.fixture(scope="module")
def planted(task: Task) -> Outlook:
    return outlook(Planted(), task, device="cpu")


def test_the_context_of_tomorrow_is_the_last_week_of_the_record(
    task: Task, sixty_days: Store
) -> None:
    context = task.tomorrow
    week = sixty_days.state[-672:]
    assert np.array_equal(context.past[0].numpy(), week / task.layout.scale)
    assert np.array_equal(context.time[0, :672], sixty_days.time[-672:])
    assert len(set(np.diff(context.time[0]))) == 1
    assert context.future_time[0, 0] == sixty_days.time[-1] + np.timedelta64(900, "s")
    assert context.horizon == 96


def test_probabilities_are_the_weights_of_scenarios_outside_the_band(planted: Outlook) -> None:
    assert planted.ever[:4] == pytest.approx([0, 0.5, 1, 0])
    assert not planted.ever[4:].any()
    assert planted.below[[NOON - 4, NOON], 1] == pytest.approx([0.2, 0.3])
    assert planted.below[:, 1].sum() == pytest.approx(0.5)
    assert not planted.above[:, 1].any()
    assert planted.above[:, 2] == pytest.approx(np.ones(96))
    assert planted.hours[:3] == pytest.approx([0, 0.5 / 4, 24])
    assert planted.riskiest_step[1] == NOON
    assert planted.order[:2].tolist() == [2, 1]
    assert np.flatnonzero(planted.always).tolist() == [2]
    assert (planted.low[NOON, 1], planted.high[NOON, 1]) == pytest.approx((0.94, 1.0))


@pytest.mark.parametrize("block_size", [1, 3, 10])
def test_blocks_of_channels_give_the_same_outlook(
    task: Task, planted: Outlook, block_size: int
) -> None:
    day = outlook(Planted(block_size), task, device="cpu")
    for name in ("ever", "below", "above", "low", "high"):
        assert np.array_equal(getattr(day, name), getattr(planted, name)), name


def test_a_wider_band_is_left_less_often(task: Task) -> None:
    day = outlook(Planted(), task, band_pu=(0.935, 1.06), device="cpu")
    assert day.ever[:3] == pytest.approx([0, 0.2, 0])


def test_scenarios_of_equal_weight_count_alike(task: Task) -> None:
    day = outlook(LastSevenDays(), task, band_pu=(0.0, 1.0), device="cpu")
    week = task.tomorrow.past[0, :, V::KINDS].unflatten(0, (7, 96)).numpy()
    assert day.ever == pytest.approx((week > 1).any(1).mean(0), abs=1e-6)
    assert day.above == pytest.approx((week > 1).mean(0), abs=1e-6)
    assert 0 < day.ever.mean() < 1


class Tied(Planted):
    """Bus 1 leaves the band in two scenarios, bus 2 in one of the same weight, but for longer."""

    def predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:
        values = torch.ones(1, 4, context.horizon, context.layout.n_channels)
        values[0, :2, NOON, V] = 0.94
        values[0, 2, NOON : NOON + 2, KINDS + V] = 0.94
        weights = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
        yield (
            slice(None),
            Scenarios(
                values.double(), weights[None, :, None].expand(1, 4, context.layout.n_channels)
            ),
        )


def test_rounding_of_weights_does_not_decide_between_buses_of_equal_chance(task: Task) -> None:
    assert 0.1 + 0.2 > 0.3
    day = outlook(Tied(), task, device="cpu")
    assert day.ever[0] == day.ever[1] == np.float32(0.3)
    assert day.order[:2].tolist() == [1, 0]


def test_factorforge_is_read_by_its_joint_draws(task: Task) -> None:
    model, band_pu = FactorForge(), (0.0, 1.01)
    day = outlook(model, task, band_pu=band_pu, device="cpu")
    assert (day.n_scenarios, day.description.joint, day.description.variant) == (100, True, None)
    draws = model.joint_form(100).predict(task.tomorrow)
    assert isinstance(draws, Scenarios)
    left = (draws.values[0, ..., V::KINDS] > band_pu[1]).any(1).double().mean(0).numpy()
    assert day.ever == pytest.approx(left, abs=1e-6)
    assert ((day.ever > 0) & (day.ever < 1)).any()
    assert model.config.coupling == "fan"


def test_the_chance_of_scenarios_that_are_not_joint_is_marked_as_a_bound(task: Task) -> None:
    voltages = task.tomorrow.past[0, :, V::KINDS]
    band_pu = (0.0, float(voltages.median()))
    day = outlook(Climatology(), task, band_pu=band_pu, device="cpu")
    assert np.array_equal(day.ever, day.outside.max(0).astype(np.float32))
    chances = [line[2][0] for line in sheet(day, 14).groups[0]]
    partial = [text for text in chances if text != "100%"]
    assert partial
    assert all(text.startswith("≥ ") for text in partial)
    assert {line["joint"] for line in csv.DictReader(StringIO(as_csv(day)))} == {"no"}


def test_impossible_requests_raise(task: Task) -> None:
    with pytest.raises(TaskError, match=r"1\.1 to 0\.9"):
        outlook(Planted(), task, band_pu=(1.1, 0.9))
    with pytest.raises(ForecastError, match="Planted"):
        outlook(Planted, task)  # type: ignore[arg-type]
    with pytest.raises(ForecastError, match="12 of 14 buses"):
        outlook(Planted(n_channels=8), task, device="cpu")


def test_the_table_has_the_buses_that_may_leave_and_names_those_always_outside(
    planted: Outlook,
) -> None:
    shown = sheet(planted, 5)
    ((line,),) = shown.groups
    texts = [text for text, _ in line]
    assert texts == ["2", "–", "50%", "0.1", "12:00", "30%", "below", "0.940 to 1.000"]
    for fact in ("1 of 14 buses", "0.95 to 1.05 p.u.", "1 are outside"):
        assert fact in shown.above
    assert any("bus 3" in note for note in shown.below)


def test_a_truncated_table_points_to_csv(task: Task) -> None:
    voltages = task.tomorrow.past[0, :, V::KINDS]
    day = outlook(LastSevenDays(), task, band_pu=(0.0, float(voltages.median())), device="cpu")
    assert ((day.ever > 0) & ~day.always).sum() > 1
    shown = sheet(day, 1)
    assert len(shown.groups[0]) == 1
    assert "csv" in shown.below[-1]


def test_a_calm_day_names_the_bus_nearest_to_a_limit(task: Task) -> None:
    day = outlook(LastSevenDays(), task, band_pu=(0.0, 2.0), device="cpu")
    shown = sheet(day, 5)
    assert shown.groups == ((),)
    assert "0 to 2 p.u." in shown.above
    assert shown.below == ()
    step, bus = divmod(int(np.argmin(np.minimum(day.low, 2 - day.high))), 14)
    assert day.order[0] == bus
    assert day.riskiest_step[bus] == step
    assert f"Bus {task.layout.bus_id[bus]} " in shown.above
    assert f"{day.low[step, bus]:.3f} to {day.high[step, bus]:.3f} p.u." in shown.above
    assert f"{str(day.time[step])[11:16]} UTC" in shown.above


def test_of_equally_likely_steps_the_one_furthest_outside_counts(planted: Outlook) -> None:
    """The third bus is above the band all day; here, most at noon."""
    high = planted.high.copy()
    high[NOON, 2] += 0.01
    assert replace(planted, high=high).riskiest_step[2] == NOON


def test_csv_has_every_bus(planted: Outlook) -> None:
    lines = list(csv.DictReader(StringIO(as_csv(planted))))
    assert [line["bus"] for line in lines[:2]] == ["3", "2"]
    assert {int(line["bus"]) for line in lines} == set(planted.layout.bus_id.tolist())
    assert (lines[1]["chance"], lines[1]["side_then"]) == ("0.5", "below")
    assert lines[1]["riskiest_time_utc"].endswith("T12:00")
    assert lines[2]["side_then"] == ""
