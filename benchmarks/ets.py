"""ETS of a whole grid compared with statsmodels, on the same channels in the same run.

    python benchmarks/ets.py data/activsg500                    the season of a day
    python benchmarks/ets.py data/activsg500 --season 24 --json ets.json

powerphase fits all channels of the training record; its time includes reading them, and constant
channels are not counted. statsmodels fits some of the other channels, evenly spread over P, Q, V
and θ, with the same model and estimated initial states, in as many processes as powerphase has
threads. A ratio of squared errors below 1 means that powerphase fits better. On a busy machine
wall-clock times are too long for both; CPU times measure the work itself.
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
from powerphase.models.ets import ETS, ETSConfig
from powerphase.scenarios import Training
from powerphase.task.windows import Task

ALLOWED = 1.001
"""The largest ratio of squared errors that counts as equal."""


def main() -> None:
    """Measure and print the comparison."""
    options = arguments()
    torch.set_num_threads(options.threads)
    train, season = Task(options.data).training, options.season
    print(f"{hardware(torch.device('cpu'))}; statsmodels {statsmodels.__version__}")
    print(f"{train.layout.grid}: {len(train.time):,} steps, season {season}", flush=True)
    model, cpu_s = fit(train, season)
    assert model.fitted is not None
    assert model.outcome is not None
    moving = (model.fitted.deviation > 0).numpy()
    times = np.array([model.outcome["train_s"], cpu_s]) / moving.sum()
    print(f"{len(moving):,} channels, {moving.sum():,} not constant; {options.threads} threads")
    print(f"powerphase: {describe(times)}", flush=True)
    chosen = spread(moving, options.channels)
    start = time.perf_counter()
    reference = fit_by_statsmodels(train, chosen, season, options.threads)
    wall_s, reference_cpu_s = time.perf_counter() - start, reference[:, 0].sum()
    reference_times = np.array([wall_s, reference_cpu_s]) / len(chosen)
    sse = model.fitted.deviation.square().numpy() * (len(train.time) - (season + 5))
    facts = summary(chosen, sse[chosen] / reference[:, 1], times, reference_times)
    show(facts, reference_times)
    if options.json:
        content = {"grid": train.layout.grid, "season": season, **facts}
        options.json.write_text(json.dumps(content, indent=1) + "\n")


def describe(times: np.ndarray) -> str:
    """Wall-clock and CPU time of a channel as text."""
    return f"{1e3 * times[0]:,.1f} ms per channel, {1e3 * times[1]:,.1f} ms of CPU time"


def fit(train: Training, season: int) -> tuple[ETS, float]:
    """ETS fitted to all channels, and the CPU seconds; a small fit compiles the kernels first."""
    model = ETS(ETSConfig(season=season), device="cpu")
    model._fit_block(train.read(slice(0, 8 * season), slice(0, 8)), season)
    start = time.process_time()
    model.fit(train)
    return model, time.process_time() - start


def spread(moving: np.ndarray, n_channels: int) -> np.ndarray:
    """A number of channels that are not constant, equally many and evenly spread per variable."""
    parts = []
    for kind in range(KINDS):
        candidates = np.flatnonzero(moving[kind::KINDS]) * KINDS + kind
        share = n_channels // KINDS + (kind < n_channels % KINDS)
        index = np.linspace(0, len(candidates) - 1, min(share, len(candidates))).astype(int)
        parts.append(candidates[index])
    return np.concatenate(parts)


def fit_by_statsmodels(
    train: Training, chosen: np.ndarray, season: int, processes: int
) -> np.ndarray:
    """CPU seconds and squared error of each channel."""
    # One thread per process: more threads would only compete for the same cores.
    os.environ |= dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
    series = (train.read(channels=slice(c, c + 1))[:, 0].double().numpy() for c in chosen)
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        return np.array(list(pool.map(fit_one_by_statsmodels, series, [season] * len(chosen))))


def fit_one_by_statsmodels(series: np.ndarray, season: int) -> tuple[float, float]:
    """CPU seconds and squared error of a channel."""
    start = time.process_time()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns where it does not converge
        model = ExponentialSmoothing(
            series,
            trend="add",
            seasonal="add",
            seasonal_periods=season,
            initialization_method="estimated",
        ).fit()
    return time.process_time() - start, float(model.sse)


def summary(
    chosen: np.ndarray, ratios: np.ndarray, times: np.ndarray, reference_times: np.ndarray
) -> dict[str, Any]:
    """Times, their ratios, and the distribution of the ratios of squared errors."""
    levels = {"least": 0, "quarter": 0.25, "median": 0.5, "three quarters": 0.75, "largest": 1}
    return {
        "ours_ms": (1e3 * times).tolist(),
        "statsmodels_ms": (1e3 * reference_times).tolist(),
        "faster": (reference_times / times).tolist(),
        "channels": len(chosen),
        "allowed": int((ratios <= ALLOWED).sum()),
        "sse_ratio": {name: float(np.quantile(ratios, level)) for name, level in levels.items()},
        "sse_ratio_median": {
            name: float(np.median(ratios[chosen % KINDS == kind]))
            for kind, name in enumerate(VARIABLES)
        },
        "rows": dict(zip(map(str, chosen), ratios.tolist(), strict=True)),
    }


def show(facts: dict[str, Any], reference_times: np.ndarray) -> None:
    """Print the summary."""
    print(f"statsmodels: {describe(reference_times)}")
    print("powerphase is {:.0f} times as fast, {:.0f} times in CPU time".format(*facts["faster"]))
    print("squared error, powerphase / statsmodels:")
    for name, ratio in facts["sse_ratio"].items():
        print(f"  {name:<15}{ratio:.4f}")
    medians = ", ".join(f"{name} {value:.4f}" for name, value in facts["sse_ratio_median"].items())
    print(f"  medians: {medians}")
    print(f"  at most {ALLOWED}: {facts['allowed']} of {facts['channels']}")


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", help="a data set")
    parser.add_argument("--season", type=int, default=96)
    parser.add_argument(
        "--channels", type=int, default=50, help="number of channels that statsmodels fits"
    )
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", type=Path, help="also write the summary to this file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
