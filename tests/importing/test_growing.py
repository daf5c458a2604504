"""A record grows whole or not at all, and what was fitted on it stays usable."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from powerphase import Store, Task, export, outlook, score
from powerphase.dataset import open_store, verify
from powerphase.errors import ExportError, PowerphaseError, RecordError, StoreError
from powerphase.evaluation import make_forecaster
from powerphase.evaluation.forecasting import forecast
from powerphase.importing import import_states, parts, storing
from tests.command_line import run
from tests.importing.conftest import long_table, stamps, wide_table

DAY = 96


@pytest.fixture(scope="module")
def months(sixty_days: Store) -> np.ndarray:
    """The states of sixty days with gaps, a stuck sensor and a spike."""
    states = sixty_days.read().astype(np.float64)
    random = np.random.default_rng(5)
    states[random.random(states.shape) < 0.05] = np.nan
    states[2000:2300, 3, 0] = 40.0
    states[3000:3040] = np.nan
    states[4000, 4, 2] = 0.0
    return states


@pytest.fixture(scope="module")
def grown(sixty_days: Store, months: np.ndarray, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A record that grew from 58 days to 59 and to 60, with its fingerprints and a training."""
    folder: Path = tmp_path_factory.mktemp("grown")
    path, chain = folder / "store", []
    table = long_table(sixty_days, months)
    stop = 58 * DAY * 14
    store = import_states(table[:stop], path, grid="ieee14")
    chain.append(store.manifest.fingerprint)
    run("train", "factorforge", "--data", path, "--out", folder / "run")
    for first, last in ((57, 59), (59, 60)):  # the second overlaps with what is known
        more = table[first * DAY * 14 : last * DAY * 14]
        store = import_states(more, path, append=True)
        chain.append(store.manifest.fingerprint)
    return store, chain, folder / "run"


def test_growing_gives_the_record_that_one_import_gives(
    grown: Any, sixty_days: Store, months: np.ndarray, tmp_path: Path
) -> None:
    store, chain, _ = grown
    whole = import_states(long_table(sixty_days, months), tmp_path / "store", grid="ieee14")
    np.testing.assert_array_equal(store.read(), whole.read())
    everything = (slice(0, store.manifest.n_steps), slice(0, 56))
    np.testing.assert_array_equal(
        store.read_observed(*everything), whole.read_observed(*everything)
    )
    assert verify(store.path).valid
    assert len(set(chain)) == 3
    assert [store.steps_of(link) for link in chain] == [58 * DAY, 59 * DAY, 60 * DAY]
    assert whole.grew_from(whole.manifest.fingerprint)
    assert not whole.grew_from(chain[0])


@pytest.mark.parametrize("form", ["long", "wide"])
def test_a_large_file_is_imported_in_parts_with_the_same_values(
    form: str,
    sixty_days: Store,
    months: np.ndarray,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = {"long": long_table, "wide": wide_table}[form](sixty_days, months)
    file = tmp_path / "states.parquet"
    table.to_parquet(file, row_group_size=5000)
    whole = import_states(file, tmp_path / "whole", grid="ieee14")
    monkeypatch.setattr(parts, "PART_VALUES", 1)
    monkeypatch.setattr(parts, "LEAST_ROWS", 38 * DAY * (14 if form == "long" else 1) + 5)
    store = import_states(file, tmp_path / "store", grid="ieee14")
    assert len(store.manifest.recipe["segments"]) == 2
    assert verify(store.path).valid
    np.testing.assert_array_equal(store.read(), whole.read())
    everything = (slice(0, store.manifest.n_steps), slice(0, 56))
    np.testing.assert_array_equal(
        store.read_observed(*everything), whole.read_observed(*everything)
    )
    table[::-1].to_parquet(file)
    with pytest.raises(RecordError):
        import_states(file, tmp_path / "reversed", grid="ieee14")
    assert sorted(path.name for path in tmp_path.iterdir()) == [file.name, "store", "whole"]


def test_gaps_are_filled_by_the_stated_rule(grown: Any, months: np.ndarray) -> None:
    """Oracle: the rule, step by step, for a channel with random gaps and a long one."""
    store, week = grown[0], 7 * DAY
    series = months[:, 1, 0]
    stored = store.read(variable="P")[:, 1]
    missing = np.isnan(series)
    for step in np.flatnonzero(missing)[40:]:
        before = step - 1
        while missing[before]:
            before -= 1
        after = step + 1
        while missing[after]:
            after += 1
        if after - before - 1 <= 4:
            expected = series[before]
        else:
            source = step - week
            while missing[source]:
                source -= week
            expected = series[source]
        assert stored[step] == np.float32(expected)
    observed = store.read_observed(slice(0, len(series)), slice(4, 5))
    np.testing.assert_array_equal(observed[:, 0], ~missing)


def test_stuck_and_impossible_values_are_found(grown: Any) -> None:
    store = grown[0]
    findings = " ".join(store.manifest.recipe["segments"][0]["findings"])
    assert "P of bus 4" in findings
    assert "V of bus 5" in findings
    observed = store.read_observed(slice(2001, 2300), slice(12, 13))
    assert not observed.any()


@pytest.mark.parametrize("name", ["factorforge", "last-week", "last-7-days", "climatology"])
def test_models_run_on_a_record_with_gaps(grown: Any, name: str) -> None:
    task = Task(grown[0], windows=3)
    evaluation = score(forecast(make_forecaster(name, task, 42), task), task)
    assert np.isfinite(evaluation.row.scores["crps"] or np.nan)
    context = task.test.context(0)
    assert context.past.isfinite().all()
    assert context.observed is not None
    assert not context.observed.all()
    assert task.training.read_observed() is not None


def test_a_training_forecasts_what_follows_the_newest_rows(grown: Any, tmp_path: Path) -> None:
    store, chain, training = grown
    arguments = ("tomorrow", training, "--data", store.path, "--format", "json")
    done = run(*arguments, "--out", tmp_path / "days")
    assert json.loads(done.stdout)["day"] == str(store.time[-1] + np.timedelta64(900, "s"))[:10]
    (file,) = (tmp_path / "days").glob("*.json")
    assert json.loads(file.read_text()) == json.loads(done.stdout)
    shown = run("info", file.with_suffix(""))
    assert "factorforge" in shown.stdout
    scenarios = tmp_path / "scenarios.parquet"
    run("export", file.with_suffix(""), "--data", store.path, "--to", "parquet", "--out", scenarios)
    assert len(pd.read_parquet(scenarios)) == 100 * DAY * 14
    again = run(*arguments, "--out", tmp_path / "days")  # as cron may
    assert again.stdout == done.stdout
    task = Task(store, windows=1, as_of=chain[0])
    table = outlook(make_forecaster(str(training), task, 42), task).to_pandas()
    assert len(table) == 14


def test_scenarios_of_a_record_without_a_grid_have_its_buses(
    grown: Any, sixty_days: Store, months: np.ndarray, tmp_path: Path
) -> None:
    buses = long_table(sixty_days, months).assign(bus=lambda table: "Werk " + table.bus.astype(str))
    store = import_states(buses, tmp_path / "store")
    task = Task(store, windows=1)
    days = forecast(make_forecaster("last-7-days", task, 42), task)
    table = pd.read_parquet(export(days, store, to="parquet", out=tmp_path / "days.parquet"))
    assert set(table.bus) == set(store.bus_id.tolist())
    named = outlook(make_forecaster("last-7-days", task, 42), task).to_pandas()
    assert set(named.name) == {f"Werk {number}" for number in sixty_days.bus_id}
    for form in ("pandapower", "pypsa"):  # there is nothing to tell loads from generators
        with pytest.raises(ExportError):
            export(days, store, to=form, out=tmp_path / form)


def test_a_training_of_another_record_is_rejected(
    grown: Any, sixty_days: Store, months: np.ndarray, tmp_path: Path
) -> None:
    table = long_table(sixty_days, np.nan_to_num(months, nan=1.0))
    other = import_states(table, tmp_path / "store", suspects="keep")
    with pytest.raises(PowerphaseError):
        make_forecaster(str(grown[2]), Task(other, windows=1), 42)
    with pytest.raises(StoreError):
        Task(other, windows=1, as_of=grown[1][0])


@pytest.mark.parametrize("at", ["write", "exchange"])
def test_an_interrupted_append_leaves_the_old_record(
    at: str, original: Store, states: np.ndarray, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = long_table(original, states)
    stop = 9 * DAY * 14
    store = import_states(table[:stop], tmp_path / "store", grid="ieee14")
    before = store.manifest.fingerprint

    def fail(*arguments: Any) -> None:
        raise KeyboardInterrupt

    name = "_write_blocks" if at == "write" else "exchange_folders"
    with monkeypatch.context() as patch:
        patch.setattr(storing, name, fail)
        with pytest.raises(KeyboardInterrupt):
            import_states(table[stop:], store.path, append=True)
    assert open_store(store.path).manifest.fingerprint == before
    assert verify(store.path).valid
    assert [path.name for path in tmp_path.iterdir()] == ["store"]
    after = import_states(table[stop:], store.path, append=True)
    np.testing.assert_array_equal(after.read(), original.read())
    assert verify(after.path).valid


def test_an_interrupted_import_leaves_nothing(
    table: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(storing, "_write_blocks", fail)
        with pytest.raises(KeyboardInterrupt):
            import_states(table, tmp_path / "store", grid="ieee14")
    assert not list(tmp_path.iterdir())


def test_what_cannot_follow_a_record_is_rejected(
    original: Store, states: np.ndarray, table: pd.DataFrame, tmp_path: Path
) -> None:
    stop = 9 * DAY * 14
    store = import_states(table[:stop], tmp_path / "store", grid="ieee14")
    later = table[stop:]
    hourly = later[later.time.str.endswith(":00Z")]
    for rows, fact in (
        (hourly, "3600"),
        (later.assign(bus=later.bus + 100), "101"),
        (later.drop(columns="va_rad"), "theta"),
        (later.assign(p_mw=-later.p_mw), "opposite sign"),
        (later.assign(p_mw=later.p_mw * 1.01), "AC equations"),
    ):
        with pytest.raises(RecordError, match=fact):
            import_states(rows, store.path, append=True)
    assert import_states(table[:stop], store.path, append=True).manifest == store.manifest
    with pytest.raises(StoreError, match="append"):
        import_states(table, store.path, grid="ieee14")
    with pytest.raises(StoreError, match="generated"):
        import_states(later, original.path, append=True)
    assert len(stamps(original)) == 12 * DAY


def test_the_mapping_of_a_record_names_the_buses_of_all_its_parts(
    states: np.ndarray, table: pd.DataFrame, tmp_path: Path
) -> None:
    stop = 9 * DAY * 14
    named = table.assign(bus=[f"ST{bus}" for bus in table.bus])
    mapping = {"buses": {f"ST{bus}": str(bus) for bus in range(1, 15)}}
    for grid in ("ieee14", None):
        path = tmp_path / str(grid)
        import_states(named[:stop], path, grid=grid, mapping=mapping)
        for part, columns in (
            (named[stop : stop + DAY * 14], mapping),
            (named[stop + DAY * 14 : stop + 2 * DAY * 14], None),
        ):
            store = import_states(part, path, mapping=columns, append=True)
        np.testing.assert_array_equal(store.bus_id, np.arange(1, 15))
        np.testing.assert_allclose(store.read(), states[: 11 * DAY], rtol=1e-5, atol=1e-5)


def test_a_mapping_names_buses_of_the_grid_whatever_the_first_source_called_them(
    states: np.ndarray, table: pd.DataFrame, tmp_path: Path
) -> None:
    stop = 9 * DAY * 14
    reversed_names = {str(bus): str(15 - bus) for bus in range(1, 15)}
    first = table[:stop].assign(bus=15 - table[:stop].bus)
    import_states(first, tmp_path / "s", grid="ieee14", mapping={"buses": reversed_names})
    later = table[stop : stop + DAY * 14]
    same = {"buses": {str(bus): str(bus) for bus in range(1, 15)}}
    store = import_states(later, tmp_path / "s", mapping=same, append=True)
    np.testing.assert_allclose(store.read(), states[: 10 * DAY], rtol=1e-5, atol=1e-5)
