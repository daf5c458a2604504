"""What the page on the bench shows can be asked for."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from powerphase import cli
from powerphase.bench import LADDER
from powerphase.evaluation import resolve_model

PAGE = (Path(__file__).parents[1] / "docs" / "bench.md").read_text()


def test_every_example_has_options_that_exist() -> None:
    bench = typer.main.get_command(cli.app).get_command(None, "bench")  # type: ignore[attr-defined]
    examples = re.findall(r"^powerphase bench.*$", PAGE, re.MULTILINE)
    assert len(examples) >= 6
    for example in examples:
        bench.make_context("bench", shlex.split(example)[2:])  # which refuses what it does not know


def test_every_model_of_the_examples_exists() -> None:
    given = [models.split(",") for models in re.findall(r"--models (\S+)", PAGE)]
    named = {one for models in given for one in models if ":" not in one}
    assert {resolve_model(model).model_class.name for model in named} == {
        one.split("+")[0] for one in named
    }
    assert len(named) > 3


def test_the_ladder_is_the_page_s() -> None:
    words = " ".join(PAGE.split())
    assert f"{', '.join(map(str, LADDER[:-1]))} and {LADDER[-1]} that fits" in words


@pytest.mark.parametrize("option", re.findall(r"^\| `(--[a-z-]+)", PAGE, re.MULTILINE))
def test_every_option_of_the_table_exists(option: str) -> None:
    bench = typer.main.get_command(cli.app).get_command(None, "bench")  # type: ignore[attr-defined]
    assert option in [name for parameter in bench.params for name in parameter.opts]
