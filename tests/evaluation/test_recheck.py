"""Rows scored again: what holds, what was changed, and what nobody can tell."""

import csv
import shutil
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import Result as Shown
from typer.testing import CliRunner

from powerphase import cli
from powerphase.axes import VARIABLES
from powerphase.dataset import Store
from powerphase.evaluation.forecasting import forecast
from powerphase.evaluation.recheck import (
    CANCELLING,
    Check,
    array_differences,
    differences,
    numbers,
    recheck,
)
from powerphase.evaluation.scoring import Evaluation, score
from powerphase.models.naive import LastSevenDays, LastWeek
from powerphase.records.result import NOT_IN_OLDER, RISK, Result, write_result
from powerphase.task.windows import Task

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def place(sixty_days: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two forecasts, one with windows of its own, lying at different depths."""
    root = tmp_path_factory.mktemp("forecasts")
    forecast(LastSevenDays(), Task(sixty_days), out=root / "a" / "b" / "seven")
    forecast(LastWeek(), Task(sixty_days, windows=3), out=root / "week")
    return root


@pytest.fixture(scope="module")
def scored(sixty_days: Store, place: Path) -> tuple[Evaluation, Evaluation]:
    seven = score(place / "a" / "b" / "seven", Task(sixty_days), device="cpu")
    return seven, score(place / "week", Task(sixty_days, windows=3), device="cpu")


@pytest.fixture(scope="module")
def rows(scored: tuple[Evaluation, Evaluation]) -> tuple[Result, Result]:
    return scored[0].row, scored[1].row


@pytest.fixture(scope="module")
def files(
    scored: tuple[Evaluation, Evaluation], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Path]:
    """The rows as they were written, with their sidecars."""
    root = tmp_path_factory.mktemp("results")
    return scored[0].save(root), scored[1].save(root)


def checked(row: Result, file: Path, place: Path, store: Store) -> Check:
    (check,) = recheck({file: row}, place, Path(store.path).parent, device="cpu")
    return check


def with_crps(row: Result, factor: float) -> Result:
    """The row with another CRPS everywhere, so that it does not contradict itself."""
    changed = {
        "scores": row.scores | {"crps": factor * row.scores["crps"]},
        "by_window": row.by_window | {"crps": [factor * v for v in row.by_window["crps"]]},
        "by_type": {
            kind: row.by_type[kind] | {"crps": factor * row.by_type[kind]["crps"]}
            for kind in VARIABLES
        },
    }
    return replace(row, **changed)


def test_honest_rows_match_whatever_their_windows(
    rows: tuple[Result, Result], files: tuple[Path, Path], place: Path, sixty_days: Store
) -> None:
    pairs = dict(zip(files, rows, strict=True))
    found = list(recheck(pairs, place, sixty_days.path, device="cpu"))
    assert [(check.outcome, check.why, check.differences) for check in found] == [
        ("matches", "", ())
    ] * 2


def test_a_changed_score_is_named_with_both_numbers(
    rows: tuple[Result, Result], files: tuple[Path, Path], place: Path, sixty_days: Store
) -> None:
    found = checked(with_crps(rows[0], 0.999), files[0], place, sixty_days)
    assert found.outcome == "differs"
    first = found.differences[0]
    assert first.name == "crps"
    assert first.new == pytest.approx(rows[0].scores["crps"])
    assert first.old == pytest.approx(0.999 * rows[0].scores["crps"])
    names = {difference.name for difference in found.differences}
    assert names == {name for name in numbers(rows[0]) if name.rpartition(".")[2][:4] == "crps"}
    assert {"by_type.V.crps", "by_window.crps[9]"} <= names


def test_the_last_digits_may_differ_and_those_before_may_not(rows: tuple[Result, Result]) -> None:
    assert list(differences(with_crps(rows[0], 1 + 0.9e-5), rows[0])) == []
    assert list(differences(with_crps(rows[0], 1 + 1.1e-5), rows[0])) != []


def with_bias(row: Result, bias: float) -> Result:
    """The row with this excursion bias in every window."""
    n_windows = len(row.windows)
    return replace(
        row,
        scores=row.scores | {"excursion_error": 1e-3, "excursion_bias": bias},
        by_window=row.by_window
        | {"excursion_error": [1e-3] * n_windows, "excursion_bias": [bias] * n_windows},
        by_type=row.by_type
        | {"V": row.by_type["V"] | {"excursion_error": 1e-3, "excursion_bias": bias}},
    )


def test_a_bias_is_as_exact_as_the_excursions_that_cancel_in_it(
    rows: tuple[Result, Result],
) -> None:
    assert list(differences(with_bias(rows[0], 1e-7), with_bias(rows[0], 1.09e-7))) == []
    assert list(differences(with_bias(rows[0], 1e-7), with_bias(rows[0], 1.2e-7))) != []


def test_a_number_that_is_not_there_again_differs(rows: tuple[Result, Result]) -> None:
    lacking = replace(
        rows[0],
        scores=rows[0].scores | {"fair_crps": None},
        by_window=rows[0].by_window | {"fair_crps": None},
        by_type={kind: own | {"fair_crps": None} for kind, own in rows[0].by_type.items()},
    )
    assert next(differences(rows[0], lacking)).name == "fair_crps"
    assert next(differences(lacking, rows[0])).new is not None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"model": "ets"}, "no forecast file"),
        ({"seed": 7}, "no forecast file"),
        ({"variant": "short"}, "no forecast file"),
        ({"fingerprint": "f" * 64}, "its forecast file has another fingerprint"),
        ({"config": {"width": 3}, "task_version": 9}, "another task_version, config"),
    ],
)
def test_what_has_no_forecast_of_its_own_is_unchecked(
    change: dict[str, Any], why: str, rows: tuple[Result, Result], place: Path, sixty_days: Store
) -> None:
    found = checked(replace(rows[0], **change), Path("row.json"), place, sixty_days)
    assert found.outcome == "unchecked"
    assert why in found.why


def test_without_its_data_a_row_is_unchecked(
    rows: tuple[Result, Result], place: Path, tmp_path: Path
) -> None:
    (found,) = recheck({Path("row.json"): rows[0]}, place, tmp_path)
    assert (found.outcome, found.why) == ("unchecked", f"no data set {rows[0].fingerprint[:12]}")


def test_two_forecasts_of_one_name_are_not_chosen_between(
    rows: tuple[Result, Result], place: Path, sixty_days: Store, tmp_path: Path
) -> None:
    for name in ("one", "two"):
        shutil.copytree(place / "week", tmp_path / name)
    assert (
        "several forecast files: " in checked(rows[1], Path("row.json"), tmp_path, sixty_days).why
    )


def test_a_damaged_forecast_is_unchecked_and_the_rest_goes_on(
    rows: tuple[Result, Result],
    files: tuple[Path, Path],
    place: Path,
    sixty_days: Store,
    tmp_path: Path,
) -> None:
    broken = Path(shutil.copytree(place, tmp_path / "f"))
    for chunk in (file for file in (broken / "week" / "values" / "c").rglob("*") if file.is_file()):
        chunk.write_bytes(b"")
    pairs = {files[1]: rows[1], files[0]: rows[0]}
    found = list(recheck(pairs, broken, sixty_days.path, device="cpu"))
    assert [check.outcome for check in found] == ["unchecked", "matches"]
    assert "the file is damaged" in found[0].why


def moved(sidecar: Mapping[str, np.ndarray], name: str, by: Any) -> dict[str, np.ndarray]:
    """The sidecar with one array moved by so much."""
    return {**sidecar, name: (sidecar[name] + by).astype(sidecar[name].dtype)}


def test_a_changed_array_is_named_with_its_first_differing_number(
    scored: tuple[Evaluation, Evaluation], place: Path, sixty_days: Store, tmp_path: Path
) -> None:
    row, name = scored[0].row, "by_bus/safety_mbrier"
    by = np.where(np.arange(len(scored[0].sidecar[name])) >= 2, 0.3, 0.0)
    file = write_result(row, moved(scored[0].sidecar, name, by), tmp_path)
    found = checked(row, file, place, sixty_days)
    assert found.outcome == "differs"
    (only,) = found.differences
    assert (only.name, only.new) == (f"{name}[2]", scored[0].sidecar[name][2])
    assert only.old == pytest.approx(only.new + 0.3)


def test_every_array_is_compared(scored: tuple[Evaluation, Evaluation]) -> None:
    new = scored[0].sidecar
    assert list(array_differences(new, new)) == []
    for name, array in new.items():
        changed = np.full_like(array, 99)
        changed[(-1,) * array.ndim] = 98
        (found,) = array_differences({**new, name: changed}, new)
        assert found.name == f"{name}{[0] * array.ndim}"


def test_arrays_have_as_many_digits_as_their_type(scored: tuple[Evaluation, Evaluation]) -> None:
    new = scored[0].sidecar
    one_more = np.nextafter(new["shown/error"], np.float16(np.inf))
    crps = new["by_bus/crps"].astype(float)
    for name, within, beyond in (
        (RISK, 1, 2),
        ("shown/error", one_more.astype(float) - new["shown/error"], 0.01),
        ("by_bus/crps", 0.9e-5 * crps, 1.1e-5 * crps),
    ):
        assert list(array_differences(moved(new, name, within), new)) == [], name
        assert len(list(array_differences(moved(new, name, beyond), new))) == 1, name
    for exact in ("risk/happened", "shown/bus_id", "shown/window"):
        assert len(list(array_differences(moved(new, exact, 1), new))) == 1, exact


@pytest.mark.parametrize(("left", "whole"), CANCELLING.items())
def test_an_array_is_as_exact_as_the_excursions_that_cancel_in_it(left: str, whole: str) -> None:
    name = f"by_step/{left}"
    new = {f"by_step/{whole}": np.full((2, 4), 1e-3), name: np.full((2, 4), 1e-7)}
    assert list(array_differences(moved(new, name, 0.9e-8), new)) == []
    assert list(array_differences(moved(new, name, 2e-8), new)) != []


def test_the_brier_score_of_a_certain_violation_is_as_exact_as_a_sum_of_weights() -> None:
    for name in ("by_bus/safety_mbrier", "by_bus/brier"):
        new = {name: np.zeros(3)}
        assert list(array_differences(moved(new, name, 0.9e-5), new)) == []
        assert list(array_differences(moved(new, name, 1.1e-5), new)) != []


def test_an_array_of_another_form_differs_and_one_that_was_never_kept_does_not(
    scored: tuple[Evaluation, Evaluation],
) -> None:
    new, name = scored[0].sidecar, "by_bus/brier"
    for other in (new[name][:-1], new[name][:, None], new[name].astype(str)):
        (found,) = array_differences({**new, name: other}, new)
        assert (found.name, found.new) == (name, f"float32 {new[name].shape}")
        assert found.old == f"{other.dtype} {other.shape}"
    assert list(array_differences(without(new, "risk/"), new)) == []


def test_how_long_a_power_flow_took_is_not_compared() -> None:
    old, new = (
        {"physical/seconds": np.array(s), "physical/steps": np.array(s)} for s in (1.0, 2.0)
    )
    assert [found.name for found in array_differences(old, new)] == ["physical/steps"]


def without(sidecar: Mapping[str, np.ndarray], *parts: str) -> dict[str, np.ndarray]:
    """The sidecar without the arrays whose names begin so."""
    return {name: array for name, array in sidecar.items() if not name.startswith(parts)}


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (None, "cannot be read"),
        (b"no arrays", "cannot be read"),
        (b"PK\x05\x06" + bytes(18), "lacks reliability and"),  # a sound archive of nothing
    ],
)
def test_without_its_sidecar_a_right_row_is_unchecked_and_a_wrong_one_wrong(
    content: bytes | None,
    says: str,
    rows: tuple[Result, Result],
    place: Path,
    sixty_days: Store,
    tmp_path: Path,
) -> None:
    file = tmp_path / "row.json"
    if content is not None:
        file.with_suffix(".npz").write_bytes(content)
    right = checked(rows[0], file, place, sixty_days)
    assert right.outcome == "unchecked"
    assert "its scores match" in right.why
    assert f"{file.with_suffix('.npz')}: {says}" in right.why
    wrong = checked(with_crps(rows[0], 0.999), file, place, sixty_days)
    assert (wrong.outcome, wrong.differences[0].name) == ("differs", "crps")


def test_an_older_sidecar_matches_and_one_that_lost_an_array_is_unchecked(
    scored: tuple[Evaluation, Evaluation], place: Path, sixty_days: Store, tmp_path: Path
) -> None:
    row, sidecar = scored[0].row, scored[0].sidecar
    file = write_result(row, without(sidecar, "risk/"), tmp_path)
    assert checked(row, file, place, sixty_days).outcome == "matches"
    write_result(row, without(sidecar, "reliability"), tmp_path)
    lost = checked(row, file, place, sixty_days)
    assert lost.outcome == "unchecked"
    assert "npz: lacks reliability; restore it" in lost.why


def test_only_newer_arrays_are_missing_beside_committed_rows(
    scored: tuple[Evaluation, Evaluation],
) -> None:
    sidecar = scored[0].sidecar
    for committed in RESULTS.rglob("*.npz"):
        lacking = set(sidecar) - set(np.load(committed).files)
        assert lacking <= set(NOT_IN_OLDER), committed


def here(*arguments: object) -> Shown:
    return CliRunner().invoke(cli.app, [*map(str, arguments)], env={"COLUMNS": "200"})


def test_the_command_fails_if_a_row_is_wrong_and_says_which(
    scored: tuple[Evaluation, Evaluation], place: Path, sixty_days: Store, tmp_path: Path
) -> None:
    options = ("--recompute", "--forecasts", place, "--data", sixty_days.path)
    rows = [evaluation.row for evaluation in scored]
    for evaluation in scored:
        evaluation.save(tmp_path / "honest")
    write_result(replace(rows[0], model="ets"), {}, tmp_path / "honest")
    honest = here("leaderboard", tmp_path / "honest", *options)
    assert honest.exit_code == 0, honest.output
    assert "2 match to 5 digits, 0 differ, 1 could not be checked." in honest.stdout
    write_result(with_crps(rows[0], 0.5), {}, tmp_path / "other")
    wrong = here("leaderboard", tmp_path / "other", *options, "--format", "csv")
    assert wrong.exit_code == 1
    lines = list(csv.DictReader(StringIO(wrong.stdout)))
    assert {line["outcome"] for line in lines} == {"differs"}
    assert (lines[0]["number"], float(lines[0]["new"])) == ("crps", rows[0].scores["crps"])
    shown = here("leaderboard", tmp_path / "other", *options)
    assert "crps is " in shown.stdout
    assert "more" in shown.stdout


def test_the_command_fails_if_an_array_beside_a_row_is_wrong(
    scored: tuple[Evaluation, Evaluation], place: Path, sixty_days: Store, tmp_path: Path
) -> None:
    write_result(scored[0].row, moved(scored[0].sidecar, "by_bus/safety_mbrier", 0.3), tmp_path)
    options = ("--recompute", "--forecasts", place, "--data", sixty_days.path)
    shown = here("leaderboard", tmp_path, *options)
    assert shown.exit_code == 1
    assert "by_bus/safety_mbrier[0] is " in shown.stdout


def test_where_nothing_was_checked_the_command_says_so_and_confirms_nothing(
    scored: tuple[Evaluation, Evaluation], place: Path, sixty_days: Store, tmp_path: Path
) -> None:
    write_result(replace(scored[0].row, model="ets"), {}, tmp_path / "results")
    command = ("leaderboard", tmp_path / "results", "--recompute", "--data", sixty_days.path)
    for format in ("table", "csv"):
        shown = here(*command, "--forecasts", place, "--format", format)
        assert shown.exit_code == 1
        assert "NOTHING WAS CHECKED: none of 1 rows" in shown.stderr
        assert "no forecast file" in shown.stdout
    scored[0].save(tmp_path / "results")
    some = here(*command, "--forecasts", place)
    assert (some.exit_code, some.stderr.count("NOTHING")) == (0, 0)


def test_options_that_do_not_go_together_are_refused(
    rows: tuple[Result, Result], place: Path, tmp_path: Path
) -> None:
    write_result(rows[0], {}, tmp_path)
    for options in (
        ("--recompute",),
        ("--recompute", "--forecasts", place),
        ("--forecasts", place),
        ("--recompute", "--statistics", "--forecasts", place, "--data", place),
    ):
        assert here("leaderboard", tmp_path, *options).exit_code == 2, options
