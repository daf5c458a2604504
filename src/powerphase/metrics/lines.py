"""Scores of lines and of whole states, which need V and θ of all buses of a scenario together.

Loading is |S|/rating at the worse end of a branch, a nonlinear function of four channels. A
forecast whose channels are right one by one can therefore have wrong flows. A derived quantity
needs one weight a scenario: it is the scenario's mean weight over all channels, as for the energy
score. All scores here but the power balance are proper.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Complex, Float, Float64, Int64
from torch import Tensor

from powerphase.axes import KINDS, THETA, P, Q, V
from powerphase.circuit import Circuit
from powerphase.metrics import line_kernels
from powerphase.metrics.marginal import Fan, crps
from powerphase.metrics.safety import brier, bus_band
from powerphase.scenarios import Layout, Scenarios

BRANCH_SCORES = ("loading_crps", "overload_brier", "overload_twcrps")
"""Scores of each rated branch, and below what was forecast and what happened."""
BRANCH_FACTS = ("overload_probability", "overload")
STATE_SCORES = (
    *("any_violation_brier", "violation_count_crps"),
    *("variogram_theta", "variogram_v", "balance_rms_mva"),
)
"""Scores of each step."""

CHUNK_BYTES = 2**28
"""Memory for the flows that torch holds at a time."""


def end_flows(
    circuit: Circuit, v: Float[Tensor, "*S N"], theta: Float[Tensor, "*S N"]
) -> tuple[Complex[Tensor, "*S L"], Complex[Tensor, "*S L"]]:
    """P + jQ [p.u.] that enters each branch at its from and at its to end.

    Angles count from the to end, behind the transformer. With u = V_from / ratio and the angle
    difference φ, less the shift, the series current is y (u exp(jφ) − V_to). Its first factor is
    large and its second small, so the difference is taken before rounding can hide it.
    """
    start, end = torch.from_numpy(circuit.ends).to(v.device).unbind(1)
    constants = (circuit.series_pu.real, circuit.series_pu.imag, circuit.b_pu / 2)
    ratio, shift, series, susceptance, half = (
        torch.from_numpy(values).to(v) for values in (circuit.ratio, circuit.shift_rad, *constants)
    )
    turned, v_to = v[..., start] / ratio, v[..., end]
    angle = theta[..., start] - theta[..., end] - shift
    lost = 2 * turned * (angle / 2).sin().square()  # u (1 − cos φ), without cancellation
    imaginary = turned * angle.sin()
    difference = torch.complex(turned - v_to - lost, imaginary)
    current = torch.complex(series, susceptance) * difference
    v_from = torch.complex(turned - lost, imaginary)
    into_start = v_from * (current + 1j * half * v_from).conj()
    into_end = v_to * (1j * half * v_to - current).conj()
    return into_start, into_end


def branch_loading(
    layout: Layout, v: Float[Tensor, "*S N"], theta: Float[Tensor, "*S N"]
) -> Float[Tensor, "*S L"]:
    """|S| at the worse end of each branch, as a share of its rating; NaN without a rating.

    It has gradients, also where a flow is 0. `Circuit.loading` is the same for NumPy.
    """
    limits = layout.limits
    rating = np.where(limits.is_rated, limits.rating_mva, np.nan) / layout.circuit.base_mva
    return _larger(*end_flows(layout.circuit, v, theta)) / torch.from_numpy(rating).to(v)


def _larger(
    into_start: Complex[Tensor, "*S L"], into_end: Complex[Tensor, "*S L"]
) -> Float[Tensor, "*S L"]:
    return torch.maximum(into_start.abs(), into_end.abs())


@dataclass(frozen=True, eq=False)
class LineSums:
    """What remains of a window's scenarios and its target."""

    points: Float[Tensor, "4 H R"]
    """Of rated branches: CRPS of loading, probability of overload, CRPS of loading above 1, and
    the target's loading."""
    count: Int64[Tensor, "M1 H"]
    """Violations in each scenario and, last, in the target."""
    variogram: Float64[Tensor, "2 H"]
    """Of θ and of V."""
    square_mva: Float64[Tensor, " H"]
    """Mean square of the power balance."""


class Lines:
    """The branches of a layout, rated ones first, and its limits, as scores need them.

    Args:
        layout: the channels, the circuit and the limits.
    """

    def __init__(self, layout: Layout) -> None:
        circuit, limits = layout.circuit, layout.limits
        self.order = np.argsort(~limits.is_rated, kind="stable")
        """The branches in the order in which they are scored."""
        self.n_rated = int(limits.is_rated.sum())
        self.layout = layout
        names = ("ends", "r_pu", "x_pu", "b_pu", "ratio", "shift_rad")
        ordered = {name: getattr(circuit, name)[self.order] for name in names}
        self.circuit = replace(circuit, **ordered)
        self._rating_pu = limits.rating_mva[self.order][: self.n_rated] / circuit.base_mva
        self._power_pu = np.array([layout.p_scale_mw, layout.q_scale_mvar]) / circuit.base_mva

    def sums(
        self,
        values: Float[Tensor, "M H C"],
        weights: Float64[Tensor, " M"],
        target: Float[Tensor, "H C"],
        observed: Bool[Tensor, "H C"] | None = None,
    ) -> LineSums:
        """The sums of one window; numba's on a CPU, torch's on a GPU and of observed parts."""
        if target.device.type == "cpu" and observed is None and len(self.order):
            return self._compiled_sums(values, weights, target)
        return self.torch_sums(values, weights, target, observed=observed)

    def seen_branches(self, observed: Bool[Tensor, "H C"]) -> Bool[Tensor, "H R"]:
        """Where V and θ at both ends of a rated branch are observed."""
        known = observed[..., V::KINDS] & observed[..., THETA::KINDS]
        return self._at_both_ends(known)[..., : self.n_rated]

    def _at_both_ends(self, known: Bool[Tensor, "H N"]) -> Bool[Tensor, "H L"]:
        """Where both ends of a branch are known, in the order in which branches are scored."""
        start, end = torch.from_numpy(self.circuit.ends).to(known.device).unbind(1)
        return known[..., start] & known[..., end]

    def _compiled_sums(self, values: Tensor, weights: Tensor, target: Tensor) -> LineSums:
        circuit, limits = self.circuit, self.layout.limits
        series = circuit.series_pu
        rows = (series.real, series.imag, circuit.b_pu / 2, 1 / circuit.ratio, circuit.shift_rad)
        shunt = np.stack([circuit.shunt_pu.real, circuit.shunt_pu.imag])
        dtype = values[0, :0, 0].numpy().dtype
        band = (limits.v_min_pu.astype(dtype), limits.v_max_pu.astype(dtype))
        return LineSums(
            *line_kernels.line_sums(
                values,
                weights,
                target,
                (np.ascontiguousarray(circuit.ends), np.stack(rows), 1 / self._rating_pu),
                (*band, shunt),
                (*self._power_pu.tolist(), circuit.base_mva),
            )
        )

    def torch_sums(
        self,
        values: Float[Tensor, "M H C"],
        weights: Float64[Tensor, " M"],
        target: Float[Tensor, "H C"],
        chunk_bytes: int = CHUNK_BYTES,
        observed: Bool[Tensor, "H C"] | None = None,
    ) -> LineSums:
        """The same sums in plain torch, a few steps at a time.

        Violations count at buses and branches that are observed, in scenarios and target alike.
        """
        n_scenarios, horizon, _ = values.shape
        one_step = 128 * (n_scenarios + 1) * max(len(self.order), self.layout.n_buses)
        size = max(1, chunk_bytes // one_step)
        parts = [
            self._steps(
                values[:, first : first + size],
                weights,
                target[first : first + size],
                None if observed is None else observed[first : first + size],
            )
            for first in range(0, horizon, size)
        ]
        joined = zip(*(vars(part).values() for part in parts), strict=True)
        points, *others = joined
        return LineSums(torch.cat(points, dim=1), *(torch.cat(part, dim=-1) for part in others))

    def _steps(
        self, values: Tensor, weights: Tensor, target: Tensor, observed: Tensor | None
    ) -> LineSums:
        """The sums of some steps; the target is treated as one more scenario."""
        states = torch.cat([values.to(target), target[None]])
        v, theta = states[..., V::KINDS], states[..., THETA::KINDS]
        flows = end_flows(self.circuit, v, theta)
        rating = torch.from_numpy(self._rating_pu).to(v)
        loading = _larger(*(flow[..., : self.n_rated] for flow in flows)) / rating
        low, high = bus_band(self.layout.limits, v)
        leaves, overload = (v < low) | (v > high), loading > 1
        known: tuple[Tensor | None, Tensor | None] = (None, None)
        if observed is not None:
            leaves = leaves & observed[..., V::KINDS]
            overload = overload & self.seen_branches(observed)
            angles, sizes = (self._at_both_ends(observed[..., k::KINDS]) for k in (THETA, V))
            known = (angles, sizes)
        outside = leaves.sum(-1) + overload.sum(-1)
        square = self._square_mva(states, flows)
        return LineSums(
            _loading_points(loading, weights),
            outside,
            torch.stack(
                [
                    self._variogram(channel, weights, seen)
                    for channel, seen in zip((theta, v), known, strict=True)
                ]
            ),
            torch.einsum("MH,M->H", square[:-1], weights.to(square)),
        )

    def _variogram(
        self, channel: Float[Tensor, "M1 H N"], weights: Tensor, seen: Tensor | None
    ) -> Float64[Tensor, " H"]:
        """Variogram score of order ½ over the ends of all branches, or of those that are seen.

        Reference: doi:10.1175/MWR-D-14-00269.1
        """
        start, end = torch.from_numpy(self.circuit.ends).to(channel.device).unbind(1)
        roots = (channel[..., start].double() - channel[..., end]).abs().sqrt()
        expected = torch.einsum("MHL,M->HL", roots[:-1], weights.double())
        square = (expected - roots[-1]).square()
        return square.mean(-1) if seen is None else (square * seen).sum(-1) / seen.sum(-1)

    def _square_mva(
        self, states: Float[Tensor, "M1 H C"], flows: tuple[Tensor, Tensor]
    ) -> Float64[Tensor, "M1 H"]:
        """Mean square over buses of the consumption, plus all power that enters the circuit.

        NaN without a grid, of which nothing could be in balance.
        """
        if not len(self.order):
            return torch.full(
                states.shape[:2], torch.nan, dtype=torch.float64, device=states.device
            )
        circuit = self.circuit
        v = states[..., V::KINDS].double()
        shunt = torch.from_numpy(circuit.shunt_pu).to(v.device)
        p_scale, q_scale = self._power_pu.tolist()
        total = v.square() * shunt.conj()
        total += torch.complex(
            p_scale * states[..., P::KINDS].double(), q_scale * states[..., Q::KINDS].double()
        )
        for column, flow in zip(torch.from_numpy(circuit.ends).unbind(1), flows, strict=True):
            total.index_add_(-1, column.to(v.device), flow.to(total.dtype))
        return circuit.base_mva**2 * total.abs().square().mean(-1)


def _loading_points(
    loading: Float[Tensor, "M1 H R"], weights: Float64[Tensor, " M"]
) -> Float[Tensor, "4 H R"]:
    """Scores of the loading, of which the last scenario is the target."""
    if not loading.shape[-1]:
        return loading.new_zeros((4, *loading.shape[1:]))
    *_, truth = loading
    columns = weights.to(loading)[None, :, None].expand(1, -1, loading.shape[-1])
    fan = Fan.of(Scenarios._unchecked(loading[None, :-1], columns))
    probability = fan.expect((fan.values > 1).to(loading.dtype)).clamp(0, 1)
    above = Fan(fan.values.clamp(min=1), fan.weights)
    tail = crps(above, truth[None].clamp(min=1))
    return torch.cat([crps(fan, truth[None]), probability, tail, truth[None]])


def branch_points(sums: LineSums) -> dict[str, Float[Tensor, "H R"]]:
    """The scores of each rated branch, and the probabilities and overloads behind them."""
    crps_of_loading, probability, tail, loading = sums.points
    overload = (loading > 1).to(probability.dtype)
    return {
        "loading_crps": crps_of_loading,
        "overload_brier": brier(probability, overload),
        "overload_twcrps": tail,
        # Not scores: what was forecast and what happened.
        "overload_probability": probability,
        "overload": overload,
    }


def state_points(
    sums: LineSums, weights: Float64[Tensor, " M"]
) -> dict[str, Float64[Tensor, " H"]]:
    """The scores of each step; the power balance as its mean square."""
    count = sums.count.double()
    any_violation = (count > 0).double()
    probability = torch.einsum("MH,M->H", any_violation[:-1], weights).clamp(0, 1)
    columns = weights[None, :, None]
    fan = Fan.of(Scenarios._unchecked(count[None, :-1, :, None], columns))
    return {
        "any_violation_brier": brier(probability, any_violation[-1]),
        "violation_count_crps": crps(fan, count[-1:, :, None])[0, :, 0],
        "variogram_theta": sums.variogram[0],
        "variogram_v": sums.variogram[1],
        "balance_rms_mva": sums.square_mva,
    }


LINE_SCORES = (*BRANCH_SCORES, *STATE_SCORES)
BALANCE = "balance_rms_mva"
COUNTS = ("any_violation_brier", "violation_count_crps")
"""Scores of how many voltages and lines violate their limits."""


class OpenStates:
    """The scenarios and the target of a window; copied only if they arrive in blocks.

    Args:
        n_channels: channels, C.
    """

    def __init__(self, n_channels: int) -> None:
        self._n_channels = n_channels
        self._values: Tensor | None = None
        self._target: Tensor | None = None
        self.observed: Tensor | None = None
        """Which values of the target are observed; None if all are."""

    def add(
        self,
        channels: slice,
        scenarios: Scenarios,
        target: Float[Tensor, "1 H C"],
        observed: Bool[Tensor, "1 H C"] | None = None,
    ) -> None:
        """Add the channels, which may be all."""
        values = scenarios.values[0].detach()
        if observed is not None:
            if self.observed is None:
                self.observed = torch.ones((values.shape[1], self._n_channels), dtype=torch.bool)
            self.observed[..., channels] = observed[0].cpu()
        if values.shape[-1] == self._n_channels:
            self._values, self._target = values.to(target.dtype), target[0]
            return
        if self._values is None or self._target is None:
            shape = (*values.shape[:2], self._n_channels)
            self._values = torch.empty(shape, dtype=target.dtype, device=values.device)
            self._target = torch.empty(shape[1:], dtype=target.dtype, device=target.device)
        self._values[..., channels] = values.to(self._values)
        self._target[..., channels] = target[0]

    @property
    def complete(self) -> tuple[Float[Tensor, "M H C"], Float[Tensor, "H C"]]:
        """The states of all channels."""
        assert self._values is not None, "the scorer adds all channels first"
        assert self._target is not None
        return self._values, self._target


class LineTotals:
    """Running float64 averages of the scores of lines: by window, by step and by branch.

    Args:
        layout: the circuit and the limits.
        horizon: steps, H.
        n_windows: windows, B.
        shown: the windows whose risk of lines is kept.
    """

    def __init__(
        self, layout: Layout, horizon: int, n_windows: int, shown: Collection[int] = ()
    ) -> None:
        self._lines = Lines(layout)
        self._window = {name: np.full(n_windows, np.nan) for name in (*LINE_SCORES, *BRANCH_FACTS)}
        self._step = {name: np.zeros(horizon) for name in self._window}
        self._step_count = {name: np.zeros(horizon) for name in self._window}
        names = (*BRANCH_SCORES, *BRANCH_FACTS)
        self._branch = {name: np.zeros(self._lines.n_rated) for name in names}
        self._branch_count = np.zeros(self._lines.n_rated)
        self._shown = shown
        self.risk: dict[int, Float[np.ndarray, "2 H R"]] = {}
        """Of each shown window, the probability of overload and the loading that happened."""

    def add(
        self, window: int, states: OpenStates, weights: Float64[Tensor, " M"], device: torch.device
    ) -> None:
        """Score a complete window, whose scenarios have these weights."""
        values, target = states.complete
        observed = None if states.observed is None else states.observed.to(device)
        sums = self._lines.sums(values, weights, target.to(device), observed)
        if window in self._shown:
            self.risk[window] = sums.points[[1, 3]].cpu().numpy()
        seen = None if observed is None else self._lines.seen_branches(observed)
        self._branch_count += 1 if seen is None else seen.any(0).cpu().numpy()
        for name, points in branch_points(sums).items():
            exact = points.double()
            if seen is None:
                self._branch[name] += exact.mean(0).cpu().numpy()
                self._add(name, window, exact.mean(1))
            else:
                exact = exact.where(seen, torch.nan)
                self._branch[name] += exact.nanmean(0).where(seen.any(0), 0.0).cpu().numpy()
                self._add(name, window, exact.nanmean(1))
        for name, steps in state_points(sums, weights).items():
            if name in COUNTS and observed is not None:
                steps = steps.where(observed[:, V::KINDS].any(1), torch.nan)
            self._add(name, window, steps)

    def _add(self, name: str, window: int, steps: Float64[Tensor, " H"]) -> None:
        """Add the steps of a window; those in which nothing is observed are NaN."""
        known = ~steps.isnan()
        self._window[name][window] = steps.mean().item() if known.all() else steps.nanmean().item()
        self._step[name] += steps.where(known, 0.0).cpu().numpy()
        self._step_count[name] += known.cpu().numpy()

    @property
    def by_window(self) -> Mapping[str, Float64[np.ndarray, " B"]]:
        """Means over steps, and over rated branches; NaN if a score needs ratings and has none."""
        return self._roots(self._window)

    @property
    def by_step(self) -> Mapping[str, Float64[np.ndarray, " H"]]:
        """Means over windows, and over rated branches; NaN where nothing is known."""
        means = {
            name: np.divide(sums, count, out=np.full(len(sums), np.nan), where=count > 0)
            for name, sums, count in (
                (name, sums, self._step_count[name]) for name, sums in self._step.items()
            )
        }
        return self._roots(means)

    @property
    def by_branch(self) -> Mapping[str, Float64[np.ndarray, " L"]]:
        """Means over windows and steps, in the layout's order; NaN without a rating."""
        result = {}
        for name, sums in self._branch.items():
            result[name] = np.full(len(self._lines.order), np.nan)
            count = np.where(self._branch_count > 0, self._branch_count, np.nan)
            result[name][self._lines.order[: len(sums)]] = sums / count
        return result

    @staticmethod
    def _roots(means: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """The same with the root of the mean square of the power balance."""
        return {**means, BALANCE: np.sqrt(means[BALANCE])}
