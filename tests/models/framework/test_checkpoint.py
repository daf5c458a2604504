"""Checkpoints: the weights that were written come back to the last bit, or an error says why."""

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
from powerphase.models.framework.checkpoint import load_into, read_tensors, write_tensors

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


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    """Whether names, types, shapes and every bit agree."""
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype
        and one[name].shape == other[name].shape
        and torch.equal(
            one[name].view(-1).view(torch.uint8), other[name].view(-1).view(torch.uint8)
        )
        for name in one
    )


def digest_of(arrays: dict[str, np.ndarray], facts: str) -> str:
    """The checksum as the format defines it, worked out without torch."""
    outline = [
        [name, f"torch.{arrays[name].dtype}", [*arrays[name].shape]] for name in sorted(arrays)
    ]
    content = b"".join(arrays[name].tobytes() for name in sorted(arrays))
    return hashlib.sha256(json.dumps([facts, outline]).encode() + content).hexdigest()


def save_with(file: Path, facts: str, changes: dict[str, str | None]) -> None:
    """A file as another program would write it, with a right checksum unless it is changed."""
    tensors = {"a": torch.arange(4.0), "b": torch.ones(2, 2)}
    digest = digest_of({name: tensor.numpy() for name, tensor in tensors.items()}, facts)
    metadata = {"format": "powerphase", "facts": facts, "digest": digest} | changes
    save_file(tensors, file, {key: text for key, text in metadata.items() if text is not None})


def refusal(file: Path) -> str:
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
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that may be written over and over."""
    return tmp_path_factory.mktemp("place") / "weights.safetensors"


def test_what_is_written_is_read(file: Path) -> None:
    tensors, facts = read_tensors(file)
    assert same(tensors, some_tensors())
    assert facts == FACTS
    for tensor in tensors.values():
        assert tensor.device.type == "cpu"
        tensor.add_(1)  # memory that may be written


@pytest.mark.parametrize("kind", FLOATS + WHOLE, ids=str)
def test_every_type_and_layout_is_kept(tmp_path: Path, kind: torch.dtype) -> None:
    table = torch.tensor([[0.0, 1.5, -2.0], [3.0, 0.25, 1.0]]).to(kind)
    tensors = {"flat": table, "turned": table.T, "part": table[:, 1:2], "one": table[1, 0]}
    tensors["spread"] = table[0].expand(4, 3)
    write_tensors(tmp_path / "w", tensors, {})
    found, facts = read_tensors(tmp_path / "w")
    assert same(found, {name: tensor.contiguous() for name, tensor in tensors.items()})
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
def test_any_names_and_facts_come_back_and_any_library_reads_them(
    place: Path, numbers: dict[str, list[int]], facts: dict[str, Any]
) -> None:
    tensors = {name: torch.tensor(one, dtype=torch.uint8) for name, one in numbers.items()}
    write_tensors(place, tensors, facts)
    found, told = read_tensors(place)
    assert same(found, tensors)
    assert same(load_file(place), tensors)
    assert told == facts


def test_the_file_is_one_that_safetensors_opens(file: Path) -> None:
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


def test_a_file_that_safetensors_wrote_by_the_same_rules_is_read(tmp_path: Path) -> None:
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


def test_tensors_that_share_memory_are_written_one_by_one(tmp_path: Path) -> None:
    base = torch.arange(6.0)
    tied = {"a": base, "b": base, "c": base[2:], "d": base.view(2, 3), "e": nn.Parameter(base)}
    write_tensors(tmp_path / "w", tied, {})
    found, _ = read_tensors(tmp_path / "w")
    assert same(found, {name: tensor.detach() for name, tensor in tied.items()})
    found["a"].zero_()
    assert torch.equal(found["b"], base)


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
        ({"inner": {1: "a"}}, "the keys of its facts must be text"),
        ({"inner": {1: "a", "1": "b"}}, "must be what JSON can hold"),
        ({"inner": endless}, "must be what JSON can hold"),
    ],
)
def test_facts_that_json_would_change_are_refused_and_the_old_file_stays(
    file: Path, facts: dict[str, Any], problem: str
) -> None:
    with pytest.raises(CheckpointError, match=problem):
        write_tensors(file, {}, facts)
    assert read_tensors(file)[1] == FACTS


@pytest.mark.parametrize("kind", FLOATS, ids=str)
def test_weights_that_are_not_finite_are_not_written(file: Path, kind: torch.dtype) -> None:
    broken = torch.tensor([1.0, float("nan"), 2.0]).to(kind)
    with pytest.raises(CheckpointError, match=r"not written: 1 of 3 numbers in tensor 'w' are not"):
        write_tensors(file, {"v": torch.ones(2), "w": broken}, {})
    assert same(read_tensors(file)[0], some_tensors())


def test_a_tensor_in_the_place_of_the_metadata_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no tensor can be named '__metadata__'"):
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


def test_a_place_that_takes_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    for place in (tmp_path, tmp_path / "plain" / "w"):
        with pytest.raises(CheckpointError, match="cannot be written"):
            write_tensors(place, {}, {})


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert "cannot be read (No such file or directory)" in refusal(tmp_path / "none")
    assert "is a folder; name a file of weights in it" in refusal(tmp_path)


@pytest.mark.parametrize("zipped", [True, False])
def test_a_pickle_is_refused_and_not_executed(tmp_path: Path, zipped: bool) -> None:
    mark, file = tmp_path / "executed", tmp_path / "weights.pt"

    class Trap:
        def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
            return os.mkdir, (str(mark),)

    torch.save({"w": Trap()}, file, _use_new_zipfile_serialization=zipped)
    assert "can be read, so restore it" in refusal(file)
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
def test_what_is_no_safetensors_file_is_refused(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "weights.safetensors"
    file.write_bytes(content)
    assert "can be read, so restore it" in refusal(file)


def test_every_truncation_is_refused(sound: bytes, place: Path) -> None:
    for length in range(len(sound)):
        place.write_bytes(sound[:length])
        with pytest.raises(CheckpointError, match="safetensors"):
            read_tensors(place)


def test_a_file_that_ends_within_its_header_says_so(sound: bytes, place: Path) -> None:
    place.write_bytes(sound[:100])
    assert "within its header, after 100 bytes" in refusal(place)


def test_a_lack_of_memory_is_not_blamed_on_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(content: bytes) -> None:
        raise MemoryError

    monkeypatch.setattr("powerphase.models.framework.checkpoint.load", exhausted)
    with pytest.raises(MemoryError):
        read_tensors(file)


def test_bytes_too_many_are_refused(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"\0")
    assert "damaged or cut" in refusal(file)


def test_every_flipped_bit_of_the_numbers_is_found(sound: bytes, place: Path) -> None:
    data = 8 + int.from_bytes(sound[:8], "little")
    for at in range(data, len(sound)):
        content = bytearray(sound)
        content[at] ^= 1 << at % 8
        place.write_bytes(content)
        assert "differs from its checksum" in refusal(place)


@given(st.data())
@settings(max_examples=300)
def test_changed_bytes_never_give_other_weights(
    sound: bytes, place: Path, data: st.DataObject
) -> None:
    content = bytearray(sound)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(sound) - 1))
        content[at] = data.draw(
            st.integers(0, 255) | st.sampled_from(list(b' "{}[]:,0123456789abF'))
        )
    place.write_bytes(content)
    try:
        tensors, facts = read_tensors(place)
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
def test_a_change_that_safetensors_accepts_is_found(
    sound: bytes, place: Path, old: bytes, new: bytes
) -> None:
    assert sound.count(old) == 1
    n = int.from_bytes(sound[:8], "little")
    header = sound[8 : 8 + n].replace(old, new)
    place.write_bytes(len(header).to_bytes(8, "little") + header + sound[8 + n :])
    load_file(place)
    assert "differs from its checksum" in refusal(place)


@pytest.mark.parametrize(
    ("shape", "kind"),
    [("[0,18446744073709551615]", "F32"), ("[0,9223372036854775807,9]", "F32"), ("[0]", "F8_E8M0")],
)
def test_a_header_that_asks_for_the_impossible_is_refused_in_one_line(
    sound: bytes, place: Path, shape: str, kind: str
) -> None:
    n = int.from_bytes(sound[:8], "little")
    old, new = b'"F32","shape":[0,5]', f'"{kind}","shape":{shape}'.encode()
    header = sound[8 : 8 + n].replace(old, new)
    assert header != sound[8 : 8 + n]
    place.write_bytes(len(header).to_bytes(8, "little") + header + sound[8 + n :])
    assert "\n" not in refusal(place)


def test_safetensors_of_others_are_refused_as_foreign(tmp_path: Path) -> None:
    file = tmp_path / "w"
    save_file(some_tensors(), file)
    assert "foreign" in refusal(file)
    save_file(some_tensors(), file, {"format": "pt"})
    assert "foreign" in refusal(file)


@pytest.mark.parametrize(
    ("facts", "changes", "problem"),
    [
        ("{}", {"facts": None}, "its facts or its checksum are missing"),
        ("{}", {"digest": None}, "its facts or its checksum are missing"),
        ("{}", {"digest": ""}, "differs from its checksum"),
        ('{"a": 1', {}, "its facts are not JSON"),
        ('{"a": 1, "a": 2}', {}, "its facts are not JSON (the key 'a' twice)"),
        ("[1]", {}, "its facts are not a JSON object"),
    ],
)
def test_metadata_without_sound_facts_and_checksum_are_refused(
    tmp_path: Path, facts: str, changes: dict[str, str | None], problem: str
) -> None:
    save_with(tmp_path / "w", facts, changes)
    assert problem in refusal(tmp_path / "w")


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_weights_that_are_not_finite_are_refused_though_the_checksum_is_right(
    tmp_path: Path, bad: float
) -> None:
    tensors = {"fine": torch.ones(3), "odd": torch.tensor([[1.0, bad], [bad, 2.0]])}
    arrays = {name: tensor.numpy() for name, tensor in tensors.items()}
    metadata = {"format": "powerphase", "facts": "{}", "digest": digest_of(arrays, "{}")}
    save_file(tensors, tmp_path / "w", metadata)
    assert "2 of 4 numbers in tensor 'odd' are not finite" in refusal(tmp_path / "w")


def test_a_file_that_is_replaced_while_it_is_read_gives_one_content(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, opened = Path.read_bytes, []

    def replaced_afterwards(path: Path) -> bytes:
        opened.append(path)
        content = read(path)
        write_tensors(file, {"other": torch.ones(2)}, {})
        return content

    monkeypatch.setattr(Path, "read_bytes", replaced_afterwards)
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


def test_a_module_comes_back_from_its_file(tmp_path: Path) -> None:
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


def test_everything_that_does_not_fit_is_told_at_once_and_nothing_is_copied() -> None:
    module, tensors = Network(1), Network(2).state_dict()
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    for name in ("layers.0.bias", "layers.0.weight", "layers.1.bias", "layers.1.weight"):
        del tensors[name]
    tensors |= {"scale": tensors["scale"].float(), "layers.2.bias": torch.ones(3, 1)}
    tensors |= {f"more.{i}": torch.ones(1) for i in range(2)}
    with pytest.raises(CheckpointError) as caught:
        load_into(module, tensors, "runs/a/weights.safetensors")
    assert str(caught.value) == (
        "runs/a/weights.safetensors: its tensors do not fit the model, "
        "4 missing (layers.0.weight, layers.0.bias, layers.1.weight, ...), "
        "2 superfluous (more.0, more.1), 2 of another shape or type "
        "(scale: float32 (2,), needed float64 (2,), "
        "layers.2.bias: float32 (3, 1), needed float32 (3,)); "
        "load it with the config and the grid that it was trained with"
    )
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
def test_one_tensor_that_does_not_fit_is_enough(change: Callable[[dict[str, Tensor]], Any]) -> None:
    module, tensors = Network(1), dict(Network(2).state_dict())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    change(tensors)
    with pytest.raises(CheckpointError, match=r"^here: .* 1 "):
        load_into(module, tensors, "here")
    assert same(module.state_dict(), before)
