"""Rows scored again: what holds, what was changed, and what nobody can tell."""

import csv
import pickle
import shutil
from collections.abc import Mapping
from dataclasses import replace
from io import StringIO
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerphase import Evaluation, Result, Store, Task, forecast, score
from powerphase.axes import VARIABLES
from powerphase.evaluation import (
    CANCELLING,
    Check,
    array_differences,
    is_confirmed,
    numbers,
    recheck_rows,
    row_differences,
)
from powerphase.models import LastSevenDays, LastWeek
from powerphase.records import (
    FORECASTS,
    NOT_DRAWN_SEEDS,
    RISK,
    ROUNDINGS,
    chunk_file,
    expand,
    forecast_writer,
    may_lack,
    open_forecast,
    read_result,
    round_arrays,
    rounding_of,
    write_result,
)
from tests.command_line import invoke

RESULTS = Path(__file__).parents[2] / "results"


@pytest.fixture(scope="module")
def forecasts(sixty_days: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two forecasts with different windows, at different depths of the folder."""
    root = tmp_path_factory.mktemp("forecasts")
    forecast(LastSevenDays(), Task(sixty_days), out=root / "a" / "b" / "seven")
    forecast(LastWeek(), Task(sixty_days, windows=3), out=root / "week")
    return root


@pytest.fixture(scope="module")
def scored(sixty_days: Store, forecasts: Path) -> tuple[Evaluation, Evaluation]:
    seven = score(forecasts / "a" / "b" / "seven", Task(sixty_days), device="cpu")
    return seven, score(forecasts / "week", Task(sixty_days, windows=3), device="cpu")


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


def check_row(row: Result, file: Path, forecasts: Path, store: Store) -> Check:
    (check,) = recheck_rows({file: row}, forecasts, Path(store.path).parent, device="cpu")
    return check


def with_crps(row: Result, factor: float) -> Result:
    """The row with another CRPS everywhere, so that it stays consistent."""

    def scaled(scores: dict[str, Any]) -> dict[str, Any]:
        return scores | {"crps": factor * scores["crps"]}

    windows = row.by_window["crps"] or []
    return replace(
        row,
        scores=scaled(row.scores),
        by_window=row.by_window | {"crps": [factor * value for value in windows]},
        by_type={kind: scaled(row.by_type[kind]) for kind in VARIABLES},
    )


def test_correct_rows_match_with_any_windows(
    rows: tuple[Result, Result], files: tuple[Path, Path], forecasts: Path, sixty_days: Store
) -> None:
    pairs = dict(zip(files, rows, strict=True))
    checks = recheck_rows(pairs, forecasts, sixty_days.path, device="cpu")
    outcomes = [(check.outcome, check.reason, check.differences) for check in checks]
    assert outcomes == [("matches", "", ())] * 2


def test_a_changed_score_is_named_with_both_numbers(
    rows: tuple[Result, Result], files: tuple[Path, Path], forecasts: Path, sixty_days: Store
) -> None:
    check = check_row(with_crps(rows[0], 0.999), files[0], forecasts, sixty_days)
    assert check.outcome == "differs"
    first = check.differences[0]
    assert first.name == "crps"
    assert first.new == pytest.approx(rows[0].scores["crps"])
    assert first.old == pytest.approx(0.999 * (rows[0].scores["crps"] or 0))
    names = {difference.name for difference in check.differences}
    assert names == {name for name in numbers(rows[0]) if name.rpartition(".")[2][:4] == "crps"}
    assert {"by_type.V.crps", "by_window.crps[9]"} <= names


def test_only_the_last_digits_may_differ(rows: tuple[Result, Result]) -> None:
    assert list(row_differences(with_crps(rows[0], 1 + 0.9e-5), rows[0])) == []
    assert list(row_differences(with_crps(rows[0], 1 + 1.1e-5), rows[0])) != []


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


def test_the_tolerance_of_a_bias_is_relative_to_the_excursions(
    rows: tuple[Result, Result],
) -> None:
    assert list(row_differences(with_bias(rows[0], 1e-7), with_bias(rows[0], 1.09e-7))) == []
    assert list(row_differences(with_bias(rows[0], 1e-7), with_bias(rows[0], 1.2e-7))) != []


def test_a_number_that_is_undefined_again_differs(rows: tuple[Result, Result]) -> None:
    lacking = replace(
        rows[0],
        scores=rows[0].scores | {"fair_crps": None},
        by_window=rows[0].by_window | {"fair_crps": None},
        by_type={kind: scores | {"fair_crps": None} for kind, scores in rows[0].by_type.items()},
    )
    assert next(row_differences(rows[0], lacking)).name == "fair_crps"
    assert next(row_differences(lacking, rows[0])).new is not None


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"model": "ets"}, "no forecast"),
        ({"seed": 7}, "no forecast"),
        ({"variant": "short"}, "no forecast"),
        ({"fingerprint": "f" * 64}, "no data set"),
        ({"config": {"width": 3}}, "config"),
    ],
)
def test_a_row_without_its_forecast_is_unchecked(
    change: dict[str, Any],
    reason: str,
    rows: tuple[Result, Result],
    files: tuple[Path, Path],
    forecasts: Path,
    sixty_days: Store,
) -> None:
    check = check_row(replace(rows[0], **change), files[0], forecasts, sixty_days)
    assert check.outcome == "unchecked"
    assert reason in check.reason


def of_windows(row: Result, numbers: list[int]) -> Result:
    """The row as if only these windows had been scored; its means agree with each other."""
    by_window = {
        name: series and [series[k] for k in numbers] for name, series in row.by_window.items()
    }
    means = {
        name: None if series is None else float(np.mean(series))
        for name, series in by_window.items()
    }
    by_type = {kind: {name: means[name] for name in scores} for kind, scores in row.by_type.items()}
    windows = [row.windows[k] for k in numbers]
    return replace(row, windows=windows, by_window=by_window, scores=means, by_type=by_type)


@pytest.mark.parametrize("with_forecast", [True, False])
@pytest.mark.parametrize("chosen", [[3], [0, 1, 2, 3, 4, 5, 6, 7, 8]])
def test_a_row_of_other_windows_than_its_task_s_is_refused(
    rows: tuple[Result, Result],
    files: tuple[Path, Path],
    forecasts: Path,
    sixty_days: Store,
    tmp_path: Path,
    chosen: list[int],
    with_forecast: bool,
) -> None:
    """Such as the best one of ten, under the name of the task with ten."""
    best = of_windows(rows[0], chosen)
    if with_forecast:
        whole = open_forecast(forecasts / "a" / "b" / "seven")
        with forecast_writer(tmp_path / "best", replace(whole.header, windows=best.windows)) as w:
            for k, window in enumerate(chosen):
                w.write(k, slice(None), *whole.read(window, slice(None)))
                w.finish_window(k)
            w.close({})
    check = check_row(best, files[0], tmp_path, sixty_days)
    assert check.outcome == "refused"
    assert best.windows[0] in check.reason


@pytest.mark.parametrize(
    "change",
    [
        {"task": "powerphase-day-ahead-windows"},
        {"task": "powerphase-day-ahead-all"},
        {"task": "powerphase-96-steps-ahead"},
        {"task_version": 9},
        {"grid": "ieee30"},
        {"edition": "opsd"},
    ],
)
def test_a_row_of_other_conditions_than_its_data_set_s_is_refused(
    rows: tuple[Result, Result],
    files: tuple[Path, Path],
    forecasts: Path,
    sixty_days: Store,
    change: dict[str, Any],
) -> None:
    check = check_row(replace(rows[0], **change), files[0], forecasts, sixty_days)
    assert check.outcome == "refused"
    assert check.reason


@pytest.mark.parametrize("name", ["necv", "violations"])
@pytest.mark.parametrize("model", ["last-7-days", "ets"], ids=["with forecast", "without"])
def test_a_row_that_misstates_what_happened_differs(
    rows: tuple[Result, Result],
    files: tuple[Path, Path],
    forecasts: Path,
    sixty_days: Store,
    name: str,
    model: str,
) -> None:
    value = rows[0].truth[name]
    assert value is not None
    wrong = replace(rows[0], model=model, truth={**rows[0].truth, name: value + 0.01})
    check = check_row(wrong, files[0], forecasts, sixty_days)
    assert check.outcome == "differs"
    assert [(d.name, d.old) for d in check.differences] == [(f"truth.{name}", value + 0.01)]
    assert check.differences[0].new == pytest.approx(value)


def test_a_row_without_its_data_set_is_unchecked(
    rows: tuple[Result, Result], files: tuple[Path, Path], forecasts: Path, tmp_path: Path
) -> None:
    (check,) = recheck_rows({files[0]: rows[0]}, forecasts, tmp_path)
    assert check.outcome == "unchecked"
    assert rows[0].fingerprint[:12] in check.reason


def test_a_row_with_two_forecasts_is_unchecked(
    rows: tuple[Result, Result],
    files: tuple[Path, Path],
    forecasts: Path,
    sixty_days: Store,
    tmp_path: Path,
) -> None:
    for name in ("one", "two"):
        shutil.copytree(forecasts / "week", tmp_path / name)
    reason = check_row(rows[1], files[1], tmp_path, sixty_days).reason
    assert all(str(tmp_path / name) in reason for name in ("one", "two"))


@pytest.mark.parametrize("harm", ["empty", "swap"])
def test_only_the_row_of_a_damaged_forecast_is_refused(
    rows: tuple[Result, Result],
    files: tuple[Path, Path],
    forecasts: Path,
    sixty_days: Store,
    tmp_path: Path,
    harm: str,
) -> None:
    broken = Path(shutil.copytree(forecasts, tmp_path / "f"))
    first, second = (broken / "week" / chunk_file("values", window, 0) for window in (0, 1))
    contents = first.read_bytes(), second.read_bytes()
    first.write_bytes(b"" if harm == "empty" else contents[1])
    second.write_bytes(contents[0])
    pairs = {files[1]: rows[1], files[0]: rows[0]}
    checks = list(recheck_rows(pairs, broken, sixty_days.path, device="cpu"))
    assert [check.outcome for check in checks] == ["refused", "matches"]
    assert "week" in checks[0].reason
    assert not is_confirmed(checks)


def shifted(sidecar: Mapping[str, np.ndarray], name: str, amount: Any) -> dict[str, np.ndarray]:
    """The sidecar with one array shifted by an amount."""
    return {**sidecar, name: (sidecar[name] + amount).astype(sidecar[name].dtype)}


def test_a_changed_array_is_named_with_its_first_differing_number(
    scored: tuple[Evaluation, Evaluation], forecasts: Path, sixty_days: Store, tmp_path: Path
) -> None:
    row, name = scored[0].row, "by_bus/safety_mbrier"
    amount = np.where(np.arange(len(scored[0].sidecar[name])) >= 2, 0.3, 0.0)
    file = write_result(row, shifted(scored[0].sidecar, name, amount), tmp_path)
    check = check_row(row, file, forecasts, sixty_days)
    assert check.outcome == "differs"
    (difference,) = check.differences
    new = float(scored[0].sidecar[name][2])
    assert (difference.name, difference.new) == (f"{name}[2]", new)
    assert difference.old == pytest.approx(new + 0.3)


def test_every_array_is_compared(scored: tuple[Evaluation, Evaluation]) -> None:
    new = scored[0].sidecar
    assert list(array_differences(new, new)) == []
    for name, array in new.items():
        if not array.size:
            continue  # the grid has no lines with a rating
        changed = np.full_like(array, 99)
        changed[(-1,) * array.ndim] = 98
        difference = next(array_differences({**new, name: changed}, new))
        part_of = name.removesuffix("_low").removesuffix("_high").removesuffix("_steps")
        assert difference.name.startswith(part_of)


def test_arrays_match_up_to_their_rounding(scored: tuple[Evaluation, Evaluation]) -> None:
    new = scored[0].sidecar
    assert rounding_of(new) == ROUNDINGS[0]
    crps, exact = (new[f"by_bus/{name}"].astype(float) for name in ("crps", "safety_mbrier"))
    for name, within, beyond in (
        (RISK, 1, 2),
        ("shown/scenario_low", 1e-6 * new["shown/scenario_low"], 0.3),
        ("by_bus/crps", 2**-9 * crps, 2**-6 * crps),
        ("by_bus/safety_mbrier", 0.9e-5 * exact, 1.5e-5 + 2e-5 * exact),
    ):
        assert list(array_differences(shifted(new, name, within), new)) == [], name
        assert len(list(array_differences(shifted(new, name, beyond), new))) == 1, name
    for name in ("risk/happened", "shown/bus_id", "shown/window"):
        assert len(list(array_differences(shifted(new, name, 1), new))) == 1, name


def test_sidecars_match_if_one_is_rounded_a_little_more(
    scored: tuple[Evaluation, Evaluation],
) -> None:
    exact = expand(scored[0].sidecar)
    for coarse, fine in pairwise(reversed(ROUNDINGS)):
        both = [round_arrays(exact, rounding) for rounding in (coarse, fine)]
        assert list(array_differences(*both)) == []
        assert list(array_differences(*reversed(both))) == []
    (difference,) = array_differences(round_arrays(exact, ROUNDINGS[2]), round_arrays(exact, fine))
    assert difference.name == "rounding"


@pytest.mark.parametrize(("left", "whole"), CANCELLING.items())
def test_the_tolerance_of_an_array_is_relative_to_the_excursions(left: str, whole: str) -> None:
    name = f"by_step/{left}"
    new = {f"by_step/{whole}": np.full((2, 4), 1e-3), name: np.full((2, 4), 1e-7)}
    assert list(array_differences(shifted(new, name, 0.9e-8), new)) == []
    assert list(array_differences(shifted(new, name, 3e-8), new)) != []


def test_the_tolerance_of_a_brier_score_is_that_of_a_sum_of_weights() -> None:
    for name in ("by_bus/safety_mbrier", "by_bus/brier"):
        new = {name: np.zeros(3)}
        assert list(array_differences(shifted(new, name, 0.9e-5), new)) == []
        assert list(array_differences(shifted(new, name, 1.1e-5), new)) != []


def test_an_array_of_another_shape_or_type_differs_and_a_newer_one_does_not(
    scored: tuple[Evaluation, Evaluation],
) -> None:
    new, name = scored[0].sidecar, "by_bus/brier"
    for other in (new[name][:-1], new[name][:, None], new[name].astype(str)):
        (difference,) = array_differences({**new, name: other}, new)
        assert (difference.name, difference.new) == (name, f"float32 {new[name].shape}")
        assert difference.old == f"{other.dtype} {other.shape}"
    assert list(array_differences(without(new, "risk/"), new)) == []


def test_the_time_of_a_power_flow_is_not_compared() -> None:
    old, new = (
        {"physical/seconds": np.array(s), "physical/steps": np.array(s)} for s in (1.0, 2.0)
    )
    assert [difference.name for difference in array_differences(old, new)] == ["physical/steps"]


def without(sidecar: Mapping[str, np.ndarray], *parts: str) -> dict[str, np.ndarray]:
    """The sidecar without the arrays whose names start like this."""
    return {name: array for name, array in sidecar.items() if not name.startswith(parts)}


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"no arrays",
        b"PK\x05\x06" + bytes(18),
        pickle.dumps({"by_bus/crps": [1.0]}),
        "cut",
    ],
    ids=["missing", "empty", "text", "no members", "pickle", "cut"],
)
@pytest.mark.parametrize("model", ["last-7-days", "ets"], ids=["with forecast", "without"])
def test_a_row_without_a_sound_sidecar_is_refused(
    content: bytes | str | None,
    model: str,
    rows: tuple[Result, Result],
    files: tuple[Path, Path],
    forecasts: Path,
    sixty_days: Store,
    tmp_path: Path,
) -> None:
    file = tmp_path / "row.json"
    if content == "cut":
        content = files[0].with_suffix(".npz").read_bytes()[:-200]
    if isinstance(content, bytes):
        file.with_suffix(".npz").write_bytes(content)
    check = check_row(replace(rows[0], model=model), file, forecasts, sixty_days)
    assert check.outcome == "refused"
    assert str(file.with_suffix(".npz")) in check.reason


def test_an_older_sidecar_matches_and_an_incomplete_one_is_refused(
    scored: tuple[Evaluation, Evaluation], forecasts: Path, sixty_days: Store, tmp_path: Path
) -> None:
    row, sidecar = scored[0].row, scored[0].sidecar
    file = write_result(row, without(sidecar, "risk/"), tmp_path)
    assert check_row(row, file, forecasts, sixty_days).outcome == "matches"
    write_result(row, without(sidecar, "reliability"), tmp_path)
    lost = check_row(row, file, forecasts, sixty_days)
    assert lost.outcome == "refused"
    assert "reliability" in lost.reason


def test_committed_sidecars_lack_only_newer_arrays(
    scored: tuple[Evaluation, Evaluation],
) -> None:
    sidecar = scored[0].sidecar
    for committed in RESULTS.rglob("*.npz"):
        seed = int(committed.stem.rpartition("-")[2])
        lacking = set(sidecar) - set(np.load(committed).files)
        if seed in NOT_DRAWN_SEEDS:
            lacking = {name for name in lacking if not name.startswith(FORECASTS)}
        schema = read_result(committed.with_suffix(".json")).schema
        assert lacking <= may_lack(schema), committed


def test_the_command_fails_if_a_row_is_wrong_and_names_it(
    scored: tuple[Evaluation, Evaluation], forecasts: Path, sixty_days: Store, tmp_path: Path
) -> None:
    options = ("--recompute", "--forecasts", forecasts, "--data", sixty_days.path)
    rows = [evaluation.row for evaluation in scored]
    for evaluation in scored:
        evaluation.save(tmp_path / "honest")
    write_result(replace(rows[0], model="ets"), scored[0].sidecar, tmp_path / "honest")
    honest = invoke("leaderboard", tmp_path / "honest", *options)
    assert honest.exit_code == 0, honest.output
    assert "2 match to 5 digits, 0 differ, 0 are refused, 1 could not be checked" in honest.stdout
    write_result(with_crps(rows[0], 0.5), scored[0].sidecar, tmp_path / "other")
    wrong = invoke("leaderboard", tmp_path / "other", *options, "--format", "csv")
    assert wrong.exit_code == 1
    lines = list(csv.DictReader(StringIO(wrong.stdout)))
    assert {line["outcome"] for line in lines} == {"differs"}
    assert (lines[0]["number"], float(lines[0]["new"])) == ("crps", rows[0].scores["crps"])
    shown = invoke("leaderboard", tmp_path / "other", *options)
    assert repr(0.5 * (rows[0].scores["crps"] or 0)) in shown.stdout


def test_the_command_fails_if_an_array_is_wrong_and_names_it(
    scored: tuple[Evaluation, Evaluation], forecasts: Path, sixty_days: Store, tmp_path: Path
) -> None:
    write_result(scored[0].row, shifted(scored[0].sidecar, "by_bus/safety_mbrier", 0.3), tmp_path)
    options = ("--recompute", "--forecasts", forecasts, "--data", sixty_days.path)
    shown = invoke("leaderboard", tmp_path, *options)
    assert shown.exit_code == 1
    assert "by_bus/safety_mbrier[0]" in shown.stdout


def test_the_command_fails_if_nothing_could_be_checked(
    scored: tuple[Evaluation, Evaluation], forecasts: Path, sixty_days: Store, tmp_path: Path
) -> None:
    write_result(replace(scored[0].row, model="ets"), scored[0].sidecar, tmp_path / "results")
    command = ("leaderboard", tmp_path / "results", "--recompute", "--data", sixty_days.path)
    for format in ("table", "csv"):
        shown = invoke(*command, "--forecasts", forecasts, "--format", format)
        assert shown.exit_code == 1
        assert "NOTHING WAS CHECKED" in shown.stderr
        assert "no forecast file" in shown.stdout
    scored[0].save(tmp_path / "results")
    some = invoke(*command, "--forecasts", forecasts)
    assert (some.exit_code, some.stderr.count("NOTHING")) == (0, 0)


def test_options_that_exclude_each_other_are_rejected(
    rows: tuple[Result, Result], forecasts: Path, tmp_path: Path
) -> None:
    write_result(rows[0], {}, tmp_path)
    for options in (
        ("--recompute",),
        ("--recompute", "--forecasts", forecasts),
        ("--forecasts", forecasts),
        ("--recompute", "--statistics", "--forecasts", forecasts, "--data", forecasts),
    ):
        assert invoke("leaderboard", tmp_path, *options).exit_code == 2, options
