"""Averages: they do not depend on the pieces in which a forecast arrives, and add up."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from powerphase.axes import VARIABLES, V
from powerphase.metrics import LANES, Scorecard, channel_points, channels_at_once, voltage_points
from powerphase.records import SCORES
from powerphase.scenarios import Scenarios
from tests.metrics import naive
from tests.metrics.examples import (
    Example,
    assert_same,
    example,
    of_window,
    score,
    score_points,
)

N_WINDOWS, N_CHANNELS = 2, 12

Pieces = list[tuple[int, slice]]


def blocks(size: int) -> list[slice]:
    edges = [*range(0, N_CHANNELS, size), N_CHANNELS]
    return [slice(*ends) for ends in pairwise(edges)]


def by_window(size: int, windows: range = range(N_WINDOWS)) -> Pieces:
    return [(window, channels) for window in windows for channels in blocks(size)]


def shuffled() -> Pieces:
    pieces = by_window(3)
    order = np.random.default_rng(1).permutation(len(pieces))
    return [pieces[k] for k in order]


ORDERS: dict[str, Pieces] = {
    "five channels at a time": by_window(5),
    "seven channels at a time": by_window(7),
    "channel by channel": by_window(1),
    "windows backwards": by_window(N_CHANNELS, range(N_WINDOWS)[::-1]),
    "all windows open at once": [(w, c) for c in blocks(6) for w in range(N_WINDOWS)],
    "shuffled": shuffled(),
}


@pytest.fixture(scope="module", params=[True, False], ids=["samples", "weighted"])
def forecast(request: pytest.FixtureRequest) -> Example:
    return random_forecast(equal=request.param)


@pytest.fixture(scope="module")
def whole(forecast: Example) -> Scorecard:
    return score(forecast.scenarios, forecast.target)


def random_forecast(equal: bool, dtype: torch.dtype = torch.float64) -> Example:
    return example(
        7,
        n_windows=N_WINDOWS,
        n_scenarios=30,
        horizon=4,
        n_buses=N_CHANNELS // 4,
        equal=equal,
        dtype=dtype,
    )


@pytest.mark.parametrize("order", ORDERS)
def test_a_forecast_in_pieces_scores_like_the_whole(
    forecast: Example, whole: Scorecard, order: str
) -> None:
    parts = score(forecast.scenarios, forecast.target, ORDERS[order])
    assert_same(parts, whole, rtol=1e-12)


@pytest.mark.parametrize("block_bytes", [1, 5_000, 2**30])
def test_the_block_size_changes_no_score(
    forecast: Example, whole: Scorecard, block_bytes: int
) -> None:
    parts = score(forecast.scenarios, forecast.target, block_bytes=block_bytes)
    assert_same(parts, whole, rtol=1e-12)


def test_the_number_of_threads_changes_no_score(forecast: Example, whole: Scorecard) -> None:
    before = torch.get_num_threads()
    try:
        for threads in (2, 3):
            torch.set_num_threads(threads)
            assert_same(score(forecast.scenarios, forecast.target), whole, rtol=1e-12)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("block_bytes", [1, 959, 960, 100_000, 10**6])
def test_a_block_fits_its_size_limit_unless_it_is_one_channel(block_bytes: int) -> None:
    scenarios = Scenarios.equal(torch.zeros((1, 30, 4, 2), dtype=torch.float64))
    n_channels, one_channel = channels_at_once(block_bytes, scenarios), 30 * 4 * 8
    assert n_channels == 1 or n_channels * one_channel <= block_bytes
    assert (n_channels + LANES) * one_channel > block_bytes


@pytest.mark.parametrize("equal", [True, False])
def test_pieces_in_single_precision_score_like_the_whole(equal: bool) -> None:
    """Up to the rounding of single points, which depends on the width of a block."""
    case = random_forecast(equal, torch.float32)
    whole = score(case.scenarios, case.target)
    for pieces in (ORDERS["channel by channel"], ORDERS["shuffled"]):
        parts = score(case.scenarios, case.target, pieces)
        assert_same(parts, whole, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("equal", [True, False])
def test_single_precision_scores_like_double(equal: bool) -> None:
    double, single = random_forecast(equal), random_forecast(equal, torch.float32)
    exact, rounded = (score(case.scenarios, case.target) for case in (double, single))
    for name in SCORES:
        np.testing.assert_allclose(
            rounded.by_window[name], exact.by_window[name], rtol=1e-5, atol=1e-7, err_msg=name
        )


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("equal", [True, False])
def test_a_gpu_scores_like_a_cpu(equal: bool) -> None:
    for dtype, rtol, atol in [(torch.float64, 1e-12, 1e-15), (torch.float32, 1e-5, 1e-7)]:
        case = random_forecast(equal, dtype)
        on_cpu = score(case.scenarios, case.target)
        on_gpu = score(case.scenarios, case.target, shuffled(), "cuda", block_bytes=5_000)
        assert_same(on_gpu, on_cpu, rtol, atol)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("n_scenarios", [1, 12])
def test_a_scorecard_follows_the_formulas_of_the_paper(n_scenarios: int, tied: bool) -> None:
    case = example(8, n_scenarios=n_scenarios, tied=tied)
    numbers = (case.scenarios.values.numpy(), case.scenarios.weights.numpy(), case.target.numpy())
    card = score(case.scenarios, case.target)
    on_voltages = (numbers[0][..., V::4], numbers[1][..., V::4], numbers[2][..., V::4])
    for table, points in ((naive.ON_CHANNELS, numbers), (naive.ON_VOLTAGES, on_voltages)):
        for name, definition in table.items():
            expected = naive.pointwise(definition, *points)
            np.testing.assert_allclose(
                card.by_window[name],
                expected.mean(axis=(1, 2)),
                rtol=1e-11,
                atol=1e-14,
                err_msg=name,
            )
            assert card[name] == pytest.approx(expected.mean(), rel=1e-11, abs=1e-14)


def test_a_scorecard_averages_points_by_window_type_step_and_bus(
    forecast: Example, whole: Scorecard
) -> None:
    actual = score_points(channel_points, forecast.scenarios, forecast.target, "torch")
    del actual["mean"]
    if not np.isfinite(whole["fair_crps"]):
        del actual["fair_crps"]
    voltages = forecast.scenarios.of_channels(slice(V, None, 4)), forecast.target[..., V::4]
    for name, points in score_points(voltage_points, *voltages, "torch").items():
        actual[name] = torch.full(forecast.target.shape, torch.nan, dtype=torch.float64)
        actual[name][..., V::4] = points
    for name, points in actual.items():
        four = points.unflatten(-1, (-1, 4)).numpy()  # B, H, N, 4
        parts = {
            "by_window": np.nanmean(four, axis=(1, 2, 3)),
            "by_type": four.mean(axis=(0, 1, 2)),
            "by_step": four.mean(axis=(0, 2)),
            "by_bus": four.mean(axis=(0, 1)),
        }
        for part, expected in parts.items():
            np.testing.assert_allclose(
                getattr(whole, part)[name],
                expected,
                rtol=1e-11,
                atol=1e-15,
                err_msg=f"{name} {part}",
            )


@pytest.mark.parametrize("name", [name for name, score in SCORES.items() if score.pointwise])
def test_parts_of_pointwise_scores_average_to_the_whole(whole: Scorecard, name: str) -> None:
    kinds = [V] if SCORES[name].voltage_only else range(4)
    for part in (whole.by_type[name][None], whole.by_step[name], whole.by_bus[name]):
        assert part[:, kinds].mean() == pytest.approx(whole[name], rel=1e-12, nan_ok=True)
        others = np.delete(part, kinds, axis=1)
        assert np.isnan(others).all()


def test_a_scorecard_has_every_score_of_a_result_row(whole: Scorecard) -> None:
    for part in (whole.by_window, whole.by_step):
        assert SCORES.keys() <= part.keys()
    with_types = {name for name, about in SCORES.items() if about.has_types}
    assert SCORES.keys() & whole.by_type.keys() == with_types
    assert SCORES.keys() & whole.by_bus.keys() == with_types - {"energy"}
    for name, about in SCORES.items():
        actual = whole.by_window[name]
        if about.needs_samples and np.isnan(actual).all():
            continue
        assert about.low <= actual.min(), name
        assert actual.max() <= about.high, name
    assert whole.n_scenarios == 30


def has_fair_crps(card: Scorecard) -> bool:
    parts = [
        part["fair_crps"] for part in (card.by_window, card.by_type, card.by_step, card.by_bus)
    ]
    actual = {bool(np.isfinite(part).all()) for part in parts}
    missing = {bool(np.isnan(part).all()) for part in parts}
    assert (actual, missing) in [({True}, {False}), ({False}, {True})]
    return actual == {True}


def test_fair_crps_exists_only_for_two_or_more_samples() -> None:
    for case, exists in [
        (example(9, equal=True), True),
        (example(9, equal=True, n_scenarios=2), True),
        (example(9, equal=True, n_scenarios=1), False),
        (example(9, equal=False), False),
    ]:
        assert has_fair_crps(score(case.scenarios, case.target)) is exists


def test_one_weighted_channel_removes_fair_crps() -> None:
    case = example(9, equal=True)
    case.scenarios.weights[0, :2, 5] += torch.tensor([0.01, -0.01])
    assert not has_fair_crps(score(case.scenarios, case.target))
    pieces = [(window, slice(c, c + 1)) for window in range(2) for c in range(12)]
    assert not has_fair_crps(score(case.scenarios, case.target, pieces))


def test_a_float32_voltage_at_the_edge_of_the_band_is_inside_in_float64() -> None:
    """A voltage held at 0.95 in float32 lies a little below the 0.95 of float64."""
    target = torch.full((1, 3, 12), 0.95)
    scenarios = Scenarios.equal(target.unsqueeze(1).expand(1, 4, 3, 12).clone())
    double = Scenarios.equal(scenarios.values.double())
    for forecast in (scenarios, double):
        card = score(forecast, target)
        assert card["violation_probability"] == card["safety_mbrier"] == card["necv"] == 0


def test_blocks_without_voltages_are_scored() -> None:
    case = example(12, n_buses=1)
    blocks = (slice(0, 2), slice(3, 4), slice(2, 3))
    pieces = [(window, channels) for window in range(2) for channels in blocks]
    whole = score(case.scenarios, case.target)
    assert_same(score(case.scenarios, case.target, pieces), whole, rtol=1e-12)


def test_scores_by_type_are_in_the_order_of_the_variables() -> None:
    case = example(13, n_windows=1)
    wide = case.scenarios.values.clone()
    for kind in range(len(VARIABLES)):
        wide[..., kind::4] = case.target[:, None, :, kind::4] + 10.0**kind
    actual = score(Scenarios(wide, case.scenarios.weights), case.target).by_type["mse"]
    np.testing.assert_allclose(actual, [1, 100, 10_000, 1_000_000])


def test_a_score_is_the_mean_over_windows() -> None:
    case = example(14, n_windows=4)
    card = score(case.scenarios, case.target)
    for window in range(4):
        alone = score(of_window(case.scenarios, window), case.target[window : window + 1])
        for name in (name for name in SCORES if name != "fair_crps"):
            assert card.by_window[name][window] == pytest.approx(alone[name], rel=1e-12)
            assert card[name] == card.by_window[name].mean()
