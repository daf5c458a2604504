"""What the page loads of one row: scores by bus and by step, reliability, and forecasts to draw."""

import hashlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from powerphase.axes import V
from powerphase.records.result import RISK
from powerphase.report.site.packing import packed
from powerphase.report.weighted import first_bus

Arrays = Mapping[str, Shaped[np.ndarray, "..."]]

BY_STEP = ("violation_probability", "violation")

SHOWN = ("bus_id", "window", "target", "error", "weight")
NEEDED = (
    *("by_bus/brier", "reliability"),
    *(f"by_step/{name}" for name in BY_STEP),
    *(f"shown/{name}" for name in SHOWN),
)
"""What every sidecar has that was written with a row's scores."""


def row_file(sidecar: Arrays, ids: Int[np.ndarray, " N"], truth_key: str) -> dict[str, Any]:
    """All of a sidecar that pages draw; numbers as they are in it."""
    found: dict[str, Any] = {
        "by_bus": {
            name.removeprefix("by_bus/"): packed(array)
            for name, array in sidecar.items()
            if name.startswith("by_bus/")
        },
        "by_step": {name: sidecar[f"by_step/{name}"][:, V] for name in BY_STEP},
        "reliability": sidecar["reliability"],
        "shown": _shown(sidecar, ids) | {"truth": truth_key},
    }
    if RISK in sidecar:
        found["risk"] = risk_of(sidecar[RISK], sidecar["risk/happened"], sidecar["shown/window"])
    return found


def risk_of(
    probability: Shaped[np.ndarray, "W N H"],
    happened: Shaped[np.ndarray, "W N H"],
    windows: Int[np.ndarray, " W"],
) -> dict[str, Any]:
    """Violation probability in 1/240, and whether it came so, by window, bus and step."""
    return {
        "window": windows,
        "probability": packed(probability),
        "happened": packed(happened.astype(np.uint8)),
    }


def truth_of(sidecar: Arrays) -> tuple[str, Callable[[], dict[str, Any]]]:
    """What happened at the shown buses under a name that depends on it; models share it."""
    target = np.ascontiguousarray(sidecar["shown/target"].transpose(0, 2, 3, 1))
    name = f"truth-{hashlib.sha256(target.tobytes()).hexdigest()[:12]}"
    return name, lambda: {"target": packed(target)}


def first_shown(sidecar: Arrays) -> int:
    """The bus number that the page shows first."""
    place = first_bus(sidecar["shown/target"][..., V])
    return int(sidecar["shown/bus_id"][place])


def _shown(sidecar: Arrays, ids: Int[np.ndarray, " N"]) -> dict[str, Any]:
    """The scenarios, as differences from what happened, with a series' steps side by side."""
    chosen = sidecar["shown/bus_id"]
    place = {int(bus): k for k, bus in enumerate(ids)}
    return {
        "bus_id": chosen,
        "position": [place.get(int(bus)) for bus in chosen],
        "window": sidecar["shown/window"],
        "error": packed(sidecar["shown/error"].transpose(0, 3, 4, 1, 2)),
        "weight": packed(sidecar["shown/weight"].transpose(0, 2, 3, 1)),
    }
