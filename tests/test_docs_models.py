"""The page of all models names all of them, and all of their variants."""

import json
import re
from pathlib import Path

from powerphase.models.registry import MODELS, model_class

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
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


def test_costs_are_those_that_were_measured() -> None:
    rows = json.loads((ROOT / "benchmarks" / "measured" / "networks.json").read_text())
    lines = [
        f"| `{row['model']}` | {row['channels']:,} | {row['batch_size']} | {row['step_ms']:.1f} ms "
        f"| {row['train_gib']:.1f} GiB | {1e3 * row['forecast_s']:.0f} ms |"
        for row in rows
    ]
    shown = re.findall(r"^\| `.*\d ms \|$", PAGE, re.MULTILINE)
    assert shown == lines
    at = {(row["model"], row["batch_size"], row["channels"]): row for row in rows}
    growth = at["timeprism", 100, 9532]["step_ms"] / at["timeprism", 100, 2000]["step_ms"]
    words = " ".join(PAGE.split())
    assert f"TimePrism's step takes {growth:.1f} times as long" in words
    few, many = (at["tactis-2", 200, n] for n in (2000, 9532))
    assert many["step_ms"] < 1.05 * few["step_ms"]
    assert f"takes {many['forecast_s'] / few['forecast_s']:.1f} times as long. How" in words
