"""Draws the figures of `docs/scores.md` into this folder, always with the same bytes.

The package computes every score in a figure.
"""

import re
from functools import cache
from io import StringIO
from math import pi, sqrt
from pathlib import Path

import numpy as np
import torch
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from scipy.special import ndtri

from powerphase.axes import KINDS, THETA, V
from powerphase.circuit import Circuit, Limits
from powerphase.metrics import LineSums, Scorecard, Scorer, energy_score, state_points
from powerphase.records import NORMAL_BAND_PU
from powerphase.scenarios import Layout, Scenarios
from powerphase.seeds import stream

# The colours of Okabe and Ito, which colour-blind readers can distinguish.
BLUE, SKY, ORANGE, RED, GREY, INK = "#0072B2", "#56B4E9", "#E69F00", "#D55E00", "#808080", "#333333"
STYLE = {
    **{"svg.fonttype": "none", "svg.hashsalt": "powerphase", "text.color": INK, "font.size": 9},
    **{"axes.spines.right": False, "axes.spines.top": False, "axes.edgecolor": GREY},
    **{"axes.titlelocation": "left", "axes.titlesize": 9, "axes.labelcolor": INK},
    **{"xtick.color": GREY, "xtick.labelcolor": INK, "ytick.color": GREY, "ytick.labelcolor": INK},
    "patch.linewidth": 0,
}
LOWEST, HIGHEST = NORMAL_BAND_PU
VALUES, WEIGHTS, TRUTH = (0.93, 1.00, 1.08), (0.3, 0.65, 0.05), 0.94
"""The forecast of the worked examples: three scenarios of one voltage, and the target [p.u.]."""

RATING_MVA, LINE_MVA = 50.0, 1000.0
"""Rating of the example's line, and the power that a reactance of 0.1 p.u. carries per radian."""
LOADING, LINE_WEIGHTS, LINE_TRUTH = (0.6, 0.9, 1.2), (0.3, 0.5, 0.2), 1.1
"""Three scenarios of the loading of the line, and what happened."""

HOURS = np.arange(12, 24.1, 0.25)
"""An afternoon and an evening, in the steps of the data."""


def scores_of(values: ArrayLike, truth: ArrayLike, weights: tuple[float, ...] = ()) -> Scorecard:
    """All scores of scenarios (M x H x C); without C, of a bus with four equal channels."""
    states, target = (torch.from_numpy(np.array(x, dtype=np.float64)) for x in (values, truth))
    if states.ndim < 3:
        states = states.reshape(len(states), -1, 1).repeat(1, 1, KINDS)
        target = target.reshape(-1, 1).repeat(1, KINDS)
    n, horizon, n_channels = states.shape
    column = torch.tensor(weights or [1 / n] * n, dtype=torch.float64)[None, :, None]
    bus, circuit = np.arange(n_channels // KINDS), Circuit.chain(n_channels // KINDS)
    limits = Limits.equal(circuit, NORMAL_BAND_PU, RATING_MVA)
    scorer = Scorer(Layout("example", bus, bus, bus * 1.0, circuit, limits, 1.0, 1.0), horizon, 1)
    scorer.add(0, Scenarios(states[None], column.repeat(1, 1, n_channels)), target[None])
    return scorer.result()


def line_scores(
    angle: ArrayLike, true_angle: float, rise: ArrayLike = 0.0, true_rise: float = 0.0
) -> Scorecard:
    """All scores of a line, from θ [rad] and V − 1 [p.u.] at its first end; 0 at its second."""

    def states(angle: ArrayLike, rise: ArrayLike) -> np.ndarray:
        values = np.zeros((*np.broadcast_shapes(np.shape(angle), np.shape(rise)), 1, 2 * KINDS))
        values[..., V::KINDS] = 1
        values[..., 0, V] += rise
        values[..., 0, THETA] = angle
        return values

    return scores_of(states(angle, rise), states(true_angle, true_rise), LINE_WEIGHTS)


def angle_of(loading: ArrayLike) -> np.ndarray:
    """The angle difference [rad] at which the line, with 1 p.u. at both ends, has this loading."""
    return 2 * np.arcsin(np.array(loading) * RATING_MVA / (2 * LINE_MVA))


def normal_quantiles(n: int) -> np.ndarray:
    """The (k − ½)/n quantiles of the standard normal distribution."""
    return ndtri((np.arange(n) + 0.5) / n)


@cache
def excess(n_scenarios: int, are_samples: bool) -> tuple[float, ...]:
    """Mean CRPS and fair CRPS of perfect forecasts of normal targets, relative to 1/√π [%]."""
    targets = normal_quantiles(20_000).reshape(100, 200)
    scenarios = normal_quantiles(n_scenarios)[:, None, None] + np.zeros_like(targets)
    if are_samples:
        scenarios = stream(0, "samples", n_scenarios).standard_normal(scenarios.shape)
    card = scores_of(scenarios, targets)
    return tuple(100 * (card[name] * sqrt(pi) - 1) for name in ("crps", "fair_crps"))


def expected_score(name: str, probability: float, true: float) -> float:
    """The mean score of forecasting one probability of leaving the band where another is true."""
    weights = (probability, 1 - probability)
    outside, inside = (scores_of((0.9, 1.0), truth, weights)[name] for truth in (0.9, 1.0))
    return true * outside + (1 - true) * inside


def random_curves(label: str, spread: float, n: int) -> np.ndarray:
    """`n` smooth random curves around 0."""
    random, waves = stream(0, label), np.arange(4)[:, None]
    size, phase = random.normal(0, spread, (n, 4, 1)), random.uniform(0, 2 * pi, (n, 4, 1))
    return (size * np.cos(waves * HOURS * pi / 12 + phase)).sum(1)


def evenings(n: int) -> np.ndarray:
    """Equally likely curves of a voltage that sags in the evening [p.u.]."""
    sag = np.exp(-(((HOURS - 19) / 3.5) ** 2))
    return 0.985 - (0.032 + random_curves("sag", 0.008, n)) * sag + random_curves("noise", 0.003, n)


def label_hours(axes: Axes, title: str) -> None:
    """Label an axis of hours and one of voltages; draw the lower limit of the band if visible."""
    if axes.get_ylim()[0] < LOWEST:
        axes.axhline(LOWEST, color=GREY, linestyle="--", linewidth=1)
        axes.text(12.2, LOWEST + 0.001, "lower limit")
    axes.set(xlim=(12, 24), xticks=range(12, 25, 3), xlabel="hour", ylabel="V [p.u.]", title=title)


def step_functions() -> tuple[np.ndarray, ...]:
    """The steps of the distribution functions of the example and of the target."""
    edges = np.sort([0.90, *VALUES, TRUTH, LOWEST, HIGHEST, 1.10])
    forecast = (np.array(WEIGHTS) * (np.array(VALUES) <= edges[:, None])).sum(1)
    return edges, forecast, (edges >= TRUTH).astype(float)


def crps(figure: Figure) -> None:
    """The gap between two distribution functions, and the area under its square."""
    left, right = figure.subplots(1, 2, sharex=True, sharey=True)
    x, forecast, truth = step_functions()
    left.fill_between(x, forecast, truth, step="post", color=SKY, alpha=0.35)
    left.step(x, forecast, where="post", color=BLUE)
    left.step(x, truth, where="post", color=INK)
    left.text(TRUTH, 1.03, "what happened")
    left.text(1.004, 0.86, "forecast F", color=BLUE)
    left.set(title="probability of at most V", xlabel="V [p.u.]", ylim=(0, 1.15))
    right.fill_between(x, (forecast - truth) ** 2, step="post", color=SKY, alpha=0.6)
    right.step(x, (forecast - truth) ** 2, where="post", color=BLUE)
    score = scores_of(VALUES, TRUTH, WEIGHTS)["crps"]
    right.text(1.006, 0.3, f"shaded area:\nCRPS = {score:.4f}", color=BLUE)
    right.set(title="squared gap", xlabel="V [p.u.]")


def distortion(figure: Figure) -> None:
    """Five scenarios, of which only the best counts."""
    axes, truth = figure.subplots(), 1.0 - 0.01 * np.cos((HOURS - 9) * pi / 6)
    level = np.array([-0.024, -0.015, -0.006, 0.012, 0.02])[:, None]
    scenarios = truth + level + random_curves("distortion", 0.003, 5)
    errors = np.sqrt(((scenarios - truth) ** 2).mean(1))
    for scenario, rmse in zip(scenarios, errors, strict=True):
        is_best = rmse == errors.min()
        color, label = (BLUE, ", the best") if is_best else (GREY, "")
        axes.plot(HOURS, scenario, color=color, linewidth=1 + is_best)
        axes.text(24.2, scenario[-1], f"RMSE {rmse:.3f}{label}", color=color, va="center")
    axes.plot(HOURS, truth, color=INK, linestyle=":", linewidth=2)
    axes.text(24.2, truth[-1], "what happened", va="center")
    label_hours(
        axes, f"Distortion = {scores_of(scenarios, truth)['distortion']:.3f}, that of the best"
    )


def mse(figure: Figure) -> None:
    """Two forecasts with the same mean, which have the same MSE."""
    x, truth = np.linspace(0.94, 1.06, 81), 1.012
    panels = figure.subplots(1, 2, sharey=True)
    for axes, name, spread in zip(panels, ("narrow", "wide"), (0.006, 0.018), strict=True):
        density = np.exp(-(((x - 1) / spread) ** 2) / 2) / (spread * sqrt(2 * pi))
        axes.fill_between(x, density, color=SKY, alpha=0.35)
        axes.plot(x, density, color=BLUE)
        axes.axvline(1.0, color=BLUE, linestyle="--", linewidth=1)
        axes.axvline(truth, color=INK)
        axes.text(truth + 0.002, 72, "what happened")
        axes.text(0.998, 72, "mean", color=BLUE, ha="right")
        card = scores_of(1 + spread * normal_quantiles(100), truth)
        axes.set(title=f"{name}: MSE {card['mse']:.6f}, CRPS {card['crps']:.4f}")
        axes.set(xlabel="V [p.u.]", ylabel="density", yticks=[], ylim=(0, 80))


def probability(figure: Figure) -> None:
    """The expected score of each forecast probability where 0.3 is true."""
    axes, true, forecasts = figure.subplots(), 0.3, np.linspace(0, 1, 41)
    axes.axvline(true, color=GREY, linestyle="--", linewidth=1)
    labels = {"safety_mbrier": (RED, (0.06, 0.278)), "brier": (BLUE, (0.31, 0.16))}
    for name, (color, position) in labels.items():
        scores = np.array([expected_score(name, p, true) for p in forecasts])
        best = scores.argmin()
        axes.plot(forecasts, scores, color=color)
        axes.plot(forecasts[best], scores[best], "o", color=color, clip_on=False, zorder=3)
        label = f"{scores[best]:.2f}: best forecast {forecasts[best]:.1g}"
        axes.text(*position, label, color=color)
    honest = expected_score("safety_mbrier", true, true)
    axes.plot(true, honest, "o", color=RED, markerfacecolor="white", zorder=3)
    axes.text(0.29, honest + 0.02, f"{honest:.2f}: forecast {true}", color=RED, ha="right")
    axes.text(0.7, 0.62, "Safety_mBrier", color=RED, ha="right")
    axes.text(0.78, 0.38, "Brier", color=BLUE)
    axes.set(xlabel=f"forecast probability of leaving the band (true probability {true})")
    axes.set(ylabel="expected score", xlim=(0, 1), ylim=(0.12, 0.72))


def excursions(figure: Figure) -> None:
    """Distances outside the band: all of them, and the worst tenth."""
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    time, voltage, hour = HOURS[::2], evenings(20)[:, ::2], 19
    left.plot(time, voltage.T, color=GREY, linewidth=0.6)
    for curve in voltage:
        below = {"where": curve < LOWEST, "interpolate": True, "color": ORANGE, "alpha": 0.25}
        left.fill_between(time, curve, LOWEST, **below)
    left.axvline(hour, color=INK, linewidth=1, linestyle=":")
    label_hours(left, "twenty scenarios and their excursions")
    values = voltage[:, time == hour].ravel()
    necv, cvar = (scores_of(values, truth=1.0)[name] for name in ("necv", "cvar_0.1"))
    distance = np.sort(np.maximum(LOWEST - values, 0))[::-1]
    for last, color, height in ((20, ORANGE, necv), (2, RED, cvar)):
        right.fill_between(range(last + 1), [*distance[:last], 0], step="post", color=color)
        right.plot([0, last], [height, height], color=INK, linewidth=1)
    right.text(20, necv, f"mean of all:\nNECV {necv:.4f}", ha="right", va="bottom")
    right.text(2.4, cvar, f"mean of the worst tenth:\nCVaR {cvar:.4f}", va="center")
    right.set(title=f"distance at {hour}:00 [p.u.]", xlabel="scenarios, sorted", ylim=(0, None))


def excursion(figure: Figure) -> None:
    """The expected and the actual excursion, with the differences of both signs."""
    axes, truth = figure.subplots(), 0.985 - 0.044 * np.exp(-(((HOURS - 19.5) / 2.2) ** 2))
    card = scores_of(evenings(20), truth)
    forecast, actual = (card.by_step[n][:, V] for n in ("necv", "excursion"))
    for sign, color, words in ((1, ORANGE, "too much"), (-1, SKY, "too little")):
        gap = {"where": sign * (forecast - actual) > 0, "interpolate": True, "label": words}
        axes.fill_between(HOURS, actual, forecast, color=color, alpha=0.4, **gap)
    axes.plot(HOURS, forecast, color=BLUE)
    axes.plot(HOURS, actual, color=INK)
    axes.text(19.9, 0.0082, "what happened")
    axes.text(20.9, 0.0025, "forecast", color=BLUE)
    axes.legend(loc="upper left", frameon=False)
    error, bias = card["excursion_error"], card["excursion_bias"]
    axes.set(title=f"excursion error {error:.5f}, excursion bias {bias:+.5f}")
    axes.set(xlim=(14, 24), ylim=(0, None), xlabel="hour", ylabel="distance outside [p.u.]")


def twcrps(figure: Figure) -> None:
    """The transformed voltage, and the part of CRPS that remains."""
    left, right = figure.subplots(1, 2, sharex=True)
    x, forecast, truth = step_functions()
    left.plot(x, x - x.clip(LOWEST, HIGHEST), color=BLUE)
    left.text(1.0, 0.003, "the band", color=GREY, ha="center")
    left.set(title="signed distance outside the band", xlabel="V [p.u.]")
    square, outside = (forecast - truth) ** 2, (x < LOWEST) | (x >= HIGHEST)
    right.fill_between(x, square * outside, step="post", color=BLUE, alpha=0.6)
    right.step(x, square, where="post", color=GREY, linewidth=1)
    for axes in (left, right):
        axes.axvspan(LOWEST, HIGHEST, color=GREY, alpha=0.1)
    score = scores_of(VALUES, TRUTH, WEIGHTS)["twcrps"]
    right.text(1.006, 0.3, f"blue area:\ntwCRPS =\n{score:.4f}", color=BLUE)
    right.set(title="squared gap of CRPS", xlabel="V [p.u.]", ylim=(0, 0.6))


def loading_steps() -> tuple[np.ndarray, np.ndarray]:
    """The squared gap of the distribution functions of loading, and where its steps are."""
    edges = np.sort([0.4, *LOADING, LINE_TRUTH, 1.0, 1.4])
    forecast = (np.array(LINE_WEIGHTS) * (np.array(LOADING) <= edges[:, None] + 1e-12)).sum(1)
    return edges, (forecast - (edges >= LINE_TRUTH)) ** 2


def loading(figure: Figure) -> None:
    """The loading of a line against the angle between its ends, and the squared gap of CRPS."""
    left, right = figure.subplots(1, 2)
    angle = np.linspace(0, 0.08, 41)
    left.plot(angle, 2 * LINE_MVA * np.sin(angle / 2) / RATING_MVA, color=GREY, linewidth=1)
    for share, weight in zip(LOADING, LINE_WEIGHTS, strict=True):
        left.plot(angle_of(share), share, "o", color=BLUE, markersize=12 * weight + 2)
        left.text(angle_of(share) + 0.003, share - 0.05, f"weight {weight}", color=BLUE)
    left.plot(angle_of(LINE_TRUTH), LINE_TRUTH, "X", color=INK)
    left.text(angle_of(LINE_TRUTH) - 0.003, LINE_TRUTH, "what happened", ha="right", va="bottom")
    left.set(title="loading", xlabel="angle between the ends [rad]", ylim=(0.4, 1.4))
    edges, square = loading_steps()
    right.fill_between(edges, square, step="post", color=SKY, alpha=0.6)
    right.step(edges, square, where="post", color=BLUE)
    score = line_scores(angle_of(LOADING), angle_of(LINE_TRUTH).item())["loading_crps"]
    right.text(0.42, 0.35, f"shaded area:\nloading CRPS\n= {score:.3f}", color=BLUE)
    right.set(title="squared gap", xlabel="loading")


def overload(figure: Figure) -> None:
    """The part of the loading above the rating, and what remains of CRPS."""
    left, right = figure.subplots(1, 2)
    shares, (edges, square) = np.linspace(0.4, 1.4, 51), loading_steps()
    left.plot(shares, np.maximum(shares, 1), color=BLUE)
    left.set(title="loading, at least 1", xlabel="loading")
    right.fill_between(edges, square * (edges >= 1), step="post", color=BLUE, alpha=0.6)
    right.step(edges, square, where="post", color=GREY, linewidth=1)
    for axes in (left, right):
        axes.axvline(1, color=GREY, linestyle="--", linewidth=1)
    left.text(0.98, 1.35, "rating", color=GREY, ha="right")
    card = line_scores(angle_of(LOADING), angle_of(LINE_TRUTH).item())
    scores = f"twCRPS = {card['overload_twcrps']:.3f}\nBrier = {card['overload_brier']:.2f}"
    right.text(0.42, 0.35, f"blue area:\noverload\n{scores}", color=BLUE)
    right.set(title="squared gap of CRPS", xlabel="loading")


COUNTS, COUNT_TRUTH = (2, 0, 3), 1
"""Violations of the grid in three scenarios, with the weights of the line, and what happened."""


def count_scores() -> dict[str, float]:
    """The two scores of the number of violations."""
    counts = torch.tensor([*COUNTS, COUNT_TRUTH])[:, None]
    nothing = torch.zeros((2, 1), dtype=torch.float64)
    sums = LineSums(nothing[:, :, None].repeat(2, 1, 1), counts, nothing, nothing[0])
    points = state_points(sums, torch.tensor(LINE_WEIGHTS, dtype=torch.float64))
    return {name: points[name].item() for name in ("any_violation_brier", "violation_count_crps")}


def violations(figure: Figure) -> None:
    """The distribution of the number of violations, and the squared gap of its CRPS."""
    left, right = figure.subplots(1, 2)
    left.bar(COUNTS, LINE_WEIGHTS, width=0.6, color=[ORANGE if n else SKY for n in COUNTS])
    left.plot(COUNT_TRUTH, 0.02, "X", color=INK)
    left.text(COUNT_TRUTH, 0.05, "what happened", ha="center")
    scores, edges = count_scores(), np.arange(5)
    left.text(1.4, 0.42, f"any violation: Brier {scores['any_violation_brier']:.2f}", color=ORANGE)
    left.set(title="probability", xlabel="violations in the grid", xticks=range(4))
    forecast = (np.array(LINE_WEIGHTS) * (np.array(COUNTS) <= edges[:, None])).sum(1)
    square = (forecast - (edges >= COUNT_TRUTH)) ** 2
    right.fill_between(edges, square, step="post", color=SKY, alpha=0.6)
    right.step(edges, square, where="post", color=BLUE)
    right.text(2.1, 0.15, f"shaded area:\nCRPS = {scores['violation_count_crps']:.2f}", color=BLUE)
    right.set(title="squared gap", xlabel="violations in the grid", xticks=range(5))


def variogram(figure: Figure) -> None:
    """Angles at the two ends of a line: the same margins, with and without dependence."""
    random, truth = stream(0, "variogram"), np.array([0.11, 0.1])
    first, second = (
        0.1 + 0.05 * random.normal(size=(40, 1)) + 0.01 * random.normal(size=(40, 2))
    ).T
    clouds = {"dependent": second, "shuffled": random.permutation(second)}
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (name, other) in zip(panels, clouds.items(), strict=True):
        states = np.ones((41, 1, 2 * KINDS))
        states[:-1, 0, THETA::KINDS] = np.stack([first, other], axis=1)
        states[-1, 0, THETA::KINDS] = truth
        card = scores_of(states[:-1], states[-1])
        axes.plot(first, other, "o", color=BLUE, markersize=3.5, alpha=0.7, markeredgewidth=0)
        axes.plot(*truth, "*", color=RED, markersize=12)
        axes.set(xlabel="θ at one end [rad]", ylabel="θ at the other", aspect="equal")
        scores = f"variogram {card['variogram_theta']:.5f}, CRPS {card.by_type['crps'][THETA]:.4f}"
        axes.set(title=f"{name}: {scores}")


def balance(figure: Figure) -> None:
    """What an error of an angle costs in the power balance of a line's two ends."""
    axes, errors = figure.subplots(), np.linspace(0, 0.05, 26)
    rms = [line_scores([error] * 3, 0.0)["balance_rms_mva"] for error in errors]
    axes.plot(1000 * errors, rms, color=BLUE)
    axes.plot(10, rms[5], "o", color=BLUE)
    axes.text(10.8, rms[5] - 1.5, f"10 mrad: {rms[5]:.1f} MVA", color=BLUE)
    axes.set(title="P and Q of both buses are forecast as 0", ylabel="power balance [MVA, RMS]")
    axes.set(xlabel="error of the angle at one end [mrad]", xlim=(0, 50), ylim=(0, None))


def fair_crps(figure: Figure) -> None:
    """The score of perfect forecasts of few scenarios, relative to the true distribution."""
    axes, counts = figure.subplots(), (4, 8, 16, 32, 64, 100)
    for are_samples, line in ((True, "o-"), (False, "o:")):
        axes.set_prop_cycle(color=[RED, BLUE])
        axes.plot(counts, [excess(n, are_samples) for n in counts], line, markersize=3.5)
    for n, share in ((n, excess(n, are_samples=True)[0]) for n in (16, 100)):
        axes.text(n, share + 2, f"{share:.1f} %", color=RED, ha="center")
    axes.text(4.3, 25, "CRPS of samples", color=RED)
    axes.text(4.3, 5, "CRPS of quantiles", color=RED)
    axes.text(4.3, -4.5, "fair CRPS of samples", color=BLUE)
    axes.text(5.2, -25, "fair CRPS of quantiles", color=BLUE)
    axes.axhline(0, color=GREY, linewidth=1)
    axes.set_xscale("log", base=2)
    axes.set(xticks=counts, xticklabels=counts, xlabel="scenarios", ylim=(-28, 30))
    axes.set(
        ylabel="excess over the true distribution [%]", title="perfect forecasts, few scenarios"
    )


def energy(figure: Figure) -> None:
    """Two clouds with the same margins but different dependence."""
    random, truth = stream(0, "joint"), np.array([1.0, 0.9])
    first, second = (random.normal(size=(40, 1)) + 0.3 * random.normal(size=(40, 2))).T
    clouds = {"dependent": (first, second), "shuffled": (first, random.permutation(second))}
    panels = figure.subplots(1, 2, sharex=True, sharey=True)
    for axes, (name, cloud) in zip(panels, clouds.items(), strict=True):
        errors = torch.from_numpy(np.transpose(cloud) - truth)[:, None]
        joint = energy_score(errors / sqrt(2), torch.full((40,), 1 / 40, dtype=torch.float64))
        alone = np.mean([scores_of(x, z)["crps"] for x, z in zip(cloud, truth, strict=True)])
        axes.plot(*cloud, "o", color=BLUE, markersize=3.5, alpha=0.7, markeredgewidth=0)
        axes.plot(*truth, "*", color=RED, markersize=12)
        axes.set(xlabel="one channel", ylabel="another", aspect="equal")
        axes.set(title=f"{name}: energy score {joint.item():.3f}, CRPS {alone:.3f}")


def coverage(figure: Figure) -> None:
    """The central interval of a fan, and a target that is inside or outside of it."""
    axes, (*scenarios, truth) = figure.subplots(), evenings(21)
    card = scores_of(scenarios, truth)
    inside = card.by_step["coverage_80"][:, V] == 1
    axes.fill_between(HOURS, *np.sort(scenarios, axis=0)[[1, -2]], color=SKY, alpha=0.35)
    axes.plot(HOURS, truth, color=INK, linewidth=1)
    for steps, marker, color in ((inside, "o", BLUE), (~inside, "X", RED)):
        axes.plot(HOURS[steps], truth[steps], marker, color=color, markersize=5, clip_on=False)
    axes.text(13, 0.987, "central 80 %", color=BLUE)
    label_hours(
        axes,
        f"{inside.sum()} of {len(inside)} steps covered, mean width {card['width_80']:.4f} p.u.",
    )


FIGURES = {
    draw.__name__: draw
    for draw in (
        *(crps, distortion, mse, probability, excursions),
        *(excursion, twcrps, fair_crps, energy, coverage),
        *(loading, overload, violations, variogram, balance),
    )
}


def save(name: str, folder: Path) -> None:
    """Draw one figure of 640 x 300 pixels into the folder."""
    with style.context(["default", STYLE]):
        figure = Figure((640 / 96, 300 / 96), layout="constrained")
        FIGURES[name](figure)
        write_svg(figure, folder / f"{name}.svg")


def write_svg(figure: Figure, out: Path) -> None:
    """Write a figure in the style in use, always with the same bytes."""
    svg = StringIO()
    figure.savefig(svg, format="svg", metadata={"Date": None})
    # Numbers within tags need no more than hundredths of a point.
    out.write_text(re.sub(r"(\.\d\d)\d+(?=[^<>]*>)", r"\1", svg.getvalue()), encoding="utf-8")


if __name__ == "__main__":
    for name in FIGURES:
        save(name, Path(__file__).parent)
