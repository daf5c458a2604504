"""Which of M scenarios to keep, and with what weights, from the distances between them.

`energy` minimises the energy distance between all scenarios and the kept ones. If what happens is
distributed like the forecast, half of it is what the energy score rises by on average. `kmedoids`
and `forward` minimise the Kantorovich distance. With the best weights, that is the mean distance
from each scenario to the nearest kept one, and a kept scenario gets the weights of all that are
nearest to it.

References: doi:10.1007/s10107-002-0331-0 (best weights, forward selection);
doi:10.1023/A:1021805924152 (its fast form); doi:10.1016/j.is.2021.101804 (swaps of k-medoids);
doi:10.1214/17-AOS1629 (points of least energy distance)
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from scipy.optimize import nnls

GAIN = 1e-12
"""The smallest relative gain for which scenarios are swapped; smaller ones may be rounding."""

FIRM = 1e3
"""How much more the sum of weights counts than the distance, in a fit of both."""

Distance = Float64[np.ndarray, "M M"]
Weights = Float64[np.ndarray, " M"]
Kept = Int64[np.ndarray, " k"]
"""Numbers of the scenarios that are kept, ascending."""


def kantorovich(distance: Distance, weights: Weights, kept: Kept) -> float:
    """The Kantorovich distance between all scenarios and the kept ones with the best weights."""
    return float(weights @ distance[:, kept].min(1))


def energy_distance(
    distance: Distance, weights: Weights, kept: Kept, new: Float64[np.ndarray, " k"]
) -> float:
    """The energy distance between all scenarios and the kept ones with new weights.

    2 Σ Σ w v ‖x − y‖ − Σ Σ w w' ‖x − x'‖ − Σ Σ v v' ‖y − y'‖
    """
    change = -weights
    change[kept] += new
    # Rounding must not make the distance of equal sets negative.
    return max(0.0, float(-change @ distance @ change))


def forward_selection(distance: Distance, weights: Weights, count: int) -> Kept:
    """Keep one more scenario at a time: that which lowers the Kantorovich distance most."""
    to_nearest, kept = np.full(len(weights), np.inf), list[int]()
    for _ in range(count):
        cost = weights @ np.minimum(to_nearest[:, None], distance)
        cost[kept] = np.inf
        kept.append(int(cost.argmin()))
        to_nearest = np.minimum(to_nearest, distance[:, kept[-1]])
    return np.sort(kept)


def k_medoids(distance: Distance, weights: Weights, count: int) -> Kept:
    """A choice of scenarios whose Kantorovich distance no single swap lowers.

    It starts from forward selection, and makes the best swap each time.
    """
    kept = forward_selection(distance, weights, count)
    return _swap(
        kept,
        lambda trial: kantorovich(distance, weights, trial),
        lambda current: _kantorovich_of_swaps(distance, weights, current),
    )


def energy_selection(distance: Distance, weights: Weights, count: int) -> Kept:
    """A choice of equally likely scenarios whose energy distance no single swap lowers.

    It starts from one scenario at a time, that which lowers the energy distance most.
    """
    to_all = distance @ weights
    kept, between = list[int](), np.zeros(len(weights))
    for n in range(1, count + 1):
        # Of the energy distance, what the choice of the next scenario changes.
        cost = n * to_all - between
        cost[kept] = np.inf
        kept.append(int(cost.argmin()))
        between += distance[kept[-1]]
    return _swap(
        np.sort(kept),
        lambda trial: _energy_cost(distance, to_all, trial),
        lambda current: _energy_of_swaps(distance, to_all, current),
    )


def _swap(
    kept: Kept,
    cost_of: Callable[[Kept], float],
    costs_of_swaps: Callable[[Kept], Float64[np.ndarray, "k M"]],
) -> Kept:
    """Replace one kept scenario at a time, by the best swap, until none lowers the cost."""
    cost = cost_of(kept)
    while True:
        after = costs_of_swaps(kept)
        after[:, kept] = np.inf
        out, new = np.unravel_index(after.argmin(), after.shape)
        trial = np.sort(np.append(np.delete(kept, out), new))
        lower = cost_of(trial)
        if not lower < cost - GAIN * abs(cost):
            return kept
        kept, cost = trial, lower


def _kantorovich_of_swaps(
    distance: Distance, weights: Weights, kept: Kept
) -> Float64[np.ndarray, "k M"]:
    """The Kantorovich distance if each kept scenario were replaced by each scenario.

    A scenario whose nearest stays goes there or to the new one; one that loses its nearest goes to
    its second nearest or to the new one.
    """
    to_kept, rows = distance[:, kept], np.arange(len(weights))
    nearest = to_kept.argmin(1)
    first = to_kept[rows, nearest]
    to_kept[rows, nearest] = np.inf
    second = to_kept.min(1)
    if_kept = weights[:, None] * np.minimum(first[:, None], distance)
    if_lost = weights[:, None] * np.minimum(second[:, None], distance)
    is_nearest = (nearest == np.arange(len(kept))[:, None]).astype(np.float64)
    return if_kept.sum(0) + is_nearest @ (if_lost - if_kept)


def _energy_cost(distance: Distance, to_all: Weights, kept: Kept) -> float:
    """The energy distance of equally likely scenarios, less what does not depend on them."""
    return float(2 * to_all[kept].mean() - distance[np.ix_(kept, kept)].mean())


def _energy_of_swaps(distance: Distance, to_all: Weights, kept: Kept) -> Float64[np.ndarray, "k M"]:
    """The same cost if each kept scenario were replaced by each scenario."""
    k, rows = len(kept), distance[kept]
    between = rows.sum(0)
    mean = (to_all[kept].sum() - to_all[kept, None] + to_all) / k
    pairs = between[kept].sum() - 2 * between[kept, None] + 2 * between - 2 * rows
    return 2 * mean - pairs / k**2


def nearest_weights(distance: Distance, weights: Weights, kept: Kept) -> Float64[np.ndarray, " k"]:
    """The weights of least Kantorovich distance: of all scenarios that are nearest to a kept one.

    A scenario that is as near to several goes to the first of them.
    """
    nearest = distance[:, kept].argmin(1)
    nearest[kept] = np.arange(len(kept))  # even if another one is equal to it
    total = np.bincount(nearest, weights, minlength=len(kept))
    return total / total.sum()


def energy_weights(distance: Distance, weights: Weights, kept: Kept) -> Float64[np.ndarray, " k"]:
    """The weights of least energy distance.

    Seen from one kept scenario, distances are a matrix of products, since the energy distance is a
    squared length; the weights are then a least-squares fit with weights of 0 or more.
    """
    if len(kept) == 1:
        return np.ones(1)
    first, others = kept[0], kept[1:]
    products = distance[others, first][:, None] + distance[first] - distance[others]
    value, vector = np.linalg.eigh(products[:, others])
    size = np.sqrt(value.clip(min=0))
    inverse = np.divide(1, size, out=np.zeros_like(size), where=value > GAIN * value.max())
    firm = FIRM * max(size.max(), np.finfo(float).tiny)
    left = np.vstack([np.append(size[:, None] * vector.T, np.zeros((len(size), 1)), axis=1),
                      np.full(len(kept), firm)])  # fmt: skip
    right = np.append(inverse * (vector.T @ (products @ weights)), firm)
    fitted = np.roll(nnls(left, right)[0], 1)
    return np.asarray(fitted / fitted.sum())


class Method(NamedTuple):
    """How scenarios are chosen and weighted."""

    choose: Callable[[Distance, Weights, int], Kept]
    weigh: Callable[[Distance, Weights, Kept], Float64[np.ndarray, " k"]]


METHODS = {
    "energy": Method(energy_selection, energy_weights),
    "kmedoids": Method(k_medoids, nearest_weights),
    "forward": Method(forward_selection, nearest_weights),
}
"""The methods by name; the first is the default."""
