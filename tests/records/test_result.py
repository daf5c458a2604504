"""Result rows: they survive a round trip, and invalid ones raise."""

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerphase.errors import ResultError
from powerphase.records import (
    SCHEMA,
    SCORES,
    Result,
    Score,
    read_result,
    read_results,
    read_sidecar,
    result_rules,
    write_result,
)
from tests.records.rows import NEW_FACTS, WINDOWS, first_schema, row

ARRAYS: dict[str, np.ndarray] = {
    "by_bus/crps": np.linspace(0, 1, 8, dtype=np.float32).reshape(2, 4),
    "by_step/cvar_0.1": np.arange(4, dtype=np.float32)[None],
    "scenarios": np.arange(24, dtype=np.float16).reshape(2, 3, 4),
    "buses": np.array([7, 104]),
    "file": np.array(1.5),
}
GONE = object()


def text_with(path: str, value: Any) -> str:
    """The text of a valid row with another value at one path, such as `scores/crps`."""
    values = json.loads(row().to_json())
    *outer, last = path.split("/")
    inner = reduce(lambda values, key: values[key], outer, values)
    if value is GONE:
        del inner[last]
    else:
        inner[int(last) if isinstance(inner, list) else last] = value
    return json.dumps(values)


@pytest.mark.parametrize("weighted", [False, True])
def test_a_row_survives_a_round_trip_through_text(weighted: bool) -> None:
    result = row(weighted=weighted, variant="wta", commit="49c2464", parameters=None)
    text = result.to_json()
    assert Result.from_json(text, "row.json") == result
    assert Result.from_json(text, "row.json").to_json() == text
    assert text.endswith("}\n")
    assert json.loads(text)["schema"] == SCHEMA


def test_a_row_names_the_series_that_failed_and_says_nothing_if_none_did() -> None:
    windows = {WINDOWS[0]: {"P of bus 7": "a reason", "P of bus 3": "another"}, WINDOWS[1]: None}
    failed = {"instead": "the last days", "series": windows}
    result = row(failed=failed)
    assert Result.from_json(result.to_json(), "row.json") == result
    assert result.failed_series == ["P of bus 3", "P of bus 7"]
    assert "failed" not in json.loads(row().to_json())
    assert row().failed_series == []


FIRST_SCHEMA = json.dumps(first_schema())


def test_a_row_of_the_first_schema_reads_and_stays_what_it_is() -> None:
    result = Result.from_json(FIRST_SCHEMA, "row.json")
    assert [getattr(result, name) for name in NEW_FACTS] == [None] * len(NEW_FACTS)
    assert json.loads(result.to_json()) == json.loads(FIRST_SCHEMA)
    assert Result.from_json(result.to_json(), "row.json") == result


@pytest.mark.parametrize(("name", "value"), [("model_version", 1), ("joint", True)])
def test_a_row_of_the_first_schema_cannot_state_later_facts(name: str, value: Any) -> None:
    with pytest.raises(ResultError, match=name):
        Result.from_json(json.dumps(first_schema(**{name: value})), "row.json")
    with pytest.raises(ResultError, match=name):
        replace(Result.from_json(FIRST_SCHEMA, "row.json"), **{name: value})


@pytest.fixture
def later_score() -> Iterator[str]:
    """A score that only the newest schema has."""
    with pytest.MonkeyPatch.context() as patch:
        later = {**SCORES, "later": Score("later", "", "", high=1.0, since=SCHEMA)}
        patch.setattr(result_rules, "SCORES", later)
        result_rules.row_rules.cache_clear()
        yield "later"
    result_rules.row_rules.cache_clear()


def test_an_older_row_lacks_later_scores_and_a_new_one_must_not(later_score: str) -> None:
    result = Result.from_json(FIRST_SCHEMA, "row.json")
    blocks: list[dict[str, Any]] = [result.scores, result.by_window, *result.by_type.values()]
    assert [block[later_score] for block in blocks] == [None] * 6
    assert later_score not in result.to_json()
    with pytest.raises(ResultError, match=later_score):
        row()
    result.scores[later_score] = 0.5
    with pytest.raises(ResultError, match=later_score):
        result.to_json()


@settings(max_examples=25)
@given(st.floats(0, allow_infinity=False), st.floats(0, 1), st.floats(0, allow_infinity=False))
def test_numbers_survive_a_round_trip(necv: float, violations: float, seconds: float) -> None:
    cost = row().cost | {"train_s": seconds}
    truth = {"necv": necv, "violations": violations, "overloads": None}
    result = row(truth=truth, cost=cost)
    assert Result.from_json(result.to_json(), "row.json") == result


def test_text_does_not_depend_on_the_order_of_keys() -> None:
    def backwards(values: Any) -> Any:
        if isinstance(values, dict):
            return {key: backwards(values[key]) for key in reversed(values)}
        return values

    result = row()
    reordered = Result(**backwards(vars(result)))
    assert list(reordered.scores) != list(result.scores)
    assert reordered.to_json() == result.to_json()


def test_each_score_takes_one_line_of_text() -> None:
    lines = [line.strip() for line in row().to_json().splitlines()]
    for name in SCORES:
        assert sum(line.startswith(f'"{name}": ') for line in lines) >= 2


def test_scores_may_be_whole_numbers() -> None:
    text = text_with("truth/necv", 0)
    assert Result.from_json(text, "row.json").truth["necv"] == 0


def test_names_and_paths_contain_variant_and_seed() -> None:
    plain, variant = row(model="last-week"), row(variant="wta", seed=3142)
    folder = "powerphase-day-ahead/synthetic/activsg500"
    assert (plain.name, str(plain.path)) == ("last-week", f"{folder}/last-week-42.json")
    assert variant.name == "powerforge+wta"
    assert str(variant.path) == f"{folder}/powerforge+wta-3142.json"


INVALID = [
    ("schema", SCHEMA + 1, rf"schema {SCHEMA + 1}"),
    ("schema", 0, r"schema 0"),
    ("schema", True, r"schema True"),
    ("schema", GONE, ""),
    ("modle", "x", r"'modle'.*'model'"),
    ("seed", GONE, r"the row lacks 'seed'"),
    ("task", "Day Ahead", r"task is 'Day Ahead'"),
    ("task_version", 0, r"task_version is 0"),
    ("task_version", 1.0, r"task_version is 1.0"),
    ("grid", "../secrets", r"grid is '../secrets'"),
    ("grid", "", r"grid is ''"),
    ("edition", "opsd/r", r"edition is 'opsd/r'"),
    ("fingerprint", "abc", r"fingerprint is 'abc'"),
    ("fingerprint", "G" * 64, r"fingerprint is 'GGG.*'"),
    ("model", "PowerForge", r"model is 'PowerForge'"),
    ("model", "powerforge\n", r"model is 'powerforge\\n'"),
    ("model", None, r"model is None"),
    ("variant", "", r"variant is ''"),
    ("config", [1], r"config is \[1\]"),
    ("model_version", GONE, r"model_version"),
    ("model_version", None, r"model_version is None"),
    ("model_version", 0, r"model_version is 0"),
    ("joint", GONE, r"joint"),
    ("joint", 1, r"joint is 1"),
    ("daily_slope", GONE, r"daily_slope"),
    ("daily_slope", {"P": 1.0}, r"daily_slope is .*'P': 1.0"),
    ("daily_slope/P", "flat", r"daily_slope is .*flat"),
    ("training", GONE, r"training"),
    ("training/best_epoch", 0, r"training is .*'best_epoch': 0"),
    ("training/curve/loss", GONE, r"training is "),
    ("training/curve/loss", [0.5], r"training.curve has columns of different lengths"),
    ("training/curve/step/0", 0.5, r"training is "),
    ("failed", {"instead": "days"}, r"failed is "),
    ("failed", {"instead": "days", "series": ["P of bus 1"]}, r"failed is "),
    ("failed", {"instead": "days", "series": {WINDOWS[0]: {"P of bus 1": 3}}}, r"failed is "),
    ("data_verified", GONE, r"data_verified"),
    ("data_verified", "yes", r"data_verified is 'yes'"),
    ("parameters", 1.5, r"parameters is 1.5"),
    ("parameters", -1, r"parameters is -1"),
    ("seed", True, r"seed is True"),
    ("seed", "42", r"seed is '42'"),
    ("windows", [], r"windows is \[\]"),
    ("windows", "2016-07-01T00:00", r"windows is '2016-07-01T00:00'"),
    ("windows/0", "2016-7-1T00:00", r"windows is .*2016-7-1"),
    ("windows/1", "2016-07-01T00:00", r"windows is "),
    ("windows/0", "2016-12-31T00:00", r"windows is "),
    ("windows/0", 20160701, r"windows is \[20160701"),
    ("windows", WINDOWS[:2], r"by_window.crps has 3 values for 2 windows"),
    ("scenarios", 0, r"scenarios is 0"),
    ("truth", {}, r"truth lacks 'necv'; truth lacks 'violations'"),
    ("truth/violations", 1.5, r"truth.violations is 1.5"),
    ("scores", None, r"scores is None"),
    ("scores/crsp", 0.1, r"scores .*'crsp'.*'crps'"),
    ("scores/crps", GONE, r"scores lacks 'crps'"),
    ("scores/crps", None, r"scores.crps is None"),
    ("scores/crps", -0.1, r"scores.crps is -0.1"),
    ("scores/crps", True, r"scores.crps is True"),
    ("scores/crps", "0.1", r"scores.crps is '0.1'"),
    ("scores/crps", 10**400, r"scores.crps is 1000.*"),
    ("scores/coverage_80", 1.01, r"scores.coverage_80 is 1.01"),
    ("scores/fair_crps", None, "fair_crps"),
    ("by_type/theta", GONE, r"by_type lacks 'theta'"),
    ("by_type/Theta", {}, r"by_type .*'Theta'.*'theta'"),
    ("by_type/P", 0.1, r"by_type.P is 0.1"),
    ("by_type/P/brier", 0.1, r"by_type.P .*'brier'"),
    ("by_type/V/brier", GONE, r"by_type.V lacks 'brier'"),
    ("by_type/Q/mse", -1.0, r"by_type.Q.mse is -1.0"),
    ("by_type/Q/fair_crps", None, "fair_crps"),
    ("by_type/P/crps", 0.9999, r"scores.crps is 0.* types is 0"),
    ("by_type/V/brier", 0.9999, r"scores.brier is 0.* types is 0.9999"),
    ("by_window/mse", GONE, r"by_window lacks 'mse'"),
    ("by_window/mse", None, r"by_window.mse is None"),
    ("by_window/mse", 0.1, r"by_window.mse is 0.1"),
    ("by_window/mse/1", None, r"by_window.mse is .*None.*"),
    ("by_window/mse/1", -0.1, r"by_window.mse is .*-0.1.*"),
    ("by_window/mse", [0.1] * 4, r"by_window.mse has 4 values for 3 windows"),
    ("by_window/fair_crps", None, "fair_crps"),
    ("by_window/energy/0", 7.0, r"scores.energy is 0.* windows is"),
    ("scores/safety_mbrier", 1e-9, r"scores.brier of 0.* scores.safety_mbr"),
    ("scores/excursion_bias", -1.0, r"scores.excursion_bias of -1.0"),
    ("cost", {"train": 1}, r"cost .*'train'.*'train_s'"),
    ("cost/train_s", -1.0, r"cost.train_s is -1.0"),
    ("cost/steps", 1.5, r"cost.steps is 1.5"),
    ("cost/hardware", None, r"cost.hardware is None"),
    ("version", "", r"version is ''"),
    ("commit", 49, r"commit is 49"),
    ("date", "20260701", r"date is '20260701'"),
    ("date", "2026-02-30", r"date is '2026-02-30'"),
    ("date", 2026, r"date is 2026"),
]


@pytest.mark.parametrize(("path", "value", "fact"), INVALID)
def test_an_invalid_row_raises(path: str, value: Any, fact: str) -> None:
    with pytest.raises(ResultError, match=f"^results/x.json: .*{fact}") as caught:
        Result.from_json(text_with(path, value), "results/x.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", SCORES)
def test_every_score_must_be_the_mean_over_windows(name: str) -> None:
    values = row().by_window[name]
    assert values is not None
    value = values[0] * 1.0001
    with pytest.raises(ResultError, match=rf"scores.{name} is .* windows"):
        Result.from_json(text_with(f"by_window/{name}/0", value), "row.json")


@pytest.mark.parametrize("name", [name for name, score in SCORES.items() if score.pointwise])
def test_every_pointwise_score_must_be_the_mean_over_types(name: str) -> None:
    value = row().by_type["V"][name]
    assert value is not None
    with pytest.raises(ResultError, match=rf"scores.{name} is .* types"):
        Result.from_json(text_with(f"by_type/V/{name}", value * 1.0001), "row.json")


@pytest.mark.parametrize("name", ["distortion", "energy"])
def test_a_joint_score_need_not_be_the_mean_over_types(name: str) -> None:
    assert Result.from_json(text_with(f"by_type/V/{name}", 7.0), "row.json").by_type["V"][name] == 7


def test_means_may_differ_by_rounding() -> None:
    crps = row().scores["crps"]
    assert crps is not None
    text = text_with("scores/crps", crps * (1 + 1e-9))
    assert Result.from_json(text, "row.json").scores["crps"] != crps


def test_the_error_lists_all_problems() -> None:
    values = json.loads(text_with("by_window/energy/0", 7.0)) | {"seed": -1, "date": "today"}
    del values["model"]
    with pytest.raises(ResultError) as caught:
        Result.from_json(json.dumps(values), "row.json")
    for problem in ("'model'", "seed is -1", "date is 'today'", "scores.energy"):
        assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", ""),
        ("[1, 2]", r"\[1, 2\]"),
        ('{"schema": 1, "schema": 1}', "'schema'"),
        ('{"schema": 1, "cost": {"steps": 1, "steps": 2}}', "'steps'"),
        ('{"schema": NaN}', "NaN"),
        ('{"schema": -Infinity}', "-Infinity"),
        ("[" * 100_000, ""),
        (text_with("scores/crps", 0.5).replace("0.5", "1e999", 1), r"crps is inf"),
        (text_with("config", {"rate": 0.5}).replace("0.5", "1e999", 1), r"config is .*inf"),
    ],
)
def test_text_that_is_not_a_row_raises(text: str, fact: str) -> None:
    with pytest.raises(ResultError, match=f"^row.json: .*{fact}"):
        Result.from_json(text, "row.json")


@pytest.mark.parametrize("value", [(5, 25), {1: 2}, float("nan"), np.float32(1)])
def test_a_config_that_json_would_change_raises(value: Any) -> None:
    with pytest.raises(ResultError, match=r"config is .*"):
        row(config={"option": value})


def test_rows_are_read_from_a_path_a_string_or_several(tmp_path: Path) -> None:
    file = write_result(row(), {}, tmp_path / "a")
    write_result(row(seed=7), {}, tmp_path / "b")
    for one_path in (file, str(file), tmp_path / "a", str(tmp_path / "a"), [tmp_path / "a"]):
        assert read_results(one_path) == [row()]
    assert len(read_results([tmp_path / "a", str(tmp_path / "b")])) == 2


def test_rows_become_a_table_with_a_line_each(tmp_path: Path) -> None:
    rows = [row(seed=7, weighted=True), row(seed=42)]
    for result in rows:
        write_result(result, {}, tmp_path)
    table = read_results(tmp_path).to_pandas()
    assert sorted(table["seed"]) == [7, 42]
    for _, line in table.iterrows():
        (result,) = (result for result in rows if result.seed == line["seed"])
        assert line["crps"] == result.scores["crps"]
        assert line["cost.train_s"] == result.cost["train_s"]
        assert np.isnan(line["fair_crps"]) == (result.scores["fair_crps"] is None)


def test_an_invalid_row_can_neither_be_created_nor_written(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="seed is -1"):
        row(seed=-1)
    result = row()
    result.scores["crps"] = float("nan")
    with pytest.raises(ResultError, match=r"powerforge-42.json: scores.crps is nan"):
        write_result(result, {}, tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_row_and_its_sidecar_are_read_as_written(tmp_path: Path) -> None:
    result = row(variant="wta")
    path = write_result(result, ARRAYS, tmp_path)
    assert path == tmp_path / result.path
    assert read_result(path) == result
    sidecar = read_sidecar(path)
    assert sidecar.keys() == ARRAYS.keys()
    for name, values in ARRAYS.items():
        assert sidecar[name].dtype == values.dtype
        assert sidecar[name].shape == values.shape
        assert np.array_equal(sidecar[name], values)
    names = {file.name for file in path.parent.iterdir()}
    assert names == {"powerforge+wta-42.json", "powerforge+wta-42.npz"}


def test_numpy_can_read_a_sidecar(tmp_path: Path) -> None:
    path = write_result(row(), ARRAYS, tmp_path)
    with np.load(path.with_suffix(".npz"), allow_pickle=False) as archive:
        assert set(archive.files) == set(ARRAYS)
        assert np.array_equal(archive["by_step/cvar_0.1"], ARRAYS["by_step/cvar_0.1"])


def test_equal_arrays_give_equal_bytes(tmp_path: Path) -> None:
    transposed = {name: np.asarray(ARRAYS[name], order="F") for name in reversed(ARRAYS)}
    first, second = (
        write_result(row(), arrays, tmp_path / folder).with_suffix(".npz")
        for folder, arrays in (("first", ARRAYS), ("second", transposed))
    )
    assert first.read_bytes() == second.read_bytes()
    with zipfile.ZipFile(first) as archive:
        assert {member.date_time for member in archive.infolist()} == {(1980, 1, 1, 0, 0, 0)}


def test_a_row_is_never_without_its_sidecar(
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


def test_arrays_of_python_objects_raise(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="odd"):
        write_result(row(), {"odd": np.array([{}])}, tmp_path)
    assert not list(tmp_path.iterdir())


def write_objects(file: Path) -> None:
    np.savez(file, odd=np.array([{}], dtype=object))


def truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-40])


def overwrite(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[120:160] = bytes(40)
    file.write_bytes(content)


def replace_content(file: Path) -> None:
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("notes.txt", "no array")


@pytest.mark.parametrize(
    "damage", [Path.unlink, write_objects, truncate, overwrite, replace_content]
)
def test_a_damaged_sidecar_raises(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    path = write_result(row(), ARRAYS, tmp_path)
    damage(path.with_suffix(".npz"))
    with pytest.raises(ResultError, match=r"powerforge-42.npz"):
        read_sidecar(path)


@pytest.mark.parametrize("damaged", ["{", text_with("scores/crps", 9.0)])
def test_a_damaged_row_is_not_overwritten(tmp_path: Path, damaged: str) -> None:
    file = write_result(row(), ARRAYS, tmp_path)
    file.write_text(damaged)
    with pytest.raises(ResultError, match=r"powerforge-42.json"):
        write_result(row(), ARRAYS, tmp_path)
    file.unlink()
    assert read_result(write_result(row(), ARRAYS, tmp_path)) == row()


def test_a_row_at_the_path_of_another_raises(tmp_path: Path) -> None:
    path = write_result(row(), {}, tmp_path)
    for name in ("powerforge-22.json", "../pegase1354/powerforge-42.json"):
        wrong = path.parent / name
        wrong.parent.mkdir(exist_ok=True)
        wrong.write_text(path.read_text())
        with pytest.raises(ResultError, match=str(row().path)):
            read_result(wrong)


def test_a_row_is_read_by_any_form_of_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_result(row(), {}, tmp_path)
    monkeypatch.chdir(path.parent)
    assert read_result("powerforge-42.json") == row()
    assert read_result("../activsg500/powerforge-42.json") == row()


def test_files_that_cannot_be_read_raise(tmp_path: Path) -> None:
    with pytest.raises(ResultError, match=r"none.json"):
        read_result(tmp_path / "none.json")
    (tmp_path / "odd.json").write_bytes(b"\xff\xfe")
    with pytest.raises(ResultError, match=r"odd.json"):
        read_result(tmp_path / "odd.json")


def test_rows_of_folders_and_files_are_read_once_and_in_order(tmp_path: Path) -> None:
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
    names = ["empty:", "nowhere:", "forge-1.json:", "forge-3.json:"]
    assert len(lines) == len(names)
    for line, name in zip(lines, names, strict=True):
        assert name in line


def test_reading_results_loads_no_torch() -> None:
    code = "import sys, powerphase.report.boards; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
