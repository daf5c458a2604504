"""A result row: what is written is read back, and what contradicts itself is refused."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerphase.errors import ResultError
from powerphase.records.result import (
    SCHEMA,
    Result,
    read_result,
    read_results,
    read_sidecar,
    write_result,
)
from powerphase.records.scores import SCORES
from tests.records.rows import WINDOWS, row

ARRAYS = {
    "by_bus/crps": np.linspace(0, 1, 6).reshape(2, 3),
    "by_step/cvar_0.1": np.arange(4, dtype=np.float32),
    "scenarios": np.arange(24, dtype=np.float16).reshape(2, 3, 4),
    "buses": np.array([7, 104]),
    "file": np.array(1.5),
}
GONE = object()


def changed(place: str, value: Any) -> str:
    """The text of a sound row in which one place, `scores/crps` say, holds another value."""
    values = json.loads(row().to_json())
    *outer, last = place.split("/")
    inner = reduce(lambda found, key: found[key], outer, values)
    if value is GONE:
        del inner[last]
    else:
        inner[int(last) if isinstance(inner, list) else last] = value
    return json.dumps(values)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_row_survives_its_text(weighted: bool) -> None:
    result = row(weighted=weighted, variant="wta", commit="49c2464", parameters=None)
    text = result.to_json()
    assert Result.from_json(text, "here") == result
    assert Result.from_json(text, "here").to_json() == text
    assert text.endswith("}\n")
    assert json.loads(text)["schema"] == SCHEMA


@settings(max_examples=25)
@given(st.floats(0, allow_infinity=False), st.floats(0, 1), st.floats(0, allow_infinity=False))
def test_reading_gives_equal_numbers(necv: float, violations: float, seconds: float) -> None:
    cost = row().cost | {"train_s": seconds}
    result = row(truth={"necv": necv, "violations": violations}, cost=cost)
    assert Result.from_json(result.to_json(), "here") == result


def test_equal_rows_give_equal_text_whatever_the_order_of_their_keys() -> None:
    def backwards(values: Any) -> Any:
        if isinstance(values, dict):
            return {key: backwards(values[key]) for key in reversed(values)}
        return values

    result = row()
    turned = Result(**backwards(vars(result)))
    assert list(turned.scores) != list(result.scores)
    assert turned.to_json() == result.to_json()


def test_each_score_takes_one_line_of_text() -> None:
    lines = [line.strip() for line in row().to_json().splitlines()]
    for name in SCORES:
        assert sum(line.startswith(f'"{name}": ') for line in lines) >= 2


def test_whole_numbers_stand_for_scores_too() -> None:
    text = changed("truth/necv", 0)
    assert Result.from_json(text, "here").truth["necv"] == 0


def test_names_and_places_tell_variant_and_seed() -> None:
    plain, variant = row(model="last-week"), row(variant="wta", seed=3142)
    folder = "powerphase-day-ahead/synthetic/activsg500"
    assert (plain.name, str(plain.path)) == ("last-week", f"{folder}/last-week-42.json")
    assert variant.name == "powerforge+wta"
    assert str(variant.path) == f"{folder}/powerforge+wta-3142.json"


REFUSED = [
    ("schema", 2, r"written in schema 2, this version reads schema 1"),
    ("schema", True, r"written in schema True"),
    ("schema", GONE, r"no result row; name a row's file"),
    ("modle", "x", r"the row has an unknown key 'modle' \(did you mean 'model'\?\)"),
    ("seed", GONE, r"the row lacks 'seed'"),
    ("task", "Day Ahead", r"task is 'Day Ahead', needed a name in lower case"),
    ("task_version", 0, r"task_version is 0, needed a whole number from 1 on"),
    ("task_version", 1.0, r"task_version is 1.0, needed a whole number"),
    ("grid", "../secrets", r"grid is '../secrets', needed a name that a folder can have"),
    ("grid", "", r"grid is '', needed"),
    ("edition", "opsd/r", r"edition is 'opsd/r'"),
    ("fingerprint", "abc", r"fingerprint is 'abc', needed 64 hexadecimal digits"),
    ("fingerprint", "G" * 64, r"fingerprint is 'GGG.*', needed 64 hexadecimal digits"),
    ("model", "PowerForge", r"model is 'PowerForge', needed a name in lower case"),
    ("model", "powerforge\n", r"model is 'powerforge\\n'"),
    ("model", None, r"model is None"),
    ("variant", "", r"variant is '', needed a name .* or null"),
    ("config", [1], r"config is \[1\], needed an object"),
    ("parameters", 1.5, r"parameters is 1.5"),
    ("parameters", -1, r"parameters is -1"),
    ("seed", True, r"seed is True, needed a whole number from 0 on"),
    ("seed", "42", r"seed is '42'"),
    ("windows", [], r"windows is \[\], needed a list of UTC starts"),
    ("windows", "2016-07-01T00:00", r"windows is '2016-07-01T00:00'"),
    ("windows/0", "2016-7-1T00:00", r"windows is .*2016-7-1"),
    ("windows/1", "2016-07-01T00:00", r"windows is .* in order"),
    ("windows/0", "2016-12-31T00:00", r"windows is .* in order"),
    ("windows/0", 20160701, r"windows is \[20160701"),
    ("windows", WINDOWS[:2], r"by_window.crps has 3 values for 2 windows"),
    ("scenarios", 0, r"scenarios is 0, needed a whole number from 1 on"),
    ("truth", {}, r"truth lacks 'necv'; truth lacks 'violations'"),
    ("truth/violations", 1.5, r"truth.violations is 1.5, needed a number in \[0, 1\]"),
    ("scores", None, r"scores is None, needed an object"),
    ("scores/crsp", 0.1, r"scores has an unknown key 'crsp' \(did you mean 'crps'\?\)"),
    ("scores/crps", GONE, r"scores lacks 'crps'"),
    ("scores/crps", None, r"scores.crps is None, needed a number in \[0, inf\]"),
    ("scores/crps", -0.1, r"scores.crps is -0.1, needed"),
    ("scores/crps", True, r"scores.crps is True, needed a number"),
    ("scores/crps", "0.1", r"scores.crps is '0.1', needed a number"),
    ("scores/crps", 10**400, r"scores.crps is 1000.*, needed a number"),
    ("scores/coverage_80", 1.01, r"scores.coverage_80 is 1.01, needed a number in \[0, 1\]"),
    ("scores/fair_crps", None, r"fair_crps is null in one of scores, by_type and by_window"),
    ("by_type/theta", GONE, r"by_type lacks 'theta'"),
    ("by_type/Theta", {}, r"by_type has an unknown key 'Theta' \(did you mean 'theta'\?\)"),
    ("by_type/P", 0.1, r"by_type.P is 0.1, needed an object"),
    ("by_type/P/brier", 0.1, r"by_type.P has an unknown key 'brier'"),
    ("by_type/V/brier", GONE, r"by_type.V lacks 'brier'"),
    ("by_type/Q/mse", -1.0, r"by_type.Q.mse is -1.0, needed"),
    ("by_type/Q/fair_crps", None, r"fair_crps is null in one of"),
    ("by_type/P/crps", 0.9999, r"scores.crps is 0.*, but the mean over its types is 0"),
    ("by_type/V/brier", 0.9999, r"scores.brier is 0.*, but the mean over its types is 0.9999"),
    ("by_window/mse", GONE, r"by_window lacks 'mse'"),
    ("by_window/mse", None, r"by_window.mse is None, needed a list"),
    ("by_window/mse", 0.1, r"by_window.mse is 0.1, needed a list"),
    ("by_window/mse/1", None, r"by_window.mse is .*None.*, needed a list with a number"),
    ("by_window/mse/1", -0.1, r"by_window.mse is .*-0.1.*, needed a list with a number"),
    ("by_window/mse", [0.1] * 4, r"by_window.mse has 4 values for 3 windows"),
    ("by_window/fair_crps", None, r"fair_crps is null in one of"),
    ("by_window/energy/0", 7.0, r"scores.energy is 0.*, but the mean over its windows is"),
    ("scores/safety_mbrier", 1e-9, r"scores.brier of 0.* is larger in size than scores.safety_mbr"),
    ("scores/excursion_bias", -1.0, r"scores.excursion_bias of -1.0 is larger in size than"),
    (
        "cost",
        {"train": 1},
        r"cost has an unknown key 'train' \(did you mean 'train_s'\?\);",
    ),
    ("cost/train_s", -1.0, r"cost.train_s is -1.0, needed a number in \[0, inf\] or null"),
    ("cost/steps", 1.5, r"cost.steps is 1.5, needed a whole number"),
    ("cost/hardware", None, r"cost.hardware is None, needed some text"),
    ("version", "", r"version is '', needed some text"),
    ("commit", 49, r"commit is 49, needed some text or null"),
    ("date", "20260701", r"date is '20260701', needed a day such as"),
    ("date", "2026-02-30", r"date is '2026-02-30', needed a day such as"),
    ("date", 2026, r"date is 2026, needed a day such as"),
]


@pytest.mark.parametrize(("place", "value", "message"), REFUSED)
def test_an_unsound_row_is_refused(place: str, value: Any, message: str) -> None:
    with pytest.raises(ResultError, match=f"^results/x.json: .*{message}") as caught:
        Result.from_json(changed(place, value), "results/x.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", SCORES)
def test_every_score_must_agree_with_its_windows(name: str) -> None:
    value = row().by_window[name][0] * 1.0001
    with pytest.raises(ResultError, match=rf"scores.{name} is .*over its windows is"):
        Result.from_json(changed(f"by_window/{name}/0", value), "here")


@pytest.mark.parametrize("name", [name for name, score in SCORES.items() if score.pointwise])
def test_every_mean_over_channels_must_agree_with_its_types(name: str) -> None:
    value = row().by_type["V"][name] * 1.0001
    with pytest.raises(ResultError, match=rf"scores.{name} is .*over its types is"):
        Result.from_json(changed(f"by_type/V/{name}", value), "here")


@pytest.mark.parametrize("name", [n for n, score in SCORES.items() if not score.pointwise])
def test_a_score_of_the_whole_grid_is_no_mean_over_types(name: str) -> None:
    assert Result.from_json(changed(f"by_type/V/{name}", 7.0), "here").by_type["V"][name] == 7


def test_rounding_is_no_contradiction() -> None:
    result = row()
    text = changed("scores/crps", result.scores["crps"] * (1 + 1e-9))
    assert Result.from_json(text, "here").scores["crps"] != result.scores["crps"]


def test_all_problems_are_named_at_once() -> None:
    values = json.loads(changed("by_window/energy/0", 7.0)) | {"seed": -1, "date": "today"}
    del values["model"]
    with pytest.raises(ResultError) as caught:
        Result.from_json(json.dumps(values), "here")
    for problem in ("lacks 'model'", "seed is -1", "date is 'today'", "over its windows"):
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"not the JSON of a result"),
        ("[1, 2]", r"holds \[1, 2\], not a result"),
        ('{"schema": 1, "schema": 1}', r"the key 'schema' twice"),
        ('{"schema": 1, "cost": {"steps": 1, "steps": 2}}', r"the key 'steps' twice"),
        ('{"schema": NaN}', r"NaN is no number of JSON"),
        ('{"schema": -Infinity}', r"-Infinity is no number of JSON"),
        ("[" * 100_000, r"not the JSON of a result"),
        (changed("scores/crps", 0.5).replace("0.5", "1e999", 1), r"crps is inf, needed a number"),
        (changed("config", {"rate": 0.5}).replace("0.5", "1e999", 1), r"config is .*inf"),
    ],
)
def test_text_that_is_no_row_is_refused(text: str, message: str) -> None:
    with pytest.raises(ResultError, match=f"^here: .*{message}"):
        Result.from_json(text, "here")


@pytest.mark.parametrize("value", [(5, 25), {1: 2}, float("nan"), np.float32(1)])
def test_a_config_that_json_would_change_is_refused(value: Any) -> None:
    with pytest.raises(ResultError, match=r"config is .*, needed an object of JSON values"):
        row(config={"option": value})


def test_an_unsound_row_can_neither_be_made_nor_written(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"^result row: seed is -1"):
        row(seed=-1)
    result = row()
    result.scores["crps"] = float("nan")
    with pytest.raises(ResultError, match=r"powerforge-42.json: scores.crps is nan"):
        write_result(result, {}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_row_and_its_arrays_survive_the_disk(tmp_path: Path) -> None:
    result = row(variant="wta")
    path = write_result(result, ARRAYS, tmp_path)
    assert path == tmp_path / result.path
    assert read_result(path) == result
    found = read_sidecar(path)
    assert found.keys() == ARRAYS.keys()
    for name, values in ARRAYS.items():
        assert found[name].dtype == values.dtype
        assert found[name].shape == values.shape
        assert np.array_equal(found[name], values)
    beside = {file.name for file in path.parent.iterdir()}
    assert beside == {"powerforge+wta-42.json", "powerforge+wta-42.npz"}


def test_numpy_reads_the_arrays_too(tmp_path: Path) -> None:
    path = write_result(row(), ARRAYS, tmp_path)
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as found:
        assert set(found.files) == set(ARRAYS)
        assert np.array_equal(found["by_step/cvar_0.1"], ARRAYS["by_step/cvar_0.1"])


def test_equal_arrays_give_equal_bytes(tmp_path: Path) -> None:
    turned = {name: np.asarray(ARRAYS[name], order="F") for name in reversed(ARRAYS)}
    one, two = (
        write_result(row(), arrays, tmp_path / place).with_suffix(".npz")
        for place, arrays in (("one", ARRAYS), ("two", turned))
    )
    assert one.read_bytes() == two.read_bytes()
    with zipfile.ZipFile(one) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_row_never_stands_without_its_arrays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replace = Path.replace

    def full_disk(self: Path, target: Path) -> Path:
        if target.suffix == ".json":
            raise OSError("no space left")
        return replace(self, target)

    path = write_result(row(draw=1), ARRAYS, tmp_path)
    before = path.read_bytes()
    monkeypatch.setattr(Path, "replace", full_disk)
    with pytest.raises(OSError, match="no space left"):
        write_result(row(draw=2), {}, tmp_path)
    assert path.read_bytes() == before
    assert read_sidecar(path) == {}
    assert read_results([tmp_path]) == [row(draw=1)]


def test_python_objects_are_not_written(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="array 'odd' holds Python objects"):
        write_result(row(), {"odd": np.array([{}])}, tmp_path)
    assert not list(tmp_path.iterdir())


def with_objects(file: Path) -> None:
    np.savez(file, odd=np.array([{}], dtype=object))


def shortened(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def garbled(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[120:160] = bytes(40)
    file.write_bytes(content)


def with_something_else(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("notes.txt", "no array")


@pytest.mark.parametrize(
    "damage", [Path.unlink, with_objects, shortened, garbled, with_something_else]
)
def test_arrays_that_cannot_be_read_are_refused(
    tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    path = write_result(row(), ARRAYS, tmp_path)
    damage(path.with_suffix(".npz"))
    with pytest.raises(ResultError, match=r"powerforge-42.npz: no readable arrays \(.*\); restore"):
        read_sidecar(path)


@pytest.mark.parametrize("damaged", ["{", changed("scores/crps", 9.0)])
def test_a_damaged_row_says_that_it_must_go_before_another_is_written(
    tmp_path: Path, damaged: str
) -> None:
    file = write_result(row(), ARRAYS, tmp_path)
    file.write_text(damaged)
    with pytest.raises(ResultError, match="remove it and score the forecast again"):
        write_result(row(), ARRAYS, tmp_path)
    file.unlink()
    assert read_result(write_result(row(), ARRAYS, tmp_path)) == row()


def test_a_row_in_the_place_of_another_is_refused(tmp_path: Path) -> None:
    path = write_result(row(), {}, tmp_path)
    belongs = (
        "holds the row that belongs at powerphase-day-ahead/synthetic/activsg500/powerforge-42"
    )
    for place in ("powerforge-22.json", "../pegase1354/powerforge-42.json"):
        other = path.parent / place
        other.parent.mkdir(exist_ok=True)
        other.write_text(path.read_text())
        with pytest.raises(ResultError, match=belongs):
            read_result(other)


def test_a_row_is_in_its_place_however_its_path_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_result(row(), {}, tmp_path)
    monkeypatch.chdir(path.parent)
    assert read_result("powerforge-42.json") == row()
    assert read_result("../activsg500/powerforge-42.json") == row()


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"none.json: cannot be read"):
        read_result(tmp_path / "none.json")
    (tmp_path / "odd.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ResultError, match=r"odd.json: cannot be read"):
        read_result(tmp_path / "odd.json")


def test_folders_and_files_are_read_once_each_in_order(tmp_path: Path) -> None:
    rows = [row(seed=seed, grid=grid) for grid in ("ieee14", "ieee30") for seed in (22, 42)]
    paths = [write_result(result, {}, tmp_path) for result in reversed(rows)]
    assert read_results([tmp_path]) == rows
    assert read_results([str(paths[0]), tmp_path, paths[0].parent / ".." / "ieee30"]) == rows
    assert read_results([paths[0]]) == rows[-1:]
    assert read_results([]) == []


def test_all_broken_files_are_reported_together(tmp_path: Path) -> None:
    paths = [write_result(row(seed=seed), {}, tmp_path / "tree") for seed in (1, 2, 3)]
    paths[0].write_text("{")
    paths[2].write_text(paths[1].read_text())
    (tmp_path / "empty").mkdir()
    with pytest.raises(ResultError) as caught:
        read_results([tmp_path / "tree", tmp_path / "empty", tmp_path / "nowhere"])
    lines = str(caught.value).splitlines()
    found = [
        "empty: no results here",
        "nowhere: no results here",
        "forge-1.json: not",
        "forge-3.json: holds",
    ]
    assert len(lines) == len(found)
    for line, part in zip(lines, found, strict=True):
        assert part in line


def test_reading_results_loads_no_torch() -> None:
    code = "import sys, powerphase.report.leaderboard; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
