"""Checkpoints: weights are restored to the last bit, or an error says why not."""

import errno
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from powerphase.errors import CheckpointError
from powerphase.files import read_regular_file
from powerphase.models.framework import checkpoint, load_into, read_tensors, write_tensors

FACTS = {"model": "powerforge", "seed": 42, "config": {"kernels": [5, 25], "rate": 1e-3}, "θ": None}
FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]
WHOLE = [torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64]


def some_tensors() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return {
        "encoder.weight": torch.randn(3, 4, generator=generator),
        "encoder.bias": torch.randn(3, generator=generator, dtype=torch.float64),
        "steps": torch.tensor(7),
        "empty": torch.zeros(0, 5),
    }


def same(first: dict[str, Tensor], second: dict[str, Tensor]) -> bool:
    """Whether names, types, shapes and every bit agree."""
    return first.keys() == second.keys() and all(
        first[name].dtype == second[name].dtype
        and first[name].shape == second[name].shape
        and torch.equal(
            first[name].view(-1).view(torch.uint8), second[name].view(-1).view(torch.uint8)
        )
        for name in first
    )


def digest_of(arrays: dict[str, np.ndarray], facts: str) -> str:
    """The checksum as the format defines it, computed without torch."""
    outline = [
        [name, f"torch.{arrays[name].dtype}", [*arrays[name].shape]] for name in sorted(arrays)
    ]
    content = b"".join(arrays[name].tobytes() for name in sorted(arrays))
    return hashlib.sha256(json.dumps([facts, outline]).encode() + content).hexdigest()


def save_with(file: Path, facts: str, changes: dict[str, str | None]) -> None:
    """Write a file as another program would, with a correct checksum unless `changes` has one."""
    tensors = {"a": torch.arange(4.0), "b": torch.ones(2, 2)}
    digest = digest_of({name: tensor.numpy() for name, tensor in tensors.items()}, facts)
    metadata = {"format": "powerphase", "facts": facts, "digest": digest} | changes
    save_file(tensors, file, {key: text for key, text in metadata.items() if text is not None})


def read_error(file: Path) -> str:
    """The error of reading a file, which starts with its path."""
    with pytest.raises(CheckpointError) as caught:
        read_tensors(file)
    assert str(caught.value).startswith(f"{file}: ")
    return str(caught.value)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A sound file."""
    write_tensors(tmp_path / "weights.safetensors", some_tensors(), FACTS)
    return tmp_path / "weights.safetensors"


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The content of a sound file."""
    path = tmp_path_factory.mktemp("sound") / "weights.safetensors"
    write_tensors(path, some_tensors(), FACTS)
    return path.read_bytes()


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A path that tests overwrite."""
    return tmp_path_factory.mktemp("scratch") / "weights.safetensors"


def test_tensors_and_facts_round_trip(file: Path) -> None:
    tensors, facts = read_tensors(file)
    assert same(tensors, some_tensors())
    assert facts == FACTS
    for tensor in tensors.values():
        assert tensor.device.type == "cpu"
        tensor.add_(1)  # memory that may be written


@pytest.mark.parametrize("kind", FLOATS + WHOLE, ids=str)
def test_every_type_and_layout_round_trips(tmp_path: Path, kind: torch.dtype) -> None:
    table = torch.tensor([[0.0, 1.5, -2.0], [3.0, 0.25, 1.0]]).to(kind)
    tensors = {"flat": table, "turned": table.T, "part": table[:, 1:2], "one": table[1, 0]}
    tensors["spread"] = table[0].expand(4, 3)
    write_tensors(tmp_path / "w", tensors, {})
    result, facts = read_tensors(tmp_path / "w")
    assert same(result, {name: tensor.contiguous() for name, tensor in tensors.items()})
    assert facts == {}


@given(
    st.dictionaries(
        st.text().filter("__metadata__".__ne__), st.lists(st.integers(0, 255)), max_size=4
    ),
    st.dictionaries(
        st.text(),
        st.recursive(
            st.none()
            | st.booleans()
            | st.integers()
            | st.floats(allow_nan=False, allow_infinity=False)
            | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=5,
        ),
        max_size=3,
    ),
)
@settings(max_examples=50)
@example({'\x00\n"\\': [1]}, {'\ud800\x7f\n"\\': ["\x00", -0.0, 5e-324, 2**70]})
def test_any_names_and_facts_round_trip_and_safetensors_reads_them(
    scratch: Path, numbers: dict[str, list[int]], facts: dict[str, Any]
) -> None:
    tensors = {name: torch.tensor(values, dtype=torch.uint8) for name, values in numbers.items()}
    write_tensors(scratch, tensors, facts)
    result, result_facts = read_tensors(scratch)
    assert same(result, tensors)
    assert same(load_file(scratch), tensors)
    assert result_facts == facts


def test_safetensors_opens_the_file(file: Path) -> None:
    with safe_open(file, framework="np") as opened:
        arrays = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
        metadata = opened.metadata()
    assert {name: array.tolist() for name, array in arrays.items()} == {
        name: tensor.tolist() for name, tensor in some_tensors().items()
    }
    assert metadata["format"] == "powerphase"
    assert json.loads(metadata["facts"]) == FACTS
    assert metadata["digest"] == digest_of(arrays, metadata["facts"])
    assert int.from_bytes(file.read_bytes()[:8], "little") % 8 == 0  # data is aligned


def test_a_file_that_safetensors_wrote_by_the_same_rules_can_be_read(tmp_path: Path) -> None:
    save_with(tmp_path / "w", '{"b":  1, "a": [2]}', {})
    tensors, facts = read_tensors(tmp_path / "w")
    assert same(tensors, {"a": torch.arange(4.0), "b": torch.ones(2, 2)})
    assert facts == {"b": 1, "a": [2]}


def test_equal_content_gives_equal_bytes(file: Path, tmp_path: Path) -> None:
    turned = dict(reversed(some_tensors().items()))
    turned["encoder.weight"] = turned["encoder.weight"].T.contiguous().T
    for i in range(8):  # the order of a hash map is rarely the same eight times
        write_tensors(tmp_path / f"{i}", turned, dict(reversed(FACTS.items())))
        assert (tmp_path / f"{i}").read_bytes() == file.read_bytes()


def test_tensors_that_share_memory_are_written_separately(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    tied = {"a": base, "b": base, "c": base[2:], "d": base.view(2, 3), "e": nn.Parameter(base)}
    write_tensors(tmp_path / "w", tied, {})
    result, _ = read_tensors(tmp_path / "w")
    assert same(result, {name: tensor.detach() for name, tensor in tied.items()})
    result["a"].zero_()
    assert torch.equal(result["b"], base)


def test_facts_may_be_any_mappings_and_tuples(tmp_path: Path) -> None:
    facts = MappingProxyType({"kernels": (5, 25), "inner": MappingProxyType({"a": ((1,),)})})
    write_tensors(tmp_path / "w", {}, facts)
    assert read_tensors(tmp_path / "w") == ({}, {"kernels": [5, 25], "inner": {"a": [[1]]}})


endless: list[Any] = []
endless.append(endless)


@pytest.mark.parametrize(
    ("facts", "problem"),
    [
        ({"best": float("nan")}, "Out of range float values"),
        ({"best": float("inf")}, "Out of range float values"),
        ({"path": Path("a")}, "not JSON serializable"),
        ({"weights": torch.ones(2)}, "not JSON serializable"),
        ({"inner": {1: "a"}}, "keys"),
        ({"inner": {1: "a", "1": "b"}}, "JSON"),
        ({"inner": endless}, "JSON"),
    ],
)
def test_facts_that_json_would_change_raise_and_keep_the_old_file(
    file: Path, facts: dict[str, Any], problem: str
) -> None:
    with pytest.raises(CheckpointError, match=problem):
        write_tensors(file, {}, facts)
    assert read_tensors(file)[1] == FACTS


@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_weights_that_are_not_finite_are_not_written(file: Path, kind: torch.dtype) -> None:
    broken = torch.tensor([1.0, float("nan"), 2.0]).to(kind)
    with pytest.raises(CheckpointError, match="1 of 3 numbers in tensor 'w'"):
        write_tensors(file, {"v": torch.ones(2), "w": broken}, {})
    assert same(read_tensors(file)[0], some_tensors())


def test_a_tensor_named_like_the_metadata_raises(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="__metadata__"):
        write_tensors(tmp_path / "w", {"__metadata__": torch.ones(2)}, {})
    assert not (tmp_path / "w").exists()


@pytest.mark.parametrize("failing", ["write_bytes", "replace"])
@pytest.mark.parametrize(
    ("error", "seen"),
    [
        (OSError(errno.ENOSPC, "full"), CheckpointError),
        (KeyboardInterrupt("full"), KeyboardInterrupt),
    ],
    ids=repr,
)
def test_an_interrupted_write_leaves_the_old_file(
    file: Path,
    monkeypatch: pytest.MonkeyPatch,
    failing: str,
    error: BaseException,
    seen: type[BaseException],
) -> None:
    def interrupted(path: Path, target: Any) -> None:
        if failing == "write_bytes":
            with path.open("wb") as half:
                half.write(target[: len(target) // 2])
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Path, failing, interrupted)
        with pytest.raises(seen, match="full"):
            write_tensors(file, {"new": torch.ones(1000)}, {})
    assert same(read_tensors(file)[0], some_tensors())
    write_tensors(file, {"new": torch.ones(1000)}, {})
    assert same(read_tensors(file)[0], {"new": torch.ones(1000)})


def test_a_path_that_cannot_be_written_raises(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    for path in (tmp_path, tmp_path / "plain" / "w"):
        with pytest.raises(CheckpointError, match=path.name):
            write_tensors(path, {}, {})


def test_a_missing_file_and_a_folder_raise(tmp_path: Path) -> None:
    assert "none" in read_error(tmp_path / "none")
    assert tmp_path.name in read_error(tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_raises_and_is_not_executed(tmp_path: Path, zipped: bool) -> None:
    mark, file = tmp_path / "executed", tmp_path / "weights.pt"

    class Trap:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return os.mkdir, (str(mark),)

    torch.save({"w": Trap()}, file, _use_new_zipfile_serialization=zipped)
    read_error(file)
    assert not mark.exists()
    torch.load(file, weights_only=False)
    assert mark.exists()  # the trap works


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0",
        b"\0" * 8,
        b"\0" * 100,
        b"\xff" * 100,
        b"The weights of the model, as text.",
        b'{"a":1, {"b": 2}}',
        b"\x02\0\0\0\0\0\0\0[]",
        b"\x02\0\0\0\0\0\0\0{}",
        b'\x13\0\0\0\0\0\0\0{"__metadata__":[]}',
        b"\x02\0\0\0\0\0\0\0{{",
        b"\x03\0\0\0\0\0\0\0{}\xff",
        b"\x03\0\0\0\0\0\0\0{}",
        (b'{"a":' * 50_000).join([(250_000).to_bytes(8, "little"), b""]),
    ],
    ids=range(14),
)
def test_other_content_than_safetensors_raises(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(content)
    read_error(file)


def test_every_truncation_raises(sound: bytes, scratch: Path) -> None:
    for length in range(len(sound)):
        scratch.write_bytes(sound[:length])
        with pytest.raises(CheckpointError, match="safetensors"):
            read_tensors(scratch)


def test_a_file_that_ends_within_its_header_is_reported_as_cut(sound: bytes, scratch: Path) -> None:
    scratch.write_bytes(sound[:100])
    assert "100 bytes" in read_error(scratch)


def test_a_memory_error_is_not_blamed_on_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(content: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr("powerphase.models.framework.checkpoint.load", exhausted)
    with pytest.raises(MemoryError):
        read_tensors(file)


def test_extra_bytes_raise(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")
    assert file.name in read_error(file)


def test_every_flipped_bit_of_the_data_raises(sound: bytes, scratch: Path) -> None:
    data = 8 + int.from_bytes(sound[:8], "little")
    for at in range(data, len(sound)):
        content = bytearray(sound)
        content[at] ^= 1 << at % 8
        scratch.write_bytes(content)
        assert "checksum" in read_error(scratch)


@given(st.data())
@settings(max_examples=300)
def test_changed_bytes_never_return_other_weights(
    sound: bytes, scratch: Path, data: st.DataObject
) -> None:
    content = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(sound) - 1))
        content[at] = data.draw(
            st.integers(0, 255) | st.sampled_from(list(b' "{}[]:,0123456789abF'))
        )
    scratch.write_bytes(content)
    try:
        tensors, facts = read_tensors(scratch)
    except CheckpointError:
        return
    assert same(tensors, some_tensors())  # as when a blank becomes a tabulator
    assert facts == FACTS


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"seed\\": 42', b'"seed\\": 43'),
        (b'"encoder.bias"', b'"encoder.bios"'),
        (b'"F32","shape":[3,4]', b'"I32","shape":[3,4]'),
        (b'"F32","shape":[3,4]', b'"F32","shape":[4,3]'),
        (b'"steps":{"dtype":"I64"', b'"steps":{"dtype":"F64"'),
        (b'"shape":[0,5]', b'"shape":[0,6]'),
        (b'"digest":"', b'"digest":"0'),
    ],
)
def test_a_change_that_safetensors_accepts_raises(
    sound: bytes, scratch: Path, old: bytes, new: bytes
) -> None:
    assert sound.count(old) == 1
    n = int.from_bytes(sound[:8], "little")
    header = sound[8 : 8 + n].replace(old, new)
    scratch.write_bytes(len(header).to_bytes(8, "little") + header + sound[8 + n :])
    load_file(scratch)
    assert "checksum" in read_error(scratch)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [("[0,18446744073709551615]", "F32"), ("[0,9223372036854775807,9]", "F32"), ("[0]", "F8_E8M0")],
)
def test_a_header_with_impossible_sizes_raises_a_one_line_error(
    sound: bytes, scratch: Path, shape: str, kind: str
) -> None:
    n = int.from_bytes(sound[:8], "little")
    old, new = b'"F32","shape":[0,5]', f'"{kind}","shape":{shape}'.encode()
    header = sound[8 : 8 + n].replace(old, new)
    assert header != sound[8 : 8 + n]
    scratch.write_bytes(len(header).to_bytes(8, "little") + header + sound[8 + n :])
    assert "\n" not in read_error(scratch)


def test_safetensors_files_of_other_programs_raise(tmp_path: Path) -> None:
    file = tmp_path / "w"
    save_file(some_tensors(), file)
    assert "metadata" in read_error(file)
    save_file(some_tensors(), file, {"format": "pt"})
    assert "metadata" in read_error(file)


@pytest.mark.parametrize(
    ("facts", "changes", "problem"),
    [
        ("{}", {"facts": None}, "checksum"),
        ("{}", {"digest": None}, "checksum"),
        ("{}", {"digest": ""}, "checksum"),
        ('{"a": 1', {}, "facts"),
        ('{"a": 1, "a": 2}', {}, "'a'"),
        ("[1]", {}, "facts"),
    ],
)
def test_metadata_without_valid_facts_and_checksum_raise(
    tmp_path: Path, facts: str, changes: dict[str, str | None], problem: str
) -> None:
    save_with(tmp_path / "w", facts, changes)
    assert problem in read_error(tmp_path / "w")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_raise_despite_a_correct_checksum(
    tmp_path: Path, bad: float
) -> None:
    tensors = {"fine": torch.ones(3), "odd": torch.tensor([[1.0, bad], [bad, 2.0]])}
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    metadata = {"format": "powerphase", "facts": "{}", "digest": digest_of(arrays, "{}")}
    save_file(tensors, tmp_path / "w", metadata)
    assert "2 of 4 numbers in tensor 'odd'" in read_error(tmp_path / "w")


def test_a_file_that_is_replaced_while_it_is_read_returns_one_content(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, opened = read_regular_file, []

    def replaced_afterwards(path: Path, max_bytes: int) -> bytes:
        opened.append(path)
        content = read(path, max_bytes)
        write_tensors(file, {"other": torch.ones(2)}, {})
        return content

    monkeypatch.setattr(checkpoint, "read_regular_file", replaced_afterwards)
    tensors, facts = read_tensors(file)
    assert same(tensors, some_tensors())
    assert facts == FACTS
    assert opened == [file]


class Network(nn.Module):
    """Parameters, buffers, and two names for one weight."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(nn.Linear(3, 3) for _ in range(3))
        self.layers[2].weight = self.layers[0].weight
        self.register_buffer("scale", torch.rand(2, dtype=torch.float64))


def test_a_module_is_restored_from_its_file(tmp_path: Path) -> None:
    old, new = Network(1), Network(2)
    assert not same(old.state_dict(), new.state_dict())
    write_tensors(tmp_path / "w", old.state_dict(), {})
    tensors, _ = read_tensors(tmp_path / "w")
    load_into(new, tensors, "w")
    assert same(old.state_dict(), new.state_dict())
    assert new.layers[2].weight is new.layers[0].weight
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in new.parameters())
    tensors["scale"].zero_()
    assert same(old.state_dict(), new.state_dict())


def test_all_mismatches_are_reported_at_once_and_nothing_is_copied() -> None:
    module, tensors = Network(1), Network(2).state_dict()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for name in ("layers.0.bias", "layers.0.weight", "layers.1.bias", "layers.1.weight"):
        del tensors[name]
    tensors |= {"scale": tensors["scale"].float(), "layers.2.bias": torch.ones(3, 1)}
    tensors |= {f"more.{i}": torch.ones(1) for i in range(2)}
    with pytest.raises(CheckpointError) as caught:
        load_into(module, tensors, "runs/a/weights.safetensors")
    facts = (
        "4 missing (layers.0.weight, layers.0.bias, layers.1.weight, ...)",
        "2 superfluous (more.0, more.1)",
        "scale: float32 (2,), needed float64 (2,)",
        "layers.2.bias: float32 (3, 1), needed float32 (3,)",
    )
    assert str(caught.value).startswith("runs/a/weights.safetensors: ")
    assert all(fact in str(caught.value) for fact in facts)
    assert same(module.state_dict(), before)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors: tensors.pop("scale"),
        lambda tensors: tensors.update(other=torch.ones(1)),
        lambda tensors: tensors.update(scale=torch.ones(2)),
        lambda tensors: tensors.update(scale=torch.ones(1, 2, dtype=torch.float64)),
        lambda tensors: tensors.update(scale=torch.ones((), dtype=torch.float64)),
    ],
)
def test_a_single_mismatch_raises(change: Callable[[dict[str, Tensor]], Any]) -> None:
    module, tensors = Network(1), dict(Network(2).state_dict())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    change(tensors)
    with pytest.raises(CheckpointError, match=r"^w: .* 1 "):
        load_into(module, tensors, "w")
    assert same(module.state_dict(), before)
