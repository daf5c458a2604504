"""The manifest of a data set, one JSON file: its schema, its content, and what contradicts it.

The manifest is replaced whole, never edited in place, and also records progress: a block counts as
done once its checksums are in it. A killed generator can therefore leave a half-written file, but
never a false claim. The manifest does not depend on when, where or with how many workers the data
set was made.
"""

import json
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cached_property
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np

from powerphase.axes import VARIABLES
from powerphase.clock import GERMANY, Calendar
from powerphase.dataset.layout import (
    AS_IMPORTED,
    PER_STEP,
    PROVENANCE,
    STATE,
    Block,
    largest_power,
    read_bytes,
    sha256_of,
)
from powerphase.dataset.recipe import KINDS_OF_DATA, ImportRecipe, Kind, Recipe, is_import
from powerphase.errors import CalendarError, StoreError
from powerphase.files import parse_json
from powerphase.resolution import PAPER_STEP_S, STEPS_S, steps_per_day, uneven_steps
from powerphase.schema import (
    MAX_BUSES,
    OptionalKey,
    Rule,
    Schema,
    exactly,
    integer,
    list_of,
    mapping_of,
    nullable,
    number,
    object_with,
    one_of,
    parse_object,
    real,
    text,
)

if TYPE_CHECKING:
    from powerphase.dataset.store import Store


MAX_STEPS = 10**7
"""95 years of five minutes."""

CHECKSUM = text("64 hexadecimal digits", r"[0-9a-f]{64}")


def manifest_schema(format_number: int, block_arrays: tuple[str, ...]) -> dict[str, Schema]:
    """The schema of a manifest whose blocks have these arrays."""
    checksums = object_with(dict.fromkeys(block_arrays, CHECKSUM))
    block: dict[str, Schema] = {
        "sha256": checksums,
        "provenance": Rule(
            "4 or 5 whole numbers",
            lambda value: any(_numbers(count, integer(0)).holds(value) for count in (4, 5)),
        ),
        "largest": _numbers(2, real(0.0)),
        "unsolved": integer(0),
        "promised": nullable(checksums),
    }
    return {
        "format": one_of([format_number]),
        "grid": text(),
        "edition": text(),
        "fingerprint": CHECKSUM,
        "recipe": Rule(
            "the recipe of generated or of imported data",
            lambda value: any(exactly(schema).holds(value) for schema in (_RECIPE, _IMPORT)),
        ),
        "n_steps": integer(1, MAX_STEPS),
        "step_s": OptionalKey(one_of(STEPS_S)),  # older data sets have 15 minutes
        "calendar": OptionalKey({"country": nullable(text()), "zone": text()}),
        "n_buses": integer(1, MAX_BUSES),
        "block_steps": integer(1, MAX_STEPS),
        "attribution": list_of(text(pattern=r"(?s).*")),
        "filled_signal_values": integer(0),
        "made_with": mapping_of(text()),
        "cpu_features": list_of(text()),
        "static_sha256": mapping_of(CHECKSUM),
        "blocks": mapping_of(exactly(block)),
        "complete": one_of([True, False]),
    }


def _numbers(count: int, rule: Rule) -> Rule:
    every = list_of(rule)
    words = f"{count} numbers, each {rule.words}"
    return Rule(words, lambda value: every.holds(value) and len(value) == count)


def _is_day(value: Any) -> bool:
    try:
        return date.fromisoformat(value).isoformat() == value
    except (TypeError, ValueError):
        return False


_DAY = Rule("a day such as '2016-07-01'", _is_day)

_VARIABLES = list_of(one_of(VARIABLES))

_IMPORT: dict[str, Schema] = {
    "kind": one_of(KINDS_OF_DATA),
    "grid_sha256": nullable(CHECKSUM),
    "bus_sha256": CHECKSUM,
    "start": text("a time such as '2016-07-01T00:00:00'", r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d"),
    "step_s": integer(1, 86_400),
    "given": _VARIABLES,
    "solved": _VARIABLES,
    "segments": list_of(
        exactly(
            {
                "n_steps": integer(1, MAX_STEPS),
                "sha256": CHECKSUM,
                "findings": list_of(text(pattern=r"(?s).*")),
            }
        )
    ),
    "version": integer(1),
}

_RECIPE: dict[str, Schema] = {
    "grid_sha256": CHECKSUM,
    "signals_sha256": CHECKSUM,
    "seed": integer(0, 2**64),
    "dispatch": text(),
    "setpoint": Rule(
        "'case' or a voltage [p.u.]", lambda value: value == "case" or number(0.0).holds(value)
    ),
    "start": _DAY,
    "end": _DAY,
    "version": integer(1),
}


MANIFEST = "manifest.json"
PACKAGES = (
    "powerphase",
    "lightsim2grid",
    "llvmlite",
    "numba",
    "numcodecs",
    "numpy",
    "scipy",
    "zarr",
)
FORMAT = 2
"""Increased whenever a reader of older data sets would misread a newer one."""
SCHEMA = manifest_schema(FORMAT, (STATE, *PER_STEP))
ADVICE = "restore it or generate the data set anew"


@dataclass(frozen=True)
class BlockRecord:
    """The checksums of a block's arrays (of their decoded bytes), and facts about its steps."""

    sha256: dict[str, str]
    provenance: list[int]
    largest: list[float]
    """Largest |P| [MW] and |Q| [MVAr], from which a task gets its scales without a long read."""
    unsolved: int = 0
    """Steps without a state until the last pass, which carries states forward."""
    promised: dict[str, str] | None = None
    """While a damaged block is made again: the checksums that it had and must have again."""


@dataclass(frozen=True)
class Manifest:
    """Identity, origin, versions and checksums of a data set."""

    grid: str
    edition: str
    fingerprint: str
    recipe: dict[str, Any]
    n_steps: int
    n_buses: int
    block_steps: int
    attribution: list[str]
    filled_signal_values: int
    made_with: dict[str, str]
    cpu_features: list[str]
    static_sha256: dict[str, str]
    """Checksums of all files outside the blocks: metadata, grid, clock, signals."""
    step_s: int = PAPER_STEP_S
    """Seconds from one step to the next."""
    calendar: Calendar = GERMANY
    """Holidays and wall clock of the people who use the grid."""
    blocks: dict[int, BlockRecord] = field(default_factory=dict)

    @property
    def steps_per_day(self) -> int:
        """How many steps a day has."""
        return steps_per_day(self.step_s)

    @property
    def n_blocks(self) -> int:
        """Number of blocks in the whole record."""
        return -(-self.n_steps // self.block_steps)

    @property
    def complete(self) -> bool:
        """Whether every block is done and every step has a state."""
        done = len(self.blocks) == self.n_blocks
        return done and not any(record.unsolved for record in self.blocks.values())

    @property
    def provenance(self) -> list[int]:
        """Number of steps by provenance, over the blocks that are done."""
        total = np.zeros(len(PROVENANCE), dtype=int)
        for record in self.blocks.values():
            total[: len(record.provenance)] += record.provenance
        return [int(n) for n in (total if is_import(self.recipe) else total[:AS_IMPORTED])]

    def steps(self, block: int) -> slice:
        """The steps of the record in the block."""
        first = block * self.block_steps
        return slice(first, min(first + self.block_steps, self.n_steps))

    def to_json(self) -> str:
        """The manifest as text; equal manifests give equal text."""
        values = {"format": FORMAT, **asdict(self), "complete": self.complete}
        values["blocks"] = {str(k): values["blocks"][k] for k in sorted(values["blocks"])}
        return json.dumps(values, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str, path: str) -> "Manifest":
        """The manifest in `text`, which was read from `path`."""
        values = parse_object(
            text.encode(), path, SCHEMA, StoreError, ADVICE, version=("format", FORMAT)
        )
        del values["format"], values["complete"]
        if "calendar" in values:
            values["calendar"] = _calendar(values["calendar"], path)
        blocks = {key: BlockRecord(**record) for key, record in values.pop("blocks").items()}
        n_blocks = -(-values["n_steps"] // values["block_steps"])
        if not blocks.keys() <= set(map(str, range(n_blocks))):
            raise StoreError(f"{path}: has other blocks than 0 to {n_blocks - 1}; {ADVICE}")
        return cls(blocks={int(key): record for key, record in blocks.items()}, **values)


def _calendar(values: dict[str, Any], path: str) -> Calendar:
    try:
        return Calendar(**values)
    except CalendarError as error:
        raise StoreError(f"{path}: {error}; {ADVICE}") from error


def library_versions() -> dict[str, str]:
    """The versions that determine the bytes of a data set."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


def cpu_features() -> list[str]:
    """The vector instructions that NumPy uses; they can change a last bit."""
    config = np.show_config(mode="dicts")
    simd = config["SIMD Extensions"] if config else {}
    return [platform.machine(), *simd.get("baseline", []), *simd.get("found", [])]


def make_record(block: Block) -> BlockRecord:
    """The manifest's record of a block."""
    counts = np.bincount(block.provenance, minlength=4)
    return BlockRecord(
        sha256={name: sha256_of(values) for name, values in block.arrays()},
        provenance=[int(count) for count in counts],
        largest=largest_power(block.state),
        unsolved=int(np.isnan(block.state[:, 0]).sum()),
    )


class Origin:
    """What the manifest of a data set says about its origin; part of `Store`."""

    path: str
    manifest: Manifest

    @property
    def is_imported(self) -> bool:
        """Whether the states come from elsewhere; generated ones have signals and a recipe."""
        return is_import(self.manifest.recipe)

    @property
    def kind(self) -> Kind:
        """`simulated` if all states satisfy the AC equations to rounding, else `measured`."""
        return self.manifest.recipe["kind"] if self.is_imported else "simulated"

    def steps_of(self, fingerprint: str) -> int:
        """The length of the record when it had this fingerprint: the present one, or an earlier."""
        if fingerprint == self.manifest.fingerprint:
            return self.manifest.n_steps
        known = None
        if self.is_imported:
            known = ImportRecipe.from_json(self.manifest.recipe).steps_of(fingerprint)
        if known is None:
            raise StoreError(f"{self.path}: never had the fingerprint {fingerprint}")
        return known

    def grew_from(self, fingerprint: str) -> bool:
        """Whether the record, or what it was before it grew, has this fingerprint."""
        if not self.is_imported:
            return fingerprint == self.manifest.fingerprint
        return fingerprint in ImportRecipe.from_json(self.manifest.recipe).chain

    @property
    def has_grid(self) -> bool:
        """Whether branches and generators are known; only an imported record may lack them."""
        return not self.is_imported or self.manifest.recipe["grid_sha256"] is not None

    @cached_property
    def bus_names(self) -> dict[int, str]:
        """The names of the buses that have one, by number; imported records may have some."""
        return self._texts_by_bus("bus_names")

    @cached_property
    def bus_labels(self) -> dict[int, str]:
        """What the source of an imported record calls its buses, where that is not the number."""
        return self._texts_by_bus("bus_labels")

    def _texts_by_bus(self, key: str) -> dict[int, str]:
        texts = self._root_attributes().get(key, {})
        return {int(number): str(text) for number, text in texts.items()}

    def _root_attributes(self) -> dict[str, Any]:
        content = read_bytes(f"{self.path}/zarr.json")
        if sha256_of(content) != self.manifest.static_sha256["zarr.json"]:
            raise StoreError(f"{self.path}: not what the manifest states: zarr.json")
        return dict(parse_json(content.decode())["attributes"])


def contradictions(store: "Store", damaged: list[str]) -> Iterator[str]:
    """What in the manifest cannot be true, given its recipe and the files that are not damaged."""
    claims = _import_claims(store) if store.is_imported else _recipe_claims(store)
    problems = list(claims)
    yield from problems
    if damaged or problems:
        return
    recipe = store.manifest.recipe
    if store.has_grid and store.grid.sha256 != recipe["grid_sha256"]:
        yield "grid (not that of the recipe)"
    if uneven_steps(store.time, store.step_s).size:
        yield "manifest (step_s contradicts the clock)"
    if store.is_imported and str(store.time[0]) != recipe["start"]:
        yield "manifest (start contradicts the clock)"


def _recipe_claims(store: "Store") -> Iterator[str]:
    """Claims that contradict the recipe of generated data."""
    manifest = store.manifest
    try:
        recipe = Recipe(**manifest.recipe)
        days = np.datetime64(recipe.end) - np.datetime64(recipe.start) + 1
    except (TypeError, ValueError) as error:
        yield f"manifest (not a recipe: {error})"
        return
    if recipe.fingerprint != manifest.fingerprint:
        yield "manifest (fingerprint contradicts its recipe)"
    if manifest.n_steps != days.astype(int) * manifest.steps_per_day:
        yield "manifest (n_steps contradicts its recipe)"


def _import_claims(store: "Store") -> Iterator[str]:
    """Claims that contradict the recipe of imported data."""
    manifest, recipe = store.manifest, ImportRecipe.from_json(store.manifest.recipe)
    if not recipe.segments or recipe.fingerprint != manifest.fingerprint:
        yield "manifest (fingerprint contradicts its recipe)"
    if recipe.segments and manifest.n_steps != recipe.n_steps:
        yield "manifest (n_steps contradicts its recipe)"
    if recipe.step_s != manifest.step_s:
        yield "manifest (step_s contradicts its recipe)"
