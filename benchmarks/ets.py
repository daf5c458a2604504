"""ETS of a whole grid: ours against statsmodels, on the same channels, in the same run.

    python benchmarks/ets.py data/activsg500                    the season of a day
    python benchmarks/ets.py data/activsg500 --season 24 --json ets.json

Ours fits all channels of the training record, and reading them counts; channels that never move
do not count as channels. statsmodels fits some of those that move, evenly spread over P, Q, V and
θ, with the same model and estimated initial states, in as many processes as ours has threads. A
ratio of squared errors below 1 means that ours fits better. Seconds of a busy machine are too long
for both; those of its processors are what the work itself took.
"""

import argparse
import json
import os
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import statsmodels
import torch
from statsmodels.tsa.holtwinters import ExponentialSmoothing

from powerphase.axes import KINDS, VARIABLES
from powerphase.cost import hardware
from powerphase.models.ets.config import ETSConfig
from powerphase.models.ets.model import ETS
from powerphase.scenarios import Training
from powerphase.task.windows import Task

ALLOWED = 1.001
"""Our squared error, as a ratio to theirs, may be as large as this."""


def main() -> None:
    """Measure and print."""
    options = arguments()
    torch.set_num_threads(options.threads)
    train, season = Task(options.data).training, options.season
    print(f"{hardware(torch.device('cpu'))}; statsmodels {statsmodels.__version__}")
    print(f"{train.layout.grid}: {len(train.time):,} steps, season {season}", flush=True)
    ours, busy_s = fitted(train, season)
    assert ours.learned is not None
    assert ours.outcome is not None
    moving = (ours.learned.deviation > 0).numpy()
    times = np.array([ours.outcome["train_s"], busy_s]) / moving.sum()
    print(f"{len(moving):,} channels, {moving.sum():,} of which move; {options.threads} threads")
    print(f"ours: {told(times)}", flush=True)
    chosen = spread(moving, options.channels)
    start = time.perf_counter()
    theirs = by_statsmodels(train, chosen, season, options.threads)
    their_times = np.array([time.perf_counter() - start, theirs[:, 0].sum()]) / len(chosen)
    sse = ours.learned.deviation.square().numpy() * (len(train.time) - (season + 5))
    facts = summary(chosen, sse[chosen] / theirs[:, 1], times, their_times)
    show(facts, their_times)
    if options.json:
        found = {"grid": train.layout.grid, "season": season, **facts}
        options.json.write_text(json.dumps(found, indent=1) + "\n")


def told(times: np.ndarray) -> str:
    """Two times of a channel in words."""
    return f"{1e3 * times[0]:,.1f} ms per channel, {1e3 * times[1]:,.1f} ms of processors"


def fitted(train: Training, season: int) -> tuple[ETS, float]:
    """Ours, fitted to all channels, and processors' seconds; a small fit compiles first."""
    model = ETS(ETSConfig(season=season), device="cpu")
    model._fitted(train.read(slice(0, 8 * season), slice(0, 8)))
    start = time.process_time()
    model.fit(train)
    return model, time.process_time() - start


def spread(moving: np.ndarray, n_channels: int) -> np.ndarray:
    """So many channels that move, as many of each variable, far from each other."""
    found = []
    for kind in range(KINDS):
        there = np.flatnonzero(moving[kind::KINDS]) * KINDS + kind
        share = n_channels // KINDS + (kind < n_channels % KINDS)
        found.append(there[np.linspace(0, len(there) - 1, min(share, len(there))).astype(int)])
    return np.concatenate(found)


def by_statsmodels(train: Training, chosen: np.ndarray, season: int, processes: int) -> np.ndarray:
    """Processors' seconds and squared error of each channel."""
    # Its processes have the processors among them: a library's threads would only wait there.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    series = (train.read(channels=slice(c, c + 1))[:, 0].double().numpy() for c in chosen)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return np.array(list(pool.map(one_by_statsmodels, series, [season] * len(chosen))))


def one_by_statsmodels(series: np.ndarray, season: int) -> tuple[float, float]:
    """Processor's seconds and squared error of a channel."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it did not converge, at times
        model = ExponentialSmoothing(
            series,
            trend="add",
            seasonal="add",
            seasonal_periods=season,
            initialization_method="estimated",
        ).fit()
    return time.process_time() - start, float(model.sse)


def summary(
    chosen: np.ndarray, ratios: np.ndarray, ours: np.ndarray, theirs: np.ndarray
) -> dict[str, Any]:
    """Times, their ratios, and how the ratios of squared errors are distributed."""
    levels = {"least": 0, "quarter": 0.25, "median": 0.5, "three quarters": 0.75, "largest": 1}
    return {
        "ours_ms": (1e3 * ours).tolist(),
        "statsmodels_ms": (1e3 * theirs).tolist(),
        "faster": (theirs / ours).tolist(),
        "channels": len(chosen),
        "allowed": int((ratios <= ALLOWED).sum()),
        "sse_ratio": {name: float(np.quantile(ratios, level)) for name, level in levels.items()},
        "sse_ratio_median": {
            name: float(np.median(ratios[chosen % KINDS == kind]))
            for kind, name in enumerate(VARIABLES)
        },
        "rows": dict(zip(map(str, chosen), ratios.tolist(), strict=True)),
    }


def show(facts: dict[str, Any], theirs: np.ndarray) -> None:
    """The summary in lines."""
    print(f"statsmodels: {told(theirs)}")
    print("ours is {:.0f} times as fast, by processors {:.0f} times".format(*facts["faster"]))
    print("squared error, ours / statsmodels:")
    for name, ratio in facts["sse_ratio"].items():
        print(f"  {name:<15}{ratio:.4f}")
    medians = ", ".join(f"{name} {value:.4f}" for name, value in facts["sse_ratio_median"].items())
    print(f"  medians: {medians}")
    print(f"  at most {ALLOWED}: {facts['allowed']} of {facts['channels']}")


def arguments() -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", help="a data set")
    parser.add_argument("--season", type=int, default=96)
    parser.add_argument("--channels", type=int, default=50, help="that statsmodels fits")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write it there too")
    return parser.parse_args()


if __name__ == "__main__":
    main()
