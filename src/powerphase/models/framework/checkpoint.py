"""Weights on disk: tensors and facts about them in one safetensors file.

Any safetensors library can open such a file, and loading it executes nothing. Its header has a
checksum of the whole content, so that reading returns what was written or raises. The format is
parsed here from bytes that are read once: the library would open the file again for its metadata,
and by then it may have been replaced.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from safetensors.torch import load, save
from torch import Tensor, nn

from powerphase.errors import CheckpointError
from powerphase.files import disk_errors, parse_json, read_regular_file, replace_file
from powerphase.schema import MAX_JSON_BYTES, fits_axes

FORMAT = "powerphase"
METADATA = "__metadata__"
"""The one key of a safetensors header that is not a tensor."""
PREFIX_BYTES = 8
"""A safetensors file starts with the length of its header, little-endian."""
MAX_BYTES = 2**36
"""No network of this package has as many as 17 thousand million weights."""
SHOWN = 3
"""How many tensors of a kind a message names."""


def write_tensors(
    file: Path, tensors: Mapping[str, Shaped[Tensor, "..."]], facts: Mapping[str, Any]
) -> None:
    """Write the tensors and the facts, whole or not at all; equal content gives equal bytes.

    Facts are what JSON can hold: tuples come back as lists. What `read_tensors` would reject is not
    written.
    """
    text = _as_json(facts, file)
    # Always copied: tied weights share memory, which safetensors rejects.
    copies = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    if METADATA in copies:
        raise CheckpointError(f"{file}: no tensor can be named {METADATA!r}; rename it")
    _check_finite(copies, f"{file}: not written", "write finite weights")
    metadata = {"format": FORMAT, "facts": text, "digest": _digest(copies, text)}
    with disk_errors(file, CheckpointError):
        replace_file(file, _pack(copies, metadata))


def read_tensors(file: Path) -> tuple[dict[str, Shaped[Tensor, "..."]], dict[str, Any]]:
    """The tensors, on the CPU, and the facts that `write_tensors` wrote."""
    content = _read(file)
    metadata = _metadata(content, file)
    tensors = _tensors(content, file)
    if _digest(tensors, metadata["facts"]) != metadata["digest"]:
        raise _unreadable(file, "damaged: its content differs from its checksum")
    try:
        facts = parse_json(metadata["facts"])
    except ValueError as error:
        raise _unreadable(file, f"its facts are not JSON ({error})") from error
    if not isinstance(facts, dict):
        raise _unreadable(file, "its facts are not a JSON object")
    _check_finite(tensors, str(file), "restore it or train again")
    return tensors, facts


def load_into(module: nn.Module, tensors: Mapping[str, Shaped[Tensor, "..."]], source: str) -> None:
    """Copy the tensors into the module's parameters and buffers, all of them or none.

    Args:
        module: its tensors are overwritten, and stay on their devices.
        tensors: one for each name in the module's state, of the same shape and type.
        source: where the tensors are from, for messages.
    """
    state = module.state_dict()
    known = [name for name in state if name in tensors]
    kinds = {
        "missing": [name for name in state if name not in tensors],
        "superfluous": [name for name in tensors if name not in state],
        "of another shape or type": [
            f"{name}: {_form(tensors[name])}, needed {_form(state[name])}"
            for name in known
            if _form(state[name]) != _form(tensors[name])
        ],
    }
    problems = [f"{len(names)} {kind} ({_some(names)})" for kind, names in kinds.items() if names]
    if problems:
        raise CheckpointError(
            f"{source}: its tensors do not fit the model, {', '.join(problems)}; "
            "load it with the config and the grid that it was trained with"
        )
    for name, tensor in state.items():
        tensor.copy_(tensors[name])


def check_axes(
    tensors: Mapping[str, Shaped[Tensor, "..."]],
    axes: Mapping[str, str],
    sizes: Mapping[str, int],
    source: str,
) -> None:
    """Raise unless the tensors are exactly these, with axes of these sizes.

    Args:
        tensors: what a file holds.
        axes: the axes of each tensor, such as "K C".
        sizes: the sizes of axes that are known.
        source: where the tensors are from, for messages.
    """
    known = dict(sizes)
    wrong = sorted(tensors.keys() ^ axes.keys())
    for name in axes.keys() & tensors.keys():
        tensor = tensors[name]
        if not tensor.is_floating_point() or not fits_axes(tensor.shape, axes[name], known):
            wrong.append(f"{name}: {_form(tensor)}")
    if wrong:
        raise CheckpointError(
            f"{source}: its tensors do not fit the model ({_some(wrong)}); restore it, or train "
            "again"
        )


@contextmanager
def state_errors(source: str) -> Iterator[None]:
    """Turn what a model raises for a state that it never saved into an error with advice."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as e:
        reason = f"{type(e).__name__}: {e}".partition("\n")[0]
        raise CheckpointError(
            f"{source}: holds no state of this model ({reason}); restore it or train again"
        ) from e


def _form(tensor: Shaped[Tensor, "..."]) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN)


def _as_json(facts: Mapping[str, Any], file: Path) -> str:
    """The facts as text, in alphabetical order so that equal facts give equal text."""
    try:
        plain = _plain(facts)
        text = json.dumps(plain, allow_nan=False, sort_keys=True)
        same = parse_json(text) == plain  # JSON turns other keys into text
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file}: its facts must be what JSON can hold ({error}); give plain data"
        ) from error
    if not same:
        raise CheckpointError(f"{file}: the keys of its facts must be text; give plain data")
    return text


def _plain(facts: Any) -> Any:
    """The facts with dictionaries and lists in place of other mappings and tuples."""
    if isinstance(facts, Mapping):
        return {key: _plain(value) for key, value in facts.items()}
    return [_plain(item) for item in facts] if isinstance(facts, list | tuple) else facts


def _digest(tensors: Mapping[str, Shaped[Tensor, "..."]], facts: str) -> str:
    """SHA-256 over the facts and every tensor's name, type, shape and bytes, in order of names."""
    names = sorted(tensors)
    outline = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    sha256 = hashlib.sha256(json.dumps([facts, outline]).encode())
    for name in names:
        sha256.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()


def _pack(tensors: dict[str, Shaped[Tensor, "..."]], metadata: dict[str, str]) -> bytes:
    """The content of the safetensors file."""
    content = save(tensors)
    data = PREFIX_BYTES + _header_bytes(content)
    header = json.loads(content[PREFIX_BYTES:data])
    # Added here: the library would write the metadata in another order each time.
    text = json.dumps({METADATA: metadata, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % PREFIX_BYTES)
    return len(text).to_bytes(PREFIX_BYTES, "little") + text + content[data:]


def _header_bytes(content: bytes) -> int:
    return int.from_bytes(content[:PREFIX_BYTES], "little")


def _read(file: Path) -> bytes:
    try:
        return read_regular_file(file, MAX_BYTES)
    except OSError as error:
        raise CheckpointError(
            f"{file}: cannot be read ({error.strerror}); check the path, or train the model first"
        ) from error


def _metadata(content: bytes, file: Path) -> dict[str, str]:
    """The metadata in the header."""
    n = _header_bytes(content)
    header = content[PREFIX_BYTES : PREFIX_BYTES + n]
    if not header.startswith(b"{"):
        raise _unreadable(file, f"not a safetensors file: its {len(content)} bytes have no header")
    if n > MAX_JSON_BYTES:
        raise _unreadable(file, f"damaged: its header claims {n:,} bytes")
    if len(header) < n:
        raise _unreadable(file, f"cut: it ends within its header, after {len(content)} bytes")
    try:
        metadata = parse_json(header.decode()).get(METADATA, {})
    except ValueError as error:
        raise _unreadable(file, f"damaged: its header is not JSON ({error})") from error
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise _unreadable(file, "foreign: its metadata do not say that powerphase wrote it")
    if not all(isinstance(metadata.get(name), str) for name in ("facts", "digest")):
        raise _unreadable(file, "damaged: its facts or its checksum are missing")
    return metadata


def _tensors(content: bytes, file: Path) -> dict[str, Shaped[Tensor, "..."]]:
    try:
        return load(content)
    except MemoryError:
        raise
    except Exception as error:  # from safetensors, or from torch if the header is nonsense
        reason = str(error).partition("\n")[0]  # torch appends its call stack
        raise _unreadable(file, f"damaged or cut: its tensors cannot be read ({reason})") from error


def _check_finite(tensors: Mapping[str, Shaped[Tensor, "..."]], where: str, advice: str) -> None:
    for name, tensor in tensors.items():
        # Widened, which is exact: `isfinite` does not support every one-byte type.
        wide = tensor.float() if tensor.itemsize == 1 else tensor
        bad = int((~wide.isfinite()).sum())
        if bad:
            raise CheckpointError(
                f"{where}: {bad} of {tensor.numel()} numbers in tensor {name!r} are not finite; "
                f"{advice}"
            )


def _unreadable(file: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{file}: {problem}; only complete safetensors files written by powerphase can be read, so "
        "restore it or train again"
    )
