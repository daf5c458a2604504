"""The page of all models names all of them, and all of their variants."""

import json
import re
from pathlib import Path

from powerphase.models.framework import SavedForecaster
from powerphase.registry import MODELS, model_class

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGE = (DOCS / "models.md").read_text()


def test_the_table_of_models_is_that_of_the_registry() -> None:
    rows = re.findall(
        r"^\| `([a-z0-9-]+)` \| (.*) \| .* \| \[\w+\]\((\w+\.md)\) \|$", PAGE, re.MULTILINE
    )
    assert rows == [(name, info.summary, info.page) for name, info in MODELS.items()]
    assert all((DOCS / page).is_file() for _, _, page in rows)


def test_every_variant_is_listed() -> None:
    table = PAGE.split("| model | words |")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `([a-z0-9-]+)` \| (.*) \|$", table, re.MULTILINE)
    result = {name: re.findall(r"`([a-z0-9-]+)`", words) for name, words in rows}
    kinds = {name: model_class(name) for name in MODELS}
    assert result == {
        name: list(kind.config_type.VARIANTS)
        for name, kind in kinds.items()
        if issubclass(kind, SavedForecaster)
    }


def test_costs_are_the_measured_ones() -> None:
    rows = json.loads((ROOT / "benchmarks" / "measured" / "networks.json").read_text())
    lines = [
        f"| `{row['model']}` | {row['channels']:,} | {row['batch_size']} | {row['step_ms']:.1f} ms "
        f"| {row['train_gib']:.1f} GiB | {1e3 * row['forecast_s']:.0f} ms |"
        for row in rows
    ]
    shown = re.findall(r"^\| `.*\d ms \|$", PAGE, re.MULTILINE)
    assert shown == lines


def test_growth_follows_from_the_measurements() -> None:
    rows = json.loads((ROOT / "benchmarks" / "measured" / "networks.json").read_text())
    table = PAGE.split("| model | step, per window | forecast |")[1].split("\n\n")[0]
    shown = re.findall(r"^\| `(.*)` \| (.*) \| (.*) \|$", table, re.MULTILINE)
    assert [name for name, *_ in shown] == sorted({row["model"] for row in rows})
    for name, step, forecast in shown:
        own = [row for row in rows if row["model"] == name and row["batch_size"] != 100]
        small, large = sorted(own, key=lambda row: row["channels"])
        assert (small["channels"], large["channels"]) == (2000, 9532)
        # A subsampled step has as many rows of either batch.
        share = 1 if "subsampled" in name else small["batch_size"] / large["batch_size"]
        assert step == f"{share * large['step_ms'] / small['step_ms']:.1f}"
        assert forecast == f"{large['forecast_s'] / small['forecast_s']:.1f}"
