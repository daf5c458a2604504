"""Recipes: everything that determines the values of a data set, and its fingerprint.

The recipe of generated data contains no names and no paths: the same case data, signals, seed and
options have the same fingerprint, whatever the files are called and wherever they are stored.

What determines imported values is their content. An imported record grows by segments, one for each
import. The fingerprint of a record is a chain: that of a grown record follows from that of the
record before and the content of the new segment. So whatever was fitted on the shorter record
recognises the longer one.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Float32

from powerphase.axes import STEPS_PER_DAY
from powerphase.dataset.options import Dispatch, RecipeOptions, Setpoint
from powerphase.errors import RecipeError, StoreError
from powerphase.grid.case import Grid
from powerphase.synthesis.signals import Signals

RECIPE_VERSION = 1
"""Increased whenever the same options would give other values."""


@dataclass(frozen=True)
class Recipe:
    """The content and the options that determine a data set."""

    grid_sha256: str
    signals_sha256: str
    seed: int
    dispatch: Dispatch
    setpoint: Setpoint
    start: str
    """First day, ISO date (UTC)."""
    end: str
    """Last day, ISO date (UTC), included."""
    version: int = RECIPE_VERSION

    @property
    def fingerprint(self) -> str:
        """sha256 over the canonical form of all fields; it identifies the data set."""
        text = json.dumps(self.as_json(), sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    def edition(self, signals: str) -> str:
        """The edition of the data set: that of its signals, and what of the recipe has a name.

        So rows of `synthetic` and of `synthetic-case`, with the case's set-points, can be in one
        folder. Other options make no name, only another fingerprint.
        """
        named = [option for option in (self.dispatch, self.setpoint) if option in ("slack", "case")]
        return "-".join([signals, *map(str, named)])

    def as_json(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return asdict(self)


def make_recipe(grid: Grid, signals: Signals, options: RecipeOptions | None = None) -> Recipe:
    """The recipe for this grid and these signals; raise if the days leave the signals."""
    options = options or RecipeOptions()
    first, last = (str(signals.time[k].astype("datetime64[D]")) for k in (0, -1))
    start, end = options.start or first, options.end or last
    if not first <= start <= end <= last:
        raise RecipeError(
            f"the record from {start} to {end} is empty or leaves the signals, which cover "
            f"{first} to {last}; choose days within"
        )
    return Recipe(
        grid_sha256=grid.sha256,
        signals_sha256=signals.sha256,
        seed=options.seed,
        dispatch=options.dispatch,
        setpoint=options.setpoint,
        start=start,
        end=end,
    )


def setpoints_pu(recipe: Recipe, grid: Grid) -> Float[np.ndarray, " N"]:
    """Voltage [p.u.] of each slack and PV bus; the values at PQ buses have no meaning."""
    if recipe.setpoint == "case":
        return grid.setpoint_pu
    return np.full(grid.n_buses, recipe.setpoint)


def step_range(recipe: Recipe, signals: Signals) -> tuple[int, int]:
    """First and last (excluded) step of the recipe's record within the signal record."""
    origin = signals.time[0].astype("datetime64[D]")
    first = int((np.datetime64(recipe.start) - origin).astype(int))
    last = int((np.datetime64(recipe.end) - origin).astype(int)) + 1
    return first * STEPS_PER_DAY, last * STEPS_PER_DAY


IMPORT_VERSION = 2
"""Increased whenever the same source would give other values."""

Kind = Literal["simulated", "measured"]
KINDS_OF_DATA: tuple[Kind, ...] = ("simulated", "measured")
"""Simulated states satisfy the AC equations to rounding; measured states need not."""


@dataclass(frozen=True)
class Segment:
    """What one import added to a record."""

    n_steps: int
    sha256: str
    """Of the states and of which of them are observed."""
    findings: tuple[str, ...] = ()
    """What was found in the source, for display; no part of the fingerprint."""


@dataclass(frozen=True)
class ImportRecipe:
    """Where imported values come from, and the content of each segment of the record."""

    kind: Kind
    grid_sha256: str | None
    """None for a record without a grid."""
    bus_sha256: str
    """Of the numbers and types of the buses."""
    start: str
    """The first time, UTC."""
    step_s: int
    given: tuple[str, ...]
    """The variables that the source has at some bus."""
    solved: tuple[str, ...]
    """The variables that were solved at some bus."""
    segments: tuple[Segment, ...]
    version: int = IMPORT_VERSION

    @property
    def fingerprint(self) -> str:
        """The last fingerprint of the chain; it identifies the data set."""
        return self.chain[-1]

    @property
    def chain(self) -> list[str]:
        """The fingerprint of the record after each of its imports, the first one first."""
        facts = {name: value for name, value in self.as_json().items() if name != "segments"}
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        fingerprint, chain = hashlib.sha256(text.encode()).hexdigest(), []
        for segment in self.segments:
            link = f"{fingerprint} {segment.n_steps} {segment.sha256}"
            fingerprint = hashlib.sha256(link.encode()).hexdigest()
            chain.append(fingerprint)
        return chain

    @property
    def n_steps(self) -> int:
        """Number of steps of the whole record."""
        return sum(segment.n_steps for segment in self.segments)

    def steps_of(self, fingerprint: str) -> int | None:
        """The length of the record when it had this fingerprint; None if it never had."""
        chain = self.chain
        if fingerprint not in chain:
            return None
        parts = self.segments[: chain.index(fingerprint) + 1]
        return sum(segment.n_steps for segment in parts)

    def extended(self, segment: Segment) -> "ImportRecipe":
        """The recipe of the record with one more segment."""
        return replace(self, segments=(*self.segments, segment))

    def as_json(self) -> dict[str, Any]:
        """The fields as plain JSON values."""
        return dict(json.loads(json.dumps(asdict(self))))

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> "ImportRecipe":
        """The recipe in a manifest."""
        segments = tuple(
            Segment(part["n_steps"], part["sha256"], tuple(part["findings"]))
            for part in values["segments"]
        )
        lists = {name: tuple(values[name]) for name in ("given", "solved")}
        return cls(**{**values, **lists, "segments": segments})


def is_import(recipe: Mapping[str, Any]) -> bool:
    """Whether the recipe of a manifest is that of imported data."""
    return "segments" in recipe


def import_recipe(recipe: Mapping[str, Any], path: str) -> ImportRecipe:
    """The recipe of imported data; raise if the data set was generated."""
    if not is_import(recipe):
        raise StoreError(f"{path}: was generated, not imported; only an imported record can grow")
    return ImportRecipe.from_json(recipe)


class SegmentDigest:
    """The checksum of a segment, from its blocks in order."""

    def __init__(self) -> None:
        self._state, self._observed = hashlib.sha256(), hashlib.sha256()

    def add(self, state: Float32[np.ndarray, "S C"], observed: Bool[np.ndarray, "S C"]) -> None:
        """Add consecutive steps."""
        self._state.update(np.ascontiguousarray(state, dtype="<f4").data)
        self._observed.update(np.ascontiguousarray(observed, dtype=np.uint8).data)

    @property
    def sha256(self) -> str:
        """Of all steps so far."""
        return hashlib.sha256(self._state.digest() + self._observed.digest()).hexdigest()
