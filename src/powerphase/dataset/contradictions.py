"""Claims of the manifest of a data set that contradict each other, or its files."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from powerphase.dataset.imported import ImportRecipe
from powerphase.dataset.recipe import Recipe
from powerphase.resolution import uneven_steps

if TYPE_CHECKING:
    from powerphase.dataset.store import Store


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
