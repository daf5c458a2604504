"""The page of all models names all of them, and all of their variants."""

import re
from pathlib import Path

from powerphase.models.registry import MODELS, model_class

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "models.md").read_text()


def test_every_model_has_a_line_and_a_page() -> None:
    lines = re.findall(r"^\| `([a-z0-9-]+)` \|.*\]\((\w+\.md)\) \|$", PAGE, re.MULTILINE)
    assert {name for name, _ in lines} == set(MODELS)
    for _, page in lines:
        assert (DOCS / page).is_file()


def test_every_variant_is_named() -> None:
    table = PAGE.split("| model | words |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*) \|$", table, re.MULTILINE)
    found = {name: re.findall(r"`([a-z0-9-]+)`", words) for name, words in rows}
    kinds = {name: model_class(name) for name in MODELS}
    assert found == {
        name: list(kind.config_type.VARIANTS)
        for name, kind in kinds.items()
        if hasattr(kind, "config_type")
    }
