"""Weights on disk: tensors and the facts about them in one safetensors file.

Any safetensors library can open such a file, and to load it executes nothing. Its header carries a
checksum over all that counts, so that what is read is what was written or an error. The format is
taken apart here, from bytes that are read once: the library alone would open the file anew for its
metadata, and by then it may have been replaced.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Shaped
from safetensors.torch import load, save
from torch import Tensor, nn

from powerphase.errors import CheckpointError
from powerphase.files import disk_errors, parse_json, replace_file

FORMAT = "powerphase"
METADATA = "__metadata__"
"""The key of a safetensors header that is no tensor."""
PREFIX_BYTES = 8
"""A safetensors file begins with the length of its header, little-endian."""
SHOWN = 3
"""Tensors of a kind that a message names."""


def write_tensors(
    file: Path, tensors: Mapping[str, Shaped[Tensor, "..."]], facts: Mapping[str, Any]
) -> None:
    """Write the tensors and the facts, whole or not at all; equal ones give equal bytes.

    Facts are what JSON can hold: tuples come back as lists. Nothing is written that `read_tensors`
    would refuse.
    """
    text = _as_json(facts, file)
    # Always copied: tied weights share memory, and safetensors refuses tensors that do.
    copies = {
        name: tensor.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    if METADATA in copies:
        raise CheckpointError(f"{file}: no tensor can be named {METADATA!r}; rename it")
    _check_finite(copies, f"{file}: not written", "write the weights of a training that went well")
    metadata = {"format": FORMAT, "facts": text, "digest": _digest(copies, text)}
    with disk_errors(file, CheckpointError):
        replace_file(file, _packed(copies, metadata))


def read_tensors(file: Path) -> tuple[dict[str, Shaped[Tensor, "..."]], dict[str, Any]]:
    """The tensors, on the CPU, and the facts that `write_tensors` wrote."""
    content = _read(file)
    metadata = _metadata(content, file)
    tensors = _tensors(content, file)
    if _digest(tensors, metadata["facts"]) != metadata["digest"]:
        raise _refused(file, "damaged, it differs from its own checksum")
    try:
        facts = parse_json(metadata["facts"])
    except ValueError as error:
        raise _refused(file, f"its facts are not JSON ({error})") from error
    if not isinstance(facts, dict):
        raise _refused(file, "its facts are no JSON object")
    _check_finite(tensors, str(file), "restore it or train again")
    return tensors, facts


def load_into(module: nn.Module, tensors: Mapping[str, Shaped[Tensor, "..."]], source: str) -> None:
    """Copy the tensors into the module's parameters and buffers, all of them or none.

    Args:
        module: takes the values; its devices stay as they are.
        tensors: one for each name in the module's state, of the same shape and type.
        source: where the tensors are from, for the message.
    """
    own = module.state_dict()
    other = [name for name in own if name in tensors and _form(own[name]) != _form(tensors[name])]
    kinds = {
        "missing": [name for name in own if name not in tensors],
        "superfluous": [name for name in tensors if name not in own],
        "of another shape or type": [
            f"{name}: {_form(tensors[name])}, needed {_form(own[name])}" for name in other
        ],
    }
    problems = [f"{len(names)} {kind} ({_some(names)})" for kind, names in kinds.items() if names]
    if problems:
        raise CheckpointError(
            f"{source}: its tensors do not fit the model, {', '.join(problems)}; "
            "load it with the config and the grid that it was trained with"
        )
    for name, tensor in own.items():
        tensor.copy_(tensors[name])


def _form(tensor: Shaped[Tensor, "..."]) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {tuple(tensor.shape)}"


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:SHOWN]) + ", ..." * (len(names) > SHOWN)


def _as_json(facts: Mapping[str, Any], file: Path) -> str:
    """The facts as text, in alphabetical order so that equal facts give equal text."""
    try:
        plain = _plain(facts)
        text = json.dumps(plain, allow_nan=False, sort_keys=True)
        same = parse_json(text) == plain  # JSON makes text of keys that are none
    except (TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(
            f"{file}: its facts must be what JSON can hold ({error}); give plain data"
        ) from error
    if not same:
        raise CheckpointError(f"{file}: the keys of its facts must be text; give plain data")
    return text


def _plain(facts: Any) -> Any:
    """The facts with dictionaries and lists for all kinds of mappings and tuples."""
    if isinstance(facts, Mapping):
        return {key: _plain(value) for key, value in facts.items()}
    return [_plain(one) for one in facts] if isinstance(facts, list | tuple) else facts


def _digest(tensors: Mapping[str, Shaped[Tensor, "..."]], facts: str) -> str:
    """SHA-256 over the facts and every tensor's name, type, shape and bytes, in order of names."""
    names = sorted(tensors)
    outline = [[name, str(tensors[name].dtype), list(tensors[name].shape)] for name in names]
    sha256 = hashlib.sha256(json.dumps([facts, outline]).encode())
    for name in names:
        sha256.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return sha256.hexdigest()


def _packed(tensors: dict[str, Shaped[Tensor, "..."]], metadata: dict[str, str]) -> bytes:
    """The content of the safetensors file."""
    content = save(tensors)
    data = PREFIX_BYTES + _header_bytes(content)
    header = json.loads(content[PREFIX_BYTES:data])
    # Added here, since the library would write the metadata in another order each time.
    text = json.dumps({METADATA: metadata, **header}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % PREFIX_BYTES)
    return len(text).to_bytes(PREFIX_BYTES, "little") + text + content[data:]


def _header_bytes(content: bytes) -> int:
    return int.from_bytes(content[:PREFIX_BYTES], "little")


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except IsADirectoryError as error:
        raise CheckpointError(f"{file}: is a folder; name a file of weights in it") from error
    except OSError as error:
        raise CheckpointError(
            f"{file}: cannot be read ({error.strerror}); check the path, or train the model first"
        ) from error


def _metadata(content: bytes, file: Path) -> dict[str, str]:
    """What the header says beside the tensors."""
    n = _header_bytes(content)
    header = content[PREFIX_BYTES : PREFIX_BYTES + n]
    if not header.startswith(b"{"):
        raise _refused(file, f"no safetensors file, in {len(content)} bytes it has no header")
    if len(header) < n:
        raise _refused(file, f"cut, it ends within its header after {len(content)} bytes")
    try:
        metadata = parse_json(header.decode()).get(METADATA, {})
    except ValueError as error:
        raise _refused(file, f"damaged, its header is not JSON ({error})") from error
    if not isinstance(metadata, dict) or metadata.get("format") != FORMAT:
        raise _refused(file, "foreign, its metadata do not say that powerphase wrote it")
    if not all(isinstance(metadata.get(name), str) for name in ("facts", "digest")):
        raise _refused(file, "damaged, it lacks its facts or its checksum")
    return metadata


def _tensors(content: bytes, file: Path) -> dict[str, Shaped[Tensor, "..."]]:
    try:
        return load(content)
    except MemoryError:
        raise
    except Exception as error:  # safetensors, or torch where a header asks for the impossible
        reason = str(error).partition("\n")[0]  # torch adds its call stack
        raise _refused(file, f"damaged or cut, it holds no tensors ({reason})") from error


def _check_finite(tensors: Mapping[str, Shaped[Tensor, "..."]], where: str, advice: str) -> None:
    for name, tensor in tensors.items():
        # Widened, which is exact: `isfinite` does not know every type of one byte.
        wide = tensor.float() if tensor.itemsize == 1 else tensor
        bad = int((~wide.isfinite()).sum())
        if bad:
            raise CheckpointError(
                f"{where}: {bad} of {tensor.numel()} numbers in tensor {name!r} are not finite; "
                f"{advice}"
            )


def _refused(file: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{file}: {problem}; only whole safetensors files that powerphase wrote are read, so "
        "restore it or train again"
    )
