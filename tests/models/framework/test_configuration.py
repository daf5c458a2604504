"""Configs: plain data becomes exactly the config that was meant, or one error says all of why."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerphase.errors import ConfigError
from powerphase.files import parse_json
from powerphase.models.framework.configuration import changed_fields, make_config, read_config


@dataclass(frozen=True)
class Schedule:
    kind: Literal["cosine", "linear", "constant"] = "cosine"
    warmup: float = 0.05


@dataclass(frozen=True)
class Training:
    epochs: int = 6
    clip: float | None = 1.0
    schedule: Schedule = Schedule()

    def __post_init__(self) -> None:
        if self.epochs < 1:
            raise ConfigError("epochs must be 1 or more")


@dataclass(frozen=True)
class Head:
    heads: int
    order: Literal[1, 2] = 1


@dataclass(frozen=True)
class Config:
    hidden: int = 64
    rate: float = 1e-3
    gated: bool = True
    title: str = "plain"
    kernels: tuple[int, ...] = (5, 25)
    levels: tuple[float, ...] = (0.1, 0.9)
    training: Training = field(
        default_factory=lambda: Training(epochs=50, schedule=Schedule(warmup=0.1))
    )
    head: Optional[Head] = None  # noqa: UP045  (both spellings of a union must be known)
    double: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "double", 2 * self.hidden)
        if len(self.levels) < 2:
            raise ConfigError("levels must be two or more")


@dataclass(frozen=True)
class Required:
    training: Training
    depth: int
    width: int | None


@dataclass(frozen=True)
class Nothing:
    pass


finite = st.floats(allow_nan=False, allow_infinity=False)
schedules = st.builds(Schedule, st.sampled_from(["cosine", "linear", "constant"]), finite)
trainings = st.builds(Training, st.integers(1), st.none() | finite, schedules)
configs = st.builds(
    Config,
    hidden=st.integers(),
    rate=finite,
    gated=st.booleans(),
    title=st.text(),
    kernels=st.lists(st.integers()).map(tuple),
    levels=st.lists(finite, min_size=2).map(tuple),
    training=trainings,
    head=st.none() | st.builds(Head, st.integers(), st.sampled_from([1, 2])),
)
FIELDS = ["hidden", "rate", "gated", "title", "kernels", "levels", "training", "epochs", "clip"]
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
plain = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from([*FIELDS, "head", "schedule", "heads"]) | st.text(max_size=9),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)


def written(config: Any) -> dict[str, Any]:
    """What a person would write down for the config."""
    values = asdict(config)
    values.pop("double", None)
    return dict(json.loads(json.dumps(values)))


def problem(values: dict[str, Any], kind: type = Config) -> str:
    with pytest.raises(ConfigError) as caught:
        make_config(kind, values)
    return str(caught.value)


@given(configs)
def test_a_config_comes_back_from_its_plain_data(config: Config) -> None:
    assert make_config(Config, written(config)) == config


@given(plain.filter(lambda values: isinstance(values, dict)))
@settings(max_examples=200)
def test_whatever_is_given_becomes_a_config_of_the_right_types_or_a_config_error(
    values: dict[str, Any],
) -> None:
    try:
        config = make_config(Config, values)
    except ConfigError:
        return
    assert type(config.hidden) is int
    assert type(config.rate) is float
    assert type(config.gated) is bool
    assert type(config.title) is str
    assert type(config.training) is Training
    assert {type(one) for one in config.kernels} <= {int}
    assert {type(one) for one in config.levels} <= {float}
    assert make_config(Config, written(config)) == config


@given(configs)
def test_the_changed_fields_alone_make_the_config(config: Config) -> None:
    default, only = Config(), {}
    for name in changed_fields(config, default):
        table, source, *path = only, written(config), *name.split(".")
        for part in path[:-1]:
            table, source = table.setdefault(part, {}), source[part]
        if name != "double":
            table[path[-1]] = source[path[-1]]
    assert make_config(Config, only) == config


def test_what_is_not_given_keeps_its_default() -> None:
    assert make_config(Config, {}) == Config()
    assert make_config(Config, {"hidden": 8}) == replace(Config(), hidden=8)


def test_a_nested_table_leaves_the_rest_as_the_outer_config_has_it() -> None:
    config = make_config(Config, {"training": {"schedule": {"kind": "linear"}}})
    assert config.training == Training(epochs=50, schedule=Schedule("linear", warmup=0.1))
    assert make_config(Config, {"head": {"heads": 4}}).head == Head(4)


def test_whole_numbers_become_floats_where_floats_are_asked() -> None:
    config = make_config(Config, {"rate": 1, "levels": [0, 1], "training": {"clip": 2}})
    found = [config.rate, *config.levels, config.training.clip]
    assert found == [1.0, 0.0, 1.0, 2.0]
    assert {type(one) for one in found} == {float}


def test_null_is_taken_where_none_is_meant_and_only_there() -> None:
    assert make_config(Config, {"training": {"clip": None}}).training.clip is None
    assert problem({"hidden": None}) == "hidden: found None, needed a whole number"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hidden": True}, "hidden: found True, needed a whole number"),
        ({"hidden": 8.0}, "hidden: found 8.0, needed a whole number"),
        ({"hidden": "8"}, "hidden: found '8', needed a whole number"),
        ({"gated": 1}, "gated: found 1, needed true or false"),
        ({"title": 3}, "title: found 3, needed text"),
        ({"rate": True}, "rate: found True, needed a finite number"),
        ({"rate": float("nan")}, "rate: found nan, needed a finite number"),
        ({"rate": float("-inf")}, "rate: found -inf, needed a finite number"),
        ({"levels": [0.1, 0.5, float("inf")]}, "levels[2]: found inf, needed a finite number"),
        ({"kernels": [5, 2.5]}, "kernels[1]: found 2.5, needed a whole number"),
        ({"kernels": 5}, "kernels: found 5, needed a list, each item a whole number"),
        ({"kernels": "57"}, "kernels: found '57', needed a list, each item a whole number"),
        ({"training": 3}, "training: found 3, needed a table with epochs, clip, schedule"),
        (
            {"training": {"clip": "off"}},
            "training.clip: found 'off', needed a finite number, or null",
        ),
        ({"head": []}, "head: found [], needed a table with heads, order, or null"),
        ({"head": {}}, "head.heads: missing, needed a whole number"),
        ({"head": {"heads": 1, "order": True}}, "head.order: found True, needed one of 1, 2"),
        ({"levels": [0.5]}, "levels must be two or more"),
        ({"training": {"epochs": 0}}, "training: epochs must be 1 or more"),
    ],
)
def test_a_value_that_the_field_cannot_take_is_refused(
    values: dict[str, Any], message: str
) -> None:
    assert problem(values) == message


def test_a_whole_number_beyond_all_floats_is_refused() -> None:
    assert problem({"rate": 10**400}).endswith("needed a finite number")


def test_choices_are_listed_with_the_near_miss_first() -> None:
    place = "training.schedule.kind: found"
    for found, first in (("Linaer", "'linear', 'cosine', 'constant'"), ("x", "'cosine', 'linear'")):
        message = problem({"training": {"schedule": {"kind": found}}})
        assert message.startswith(f"{place} {found!r}, needed one of {first}")


def test_near_misses_are_found_in_either_case() -> None:
    @dataclass(frozen=True)
    class Grid:
        bus: Literal["PQ", "PV", "slack"] = "PQ"

    assert problem({"bus": "pv"}, Grid).endswith("needed one of 'PV', 'PQ', 'slack'")
    assert problem({"bus": "SLACK"}, Grid).endswith("needed one of 'slack', 'PQ', 'PV'")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"hiden": 1}, "hiden: no such field, did you mean hidden?"),
        ({"Hidden": 1}, "Hidden: no such field, did you mean hidden?"),
        ({"epochs": 1}, "epochs: no such field, did you mean training.epochs?"),
        ({"warm_up": 1}, "warm_up: no such field, did you mean training.schedule.warmup?"),
        ({"training.clip": 1}, "training.clip: no such field, write clip in a table training"),
        (
            {"training": {"epoch": 1}},
            "training.epoch: no such field, did you mean training.epochs?",
        ),
        ({"training": {"rate": 1}}, "training.rate: no such field, did you mean rate?"),
        ({"training": {"schedule": {"clip": 1}}}, "did you mean training.clip?"),
        ({"head": {"heads": 1, "hidden": 2}}, "head.hidden: no such field, did you mean hidden?"),
        ({"header": {}}, "header: no such field, did you mean head or head.heads?"),
        (
            {"training": {"xyz": 1}},
            "xyz: no such field, the fields here are epochs, clip, schedule",
        ),
        ({"double": 128}, "double: no such field, the fields here are hidden, rate"),
    ],
)
def test_an_unknown_field_is_refused_with_what_was_meant(
    values: dict[str, Any], message: str
) -> None:
    assert message in problem(values)


def test_a_config_without_fields_says_so() -> None:
    assert make_config(Nothing, {}) == Nothing()
    assert problem({"a": 1}, Nothing) == "a: no such field, the fields here are none"


def test_fields_without_a_default_must_be_given() -> None:
    assert problem({"depth": 1}, Required) == (
        "training: missing, needed a table with epochs, clip, schedule; "
        "width: missing, needed a whole number, or null"
    )
    values = {"depth": 1, "width": None, "training": {}}
    assert make_config(Required, values) == Required(Training(), 1, None)


def test_all_problems_are_told_at_once() -> None:
    values = {
        "hiden": 1,
        "rate": "fast",
        "kernels": [1.5, 3, "x"],
        "training": {"epochs": 0},
        "head": {"order": 3},
    }
    starts = [one.partition(":")[0] for one in problem(values).split("; ")]
    places = ["hiden", "rate", "kernels[0]", "kernels[2]", "training", "head.order", "head.heads"]
    assert starts == places


def test_a_config_does_not_complain_of_defaults_in_place_of_wrong_values() -> None:
    @dataclass(frozen=True)
    class Range:
        low: int = 0
        high: int = 1

        def __post_init__(self) -> None:
            if self.low >= self.high:
                raise ConfigError("low must lie below high")

    assert problem({"low": 5, "hihg": 9}, Range) == "hihg: no such field, did you mean high?"
    assert problem({"low": 5, "high": "9"}, Range) == "high: found '9', needed a whole number"
    assert problem({"low": 5}, Range) == "low must lie below high"


@pytest.mark.parametrize("kind", [dict, list[int], int | str, tuple[int, str], tuple[dict, ...]])
def test_a_config_with_a_field_of_another_type_is_a_mistake_of_the_program(kind: Any) -> None:
    odd = dataclass(frozen=True)(type("Odd", (), {"__annotations__": {"part": kind}}))
    with pytest.raises(TypeError, match=r"Odd\.part: a config has no fields of type"):
        make_config(odd, {"part": {}})


def test_toml_and_json_of_the_same_config_are_read_alike(tmp_path: Path) -> None:
    toml, text = tmp_path / "config.toml", tmp_path / "config.JSON"
    toml.write_text(
        'title = "größer"\nkernels = [3, 9]\n[training]\nepochs = 2\nschedule.kind = "linear"\n',
        encoding="utf-8",
    )
    schedule = {"kind": "linear"}
    values = {"title": "größer", "kernels": [3, 9], "training": {"epochs": 2, "schedule": schedule}}
    text.write_text(json.dumps(values, ensure_ascii=False), encoding="utf-8")
    expected = Config(
        title="größer", kernels=(3, 9), training=Training(2, schedule=Schedule("linear", 0.1))
    )
    assert read_config(Config, toml) == read_config(Config, str(text)) == expected


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("c.yaml", b"hidden: 3", "found the suffix '.yaml'; name a .toml or .json file"),
        ("c", b"hidden = 3", "found the suffix ''; name a .toml or .json file"),
        ("c.toml", b"hidden 3", "not TOML in UTF-8 (Expected '='"),
        ("c.toml", b"hidden = 1\nhidden = 2", "not TOML in UTF-8 (Cannot overwrite a value"),
        ("c.toml", b'title = "\xff"', "not TOML in UTF-8 ('utf-8' codec can't decode"),
        ("c.toml", b"a = " + b"[" * 100_000, "not TOML in UTF-8 (maximum recursion"),
        ("c.json", b"{", "not JSON in UTF-8 (Expecting property name"),
        ("c.json", b"", "not JSON in UTF-8 (Expecting value"),
        (
            "c.json",
            b'{"training": {"clip": 1, "epochs": 1, "epochs": 2}}',
            "not JSON in UTF-8 (duplicate key 'epochs')",
        ),
        ("c.json", b"[" * 100_000, "not JSON in UTF-8 (nested too deeply)"),
        ("c.json", b"[1]", "holds [1]; write an object with the config's fields"),
        ("c.json", b'{"rate": NaN, "hidden": "x"}', "not JSON in UTF-8 (NaN is not a JSON number)"),
        ("c.toml", b"rate = inf", "rate: found inf, needed a finite number"),
        ("c.toml", b"title = 2015-01-01", "title: found datetime.date(2015, 1, 1), needed text"),
        ("c.toml", b"[training]\nepochs = 0", "training: epochs must be 1 or more"),
    ],
)
def test_a_file_without_a_config_is_refused_by_its_path(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_config(Config, file)
    assert str(caught.value).startswith(f"{file}: {message}")


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml: cannot be read \(No such file"):
        read_config(Config, tmp_path / "none.toml")
    (tmp_path / "folder.toml").mkdir()
    for folder in (tmp_path, tmp_path / "folder.toml"):
        with pytest.raises(ConfigError, match=r"is a folder; name a \.toml or \.json file in it"):
            read_config(Config, folder)


def test_only_keys_that_stand_twice_in_one_object_are_refused() -> None:
    assert parse_json('{"a": {"a": 1}, "b": [{"a": 2}]}') == {"a": {"a": 1}, "b": [{"a": 2}]}
    with pytest.raises(ValueError, match="'a'"):
        parse_json('[{"b": {"a": 1, "c": 2, "a": 1}}]')


def test_changed_fields_are_named_in_field_order() -> None:
    config = Config(
        rate=2e-3,
        levels=(0.1, 0.5, 0.9),
        training=Training(epochs=50, clip=None, schedule=Schedule("linear", 0.1)),
        head=Head(4),
    )
    names = ["rate", "levels", "training.clip", "training.schedule.kind", "head"]
    assert changed_fields(config, Config()) == names
    assert changed_fields(Config(), config) == names
    assert changed_fields(config, config) == []
    assert changed_fields(Config(head=Head(3)), Config(head=Head(4))) == ["head.heads"]


def test_a_nested_config_of_another_type_is_changed_as_a_whole() -> None:
    class Longer(Training):
        pass

    assert changed_fields(Config(training=Longer()), Config(training=Training())) == ["training"]


def test_configs_of_two_types_are_not_compared() -> None:
    with pytest.raises(TypeError, match="Training is no Schedule"):
        changed_fields(Training(), Schedule())
