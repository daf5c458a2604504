"""Configs: plain data becomes exactly the intended config, or one error lists all problems."""

import json
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Optional

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerphase.errors import ConfigError
from powerphase.files import parse_json
from powerphase.models.framework import changed_fields, make_config, read_config


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
def test_a_config_round_trips_through_plain_data(config: Config) -> None:
    assert make_config(Config, written(config)) == config


@given(plain.filter(lambda values: isinstance(values, dict)))
@settings(max_examples=200)
def test_any_data_becomes_a_config_of_the_right_types_or_a_config_error(
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
    assert {type(width) for width in config.kernels} <= {int}
    assert {type(level) for level in config.levels} <= {float}
    assert make_config(Config, written(config)) == config


@given(configs)
def test_the_changed_fields_alone_make_the_config(config: Config) -> None:
    default = Config()
    only: dict[str, Any] = {}
    for name in changed_fields(config, default):
        table, source, *path = only, written(config), *name.split(".")
        for part in path[:-1]:
            table, source = table.setdefault(part, {}), source[part]
        if name != "double":
            table[path[-1]] = source[path[-1]]
    assert make_config(Config, only) == config


def test_missing_fields_keep_their_defaults() -> None:
    assert make_config(Config, {}) == Config()
    assert make_config(Config, {"hidden": 8}) == replace(Config(), hidden=8)


def test_a_nested_table_keeps_the_other_fields_of_the_outer_config() -> None:
    config = make_config(Config, {"training": {"schedule": {"kind": "linear"}}})
    assert config.training == Training(epochs=50, schedule=Schedule("linear", warmup=0.1))
    assert make_config(Config, {"head": {"heads": 4}}).head == Head(4)


def test_whole_numbers_become_floats_in_float_fields() -> None:
    config = make_config(Config, {"rate": 1, "levels": [0, 1], "training": {"clip": 2}})
    result = [config.rate, *config.levels, config.training.clip]
    assert result == [1.0, 0.0, 1.0, 2.0]
    assert {type(value) for value in result} == {float}


def test_null_is_accepted_only_for_optional_fields() -> None:
    assert make_config(Config, {"training": {"clip": None}}).training.clip is None
    assert problem({"hidden": None}).startswith("hidden: found None")


@pytest.mark.parametrize(
    ("values", "start"),
    [
        ({"hidden": True}, "hidden: found True"),
        ({"hidden": 8.0}, "hidden: found 8.0"),
        ({"hidden": "8"}, "hidden: found '8'"),
        ({"gated": 1}, "gated: found 1"),
        ({"title": 3}, "title: found 3"),
        ({"rate": True}, "rate: found True"),
        ({"rate": float("nan")}, "rate: found nan"),
        ({"rate": float("-inf")}, "rate: found -inf"),
        ({"levels": [0.1, 0.5, float("inf")]}, "levels[2]: found inf"),
        ({"kernels": [5, 2.5]}, "kernels[1]: found 2.5"),
        ({"kernels": 5}, "kernels: found 5"),
        ({"kernels": "57"}, "kernels: found '57'"),
        ({"training": 3}, "training: found 3"),
        (
            {"training": {"clip": "off"}},
            "training.clip: found 'off'",
        ),
        ({"head": []}, "head: found []"),
        ({"head": {}}, "head.heads: missing"),
        ({"head": {"heads": 1, "order": True}}, "head.order: found True"),
        ({"levels": [0.5]}, "levels"),
        ({"training": {"epochs": 0}}, "training: epochs"),
    ],
)
def test_a_value_of_the_wrong_type_raises(values: dict[str, Any], start: str) -> None:
    assert problem(values).startswith(start)


def test_a_whole_number_beyond_all_floats_raises() -> None:
    assert problem({"rate": 10**400}).startswith("rate: ")


def test_choices_are_listed_with_the_near_miss_first() -> None:
    for value, choices in (
        ("Linaer", "'linear', 'cosine', 'constant'"),
        ("x", "'cosine', 'linear'"),
    ):
        message = problem({"training": {"schedule": {"kind": value}}})
        assert message.startswith(f"training.schedule.kind: found {value!r}")
        assert choices in message


def test_near_misses_ignore_case() -> None:
    @dataclass(frozen=True)
    class Grid:
        bus: Literal["PQ", "PV", "slack"] = "PQ"

    assert problem({"bus": "pv"}, Grid).endswith("'PV', 'PQ', 'slack'")
    assert problem({"bus": "SLACK"}, Grid).endswith("'slack', 'PQ', 'PV'")


@pytest.mark.parametrize(
    ("values", "name", "suggestion"),
    [
        ({"hiden": 1}, "hiden", "hidden"),
        ({"Hidden": 1}, "Hidden", "hidden"),
        ({"epochs": 1}, "epochs", "training.epochs"),
        ({"warm_up": 1}, "warm_up", "training.schedule.warmup"),
        ({"training.clip": 1}, "training.clip", "clip in a table training"),
        ({"training": {"epoch": 1}}, "training.epoch", "training.epochs"),
        ({"training": {"rate": 1}}, "training.rate", "rate"),
        ({"training": {"schedule": {"clip": 1}}}, "training.schedule.clip", "training.clip"),
        ({"head": {"heads": 1, "hidden": 2}}, "head.hidden", "hidden"),
        ({"header": {}}, "header", "head or head.heads"),
        ({"training": {"xyz": 1}}, "training.xyz", "epochs, clip, schedule"),
        ({"double": 128}, "double", "hidden, rate"),
    ],
)
def test_an_unknown_field_raises_and_suggests_the_right_name(
    values: dict[str, Any], name: str, suggestion: str
) -> None:
    message = problem(values)
    assert message.startswith(f"{name}: ")
    assert f" {suggestion}" in message


def test_a_config_without_fields_reports_that_it_has_none() -> None:
    assert make_config(Nothing, {}) == Nothing()
    assert problem({"a": 1}, Nothing).startswith("a: ")


def test_fields_without_a_default_are_required() -> None:
    training, width = problem({"depth": 1}, Required).split("; ")
    assert training.startswith("training: missing")
    assert width.startswith("width: missing")
    values: dict[str, Any] = {"depth": 1, "width": None, "training": {}}
    assert make_config(Required, values) == Required(Training(), 1, None)


def test_all_problems_are_reported_at_once() -> None:
    values = {
        "hiden": 1,
        "rate": "fast",
        "kernels": [1.5, 3, "x"],
        "training": {"epochs": 0},
        "head": {"order": 3},
    }
    names = [text.partition(":")[0] for text in problem(values).split("; ")]
    expected = ["hiden", "rate", "kernels[0]", "kernels[2]", "training", "head.order", "head.heads"]
    assert names == expected


def test_a_config_with_a_wrong_value_does_not_check_its_defaults() -> None:
    @dataclass(frozen=True)
    class Range:
        low: int = 0
        high: int = 1

        def __post_init__(self) -> None:
            if self.low >= self.high:
                raise ConfigError("low must lie below high")

    assert problem({"low": 5, "hihg": 9}, Range).startswith("hihg: ")
    assert problem({"low": 5, "high": "9"}, Range).startswith("high: found '9'")
    assert problem({"low": 5}, Range) == "low must lie below high"


@pytest.mark.parametrize("kind", [dict, list[int], int | str, tuple[int, str], tuple[bytes, ...]])
def test_a_config_class_with_an_unsupported_field_type_raises_type_error(kind: Any) -> None:
    odd: Any = dataclass(frozen=True)(type("Odd", (), {"__annotations__": {"part": kind}}))
    with pytest.raises(TypeError, match=r"Odd\.part"):
        make_config(odd, {"part": {}})


def test_toml_and_json_of_the_same_config_are_equal(tmp_path: Path) -> None:
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
        ("c.yaml", b"hidden: 3", "found the suffix '.yaml'"),
        ("c", b"hidden = 3", "found the suffix ''"),
        ("c.toml", b"hidden 3", "not TOML"),
        ("c.toml", b"hidden = 1\nhidden = 2", "not TOML"),
        ("c.toml", b'title = "\xff"', "not TOML"),
        ("c.toml", b"a = " + b"[" * 100_000, "not TOML"),
        ("c.json", b"{", "not JSON"),
        ("c.json", b"", "not JSON"),
        (
            "c.json",
            b'{"training": {"clip": 1, "epochs": 1, "epochs": 2}}',
            "not JSON in UTF-8 (duplicate key 'epochs')",
        ),
        ("c.json", b"[" * 100_000, "not JSON"),
        ("c.json", b"[1]", "holds [1]"),
        ("c.json", b'{"rate": NaN, "hidden": "x"}', "not JSON in UTF-8 (NaN"),
        ("c.toml", b"rate = inf", "rate: found inf"),
        ("c.toml", b"title = 2015-01-01", "title: found datetime.date(2015, 1, 1)"),
        ("c.toml", b"[training]\nepochs = 0", "training: epochs"),
    ],
)
def test_a_file_without_a_config_raises_with_its_path(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    file = tmp_path / name
    file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        read_config(Config, file)
    assert str(caught.value).startswith(f"{file}: {message}")


def test_a_missing_file_and_a_folder_raise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        read_config(Config, tmp_path / "none.toml")
    (tmp_path / "folder.toml").mkdir()
    for folder in (tmp_path, tmp_path / "folder.toml"):
        with pytest.raises(ConfigError, match=folder.name):
            read_config(Config, folder)


def test_only_duplicate_keys_of_one_object_raise() -> None:
    assert parse_json('{"a": {"a": 1}, "b": [{"a": 2}]}') == {"a": {"a": 1}, "b": [{"a": 2}]}
    with pytest.raises(ValueError, match="'a'"):
        parse_json('[{"b": {"a": 1, "c": 2, "a": 1}}]')


def test_changed_fields_are_listed_in_field_order() -> None:
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


def test_a_nested_config_of_another_type_counts_as_one_change() -> None:
    class Longer(Training):
        pass

    assert changed_fields(Config(training=Longer()), Config(training=Training())) == ["training"]


def test_comparing_configs_of_two_types_raises() -> None:
    with pytest.raises(TypeError, match="Schedule"):
        changed_fields(Training(), Schedule())
