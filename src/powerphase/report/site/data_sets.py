"""The data sets as the page shows them: recipe, provenance, load shapes, certificate."""

from typing import Any

import numpy as np
from jaxtyping import Float, Shaped

from powerphase.axes import STEPS_PER_DAY
from powerphase.dataset.certificate import Certificate, certificate_facts, store_facts
from powerphase.dataset.layout import PROVENANCE
from powerphase.dataset.store import Store
from powerphase.grid.catalog import CATALOG
from powerphase.synthesis.injections import ARCHETYPES, NO_LOAD, load_shapes
from powerphase.synthesis.signals import Signals

FIGURE_DAY, FIGURE_DAYS = "2015-04-14", 3
"""The paper shows three days of April 2015 without naming them; these are a Tuesday and on."""

IN_A_LIST_OF_THEIR_OWN = ("solved by", "fingerprint", "sources", "made with")


def grid_title(name: str) -> str:
    """The grid's name as its authors write it."""
    return CATALOG[name].title if name in CATALOG else name


def data_set(store: Store, certificate: Certificate | None) -> dict[str, Any]:
    """All that the page says of a data set."""
    m = store.manifest
    facts = dict(store_facts(store))
    size = facts.pop("")
    steps = sum(m.provenance)
    return {
        "grid": m.grid,
        "title": grid_title(m.grid),
        "edition": m.edition,
        "fingerprint": m.fingerprint,
        "facts": [
            *((k, text) for k, text in facts.items() if k not in IN_A_LIST_OF_THEIR_OWN),
            ("network", size),
        ],
        "recipe": list(m.recipe.items()),
        "provenance": [
            (name, f"{count:,}", count / max(steps, 1))
            for name, count in zip(PROVENANCE, m.provenance, strict=True)
        ],
        "sources": m.attribution,
        "made_with": list(m.made_with.items()),
        "certificate": certificate_facts(certificate) if certificate else None,
        "valid": certificate.valid if certificate else None,
        "archetypes": archetypes(store),
    }


def archetypes(store: Store) -> dict[str, Any]:
    """The five load shapes over three days, and how many loads follow each."""
    m = store.manifest
    signals = Signals(store.time, store.signals_mw, m.edition, "; ".join(m.attribution))
    chosen = _figure_steps(store.time)
    column = np.asarray(store.array("grid/archetype"))
    return {
        "start": str(store.time[chosen.start]),
        "names": list(ARCHETYPES),
        "shapes": _rounded(load_shapes(signals)[chosen].T),
        "buses": [int((column == k).sum()) for k in range(len(ARCHETYPES))],
        "without": int((column == NO_LOAD).sum()),
    }


def _figure_steps(time: Shaped[np.ndarray, " S"]) -> slice:
    """Three days in April, or the first ones of a record without them."""
    found = np.flatnonzero(time == np.datetime64(FIGURE_DAY, "s"))
    first = int(found[0]) if found.size else 0
    return slice(first, min(first + FIGURE_DAYS * STEPS_PER_DAY, len(time)))


def _rounded(values: Float[np.ndarray, "K S"]) -> list[list[float]]:
    return [[round(float(value), 4) for value in line] for line in values]
