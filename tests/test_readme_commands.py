"""All that the README shows is run as shown, from top to bottom, in an empty folder."""

import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
import typer
from click.testing import Result

from powerphase import cli
from powerphase.records.result import read_results
from tests.pages import FENCE, INLINE, blocks, commands, invoked, section

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
(EXAMPLE,) = blocks(README, "python")

LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "make quickstart": "installs from a package index",
        "make test": "installs from a package index, and runs this",
        "powerphase signals fetch": "downloads 112 MB",
        "powerphase generate ieee57 --signals opsd --out data/opsd": "needs the download",
        "torchrun --nproc-per-node 4 --no-python powerphase train powerforge --data data/ieee57": (
            "needs four GPUs"
        ),
        "powerphase bench --grids ieee57 --models factorforge --engine ray": "starts a cluster",
    }
)
"""What is not run, and why; everything else is. Of these too, all options are parsed."""

SHOWN = commands(README)
RUN = [one for one in SHOWN if one.startswith("powerphase ") and one not in LEFT_OUT]


def docs(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def write_what_the_linked_pages_give() -> None:
    """The files of a reader who follows the links of the table of commands."""
    data, training = docs("data.md"), docs("training.md")
    Path("mymodel.py").write_text(*blocks(docs("own_model.md"), "python"))
    Path("mynetwork.py").write_text(*blocks(section(training, "A network of your own"), "python"))
    Path("my_grid.m").write_text(*blocks(section(data, "A grid of your own"), "matlab"))
    (code,) = blocks(section(data, "Signals of your own"), "python")
    exec(compile(code, "data.md", "exec"), {})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder in which the reader is."""
    folder = tmp_path_factory.mktemp("reader")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.syspath_prepend(str(folder))
        for module in ("mymodel", "mynetwork"):  # those of other tests
            patch.delitem(sys.modules, module, raising=False)
        write_what_the_linked_pages_give()
        yield folder


@pytest.fixture(scope="module")
def printed(place: Path) -> str:
    """What the example in Python prints; it comes first, and makes the data for the rest."""
    with contextlib.redirect_stdout(io.StringIO()) as output:
        exec(compile(EXAMPLE, "README.md", "exec"), {"__name__": "example"})
    return output.getvalue()


@pytest.fixture(scope="module")
def done(place: Path, printed: str) -> dict[str, Result]:
    """Every command that is not left out, one after the other."""
    return {command: invoked(command) for command in RUN}


def test_the_python_example_comes_before_all_commands_but_those_of_make() -> None:
    assert commands(README.split("```python")[0]) == ["make quickstart", "make test"]


def test_the_python_example_has_twelve_lines() -> None:
    assert len([line for line in EXAMPLE.splitlines() if line]) == 12


def test_the_python_example_scores_a_model_on_a_grid_that_leaves_its_band(
    place: Path, printed: str
) -> None:
    assert "yesterday on ieee57 (synthetic), powerphase-day-ahead" in printed
    row = place / "data/results/powerphase-day-ahead/synthetic/ieee57/yesterday-0.json"
    (found,) = read_results([row])
    assert found.truth["violations"] > 0.01
    assert min(found.scores[name] for name in ("brier", "twcrps", "safety_mbrier")) > 0


@pytest.mark.parametrize("command", RUN)
def test_a_command_does_as_shown(command: str, done: dict[str, Result]) -> None:
    assert done[command].exit_code == 0, done[command].output or repr(done[command].exception)
    assert done[command].stdout


def test_the_commands_leave_the_rows_that_the_page_speaks_of(
    place: Path, done: dict[str, Result]
) -> None:
    rows = {row.path.stem for row in read_results([place / "data/results"])}
    assert rows == {"yesterday-0", "climatology-0", "last-week-0", "factorforge-42"}
    board = done["powerphase leaderboard data/results"].stdout
    assert all(model in board for model in ("yesterday", "climatology", "last-week"))
    assert "valid" in done["powerphase verify data/ieee57"].stdout
    assert (place / "site/index.html").is_file()
    assert list((place / "figures").glob("voltages-ieee57.*"))


def test_what_the_page_shows_is_run_or_left_out_for_a_reason() -> None:
    assert set(SHOWN) == {*RUN, *LEFT_OUT}
    assert len(set(RUN)) == len(RUN) > 15
    for command in LEFT_OUT:
        assert re.search(r"^(make|torchrun) |signals (fetch|opsd)|--engine ray", command), command


def test_no_command_is_taken_for_something_else() -> None:
    """Whatever has a space in it is for a terminal, but for options that are spoken of."""
    spoken = {text for text in INLINE.findall(FENCE.sub("", README)) if " " in text}
    others = {text for text in spoken if not text.startswith("--")} - set(SHOWN)
    assert others == {"source .venv/bin/activate"}  # which `make` makes


@pytest.mark.parametrize("command", [one for one in LEFT_OUT if "powerphase " in one])
def test_what_is_left_out_has_options_that_exist(command: str) -> None:
    kind, words = typer.main.get_command(cli.app), shlex.split(command.partition("powerphase ")[2])
    while words and words[0] in getattr(kind, "commands", {}):
        kind = kind.commands[words.pop(0)]  # type: ignore[attr-defined]
    assert not hasattr(kind, "commands"), f"{command}: {words[0]} is no command"
    kind.make_context("powerphase", words)  # which refuses what it does not know


@pytest.mark.parametrize("target", re.findall(r"^make (\w+)", README, re.MULTILINE))
def test_a_make_target_exists(target: str) -> None:
    plan = ["make", "--dry-run", target]
    assert subprocess.run(plan, cwd=ROOT, capture_output=True, check=False).returncode == 0


def test_no_block_is_of_a_kind_that_is_not_run() -> None:
    assert {language for language, _ in FENCE.findall(README)} == {"sh", "python", "bibtex"}
    lines = [line for block in blocks(README, "sh") for line in block.splitlines()]
    assert {line.split()[0] for line in lines} == {"make", "powerphase"}
