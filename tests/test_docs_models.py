"""The page of all models names all of them, and all of their variants."""

import re
from pathlib import Path

from docs.measurements import network_growth, networks
from powerphase.models.framework import SavedForecaster
from powerphase.registry import MODELS, model_class

DOCS = Path(__file__).parents[1] / "docs"
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


def test_the_page_of_every_baseline_names_its_reference_and_its_commit() -> None:
    table = PAGE.split("## The public implementations")[1].split("\n## ")[0]
    rows = re.findall(
        r"^\| (.*) \| \[[\w./-]+\]\((https://\S+)\).* \| `([\w.]+)` \|$", table, re.MULTILINE
    )
    baselines = {"ets", "deepar", "timemcl", "timegrad", "tempflow", "transformer-tempflow"}
    baselines |= {"tactis-2", "timeprism"}
    named = dict.fromkeys(baselines, 0)
    for models, address, commit in rows:
        own = baselines if models.startswith("all eight") else re.findall(r"`([\w-]+)`", models)
        for name in baselines & set(own):
            page = (DOCS / MODELS[name].page).read_text()
            assert f"({address})" in page, name
            assert f"`{commit}`" in page, name
            named[name] += 1
    assert min(named.values()) >= 1
    assert sum(named.values()) > len(named)


def test_no_cost_grows_faster_than_the_grid() -> None:
    channels = {row["channels"] for row in networks()}
    growth = max(channels) / min(channels)
    factors = [factor for of_model in network_growth().values() for factor in of_model.values()]
    assert max(factors) < 1.01 * growth
