"""Schemas: every departure is reported, and no file is read that might not end."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from powerphase.errors import ResultError
from powerphase.schema import (
    Schema,
    exactly,
    fits_axes,
    integer,
    list_of,
    mapping_of,
    nullable,
    number,
    object_with,
    one_of,
    plain_object,
    problems,
    read_json,
    real,
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


def test_an_open_object_needs_its_keys_and_may_have_others() -> None:
    rule = object_with({"a": integer(0)}, {"b": {"c": text()}})
    for sound in ({"a": 1}, {"a": 1, "more": [None]}, {"a": 1, "b": {"c": "x"}}):
        assert rule.holds(sound), sound
    others: list[Any] = [[], {}, {"a": -1}, {"a": 1, "b": {}}, {"a": 1, "b": {"c": "x", "d": 1}}]
    for wrong in others:
        assert not rule.holds(wrong), wrong


def test_the_values_of_a_mapping_follow_one_rule() -> None:
    rule = mapping_of(exactly({"a": real(0.0)}))
    assert rule.holds({})
    assert rule.holds({"x": {"a": 1.5}, "y": {"a": 0.0}})
    others: list[Any] = [[], {"x": {"a": 1}}, {"x": {}}, {"x": {"a": 1.5, "b": 2}}, {"x": None}]
    for wrong in others:
        assert not rule.holds(wrong), wrong


def test_an_axis_has_one_size_in_all_arrays() -> None:
    sizes: dict[str, int] = {"N": 3}
    assert fits_axes((3, 4), "N 4", sizes)
    assert fits_axes((3, 7), "N H", sizes)
    assert fits_axes((), "", sizes)
    for shape, axes in (((4, 4), "N 4"), ((3, 3), "N 4"), ((3,), "N 4"), ((8,), "H"), ((1,), "")):
        assert not fits_axes(shape, axes, sizes), (shape, axes)
