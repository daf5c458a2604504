"""Small random forecasts: a layout of a few buses and scenarios around the voltage band."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor

from powerphase.axes import V
from powerphase.circuit import Circuit, Limits
from powerphase.metrics import Points, Scorecard, Scorer
from powerphase.records import NORMAL_BAND_PU
from powerphase.scenarios import Layout, Scenarios


@dataclass(frozen=True)
class Example:
    """Scenarios of several windows, and what happened."""

    scenarios: Scenarios
    target: Tensor


class PretendGpuTensor(Tensor):
    """A CPU tensor that claims to be on a GPU, so that the GPU's code path is tested."""

    @property
    def device(self) -> SimpleNamespace:  # type: ignore[override]
        return SimpleNamespace(type="cuda")


BACKENDS = ["kernels", "torch"]
"""The two implementations of point scores: numba on a CPU, torch on a GPU."""


def layout(n_buses: int = 3) -> Layout:
    """A line of buses, numbered in tens."""
    order, circuit = np.arange(n_buses), Circuit.chain(n_buses)
    return Layout(
        grid="made-up",
        bus_id=10 * (order + 1),
        bus_type=np.where(order == 0, 3, 1),
        nominal_kv=np.full(n_buses, 110.0),
        circuit=circuit,
        limits=Limits.equal(circuit, NORMAL_BAND_PU, 1000.0),
        p_scale_mw=200.0,
        q_scale_mvar=50.0,
    )


def example(
    seed: int = 0,
    *,
    n_windows: int = 2,
    n_scenarios: int = 7,
    horizon: int = 3,
    n_buses: int = 3,
    equal: bool = False,
    tied: bool = False,
    dtype: torch.dtype = torch.float64,
) -> Example:
    """Random scenarios; `tied` rounds them, so that values equal each other and the target."""
    random = np.random.default_rng(seed)
    states = random.normal(size=(n_windows, n_scenarios + 1, horizon, 4 * n_buses))
    states[..., V::4] = 1 + 0.05 * states[..., V::4]
    if tied:
        states = states.round(2)
    weights = random.dirichlet(np.ones(n_scenarios), size=(n_windows, 4 * n_buses))
    if equal:
        weights[:] = 1 / n_scenarios
    values = torch.from_numpy(states).to(dtype)
    scenarios = Scenarios(values[:, 1:], torch.from_numpy(weights).movedim(2, 1).to(dtype))
    return Example(scenarios, values[:, 0])


def of_window(scenarios: Scenarios, window: int) -> Scenarios:
    """The scenarios of one window."""
    part = slice(window, window + 1)
    return Scenarios(scenarios.values[part], scenarios.weights[part])


def score_points(
    function: Callable[[Scenarios, Tensor], Points],
    scenarios: Scenarios,
    target: Tensor,
    backend: str,
) -> dict[str, Tensor]:
    """The scores of all points, by one of the two implementations."""
    target = target.as_subclass(PretendGpuTensor if backend == "torch" else Tensor)
    windows = [function(of_window(scenarios, b), target[b : b + 1]) for b in range(len(target))]
    return {
        name: torch.cat([points[name] for points in windows]).as_subclass(Tensor)
        for name in windows[0]
    }


def scorer_of(target: Tensor, device: str = "cpu", block_bytes: int | None = None) -> Scorer:
    """A scorer for forecasts of this target."""
    n_windows, horizon, n_channels = target.shape
    return Scorer(layout(n_channels // 4), horizon, n_windows, device, block_bytes)


def score(
    scenarios: Scenarios,
    target: Tensor,
    pieces: Iterable[tuple[int, slice]] | None = None,
    device: str = "cpu",
    block_bytes: int | None = None,
) -> Scorecard:
    """All scores of a forecast that arrives in the given pieces, by default window by window."""
    scorer = scorer_of(target, device, block_bytes)
    for window, channels in pieces or [(window, slice(None)) for window in range(len(target))]:
        part = of_window(scenarios, window).of_channels(channels)
        scorer.add(window, part, target[window : window + 1, :, channels], channels)
    return scorer.result()


def assert_same(actual: Scorecard, expected: Scorecard, rtol: float, atol: float = 1e-15) -> None:
    """The two scorecards agree up to the tolerance."""
    for part in ("by_window", "by_type", "by_step", "by_bus", "by_branch"):
        scores, others = getattr(actual, part), getattr(expected, part)
        assert scores.keys() == others.keys()
        for name in scores:
            message = f"{name} {part}"
            np.testing.assert_allclose(scores[name], others[name], rtol, atol, err_msg=message)
    np.testing.assert_allclose(actual.reliability, expected.reliability, rtol, atol)
    assert actual.n_scenarios == expected.n_scenarios
