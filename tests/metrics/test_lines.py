"""Scores of lines and of whole states: two implementations, and definitions in plain NumPy."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scoringrules
import torch
from numpy.typing import NDArray
from torch import Tensor

from powerphase.axes import THETA, P, Q, V
from powerphase.grid import PAPER_GRIDS, RATE_A, Grid, admittance_matrix, limits_of, load_grid
from powerphase.metrics import (
    LINE_SCORES,
    Lines,
    LineSums,
    Scorer,
    branch_loading,
    branch_points,
    state_points,
)
from powerphase.records import SCORES
from powerphase.scenarios import Layout, Scenarios
from powerphase.task import layout_of
from tests.metrics import naive

Array = NDArray[np.float64]
Sums = Callable[[Lines, Tensor, Tensor, Tensor], LineSums]

BACKENDS: dict[str, Sums] = {
    "compiled": Lines.sums,
    "torch": Lines.torch_sums,
    "torch, step by step": lambda lines, *inputs: lines.torch_sums(*inputs, 1),
}
HORIZON = 4


@cache
def grid_with_parallels() -> Grid:
    """IEEE 24, which has parallel branches, with a phase shifter and three unrated branches."""
    grid = load_grid("ieee24")
    branch = grid.branch.copy()
    branch[[2, 9, 30], RATE_A] = 0
    branch[5, 9] = 20.0  # degrees
    return replace(grid, branch=branch)


@cache
def layout(band: str = "normal") -> Layout:
    grid = grid_with_parallels()
    return layout_of(grid, limits_of(grid, band), 400.0, 150.0)


def states(n: int, seed: int = 0) -> Tensor:
    """Random states (n, H, C) with voltages in and out of the band and loading around 1."""
    random = np.random.default_rng(seed)
    values = random.normal(size=(n, HORIZON, layout().n_channels))
    values[..., V::4] = 1 + 0.04 * values[..., V::4]
    values[..., THETA::4] *= 0.1
    return torch.from_numpy(values)


def weights_of(n: int, equal: bool) -> Tensor:
    weights = np.random.default_rng(n).dirichlet(np.ones(n))
    return torch.from_numpy(np.full(n, 1 / n) if equal else weights)


def scores_of(sums: LineSums, weights: Tensor) -> dict[str, Array]:
    """All scores by step; those of branches as means."""
    by_branch = {name: points.mean(-1) for name, points in branch_points(sums).items()}
    steps = {**by_branch, **state_points(sums, weights)}
    return {name: steps[name].double().numpy() for name in LINE_SCORES}


def violations(state: Array, layout: Layout) -> tuple[Array, Array, int]:
    """The loading of all branches, the balance of all buses [MVA], and the violations."""
    circuit, limits, base = layout.circuit, layout.limits, layout.circuit.base_mva
    v, theta = state[V::4], state[THETA::4]
    loading = circuit.loading(v, theta, limits.rating_mva)
    ybus = admittance_matrix(grid_with_parallels()).toarray()
    voltage = v * np.exp(1j * theta)
    delivered = -base * voltage * (ybus @ voltage).conj()
    consumed = layout.p_scale_mw * state[P::4] + 1j * layout.q_scale_mvar * state[Q::4]
    band = zip(v, limits.v_min_pu, limits.v_max_pu, strict=True)
    outside = sum(not low <= x <= high for x, low, high in band)
    return loading, abs(consumed - delivered), outside + int((loading > 1).sum())


def variogram(states: Array, w: Array, target: Array, layout: Layout) -> float:
    """The variogram score of order ½ over the ends of all branches, branch by branch."""
    total = 0.0
    for i, j in layout.circuit.ends:
        expected = sum(w[m] * abs(x[i] - x[j]) ** 0.5 for m, x in enumerate(states))
        total += (abs(target[i] - target[j]) ** 0.5 - expected) ** 2
    return total / len(layout.circuit.ends)


def direct(values: Array, w: Array, target: Array, layout: Layout) -> dict[str, float]:
    """All scores of one step (M x C), as their definitions read."""
    facts = [violations(state, layout) for state in values]
    truth, _, true_count = violations(target, layout)
    loading, counts = np.array([x for x, _, _ in facts]), [n for *_, n in facts]
    rated = np.flatnonzero(np.isfinite(truth))
    numbers = w.tolist()
    points = [(loading[:, k].tolist(), float(truth[k])) for k in rated]
    above = [([max(x, 1.0) for x in fan], max(z, 1.0)) for fan, z in points]
    overload = [(np.dot(w, np.array(fan) > 1) - (z > 1)) ** 2 for fan, z in points]
    square = sum(w[m] * np.mean(residual**2) for m, (_, residual, _) in enumerate(facts))
    return {
        "loading_crps": np.mean([naive.crps_by_pairs(x, numbers, z) for x, z in points]),
        "overload_brier": np.mean(overload),
        "overload_twcrps": np.mean([naive.crps_by_pairs(x, numbers, z) for x, z in above]),
        "any_violation_brier": (np.dot(w, np.array(counts) > 0) - (true_count > 0)) ** 2,
        "violation_count_crps": naive.crps_by_pairs(counts, numbers, true_count),
        "variogram_theta": variogram(values[:, THETA::4], w, target[THETA::4], layout),
        "variogram_v": variogram(values[:, V::4], w, target[V::4], layout),
        "balance_rms_mva": square,  # its root is taken after averaging
    }


@pytest.mark.parametrize("band", ["normal", "case"])
@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("n_scenarios", [1, 2, 13])
@pytest.mark.parametrize("backend", BACKENDS)
def test_sums_follow_the_definitions(
    backend: str, n_scenarios: int, equal: bool, band: str
) -> None:
    values, target = states(n_scenarios), states(1, seed=9)[0]
    weights = weights_of(n_scenarios, equal)
    sums = BACKENDS[backend](Lines(layout(band)), values, weights, target)
    actual = scores_of(sums, weights)
    for h in range(HORIZON):
        state = (values[:, h].numpy(), weights.numpy(), target[h].numpy())
        for name, expected in direct(*state, layout(band)).items():
            assert actual[name][h] == pytest.approx(expected, rel=1e-10, abs=1e-12), name


def test_the_states_of_these_tests_are_in_and_out_of_all_limits() -> None:
    sums = Lines(layout()).sums(states(13), weights_of(13, True), states(1, seed=9)[0])
    overload = branch_points(sums)["overload_probability"]
    assert 0 < overload.mean() < 1
    assert len(set(sums.count.flatten().tolist())) > 5
    assert layout().limits.is_rated.sum() == len(layout().limits.is_rated) - 3


@pytest.mark.parametrize("equal", [True, False])
def test_scores_of_loading_equal_scoringrules(equal: bool) -> None:
    values, weights, target = states(13), weights_of(13, equal), states(1, seed=9)[0]
    points = branch_points(Lines(layout()).sums(values, weights, target))
    limits, circuit = layout().limits, layout().circuit
    order = np.flatnonzero(limits.is_rated)
    loading, truth = (
        circuit.loading(x[..., V::4], x[..., THETA::4], limits.rating_mva)[..., order]
        for x in (values.numpy(), target.numpy())
    )
    columns = np.broadcast_to(weights.numpy()[:, None, None], loading.shape)
    options = {"m_axis": 0, "ens_w": columns}
    for name, expected in {
        "loading_crps": scoringrules.crps_ensemble(truth, loading, **options),
        "overload_twcrps": scoringrules.twcrps_ensemble(truth, loading, a=1.0, **options),
        "overload_brier": scoringrules.brier_score(truth > 1, (columns * (loading > 1)).sum(0)),
    }.items():
        np.testing.assert_allclose(points[name], expected, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize(("name", "kind"), [("variogram_theta", THETA), ("variogram_v", V)])
def test_the_variogram_score_equals_scoringrules(name: str, kind: int) -> None:
    values, weights, target = states(13), weights_of(13, False), states(1, seed=9)[0]
    actual = state_points(Lines(layout()).sums(values, weights, target), weights)[name]
    pairs = np.zeros((24, 24))
    np.add.at(pairs, tuple(layout().circuit.ends.T), 1.0)
    for h in range(HORIZON):
        expected = scoringrules.vs_ensemble(
            target[h, kind::4].numpy(),
            values[:, h, kind::4].numpy(),
            w=pairs / pairs.sum(),
            ens_w=weights.numpy(),
            p=0.5,
        )
        assert actual[h].item() == pytest.approx(float(expected), rel=1e-10)


def test_the_count_of_violations_equals_scoringrules() -> None:
    weights = weights_of(13, False)
    sums = Lines(layout()).sums(states(13), weights, states(1, seed=9)[0])
    counts = sums.count.double().numpy()
    expected = scoringrules.crps_ensemble(
        counts[-1], counts[:-1], m_axis=0, ens_w=np.broadcast_to(weights.numpy()[:, None], (13, 4))
    )
    actual = state_points(sums, weights)["violation_count_crps"]
    np.testing.assert_allclose(actual, expected, rtol=1e-10)


@pytest.mark.parametrize("equal", [True, False])
def test_single_precision_scores_like_double(equal: bool) -> None:
    values, weights, target = states(13), weights_of(13, equal), states(1, seed=9)[0]
    exact = scores_of(Lines(layout()).sums(values, weights, target), weights)
    for sums in BACKENDS.values():
        single = sums(Lines(layout()), values.float(), weights, target.float())
        for name, rounded in scores_of(single, weights).items():
            np.testing.assert_allclose(rounded, exact[name], rtol=2e-5, atol=1e-7, err_msg=name)


def test_threads_change_no_bit() -> None:
    inputs = (states(13).float(), weights_of(13, False), states(1, seed=9)[0].float())
    before = torch.get_num_threads()
    results = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            results.append(Lines(layout()).sums(*inputs))
    finally:
        torch.set_num_threads(before)
    for alone, shared in zip(*(vars(result).values() for result in results), strict=True):
        assert torch.equal(alone, shared)


def test_strided_scenarios_score_like_contiguous_ones() -> None:
    values, weights, target = states(6), weights_of(6, False), states(1, seed=9)[0]
    padded = torch.zeros((6, HORIZON, values.shape[-1] + 3), dtype=values.dtype)
    padded[..., :-3] = values
    plain, strided = (Lines(layout()).sums(x, weights, target) for x in (values, padded[..., :-3]))
    assert torch.equal(plain.points, strided.points)
    assert torch.equal(plain.square_mva, strided.square_mva)


def score(values: Tensor, weights: Tensor, target: Tensor) -> dict[str, float]:
    scorer = Scorer(layout(), HORIZON, 1)
    scorer.add(0, Scenarios(values[None], weights[None]), target[None])
    card = scorer.result()
    return {name: card[name] for name in LINE_SCORES}


def test_weights_that_differ_by_channel_count_as_their_mean() -> None:
    """Unlike marginal scores, which use each channel's: a line's loading has no channel."""
    values, target = states(5), states(1, seed=9)[0]
    random = np.random.default_rng(3)
    by_channel = torch.from_numpy(random.dirichlet(np.ones(5), size=values.shape[-1]).T)
    mean = by_channel.mean(1, keepdim=True).expand_as(by_channel)
    assert score(values, by_channel, target) == pytest.approx(score(values, mean, target))
    other = torch.full_like(mean, 0.2)
    assert score(values, other, target) != pytest.approx(score(values, mean, target))


def test_the_balance_of_a_window_is_a_root_mean_square() -> None:
    values, target = states(5), states(1, seed=9)[0]
    weights = torch.full((5, values.shape[-1]), 0.2, dtype=torch.float64)
    squares = [
        np.mean(violations(state, layout())[1] ** 2)
        for state in values.reshape(-1, values.shape[-1]).numpy()
    ]
    actual = score(values, weights, target)["balance_rms_mva"]
    assert actual == pytest.approx(np.mean(squares) ** 0.5, rel=1e-10)


def test_without_ratings_lines_have_no_scores_and_states_do() -> None:
    grid = load_grid("ieee14")
    plain = layout_of(grid, limits_of(grid), 100.0, 50.0)
    values = states(4)[..., : plain.n_channels]
    scorer = Scorer(plain, HORIZON, 1)
    scorer.add(0, Scenarios.equal(values[None]), values[None, 0])
    card = scorer.result()
    missing = {name for name in LINE_SCORES if np.isnan(card[name])}
    assert missing == {name for name, about in SCORES.items() if about.needs_ratings}
    assert all(np.isnan(scores).all() for scores in card.by_branch.values())


def test_scores_by_branch_are_in_the_layouts_order() -> None:
    values, target = states(6), states(1, seed=9)[0]
    scorer = Scorer(layout(), HORIZON, 1)
    scorer.add(0, Scenarios.equal(values[None]), target[None])
    card, limits = scorer.result(), layout().limits
    v, theta = (target[:, kind::4].numpy() for kind in (V, THETA))
    expected = (layout().circuit.loading(v, theta, limits.rating_mva) > 1).mean(0)
    expected[~limits.is_rated] = np.nan
    np.testing.assert_array_equal(card.by_branch["overload"], expected)
    for name, scores in card.by_branch.items():
        assert np.nanmean(scores) == pytest.approx(card[name], rel=1e-9), name


@pytest.mark.parametrize("name", PAPER_GRIDS)
def test_loading_for_scores_equals_that_in_numpy(name: str) -> None:
    """That of the target, which the kernel keeps, of rated branches."""
    grid = load_grid(name)
    its_layout = layout_of(grid, limits_of(grid), 1.0, 1.0)
    random = np.random.default_rng(0)
    state = random.normal(size=(2, 4 * grid.n_buses))
    state[:, V::4] = 1 + 0.03 * state[:, V::4]
    state[:, THETA::4] *= 0.05
    values, target = torch.from_numpy(state[:1, None]), torch.from_numpy(state[1:])
    lines, limits = Lines(its_layout), its_layout.limits
    sums = lines.sums(values, torch.ones(1, dtype=torch.float64), target)
    loading = grid.circuit.loading(state[:, V::4], state[:, THETA::4], limits.rating_mva)
    of_scenario, of_target = loading[:, lines.order[: lines.n_rated]]
    np.testing.assert_allclose(sums.points[3, 0], of_target, rtol=1e-9)
    np.testing.assert_allclose(sums.points[0, 0], abs(of_scenario - of_target), atol=1e-9)


@pytest.mark.parametrize("name", PAPER_GRIDS)
def test_loading_in_torch_equals_that_in_numpy(name: str) -> None:
    grid = load_grid(name)
    its_layout = layout_of(grid, limits_of(grid), 1.0, 1.0)
    random = np.random.default_rng(0)
    v = 1 + 0.03 * random.normal(size=(2, grid.n_buses))
    theta = random.normal(0, 0.05, size=(2, grid.n_buses))
    v, theta = v.astype(np.float32), theta.astype(np.float32)
    expected = grid.circuit.loading(
        v.astype(float), theta.astype(float), its_layout.limits.rating_mva
    )
    for dtype, tolerance in ((torch.float64, 1e-9), (torch.float32, 2e-5)):
        inputs = (torch.from_numpy(x).to(dtype) for x in (v, theta))
        actual = branch_loading(its_layout, *inputs)
        np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=1e-6)


def test_loading_has_gradients_also_without_a_flow() -> None:
    grid = load_grid("activsg200")
    its_layout = layout_of(grid, limits_of(grid), 1.0, 1.0)
    v = torch.ones(grid.n_buses, dtype=torch.float64, requires_grad=True)
    theta = torch.zeros(grid.n_buses, dtype=torch.float64, requires_grad=True)
    branch_loading(its_layout, v, theta).nansum().backward()
    for part in (v, theta):
        assert part.grad is not None
        assert part.grad.isfinite().all()
