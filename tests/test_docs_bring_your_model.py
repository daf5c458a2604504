"""The page on models of other libraries: its code runs as written, with the versions it names."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from powerphase.adapters import BACKENDS
from powerphase.evaluation import resolve_model
from tests.pages import blocks, section

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "bring_your_model.md").read_text(encoding="utf-8")
SECTIONS = {
    "A function": (),
    "statsforecast": ("statsforecast",),
    "neuralforecast": ("neuralforecast",),
    "GluonTS": ("gluonts",),
    "sktime": ("sktime",),
    "Darts": ("darts",),
    "Pretrained models": ("fracast",),
}
MAX_LINES = 12

# The libraries warn of their own future.
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the first block of the page defines, in a folder of its own."""
    (setup,) = blocks(PAGE.split("\n## ")[0], "python")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("page"))
        defined: dict[str, Any] = {"__name__": "example"}
        exec(compile(setup, "bring_your_model.md", "exec"), defined)
        defined["store"].path = str(Path(defined["store"].path).resolve())
    return defined


@pytest.mark.parametrize("title", SECTIONS)
def test_the_code_of_every_section_prints_a_score(
    title: str,
    names: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for library in SECTIONS[title]:
        pytest.importorskip(library)
    monkeypatch.chdir(tmp_path)
    (code,) = blocks(section(PAGE, title), "python")
    assert len(code.splitlines()) <= MAX_LINES
    exec(compile(code, "bring_your_model.md", "exec"), dict(names))
    last = capsys.readouterr().out.splitlines()[-1]
    assert 0 < float(last.split()[0]) < 0.1


def test_every_section_with_code_is_run() -> None:
    titles = re.findall(r"^## (.*)$", PAGE, re.MULTILINE)
    assert [title for title in titles if blocks(section(PAGE, title), "python")] == list(SECTIONS)


def test_versions_are_those_of_the_constraints_and_extras() -> None:
    pins = dict(
        line.split("==") for line in (ROOT / "constraints.txt").read_text().split() if "==" in line
    )
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    rows = re.findall(
        r"^\| (\S+) \| (\d\S+) \| `(\S+)` \|$", section(PAGE, "Versions"), re.MULTILINE
    )
    assert {(name.lower(), version) for name, version, _ in rows} == {
        (name, pins[name])
        for extra in ("adapters", "zero-shot")
        for name in (re.split(r"[\[>]", requirement)[0] for requirement in extras[extra])
    }
    for name, _, extra in rows:
        assert any(line.startswith(name.lower()) for line in extras[extra])


def test_libraries_without_an_extra_are_those_that_the_tests_install() -> None:
    installed = (ROOT / "tests" / "adapters" / "unpinned.txt").read_text()
    rows = re.findall(r"^\| (\S+) ([\d.]+) \(", section(PAGE, "Versions"), re.MULTILINE)
    assert {f"{name}=={version}" for name, version in rows} < set(installed.split("\n"))
    (command,) = re.findall(r"--no-deps (.*)", section(PAGE, "Versions"))
    pinned = [line for line in installed.splitlines() if "==" in line]
    assert sorted(command.split()) == [line.partition("==")[0] for line in pinned]


def test_every_backend_is_in_the_table() -> None:
    table = re.findall(r"^\| `([\w-]+)` \|", section(PAGE, "Pretrained models"), re.MULTILINE)
    assert table == list(BACKENDS)
    for line in re.findall(r"^\| `([\w-]+)` \| `(\S+)`", section(PAGE, "Pretrained models"), re.M):
        assert BACKENDS[line[0]].default == line[1]


def test_the_texts_of_the_command_line_are_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mymodel.py").write_text(
        blocks(section(PAGE, "A function"), "python")[0].split("model =")[0]
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    lines = blocks(section(PAGE, "From the command line"), "text")[0].splitlines()
    texts = [re.findall(r"powerphase score (?:'(.*?)'|(\S+))", line)[0] for line in lines]
    for quoted, plain in texts:
        assert resolve_model(quoted or plain).description("ieee14", 42).model
