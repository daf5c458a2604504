"""Where the states of a data set come from: a generator, or one or more imports."""

from functools import cached_property
from typing import Any

from powerphase.dataset.imported import ImportRecipe, Kind, is_import
from powerphase.dataset.layout import Manifest, sha256_of
from powerphase.dataset.storage import read_bytes
from powerphase.errors import StoreError
from powerphase.files import parse_json


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
