"""Only observed values of a target are scored: filled ones change nothing, and are left out."""

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.circuit import Circuit, Limits
from powerphase.errors import ForecastError
from powerphase.metrics import Scorecard, Scorer
from powerphase.records.scores import SCORES
from powerphase.scenarios import Layout, Scenarios

N, M, H, B = 5, 6, 8, 2


def make_layout(circuit: Circuit | None = None) -> Layout:
    circuit = circuit or Circuit.chain(N)
    return Layout(
        grid="chain",
        bus_id=np.arange(1, N + 1),
        bus_type=np.array([3, 1, 1, 2, 1]),
        nominal_kv=np.full(N, 110.0),
        circuit=circuit,
        limits=Limits.equal(circuit, (0.95, 1.05), 60.0),
        p_scale_mw=100.0,
        q_scale_mvar=50.0,
    )


def example(seed: int = 0) -> tuple[list[Scenarios], Tensor, Tensor]:
    """Scenarios, targets and masks of two windows, with voltages around the upper limit."""
    random = torch.Generator().manual_seed(seed)
    values = 0.1 * torch.randn((B, M, H, 4 * N), generator=random)
    target = 0.1 * torch.randn((B, H, 4 * N), generator=random)
    for part in (values, target):
        part[..., 2::4] = 1.04 + part[..., 2::4] / 5
    observed = torch.rand((B, H, 4 * N), generator=random) > 0.3
    return [Scenarios.equal(values[k : k + 1]) for k in range(B)], target, observed


def score(
    scenarios: list[Scenarios],
    target: Tensor,
    observed: Tensor | None,
    layout: Layout | None = None,
    block: int = 4 * N,
) -> Scorecard:
    scorer = Scorer(layout or make_layout(), H, B, "cpu")
    for window, forecast in enumerate(scenarios):
        for first in range(0, 4 * N, block):
            part = slice(first, first + block)
            seen = None if observed is None else observed[window : window + 1, :, part]
            truth = target[window : window + 1, :, part]
            scorer.add(window, forecast.of_channels(part), truth, part, seen)
    return scorer.result()


def assert_same(one: Scorecard, other: Scorecard, tolerance: float = 0.0) -> None:
    for name in SCORES:
        for part in ("by_window", "by_type", "by_step", "by_bus", "by_branch"):
            if name in (values := getattr(one, part)):
                np.testing.assert_allclose(
                    values[name], getattr(other, part)[name], rtol=tolerance, atol=tolerance / 100
                )
    np.testing.assert_allclose(one.reliability, other.reliability, rtol=tolerance)
    np.testing.assert_allclose(one.daily_slope, other.daily_slope, rtol=max(tolerance, 1e-12))


@pytest.mark.parametrize("block", [4 * N, 8])
def test_a_masked_target_changes_no_score(block: int) -> None:
    scenarios, target, observed = example()
    other = torch.where(observed, target, target + torch.randn_like(target))
    assert_same(
        score(scenarios, target, observed, block=block),
        score(scenarios, other, observed, block=block),
    )


def test_a_full_mask_is_no_mask() -> None:
    scenarios, target, observed = example()
    everything = torch.ones_like(observed)
    # Flows are in float32, and the compiled kernel adds them up in another order.
    assert_same(score(scenarios, target, everything), score(scenarios, target, None), 2e-5)


@pytest.mark.parametrize("name", ["crps", "mse", "coverage_80", "width_80"])
def test_means_are_those_of_the_observed_points(name: str) -> None:
    """Oracle: the points of a one-channel forecast, averaged one by one."""
    scenarios, target, observed = example()
    card = score(scenarios, target, observed)
    for window in range(B):
        by_type = []
        for kind in range(4):
            points = []
            for channel in range(kind, 4 * N, 4):
                for step in range(H):
                    if observed[window, step, channel]:
                        values = scenarios[window].values[0, :, step, channel].double()
                        points.append(naive(name, values, target[window, step, channel].double()))
            by_type.append(np.mean(points))
        assert card.by_window[name][window] == pytest.approx(np.mean(by_type), rel=1e-5)


def naive(name: str, values: Tensor, truth: Tensor) -> float:
    ordered = values.sort().values
    if name == "crps":
        spread = (values[:, None] - values).abs().mean() / 2
        return float((values - truth).abs().mean() - spread)
    if name == "mse":
        return float((values.mean() - truth) ** 2)
    # Of six equally likely values, 10 % and 90 % of the weight are reached at both ends.
    low, high = ordered[0], ordered[-1]
    return float(high - low) if name == "width_80" else float(low <= truth <= high)


def test_joint_scores_are_those_of_the_observed_part() -> None:
    """A channel that is never observed may as well not exist, up to the directions of the score."""
    scenarios, target, _ = example()
    observed = torch.ones_like(target, dtype=torch.bool)
    observed[..., 4:8] = False
    card = score(scenarios, target, observed)
    kept = [c for c in range(4 * N) if not 4 <= c < 8]
    for window, forecast in enumerate(scenarios):
        error = (forecast.values[0] - target[window])[..., kept].double()
        best = error.square().mean((1, 2)).min().sqrt()
        assert card.by_window["distortion"][window] == pytest.approx(float(best), rel=1e-5)
    assert np.isnan(card.by_bus["crps"][1]).all()
    assert np.isfinite(card.by_window["energy"]).all()


def test_lines_count_where_both_ends_are_observed() -> None:
    scenarios, target, _ = example()
    observed = torch.ones_like(target, dtype=torch.bool)
    observed[..., 4 * 2 + 3] = False  # the angle of the third bus
    card = score(scenarios, target, observed)
    crps = card.by_branch["loading_crps"]
    np.testing.assert_array_equal(np.isnan(crps), [False, True, True, False])
    whole = score(scenarios, target, None).by_branch["loading_crps"]
    np.testing.assert_allclose(crps[[0, 3]], whole[[0, 3]], rtol=1e-5)
    assert card["loading_crps"] == pytest.approx(float(np.nanmean(crps)), rel=1e-6)


def test_a_variable_that_is_never_observed_has_no_score() -> None:
    scenarios, target, _ = example()
    observed = torch.ones_like(target, dtype=torch.bool)
    observed[..., 2::4] = False
    card = score(scenarios, target, observed, make_layout(Circuit.none(N)))
    for name, about in SCORES.items():
        is_absent = about.needs_v or about.needs_lines or about.needs_ratings
        assert np.isnan(card[name]) == is_absent, name
    assert np.isnan(card.by_type["crps"][2])
    known = card.by_type["crps"][[0, 1, 3]]
    assert card["crps"] == pytest.approx(known.mean())


def test_a_window_without_an_observed_voltage_cannot_be_compared_with_others() -> None:
    scenarios, target, _ = example()
    observed = torch.ones_like(target, dtype=torch.bool)
    observed[1, :, 2::4] = False
    with pytest.raises(ForecastError, match="window 1"):
        score(scenarios, target, observed)
