"""What the page loads of one row: scores by bus and by step, reliability, and forecasts to draw."""

import hashlib
from typing import Any

import numpy as np
from jaxtyping import Int, Shaped

from powerphase.axes import V
from powerphase.records.sidecar import HAPPENED, RISK, SERIES, Arrays, expand
from powerphase.report.quantiles import first_bus
from powerphase.report.site.packing import packed

BY_STEP = ("violation_probability", "violation")

NEEDED = ("by_bus/brier", "reliability", *(f"by_step/{name}" for name in BY_STEP))
"""Arrays that every sidecar has."""

SHOWN = (
    *("bus_id", "window", "weight"),
    *(f"{kind}_{part}" for kind in ("target", "scenario") for part in SERIES),
)
"""Arrays of a sidecar with forecasts."""


def missing_array(sidecar: Arrays) -> str | None:
    """The first array that a sidecar should have and lacks."""
    names = [*NEEDED]
    if any(name.startswith("shown/") for name in sidecar):
        names += [f"shown/{name}" for name in SHOWN]
    return next((name for name in names if name not in sidecar), None)


def has_forecasts(sidecar: Arrays) -> bool:
    """Whether the sidecar carries forecasts to draw."""
    return "shown/bus_id" in sidecar


def row_file(sidecar: Arrays, ids: Int[np.ndarray, " N"], truth_key: str | None) -> dict[str, Any]:
    """Everything in a sidecar that pages draw; numbers as they are stored."""
    content: dict[str, Any] = {
        "by_bus": {
            name.removeprefix("by_bus/"): packed(array)
            for name, array in sidecar.items()
            if name.startswith("by_bus/")
        },
        "by_step": {name: sidecar[f"by_step/{name}"][:, V] for name in BY_STEP},
        "reliability": sidecar["reliability"],
        "shown": _shown(sidecar, ids) | {"truth": truth_key} if truth_key else None,
    }
    if RISK in sidecar:
        content["risk"] = risk_of(sidecar[RISK], sidecar[HAPPENED], sidecar["shown/window"])
    return content


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


def truth_of(sidecar: Arrays) -> tuple[str, dict[str, Any]]:
    """What happened at the shown buses, under a name that depends on it; models share it."""
    series = _series(sidecar, "target")
    content = "".join(part["data"] for part in series.values())
    return f"truth-{hashlib.sha256(content.encode()).hexdigest()[:12]}", series


def first_shown(sidecar: Arrays) -> int:
    """The bus number that the page shows first."""
    target = expand(sidecar)["shown/target"]
    return int(sidecar["shown/bus_id"][first_bus(target[..., V])])


def _shown(sidecar: Arrays, ids: Int[np.ndarray, " N"]) -> dict[str, Any]:
    """The scenarios on their levels, with the steps of a series side by side."""
    chosen = sidecar["shown/bus_id"]
    position = {int(bus): k for k, bus in enumerate(ids)}
    return {
        "bus_id": chosen,
        "position": [position.get(int(bus)) for bus in chosen],
        "window": sidecar["shown/window"],
        "weight": packed(sidecar["shown/weight"].transpose(0, 2, 3, 1)),
        **_series(sidecar, "scenario"),
    }


def _series(sidecar: Arrays, kind: str) -> dict[str, Any]:
    return {part: packed(sidecar[f"shown/{kind}_{part}"]) for part in SERIES}
