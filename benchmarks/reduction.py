"""What it costs to keep a few of many scenarios, by method, next to random choices of as many.

    python benchmarks/reduction.py data/activsg500

FactorForge's draws of all validation days. With `--out` it writes the numbers to a file.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from powerphase import Task
from powerphase.evaluation import (
    METHODS,
    ChannelSpace,
    FactorSpace,
    ScoredStates,
    energy_distance,
    kantorovich,
)
from powerphase.models import FactorForge, FactorForgeConfig

COUNTS = (5, 10, 20)
RANDOM_CHOICES = 100


def main() -> None:
    """Reduce every validation day's draws in all ways."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--scenarios", type=int, default=200)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    task = Task(options.data, windows=1)
    model = FactorForge(FactorForgeConfig(coupling="draws", scenarios=options.scenarios))
    model.fit(task.training)
    costs = defaultdict[tuple[str, str, int], list[list[float]]](list)
    days = len(task.training.validation)
    for window in range(days):
        for key, cost in costs_of_day(model, task, window):
            costs[key].append(cost)
    rows = []
    for (method, space, count), parts in costs.items():
        names = ("kantorovich", "energy_distance", "energy_score")
        means = dict(zip(names, np.mean(parts, axis=0).tolist(), strict=True))
        rows.append({"method": method, "space": space, "to": count, **means})
        print(json.dumps(rows[-1]), flush=True)
    if options.out:
        facts = {"grid": task.layout.grid, "edition": task.store.manifest.edition, "days": days}
        result = {**facts, "scenarios": options.scenarios, "rows": rows}
        options.out.write_text(json.dumps(result, indent=1) + "\n")


def costs_of_day(
    model: FactorForge, task: Task, window: int
) -> Iterator[tuple[tuple[str, str, int], list[float]]]:
    """Kantorovich distance in channels, energy distance and energy score of each choice."""
    windows, fitted = task.training.validation, model.fitted
    assert fitted is not None
    values = model.predict(windows.context(window)).values[0]  # type: ignore[union-attr]
    n_scenarios, horizon, n_channels = values.shape
    channels, scored = ChannelSpace(n_scenarios), ScoredStates(n_scenarios, horizon, n_channels)
    factors = FactorSpace(fitted.factors, n_scenarios, horizon)
    every = slice(0, n_channels)
    channels.add(every, values)
    scored.add(every, values)
    factors.add(every, values)
    weights = np.full(n_scenarios, 1 / n_scenarios)
    by_channels, by_factors = channels.distance(weights), factors.distance(weights)
    pairs, errors = scored.distance(), scored.errors(windows.target(window)[0])

    def cost(kept: np.ndarray, new: np.ndarray) -> list[float]:
        score = new @ errors[kept] - new @ pairs[np.ix_(kept, kept)] @ new / 2
        return [
            kantorovich(by_channels, weights, kept),
            energy_distance(pairs, weights, kept, new),
            float(score),
        ]

    yield ("all", "", n_scenarios), cost(np.arange(n_scenarios), weights)
    random = np.random.default_rng(window)
    for count in COUNTS:
        equal = np.full(count, 1 / count)
        choices = [
            cost(np.sort(random.choice(n_scenarios, count, replace=False)), equal)
            for _ in range(RANDOM_CHOICES)
        ]
        yield ("random", "", count), np.mean(choices, axis=0).tolist()
        for by, distance in (("channels", by_channels), ("factors", by_factors)):
            for name, method in METHODS.items():
                kept = method.choose(distance, weights, count)
                yield (name, by, count), cost(kept, method.weigh(distance, weights, kept))


if __name__ == "__main__":
    main()
