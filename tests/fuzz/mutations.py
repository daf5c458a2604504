"""Seeded damage: a sound file becomes one that a disk, a person or an attacker could make.

Every mutation draws from the generator that it is given and from nothing else, so that a case is
repeated by its number.
"""

import gzip
import io
import json
import os
import random
import re
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from powerphase.models.framework import checkpoint, read_tensors, write_tensors

Mutation = Callable[[Path, random.Random], None]

ODD_VALUES: Sequence[Any] = (
    None,
    True,
    -1,
    0,
    1e308,
    10**30,
    float("nan"),
    float("inf"),
    "",
    "text",
    "\x00",
    "../../elsewhere",
    [],
    [None],
    [[]],
    {},
    {"unknown": 1},
    [1] * 1000,
)
"""What no field expects, or only some do."""


def flip_bytes(file: Path, rng: random.Random) -> None:
    """Change a few bytes."""
    content = bytearray(file.read_bytes())
    for _ in range(rng.randint(1, 8)):
        if content:
            content[rng.randrange(len(content))] = rng.randrange(256)
    file.write_bytes(bytes(content))


def truncate(file: Path, rng: random.Random) -> None:
    """Cut the file anywhere."""
    content = file.read_bytes()
    file.write_bytes(content[: rng.randrange(max(len(content), 1))])


def insert_bytes(file: Path, rng: random.Random) -> None:
    """Insert bytes anywhere."""
    content = file.read_bytes()
    at = rng.randrange(len(content) + 1)
    file.write_bytes(content[:at] + rng.randbytes(rng.randint(1, 40)) + content[at:])


def repeat_part(file: Path, rng: random.Random) -> None:
    """Write a part of the file twice."""
    content = file.read_bytes()
    start, stop = sorted(rng.randrange(len(content) + 1) for _ in range(2))
    file.write_bytes(content[:stop] + content[start:])


def empty(file: Path, _: random.Random) -> None:
    """Leave nothing in the file."""
    file.write_bytes(b"")


def become_pipe(file: Path, _: random.Random) -> None:
    """Replace the file by a named pipe that nobody writes to."""
    file.unlink()
    os.mkfifo(file)


def become_folder(file: Path, _: random.Random) -> None:
    """Replace the file by a folder."""
    file.unlink()
    file.mkdir()


def remove(file: Path, _: random.Random) -> None:
    """Remove the file."""
    file.unlink()


BYTES: Sequence[Mutation] = (
    flip_bytes,
    truncate,
    insert_bytes,
    repeat_part,
    empty,
    become_pipe,
    become_folder,
    remove,
)


def json_paths(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values in a document, its containers included."""
    paths = [path] if path else []
    children: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        children = list(value.items())
    elif isinstance(value, list):
        children = list(enumerate(value[:5]))  # the rest of a list is more of the same
    for key, child in children:
        paths += json_paths(child, (*path, key))
    return paths


def edit_json(change: Callable[[Any, Any, random.Random], None]) -> Mutation:
    """A mutation that changes one value, given its container and its key."""

    def mutate(file: Path, rng: random.Random) -> None:
        document = json.loads(file.read_text())
        *parents, key = rng.choice(json_paths(document))
        container = document
        for parent in parents:
            container = container[parent]
        change(container, key, rng)
        file.write_text(json.dumps(document))

    mutate.__name__ = change.__name__
    return mutate


def replace_value(container: Any, key: Any, rng: random.Random) -> None:
    """Put something odd in place of a value."""
    container[key] = rng.choice(ODD_VALUES)


def delete_value(container: Any, key: Any, _: random.Random) -> None:
    """Remove a value."""
    del container[key]


def scale_number(container: Any, key: Any, rng: random.Random) -> None:
    """Change a number by a factor, or a text by a letter."""
    value = container[key]
    if isinstance(value, int | float) and not isinstance(value, bool):
        container[key] = value * rng.choice((-1, 0, 0.5, 2, 1000, 10**9))
    elif isinstance(value, str) and value:
        container[key] = value[:-1] + chr(ord(value[-1]) ^ 1)
    else:
        container[key] = [value]


def add_key(container: Any, key: Any, _: random.Random) -> None:
    """Add a key that nobody knows."""
    if isinstance(container, dict):
        container[f"{key}_"] = container[key]
    else:
        container.append(container[key])


def repeat_key(file: Path, rng: random.Random) -> None:
    """Write a key of the document twice, with two values."""
    document = json.loads(file.read_text())
    key = rng.choice(list(document))
    text = json.dumps(document)
    file.write_text("{" + f"{json.dumps(key)}: {json.dumps(rng.choice(ODD_VALUES))}, " + text[1:])


def nest_deeply(file: Path, rng: random.Random) -> None:
    """Nest lists ten thousand levels deep in place of a value."""
    document = json.loads(file.read_text())
    key = rng.choice(list(document))
    document[key] = "NEST"
    deep = "[" * 10_000 + "]" * 10_000
    file.write_text(json.dumps(document).replace('"NEST"', deep))


JSON: Sequence[Mutation] = (
    *(edit_json(change) for change in (replace_value, delete_value, scale_number, add_key)),
    edit_json(replace_value),  # the most productive of them
    repeat_key,
    nest_deeply,
)


def read_npz(file: Path) -> dict[str, np.ndarray]:
    """The arrays of an archive."""
    with np.load(file) as archive:
        return dict(archive)


def write_npz(file: Path, arrays: dict[str, np.ndarray]) -> None:
    """Write an archive, Python objects included."""
    np.savez_compressed(file, allow_pickle=True, **arrays)


def edit_array(file: Path, rng: random.Random) -> None:
    """Replace an array by one of another type, shape or content."""
    arrays = read_npz(file)
    name = rng.choice(sorted(arrays))
    array = arrays[name]
    changes: Sequence[Callable[[], Any]] = (
        lambda: np.float64(1),
        lambda: np.array(["text"]),
        lambda: array.astype(np.complex128),
        lambda: array.astype(np.float64),
        lambda: array[..., :0],
        lambda: array.reshape(-1),
        lambda: array[None],
        lambda: np.array([{"an": "object"}], dtype=object),
        lambda: np.full_like(array, np.nan) if array.dtype.kind == "f" else array * 0 - 1,
        lambda: array[::-1],
    )
    arrays[name] = rng.choice(changes)()
    write_npz(file, arrays)


def drop_array(file: Path, rng: random.Random) -> None:
    """Leave an array out."""
    arrays = read_npz(file)
    del arrays[rng.choice(sorted(arrays))]
    write_npz(file, arrays)


def claim_huge_array(file: Path, rng: random.Random) -> None:
    """Let a header ask for terabytes."""
    arrays = read_npz(file)
    victim = rng.choice(sorted(arrays))
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f8", "fortran_order": False, "shape": (10**6, 10**6)}
    )
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            content = io.BytesIO()
            np.lib.format.write_array(content, array)
            archive.writestr(
                f"{name}.npy", header.getvalue() if name == victim else content.getvalue()
            )


def set_encrypted(file: Path, _: random.Random) -> None:
    """Mark the first member as encrypted."""
    content = bytearray(file.read_bytes())
    for mark, flag in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = content.find(mark)
        if at >= 0:
            content[at + flag] |= 1
    file.write_bytes(bytes(content))


def set_compression(file: Path, rng: random.Random) -> None:
    """Name a compression that nobody knows."""
    content = bytearray(file.read_bytes())
    for mark, method in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
        at = content.find(mark)
        if at >= 0:
            content[at + method] = rng.choice((1, 9, 77, 99))
    file.write_bytes(bytes(content))


NPZ: Sequence[Mutation] = (
    edit_array,
    edit_array,
    drop_array,
    claim_huge_array,
    set_encrypted,
    set_compression,
)


def in_some_file(mutations: Sequence[Mutation]) -> Mutation:
    """A mutation of any file below a folder."""

    def mutate(folder: Path, rng: random.Random) -> None:
        files = sorted(file for file in folder.rglob("*") if file.is_file())
        rng.choice(mutations)(rng.choice(files), rng)

    return mutate


def swap_files(part: str) -> Mutation:
    """A mutation that swaps two files below a folder, or copies one over the other."""

    def mutate(folder: Path, rng: random.Random) -> None:
        files = [file for file in folder.rglob("*") if file.is_file() and f"/{part}/" in str(file)]
        first, second = rng.sample(sorted(files), 2)
        contents = first.read_bytes(), second.read_bytes()
        if rng.random() < 0.5:
            first.write_bytes(contents[1])
        second.write_bytes(contents[0])

    return mutate


ODD_TOKENS = (
    *("", "-1", "0", "1e308", "-1e308", "1e-308", "1e999", "nan", "inf", "NaN", "1_000", "0x10"),
    *("1\xa0000", "\u0663", "'text'", "[1]", "{}", "9" * 400, "1e", "2026-01-01", "true", ";", ","),
)
"""What no number of a text file looks like, or only some do."""


def replace_token(file: Path, rng: random.Random) -> None:
    """Put something odd in place of a number."""
    text = file.read_text()
    numbers = list(re.finditer(r"-?\d+(\.\d+)?", text))
    chosen = rng.choice(numbers)
    file.write_text(text[: chosen.start()] + rng.choice(ODD_TOKENS) + text[chosen.end() :])


def edit_lines(file: Path, rng: random.Random) -> None:
    """Delete, repeat, swap or cut a line, or repeat one very often."""
    lines = file.read_text().split("\n")
    k, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    changes: Sequence[Callable[[], list[str]]] = (
        lambda: lines[:k] + lines[k + 1 :],
        lambda: [*lines[:k], lines[k], *lines[k:]],
        lambda: [lines[other] if i == k else line for i, line in enumerate(lines)],
        lambda: [*lines[:k], lines[k][: rng.randrange(len(lines[k]) + 1)]],
        lambda: [*lines[:k], lines[k] * 1000, *lines[k + 1 :]],
        lambda: [*lines[:k], *[""] * 10_000, *lines[k:]],
    )
    file.write_text("\n".join(rng.choice(changes)()))


def compress(inner: Mutation) -> Mutation:
    """The mutation, of a file that is then compressed, and perhaps damaged again."""

    def mutate(file: Path, rng: random.Random) -> None:
        inner(file, rng)
        if file.is_file():
            file.write_bytes(gzip.compress(file.read_bytes(), 1))
            if rng.random() < 0.5:
                rng.choice(BYTES)(file, rng)

    return mutate


TEXT: Sequence[Mutation] = (replace_token, replace_token, edit_lines)


def edit_json_line(file: Path, rng: random.Random) -> None:
    """Damage one line of a file with a JSON document in each line."""
    lines = file.read_text().split("\n")
    k = rng.randrange(len(lines) - 1)
    single = file.with_name("line.json")
    single.write_text(lines[k])
    rng.choice(JSON)(single, rng)
    lines[k] = single.read_text()
    file.write_text("\n".join(lines))


def sign_tensors(
    change: Callable[[dict[str, Any], dict[str, Any], random.Random], None],
) -> Mutation:
    """A mutation of tensors and facts that keeps the checksum of their file right."""

    def mutate(file: Path, rng: random.Random) -> None:
        tensors, facts = read_tensors(file)
        change(tensors, facts, rng)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(checkpoint, "_check_finite", lambda *_: None)
            write_tensors(file, tensors, facts)

    return mutate


def edit_tensor(tensors: dict[str, Any], _: dict[str, Any], rng: random.Random) -> None:
    """Replace, remove or add a tensor."""
    name = rng.choice(sorted(tensors))
    tensor = tensors[name]
    changes: Sequence[Callable[[], Any]] = (
        lambda: torch.full_like(tensor, torch.nan) if tensor.is_floating_point() else None,
        lambda: torch.full_like(tensor, torch.inf) if tensor.is_floating_point() else None,
        lambda: tensor.to(torch.int64),
        lambda: tensor.to(torch.complex64),
        lambda: tensor[None],
        lambda: tensor.reshape(-1)[:0],
        lambda: torch.cat([tensor.reshape(-1)] * 2),
        lambda: None,
    )
    new = rng.choice(changes)()
    tensors["superfluous"] = tensor
    if rng.random() < 0.9:
        del tensors["superfluous"]
        del tensors[name]
        if new is not None:
            tensors[name] = new


def edit_fact(_: dict[str, Any], facts: dict[str, Any], rng: random.Random) -> None:
    """Replace or remove what is stored with the tensors."""
    key = rng.choice(sorted(facts))
    if rng.random() < 0.3:
        del facts[key]
    else:
        odd = [value for value in ODD_VALUES if value == value and value != float("inf")]
        facts[key] = rng.choice(odd)


def claim_huge_tensor(file: Path, rng: random.Random) -> None:
    """Let the header ask for terabytes, or be as long."""
    content = file.read_bytes()
    n = int.from_bytes(content[:8], "little")
    if rng.random() < 0.3:
        length = rng.choice([2**63, 2**40, 10**8, len(content)])
        file.write_bytes(length.to_bytes(8, "little") + content[8:])
        return
    header = json.loads(content[8 : 8 + n])
    name = rng.choice([key for key in header if key != "__metadata__"])
    header[name]["shape"] = [10**6, 10**6]
    if rng.random() < 0.5:
        header[name]["data_offsets"] = [0, 4 * 10**12]
    text = json.dumps(header).encode()
    file.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + n :])


SAFETENSORS: Sequence[Mutation] = (
    sign_tensors(edit_tensor),
    sign_tensors(edit_tensor),
    sign_tensors(edit_fact),
    claim_huge_tensor,
)
