"""The page on the bench: its commands, options and numbers exist."""

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer

from powerphase import cli
from powerphase.bench import LADDER
from powerphase.evaluation import resolve_model

PAGE = (Path(__file__).parents[1] / "docs" / "bench.md").read_text()


@pytest.fixture(scope="module")
def bench() -> Any:
    group: Any = typer.main.get_command(cli.app)
    return group.commands["bench"]


def test_every_example_has_options_that_exist(bench: Any) -> None:
    examples = re.findall(r"^powerphase bench.*$", PAGE, re.MULTILINE)
    assert len(examples) >= 6
    for example in examples:
        bench.make_context("bench", shlex.split(example)[2:])  # raises for unknown options


def test_every_model_of_the_examples_exists() -> None:
    lists = [models.split(",") for models in re.findall(r"--models (\S+)", PAGE)]
    names = {name for models in lists for name in models if ":" not in name}
    assert len(names) > 3
    for name in names:
        assert resolve_model(name).model_class.name == name.split("+")[0]


def test_the_page_has_the_ladder_of_epochs() -> None:
    words = " ".join(PAGE.split())
    assert f"{', '.join(map(str, LADDER[:-1]))} and {LADDER[-1]}" in words


@pytest.mark.parametrize("option", re.findall(r"^\| `(--[a-z-]+)", PAGE, re.MULTILINE))
def test_every_option_of_the_table_exists(bench: Any, option: str) -> None:
    assert option in [name for parameter in bench.params for name in parameter.opts]
