"""The interface of models: no future values are readable, and draws follow the weights."""

from itertools import islice

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from powerphase.axes import VARIABLES
from powerphase.circuit import Circuit, Limits
from powerphase.errors import ForecastError, TaskError
from powerphase.metrics import Fan, crps
from powerphase.scenarios import READ_STEPS, Context, Layout, Record, Scenarios, Training, Windows

N_BUSES, N_STEPS, CONTEXT, HORIZON = 2, 60, 5, 3
START = np.datetime64("2015-01-01", "s")


@pytest.fixture
def layout() -> Layout:
    circuit = Circuit.chain(2)
    return Layout(
        grid="two buses",
        bus_id=np.array([7, 104]),
        bus_type=np.array([3, 1]),
        nominal_kv=np.array([380.0, 110.0]),
        circuit=circuit,
        limits=Limits.equal(circuit, (0.95, 1.05), 100.0),
        p_scale_mw=200.0,
        q_scale_mvar=50.0,
    )


def states(n_steps: int) -> np.ndarray:
    """States before scaling: the step as the integer part, the channel as the fraction."""
    steps, channels = np.arange(n_steps)[:, None], np.arange(4 * N_BUSES)
    return (steps + channels / 16).astype(np.float32)


def record_of(layout: Layout, n_steps: int) -> Record:
    """A record whose reader could return states beyond its end."""
    beyond = states(n_steps + 100)
    time = START + 900 * np.arange(n_steps)
    return Record(layout, time, lambda steps, channels: beyond[steps, channels])


@pytest.fixture
def training(layout: Layout) -> Training:
    validation = Windows(record_of(layout, 100), np.array([60, 70]), CONTEXT, HORIZON)
    return Training(record_of(layout, N_STEPS), validation)


def physical_units(values: torch.Tensor, layout: Layout) -> np.ndarray:
    return values.numpy() * layout.scale


def test_every_bus_has_four_named_channels(layout: Layout) -> None:
    assert (layout.n_buses, layout.n_channels) == (2, 8)
    assert layout.channel_type.tolist() == [0, 1, 2, 3, 0, 1, 2, 3]
    names = [layout.name_of(channel) for channel in range(8)]
    assert names == [f"{variable} of bus {bus}" for bus in (7, 104) for variable in VARIABLES]


def test_only_powers_are_scaled(layout: Layout) -> None:
    assert layout.scale.dtype == np.float32
    assert layout.scale.tolist() == [200, 50, 1, 1, 200, 50, 1, 1]


def test_a_record_returns_normalised_states(layout: Layout) -> None:
    record = record_of(layout, N_STEPS)
    assert len(record) == N_STEPS
    whole = record.read()
    assert whole.dtype == torch.float32
    np.testing.assert_allclose(whole.numpy(), states(N_STEPS) / layout.scale)
    part = record.read(slice(10, 13), slice(3, 6))
    assert torch.equal(part, whole[10:13, 3:6])
    assert torch.equal(record.read(slice(-2, None), slice(-3, None)), whole[-2:, -3:])
    assert torch.equal(record.read(slice(50, N_STEPS)), whole[50:])


@pytest.mark.parametrize("steps", [slice(0, 61), slice(59, 61), slice(70, 80), slice(None, 10**6)])
def test_a_record_cannot_be_read_past_its_end(layout: Layout, steps: slice) -> None:
    with pytest.raises(TaskError, match=rf"{steps.stop} .*60"):
        record_of(layout, N_STEPS).read(steps)


def test_an_open_slice_ends_at_the_end_of_the_record(layout: Layout) -> None:
    assert record_of(layout, N_STEPS).read(slice(58, None)).shape == (2, 8)
    assert record_of(layout, N_STEPS).read(slice(90, None)).shape == (0, 8)


def test_loading_reads_the_whole_record(layout: Layout) -> None:
    record = record_of(layout, 2 * READ_STEPS + 7)
    assert torch.equal(record.load(), record.read())


def test_context_ends_and_target_starts_at_the_origin(layout: Layout) -> None:
    windows = Windows(record_of(layout, N_STEPS), np.array([5, 40, 57]), CONTEXT, HORIZON)
    assert len(windows) == 3
    for number, origin in enumerate([5, 40, 57]):
        context, target = windows.context(number), windows.target(number)
        past = physical_units(context.past, layout)[0]
        np.testing.assert_allclose(past, states(N_STEPS)[origin - CONTEXT : origin], rtol=1e-6)
        future = physical_units(target, layout)[0]
        np.testing.assert_allclose(future, states(N_STEPS)[origin : origin + HORIZON], rtol=1e-6)
        assert context.horizon == HORIZON
        steps = (context.time[0] - START) / np.timedelta64(900, "s")
        assert steps.tolist() == list(range(origin - CONTEXT, origin + HORIZON))
        assert np.array_equal(context.future_time, context.time[:, CONTEXT:])
        assert torch.equal(windows.target(number, slice(2, 5)), target[..., 2:5])
    assert windows.start(1) == "2015-01-01T10:00"


def test_a_target_beyond_the_record_raises(layout: Layout) -> None:
    windows = Windows(record_of(layout, N_STEPS), np.array([58]), CONTEXT, HORIZON)
    with pytest.raises(TaskError, match=r"61 .*60"):
        windows.target(0)


def assert_same_batch(
    actual: tuple[Context, torch.Tensor], expected: tuple[Context, torch.Tensor]
) -> None:
    assert torch.equal(actual[0].past, expected[0].past)
    assert torch.equal(actual[1], expected[1])
    assert np.array_equal(actual[0].time, expected[0].time)


def test_a_batch_depends_only_on_seed_and_number(training: Training, layout: Layout) -> None:
    again = Training(record_of(layout, N_STEPS), training.validation)
    seen = list(islice(training.batches(4, seed=42), 5))
    for batch, same in zip(seen, again.batches(4, seed=42), strict=False):
        assert_same_batch(batch, same)
    assert not torch.equal(seen[0][1], seen[1][1])
    other_seed = training.batches(4, seed=22)[0]
    assert not torch.equal(seen[0][1], other_seed[1])


def test_a_resumed_training_sees_the_same_batches(training: Training) -> None:
    seen = list(islice(training.batches(4, seed=42), 6))
    resumed = training.batches(4, seed=42)
    for number in (2, 5, 3):
        assert_same_batch(seen[number], resumed[number])


def test_processes_that_share_a_batch_get_each_window_once(training: Training) -> None:
    whole, shared = training.batches(6, seed=42), training.batches(6, seed=42)
    for number in range(3):
        context, target = whole[number]
        for rank in range(2):
            shared.share = slice(rank, None, 2)
            part = slice(rank, None, 2)
            expected = Context(context.past[part], context.time[part], context.layout)
            assert_same_batch(shared[number], (expected, target[part]))


def test_batches_contain_every_window_of_the_record_and_no_other(
    training: Training, layout: Layout
) -> None:
    origins = set()
    for context, target in islice(training.batches(32, seed=1), 40):
        assert context.past.shape == (32, CONTEXT, 8)
        assert target.shape == (32, HORIZON, 8)
        whole = physical_units(torch.cat([context.past, target], dim=1), layout)
        steps = (context.time - START) / np.timedelta64(900, "s")
        np.testing.assert_allclose(whole, steps[..., None] + np.arange(8) / 16, rtol=1e-5)
        assert (np.diff(steps, axis=1) == 1).all()
        origins |= set(steps[:, CONTEXT].astype(int).tolist())
    assert origins == set(range(CONTEXT, N_STEPS - HORIZON + 1))


def test_a_record_needs_at_least_one_window(training: Training) -> None:
    layout, shortest = training.layout, CONTEXT + HORIZON
    context, target = Training(record_of(layout, shortest), training.validation).batches(3, 0)[0]
    assert (context.time == START + 900 * np.arange(shortest)).all()
    assert target.shape == (3, HORIZON, 8)
    short = Training(record_of(layout, shortest - 1), training.validation)
    with pytest.raises(TaskError, match=r"7 steps.* 5 \+ 3"):
        short.batches(3, seed=0)


def numbered_scenarios(n_windows: int, weights: torch.Tensor, horizon: int = 2) -> Scenarios:
    """Scenarios whose values are their number, plus 100 for each window."""
    _, n_scenarios, n_channels = weights.shape
    number = torch.arange(float(n_scenarios))[:, None, None].expand(-1, horizon, n_channels)
    window = 100 * torch.arange(float(n_windows))[:, None, None, None]
    return Scenarios((number + window).contiguous(), weights.expand(n_windows, -1, -1))


def test_draws_are_whole_scenarios_if_weights_do_not_depend_on_the_channel() -> None:
    weights = torch.tensor([0.1, 0.2, 0.3, 0.4])[None, :, None].expand(1, 4, 8)
    draws = numbered_scenarios(3, weights).sample(50, seed=1)
    assert draws.values.shape == (3, 50, 2, 8)
    for window in range(3):
        first = draws.values[window, :, :1, :1]
        assert (draws.values[window] == first).all()
        assert set(first.flatten().tolist()) == {100.0 * window + k for k in range(4)}


def test_draws_have_equal_weights() -> None:
    weights = torch.tensor([[0.7, 0.1], [0.3, 0.9]])[None]
    draws = numbered_scenarios(1, weights).sample(16, seed=1)
    assert draws.weights.shape == (1, 16, 2)
    assert (draws.weights == 1 / 16).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_draws_follow_the_weights_of_every_channel(dtype: torch.dtype) -> None:
    n, random = 20_000, np.random.default_rng(3)
    weights = torch.from_numpy(random.dirichlet(np.ones(5), size=(2, 6))).movedim(2, 1).to(dtype)
    values = torch.arange(5.0)[None, :, None, None].expand(2, 5, 1, 6)
    draws = Scenarios(values.contiguous(), weights).sample(n, seed=4).values[:, :, 0]
    share = torch.stack([(draws == k).double().mean(1) for k in range(5)], dim=1)
    error = (weights.double() * (1 - weights.double()) / n).sqrt()
    assert ((share - weights).abs() < 4.5 * error).all()


def test_channels_are_drawn_together_if_their_weights_differ() -> None:
    """One random number for the whole grid, so draws of two channels are ordered."""
    weights = torch.tensor([[0.3, 0.6], [0.7, 0.4]])[None]
    first, second = numbered_scenarios(1, weights, horizon=1).sample(5000, seed=2).values[0, :, 0].T
    assert (first >= second).all()
    assert (first != second).double().mean().item() == pytest.approx(0.3, abs=0.03)


def test_draws_depend_on_the_seed() -> None:
    scenarios = numbered_scenarios(2, torch.full((1, 10, 3), 0.1))
    once = scenarios.sample(40, seed=5).values
    assert torch.equal(once, scenarios.sample(40, seed=5).values)
    assert not torch.equal(once, scenarios.sample(40, seed=6).values)


def test_windows_are_drawn_independently() -> None:
    draws = (
        numbered_scenarios(2, torch.full((1, 10, 1), 0.1)).sample(200, seed=7).values[:, :, 0, 0]
    )
    assert (draws[0] == draws[1] - 100).double().mean() < 0.3


def test_scenarios_of_weight_zero_are_never_drawn() -> None:
    """Neither the first nor the last, even if rounded weights sum to less than 1."""
    weights = torch.tensor([0.0, 0.4, 0.0, 0.599992, 0.0])[None, :, None]
    draws = numbered_scenarios(1, weights, horizon=1).sample(1_000_000, seed=8).values
    assert set(draws.unique().tolist()) == {1, 3}


def test_channels_of_scenarios_are_parts_of_their_tensors() -> None:
    scenarios = numbered_scenarios(2, torch.full((1, 4, 6), 0.25))
    part = scenarios.of_channels(slice(1, 4))
    assert torch.equal(part.values, scenarios.values[..., 1:4])
    assert torch.equal(part.weights, scenarios.weights[..., 1:4])
    like = scenarios.like(torch.zeros(1, dtype=torch.float64))
    assert like.values.dtype == like.weights.dtype == torch.float64
    assert torch.equal(like.values.float(), scenarios.values)


def test_normalised_weights_sum_to_one() -> None:
    weights = torch.tensor([0.2, 0.3, 0.5]).reshape(1, 3, 1) * (1 + 8e-6)
    normalised = Scenarios(torch.zeros(1, 3, 1, 1), weights).normalised_weights
    assert normalised.flatten().tolist() == pytest.approx([0.2, 0.3, 0.5], abs=1e-7)


@pytest.mark.parametrize("step", [-1, 2, 4])
def test_reading_with_a_stride_raises(layout: Layout, step: int) -> None:
    """A negative stride could return states beyond the end of the record."""
    record = record_of(layout, N_STEPS)
    with pytest.raises(TaskError, match="contiguous"):
        record.read(slice(None, None, step))
    with pytest.raises(TaskError, match="contiguous"):
        record.read(channels=slice(None, None, step))


@pytest.mark.parametrize("n_scenarios", [1, 3, 7, 100, 625, 10_000])
def test_equal_weights_sum_to_one(n_scenarios: int) -> None:
    scenarios = Scenarios.equal(torch.zeros(1, n_scenarios, 1, 2))
    assert scenarios.weights.shape == (1, n_scenarios, 2)
    assert scenarios.weights.double().sum(1).numpy() == pytest.approx(1, abs=1e-5)


def test_a_window_without_its_whole_context_raises(layout: Layout) -> None:
    windows = Windows(record_of(layout, 100), np.array([CONTEXT - 1]), CONTEXT, HORIZON)
    with pytest.raises(TaskError, match=r"window 0 .*4 of 5"):
        windows.context(0)


LEVELS = st.lists(st.integers(1, 999), min_size=1, max_size=9, unique=True).map(
    lambda numbers: np.sort(numbers) / 1000
)


@given(LEVELS, st.integers(0, 2**31))
def test_quantiles_have_the_crps_of_their_step_function(level: np.ndarray, seed: int) -> None:
    """CRPS is twice the integral of the pinball loss over all levels, here bin by bin."""
    random = np.random.default_rng(seed)
    quantile = np.sort(random.normal(size=(1, len(level), 3, 4)), axis=1)
    target = random.normal(size=(1, 3, 4))
    scenarios = Scenarios.from_quantiles(level.tolist(), torch.from_numpy(quantile))
    edge = np.concatenate([[0.0], (level[1:] + level[:-1]) / 2, [1.0]])[:, None, None]
    low, high = edge[:-1], edge[1:]
    above = (target[:, None] < quantile) * 2 * (high - low)
    expected = ((quantile - target[:, None]) * (above - (high**2 - low**2))).sum(axis=1)
    actual = crps(Fan.of(scenarios), torch.from_numpy(target)).numpy()
    np.testing.assert_allclose(actual, expected, atol=1e-12)


def test_central_levels_give_equal_weights() -> None:
    values = torch.arange(16.0).reshape(1, 4, 2, 2)
    scenarios = Scenarios.from_quantiles([0.125, 0.375, 0.625, 0.875], values)
    assert torch.equal(scenarios.weights, Scenarios.equal(values).weights)
    assert torch.equal(scenarios.values, values)


@pytest.mark.parametrize(
    "levels", [[0.5, 0.1], [0.1, 0.1], [0.0, 0.5], [0.5, 1.0], [0.5], [0.1, float("nan")], []]
)
def test_levels_must_ascend_and_match_the_quantiles(levels: list[float]) -> None:
    with pytest.raises(ForecastError, match="level"):
        Scenarios.from_quantiles(levels, torch.zeros((1, 2, 3, 4)))
