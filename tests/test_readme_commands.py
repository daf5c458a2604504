"""Everything that the README shows is run as shown, from top to bottom, in an empty folder."""

import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import numpy as np
import pandas as pd
import pytest
import typer
from typer.core import TyperGroup
from typer.testing import Result

from powerphase import cli, generate
from powerphase.records import read_results
from tests.bench.in_process import run_jobs_in_process
from tests.pages import FENCE, INLINE, blocks, commands, invoke, section

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
README = re.sub(r"<!--.*?-->", "", TEXT, flags=re.DOTALL)
(EXAMPLE,) = blocks(README, "python")

NOT_RUN: Mapping[str, str] = MappingProxyType(
    {
        "make quickstart": "installs from a package index",
        "make test": "installs from a package index, and runs this test",
        "make docs": "installs from a package index",
        "powerphase signals fetch": "downloads 112 MB",
        "powerphase generate ieee57 --signals opsd --out data/opsd": "needs the download",
        "torchrun --nproc-per-node 4 --no-python powerphase train powerforge --data data/ieee57": (
            "needs four GPUs"
        ),
        "powerphase bench --grids ieee57 --models factorforge --engine ray": "starts a cluster",
    }
)
"""Commands that are not run, and why. Their options are parsed all the same."""

SHOWN = commands(README)
RUN = [command for command in SHOWN if command.startswith("powerphase ") and command not in NOT_RUN]


def docs(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def write_files_of_linked_pages() -> None:
    """Write the files that a reader finds behind the links of the table of commands."""
    data, training = docs("data.md"), docs("training.md")
    Path("mymodel.py").write_text(*blocks(docs("own_model.md"), "python"))
    Path("mynetwork.py").write_text(*blocks(section(training, "A network of your own"), "python"))
    Path("my_grid.m").write_text(*blocks(section(data, "A grid of your own"), "matlab"))
    (code,) = blocks(section(data, "Signals of your own"), "python")
    exec(compile(code, "data.md", "exec"), {})
    write_record()


def write_record() -> None:
    """A record of the states of my_grid.m and its mapping, as docs/own_record.md has them."""
    store = generate("my_grid.m", "generated", end="2015-01-10")
    values = store.read()
    table = pd.DataFrame(
        {
            "when": np.repeat(store.time.astype(str), 4),
            "station": np.tile(store.bus_id, len(store.time)),
            "load_kw": 1e3 * values[..., 0].ravel(),
            "q_kvar": 1e3 * values[..., 1].ravel(),
            "u_kv": (values[..., 2] * store.grid.bus[:, 9]).ravel(),
        }
    )
    table.to_csv("states.csv", index=False)
    Path("states.toml").write_text(
        'time = "when"\nzone = "UTC"\nbus = "station"\n'
        '[P]\ncolumn = "load_kw"\nunit = "kW"\nsign = "load"\n'
        '[Q]\ncolumn = "q_kvar"\nunit = "kVAr"\nsign = "load"\n'
        '[V]\ncolumn = "u_kv"\nunit = "kV"\n'
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The reader's working folder."""
    path = tmp_path_factory.mktemp("reader")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.syspath_prepend(str(path))
        for module in ("mymodel", "mynetwork"):  # those of other tests
            patch.delitem(sys.modules, module, raising=False)
        run_jobs_in_process(patch)
        write_files_of_linked_pages()
        yield path


@pytest.fixture(scope="module")
def printed(folder: Path) -> str:
    """The output of the Python example, which comes first and makes the data for the rest."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(EXAMPLE, "README.md", "exec"), {"__name__": "example"})
    return output.getvalue()


@pytest.fixture(scope="module")
def outputs(folder: Path, printed: str) -> dict[str, Result]:
    """The results of all commands in `RUN`, one after the other."""
    return {command: invoke(command) for command in RUN}


def test_the_python_example_comes_before_all_commands_except_make() -> None:
    assert set(commands(README.split("```python")[0])) == {"make quickstart", "make test"}


def test_the_python_example_has_twelve_lines() -> None:
    assert len([line for line in EXAMPLE.splitlines() if line]) == 12


def test_the_python_example_scores_a_model_where_voltages_leave_the_band(
    folder: Path, printed: str
) -> None:
    assert "yesterday" in printed
    path = folder / "data/results/powerphase-day-ahead/synthetic/ieee57/yesterday-0.json"
    (row,) = read_results([path])
    assert (row.truth["violations"] or 0) > 0.01
    scores = [row.scores[name] for name in ("brier", "twcrps", "safety_mbrier")]
    assert all(score is not None and score > 0 for score in scores)


@pytest.mark.parametrize("command", RUN)
def test_a_command_succeeds(command: str, outputs: dict[str, Result]) -> None:
    result = outputs[command]
    assert result.exit_code == 0, result.output or repr(result.exception)
    assert result.stdout


def test_the_commands_leave_rows_a_site_and_a_figure(
    folder: Path, outputs: dict[str, Result]
) -> None:
    rows = {Path(row.path).stem for row in read_results([folder / "data/results"])}
    assert rows == {"yesterday-0", "climatology-0", "last-week-0", "factorforge-42"}
    board = outputs["powerphase leaderboard data/results"].stdout
    assert all(model in board for model in ("yesterday", "climatology", "last-week"))
    assert (folder / "site/index.html").is_file()
    assert list((folder / "figures").glob("voltages-ieee57.*"))


def test_every_command_is_run_or_listed_with_a_reason() -> None:
    assert set(SHOWN) == {*RUN, *NOT_RUN}
    assert len(set(RUN)) == len(RUN) > 15
    for command in NOT_RUN:
        assert re.search(r"^(make|torchrun) |signals (fetch|opsd)|--engine ray", command), command


def test_inline_code_with_a_space_is_a_command_or_an_option() -> None:
    inline = {text for text in INLINE.findall(FENCE.sub("", README)) if " " in text}
    others = {text for text in inline if not text.startswith("--")} - set(SHOWN)
    assert others == {"source .venv/bin/activate"}  # created by `make`


@pytest.mark.parametrize("command", [text for text in NOT_RUN if "powerphase " in text])
def test_commands_that_are_not_run_have_valid_options(command: str) -> None:
    group = typer.main.get_command(cli.app)
    words = shlex.split(command.partition("powerphase ")[2])
    while isinstance(group, TyperGroup):
        group = group.commands[words.pop(0)]
    context = group.make_context("powerphase", words)  # raises on unknown options
    assert not context.args  # nor is any word left over


@pytest.mark.parametrize("target", re.findall(r"\bmake (\w+)", README))
def test_a_make_target_exists(target: str) -> None:
    plan = ["make", "--dry-run", target]
    assert subprocess.run(plan, cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_all_blocks_are_of_kinds_that_are_run() -> None:
    assert {language for language, _ in FENCE.findall(README)} == {"sh", "python", "bibtex"}
    lines = [line for block in blocks(README, "sh") for line in block.splitlines()]
    assert {line.split()[0] for line in lines} == {"make", "powerphase"}
