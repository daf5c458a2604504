"""Result rows whose scores are random but consistent, and a failure."""

import json
from typing import Any

import numpy as np

from powerphase.axes import VARIABLES
from powerphase.records import SCORES, Failure, Result

WINDOWS = ["2016-07-01T00:00", "2016-07-21T00:00", "2016-08-11T00:00"]

FAILURE = Failure(
    task="powerphase-day-ahead",
    edition="synthetic",
    grid="activsg500",
    model="deepar+short",
    name="deepar+short",
    seed=22,
    kind="limit",
    sentence="took longer than the 60 s of --limit and was stopped",
    last_lines=["step 7", "step 8 – θ"],
    seconds=60.5,
    date="2026-07-01",
    commit=None,
    hardware="a test",
)


def random_scores(draw: int, *, weighted: bool = False) -> dict[str, Any]:
    """Scores, by type and by window, of scenarios with or without weights."""
    random = np.random.default_rng(draw)
    fields: dict[str, Any] = {"scores": {}, "by_window": {}, "by_type": {k: {} for k in VARIABLES}}
    outside = random.uniform(size=len(WINDOWS))  # [p.u.] or a share, by window
    voltage = {"brier": outside**2, "excursion_bias": -outside / 2}
    for name, score in SCORES.items():
        kinds = ["V"] if score.voltage_only else list(VARIABLES)
        values = random.uniform(size=(len(kinds), len(WINDOWS)))
        if score.voltage_only:
            values = voltage.get(name, outside)[None]
        null = weighted and score.needs_samples
        fields["scores"][name] = None if null else float(values.mean())
        fields["by_window"][name] = None if null else values.mean(axis=0).tolist()
        if score.has_types:
            for kind, mean in zip(kinds, values.mean(axis=1).tolist(), strict=True):
                fields["by_type"][kind][name] = None if null else mean
    return fields


def row(*, draw: int = 0, weighted: bool = False, **changes: Any) -> Result:
    """A valid row with some fields changed; `draw` chooses the scores."""
    values: dict[str, Any] = {
        "task": "powerphase-day-ahead",
        "task_version": 1,
        "grid": "activsg500",
        "edition": "synthetic",
        "fingerprint": "0123456789abcdef" * 4,
        "model": "powerforge",
        "variant": None,
        "config": {"width": 64, "kernels": [5, 25, 97], "anchor": {"days": 7, "on": True}},
        "model_version": 1,
        "parameters": 512_345,
        "seed": 42,
        "windows": list(WINDOWS),
        "scenarios": 16,
        "joint": True,
        "daily_slope": {"P": 0.9, "Q": 0.8, "V": None, "theta": 1.1},
        "training": {
            "windows_seen": 1920,
            "best_epoch": 2,
            "criterion": "loss",
            "curve": {"step": [30, 60], "loss": [0.5, 0.25], "validation": [0.75, None]},
        },
        "truth": {"necv": 0.0001, "violations": 0.02, "overloads": 0.01},
        "cost": {
            "train_s": 12.5,
            "predict_s": 0.25,
            "score_s": 0.5,
            "steps": 6000,
            "peak_memory_gib": None,
            "hardware": "a test",
        },
        "version": "0.1.0",
        "commit": None,
        "date": "2026-07-01",
    }
    return Result(**(values | random_scores(draw, weighted=weighted) | changes))


NEW_FACTS = ("model_version", "joint", "data_verified", "daily_slope", "training")
"""What rows of the first schema do not have."""


def first_schema(**changes: Any) -> dict[str, Any]:
    """The file of a valid row of the first schema, with some keys changed."""
    values = json.loads(row().to_json()) | {"schema": 1}
    for name in (name for name, score in SCORES.items() if score.since > 1):
        for block in (values["scores"], values["by_window"], *values["by_type"].values()):
            block.pop(name, None)
    del values["truth"]["overloads"]
    return {name: value for name, value in values.items() if name not in NEW_FACTS} | changes
