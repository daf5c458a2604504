"""The day after a record: what a planted forecast says of it, and how it is shown."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from powerphase import Context, Outlook, Scenarios, Store, Task, Training, couple, outlook
from powerphase.axes import KINDS, V
from powerphase.cli.outlook_display import sheets
from powerphase.errors import ForecastError
from powerphase.evaluation import AcSolver, predict_states
from powerphase.models import Climatology, FactorForge, LastSevenDays
from powerphase.report import Sheet

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


def task_within(store: Store, limits: str) -> Task:
    return Task(store, windows=1, limits=limits)


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
    buses = planted.buses
    assert buses.ever[:4] == pytest.approx([0, 0.5, 1, 0])
    assert not buses.ever[4:].any()
    assert buses.below[[NOON - 4, NOON], 1] == pytest.approx([0.2, 0.3])
    assert buses.below[:, 1].sum() == pytest.approx(0.5)
    assert not buses.above[:, 1].any()
    assert buses.above[:, 2] == pytest.approx(np.ones(96))
    assert buses.hours[:3] == pytest.approx([0, 0.5 / 4, 24])
    assert buses.riskiest_step[1] == NOON
    assert buses.order[:2].tolist() == [2, 1]
    assert np.flatnonzero(buses.always).tolist() == [2]
    assert (buses.low[NOON, 1], buses.high[NOON, 1]) == pytest.approx((0.94, 1.0))


@pytest.mark.parametrize("block_size", [1, 3, 10])
def test_blocks_of_channels_give_the_same_outlook(
    task: Task, planted: Outlook, block_size: int
) -> None:
    assert outlook(Planted(block_size), task, device="cpu").rows == planted.rows


def test_a_wider_band_is_left_less_often(sixty_days: Store) -> None:
    day = outlook(Planted(), task_within(sixty_days, "0.935-1.06"), device="cpu")
    assert day.buses.ever[:3] == pytest.approx([0, 0.2, 0])


def test_every_bus_may_have_limits_of_its_own(task: Task, sixty_days: Store) -> None:
    """IEEE 14 has 0.94 to 1.06 p.u. at all buses; here, one of them is different."""
    case = task_within(sixty_days, "case")
    low = case.layout.limits.v_min_pu.copy()
    low[1] = 0.935
    case.layout = replace(case.layout, limits=replace(case.layout.limits, v_min_pu=low))
    day = outlook(Planted(), case, device="cpu")
    assert day.buses.ever[:4] == pytest.approx([0, 0.2, 0, 0])
    assert "case file" in sheet_of(day, "bus").above


def test_scenarios_of_equal_weight_count_alike(task: Task, sixty_days: Store) -> None:
    day = outlook(LastSevenDays(), task_within(sixty_days, "0-1"), device="cpu").buses
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
    day = outlook(Tied(), task, device="cpu").buses
    assert day.ever[0] == day.ever[1] == 0.3
    assert day.order[:2].tolist() == [1, 0]


def test_factorforge_is_read_by_joint_scenarios_after_solving(sixty_days: Store) -> None:
    model, task = FactorForge(), task_within(sixty_days, "0-1.01")
    day = outlook(model, task, device="cpu")
    assert (day.n_scenarios, day.description.joint, day.description.variant) == (100, True, None)
    values, _ = predict_states(model.joint_form(100), task.tomorrow)
    as_forecast = values[..., V::KINDS].copy()
    AcSolver(task).solve(values)
    left = (values[..., V::KINDS] > 1.01).any(1).mean(0)
    assert not np.array_equal(left, (as_forecast > 1.01).any(1).mean(0))
    assert day.buses.ever == pytest.approx(left, abs=1e-6)
    assert ((left > 0) & (left < 1)).any()
    assert model.config.coupling == "fan"


def test_marginal_scenarios_are_coupled_to_past_days_and_solved(sixty_days: Store) -> None:
    task = task_within(sixty_days, "0-1.018")
    day = outlook(Climatology(), task, device="cpu")
    assert (day.description.variant, day.description.joint) == ("schaake", True)
    coupled = couple(Climatology(), "schaake", scenarios=16)
    coupled.fit(task.training)
    values, _ = predict_states(coupled, task.tomorrow)
    AcSolver(task).solve(values)
    outside = values[..., V::KINDS] > np.float32(1.018)
    assert day.buses.ever == pytest.approx(outside.any(1).mean(0), abs=1e-6)
    assert (outside.any(1).mean(0) > outside.mean(0).max(0)).any()  # more than the worst step
    assert {row["joint"] for row in day.rows} == {"yes"}
    assert any("+schaake" in note for note in sheet_of(day, "bus").below)


class Undecided(Planted):
    """A model that knows only after its fit that its scenarios are not joint."""

    joint_scenarios: bool | None = True

    def fit(self, train: Training) -> None:
        self.joint_scenarios = False


def test_what_a_model_knows_after_its_fit_decides(task: Task) -> None:
    day = outlook(Undecided(), task, device="cpu")
    assert (day.description.variant, day.n_scenarios) == ("schaake", 16)


class Contradictory(Planted):
    """Its joint form is not joint."""

    joint_scenarios = False

    def joint_form(self, count: int) -> "Contradictory":
        return self


def test_a_joint_form_that_is_not_joint_raises(task: Task) -> None:
    with pytest.raises(ForecastError, match="contradictory"):
        outlook(Contradictory(), task, device="cpu")


def test_impossible_requests_raise(task: Task) -> None:
    with pytest.raises(ForecastError, match="Planted"):
        outlook(Planted, task)  # type: ignore[arg-type]
    with pytest.raises(ForecastError, match="channel 8"):
        outlook(Planted(n_channels=8), task, device="cpu")


def sheet_of(day: Outlook, kind: str, n_rows: int = 5) -> Sheet:
    """The table of the buses, or that of the lines."""
    (shown,) = [made for made in sheets(day, n_rows) if made.header[0] == kind]
    return shown


def test_the_table_has_the_buses_that_may_leave_and_names_those_always_outside(
    planted: Outlook,
) -> None:
    shown = sheet_of(planted, "bus")
    ((line,),) = shown.groups
    texts = [text for text, _ in line]
    assert texts == ["2", "–", "50%", "0.1", "12:00", "30%", "50%", "0%", "0.940 to 1.000"]
    for fact in ("1 of 14 buses", "0.95 to 1.05 p.u.", "1 are outside"):
        assert fact in shown.above
    assert any("bus 3" in note for note in shown.below)


def test_a_truncated_table_points_to_csv(task: Task, sixty_days: Store) -> None:
    week = task.tomorrow.past[0, :, V::KINDS]
    low = f"{float(week.amin(0).median()):.3f}"
    day = outlook(LastSevenDays(), task_within(sixty_days, f"{low}-1.019"), device="cpu")
    assert ((day.buses.ever > 0) & ~day.buses.always).sum() > 1
    shown = sheet_of(day, "bus", n_rows=1)
    assert len(shown.groups[0]) == 1
    assert any("csv" in note for note in shown.below)


def test_a_calm_day_names_the_bus_nearest_to_a_limit(task: Task, sixty_days: Store) -> None:
    day = outlook(LastSevenDays(), task_within(sixty_days, "0-2"), device="cpu")
    shown, buses = sheet_of(day, "bus"), day.buses
    assert shown.groups == ((),)
    assert "0 to 2 p.u." in shown.above
    step, bus = divmod(int(np.argmin(np.minimum(buses.low, 2 - buses.high))), 14)
    assert buses.order[0] == bus
    assert buses.riskiest_step[bus] == step
    assert f"Bus {task.layout.bus_id[bus]} " in shown.above
    assert f"{buses.low[step, bus]:.3f} to {buses.high[step, bus]:.3f} p.u." in shown.above
    assert f"{str(day.time[step])[11:16]} UTC" in shown.above


def test_of_equally_likely_steps_the_one_furthest_outside_counts(planted: Outlook) -> None:
    """The third bus is above the band all day; here, most at noon."""
    margin = planted.buses.margin.copy()
    margin[NOON, 2] -= 0.01
    assert replace(planted.buses, margin=margin).riskiest_step[2] == NOON


def test_a_grid_without_ratings_says_that_its_lines_are_unknown(planted: Outlook) -> None:
    assert {row["kind"] for row in planted.rows} == {"bus"}
    assert planted.n_unrated == planted.layout.circuit.n_branches == 20
    (shown,) = sheets(planted, 5)
    assert any("20 lines" in note and "rating" in note for note in shown.below)


class BothSides(Planted):
    """The fifth bus is too low at noon in the second scenario, then too high in the last two."""

    def predict(self, context: Context) -> Iterator[tuple[slice, Scenarios]]:
        ((channels, scenarios),) = super().predict(context)
        values = scenarios.values.clone()
        values[0, 1, NOON, 4 * KINDS + V] = 0.94
        values[0, 1:, NOON + 8, 4 * KINDS + V] = 1.06
        yield channels, Scenarios(values, scenarios.weights)


def test_a_bus_that_leaves_the_band_on_both_sides_has_a_chance_of_each(task: Task) -> None:
    rows = {row["name"]: row for row in outlook(BothSides(), task, device="cpu").rows}
    (fifth,) = (rows[str(number)] for number in task.layout.bus_id[[4]])
    chances = [fifth[name] for name in ("chance", "chance_below", "chance_above")]
    assert chances == pytest.approx([WEIGHTS[1] + WEIGHTS[2], WEIGHTS[1], WEIGHTS[1] + WEIGHTS[2]])


def test_rows_have_every_bus_the_most_likely_first(planted: Outlook) -> None:
    first, second, third, *_ = rows = planted.rows
    assert [row["name"] for row in (first, second)] == ["3", "2"]
    assert {row["bus"] for row in rows} == set(planted.layout.bus_id.tolist())
    assert (second["chance"], second["side_then"]) == (0.5, "below")
    assert (second["chance_below"], second["chance_above"]) == (0.5, 0.0)
    assert second["riskiest_time_utc"].endswith("T12:00")
    assert third["side_then"] is None
