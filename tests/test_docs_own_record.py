"""The examples of docs/own_record.md."""

import tomllib
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from powerphase.importing import read_mapping
from tests.pages import blocks

PAGE = (Path(__file__).parents[1] / "docs" / "own_record.md").read_text(encoding="utf-8")


def test_a_table_of_generated_states_gives_them_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (code,), (shown,) = blocks(PAGE, "python"), blocks(PAGE, "text")
    with redirect_stdout(StringIO()) as output:
        exec(compile(code, "own_record.md", "exec"), {})
    assert output.getvalue() == shown


def test_the_mapping_is_one() -> None:
    (text,) = blocks(PAGE, "toml")
    mapping = read_mapping(tomllib.loads(text))
    assert [part.sign for part in mapping.columns["P"]] == ["load", "generation"]
    assert mapping.buses == {"Nord 110": "4"}
