"""Schemas: every departure is reported, and no file is read that might not end."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from powerphase.errors import ResultError
from powerphase.schema import (
    Schema,
    integer,
    list_of,
    nullable,
    number,
    one_of,
    plain_object,
    problems,
    read_json,
    text,
)

SCHEMA: Schema = {
    "seed": integer(0),
    "share": number(0.0, 1.0),
    "name": text(pattern="[a-z]+"),
    "size": {"rows": integer(1, 100), "labels": list_of(text())},
    "commit": nullable(text()),
    "kind": one_of(["a", "b"]),
    "config": plain_object,
}
SOUND = {
    "seed": 3,
    "share": 0.5,
    "name": "abc",
    "size": {"rows": 2, "labels": ["x"]},
    "commit": None,
    "kind": "a",
    "config": {"depth": [1, 2]},
}


def write(file: Path, value: Any) -> Path:
    file.write_text(json.dumps(value))
    return file


def test_a_sound_document_is_returned_as_it_is(tmp_path: Path) -> None:
    assert read_json(write(tmp_path / "a.json", SOUND), SCHEMA, ResultError, "fix") == SOUND


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", -1),
        ("seed", True),
        ("seed", 1.0),
        ("seed", 10**30),
        ("share", 1.5),
        ("share", float("nan")),
        ("share", "0.5"),
        ("name", ""),
        ("name", "ABC"),
        ("size", []),
        ("size", {"rows": 2}),
        ("size", {"rows": 101, "labels": []}),
        ("size", {"rows": 1, "labels": [1]}),
        ("commit", 3),
        ("kind", "c"),
        ("config", [1]),
    ],
)
def test_a_departure_is_named_by_its_key(key: str, value: Any) -> None:
    (problem,) = problems({**SOUND, key: value}, SCHEMA)
    assert key in problem


def test_all_departures_are_reported_together() -> None:
    broken = {**SOUND, "seed": -1, "share": 2, "shares": 0}
    del broken["name"]
    assert len(list(problems(broken, SCHEMA))) == 4


@pytest.mark.parametrize(
    "content", ['{"seed": 1, "seed": 2}', "[" * 100_000, "", "NaN", "3", "\ud800"]
)
def test_text_that_is_no_sound_object_is_rejected(tmp_path: Path, content: str) -> None:
    file = tmp_path / "broken.json"
    file.write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(ResultError, match=r"broken\.json"):
        read_json(file, SCHEMA, ResultError, "fix")


def test_another_version_is_reported_before_anything_else(tmp_path: Path) -> None:
    file = write(tmp_path / "new.json", {"format": 7, "unknown": 1})
    with pytest.raises(ResultError, match="format 7"):
        read_json(file, SCHEMA, ResultError, "fix", version=("format", 1))


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", ".", "missing"):
        with pytest.raises(ResultError, match="cannot be read"):
            read_json(tmp_path / name, SCHEMA, ResultError, "fix")
