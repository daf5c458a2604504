"""Generation: the same bytes with any threads, after any interruption; options and errors."""

import signal
import subprocess
import sys
import time
from dataclasses import asdict, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from powerphase.axes import THETA, P, Q, V
from powerphase.dataset import (
    RecipeOptions,
    Store,
    generate,
    make_recipe,
    open_store,
    read_manifest,
)
from powerphase.errors import (
    CaseError,
    PowerFlowError,
    PowerphaseError,
    RecipeError,
    SignalError,
    StoreError,
    UnknownName,
)
from powerphase.grid import BACKED_OFF, CARRIED, NEWTON, PD, PQ, PV, SLACK, load_grid
from powerphase.synthesis import Injections, Signals
from tests.dataset.exact import HEAVY, UNSOLVABLE, exact_signals, files_of, stressed_signals
from tests.warm import FORKSERVER

GRID = "ieee14"


@pytest.mark.parametrize(("threads", "work_steps"), [(2, 96), (1, 37), (2, 480), (3, 960), (2, 7)])
def test_threads_and_work_sizes_do_not_change_the_bytes(
    tmp_path: Path, undisturbed: Path, signals: Signals, threads: int, work_steps: int
) -> None:
    generate(GRID, tmp_path / "s", signals=signals, threads=threads, work_steps=work_steps)
    assert files_of(tmp_path / "s") == files_of(undisturbed)


def _generate(out: Path, threads: int, work_steps: int) -> None:
    generate(GRID, out, signals=exact_signals(), threads=threads, work_steps=work_steps)


def _start(out: Path, threads: int, work_steps: int) -> BaseProcess:
    """Start a generator, forked so that a kill after a random time hits the work, not imports."""
    child = FORKSERVER.Process(target=_generate, args=(out, threads, work_steps))
    child.start()
    return child


def _n_recorded(out: Path) -> int:
    """Number of blocks in the manifest; -1 without a manifest."""
    manifest = read_manifest(out)
    return -1 if manifest is None else len(manifest.blocks)


def _wait(out: Path, child: BaseProcess, n_blocks: int) -> None:
    """Wait until so many blocks are recorded, or the generator has ended."""
    while _n_recorded(out) < n_blocks and child.exitcode is None:
        time.sleep(0.002)


@pytest.fixture(scope="module")
def work_seconds(tmp_path_factory: pytest.TempPathFactory) -> float:
    """Time from the first manifest of a generator to its end, in a warm child process."""
    for attempt in range(2):
        out = tmp_path_factory.mktemp("timing") / str(attempt)
        child = _start(out, 2, 96)
        _wait(out, child, 0)
        start = time.perf_counter()
        child.join()
        assert child.exitcode == 0
    return time.perf_counter() - start


def test_a_killed_generator_can_be_continued_with_the_same_bytes(
    tmp_path: Path, undisturbed: Path, work_seconds: float
) -> None:
    """Killed at random times, and as soon as one or two of the three blocks are recorded."""
    moments = np.random.default_rng(20).uniform(0, 0.9, 10) * work_seconds
    kills = interrupted = 0
    for number, moment in enumerate(moments):
        out, threads, work_steps = tmp_path / f"{number}", 1 + number % 2, (96, 37, 480)[number % 3]
        child = _start(out, threads, work_steps)
        n_blocks = (0, 0, 1, 2)[number // 2 % 4]
        _wait(out, child, n_blocks)
        child.join(0 if n_blocks else moment)
        child.kill()
        child.join()
        kills += child.exitcode == -signal.SIGKILL
        manifest = read_manifest(out)
        interrupted += manifest is not None and not manifest.complete
        generate(GRID, out, signals=exact_signals(), threads=threads, work_steps=work_steps)
        assert files_of(out) == files_of(undisturbed)
    assert kills >= 6
    assert interrupted >= 3  # other kills come before the first record or after the last


def test_progress_counts_finished_blocks(tmp_path: Path, signals: Signals) -> None:
    class Stop(Exception):
        pass

    def stop_after_first_block(done: int, total: int) -> None:
        if done:
            raise Stop

    with pytest.raises(Stop):
        generate(GRID, tmp_path / "s", signals=signals, on_progress=stop_after_first_block)
    with pytest.raises(StoreError, match="1 of 3 blocks"):
        open_store(tmp_path / "s")
    reports: list[tuple[int, int]] = []
    generate(GRID, tmp_path / "s", signals=signals, on_progress=lambda *r: reports.append(r))
    assert reports == [(960, 2880), (1920, 2880), (2880, 2880)]


def test_specified_quantities_are_stored_exactly(undisturbed: Path, signals: Signals) -> None:
    store, grid = open_store(undisturbed), load_grid(GRID)
    p_mw, q_mvar = Injections(grid, signals, RecipeOptions.seed, "proportional").steps(0, 2880)
    state = store.read()
    with_p, with_q = grid.bus_type != SLACK, grid.bus_type == PQ
    assert np.array_equal(state[:, with_p, P], p_mw[:, with_p].astype(np.float32))
    assert np.array_equal(state[:, with_q, Q], q_mvar[:, with_q].astype(np.float32))
    assert not np.array_equal(state[:, grid.bus_type == PV, Q], q_mvar[:, grid.bus_type == PV])
    assert (state[:, ~with_q, V] == np.float32(1.02)).all()
    assert (state[:, grid.bus_type == SLACK, THETA] == 0).all()
    empty = with_q & (grid.bus[:, PD] == 0)
    assert empty.any()
    assert (state[:, empty, P] == 0).all()
    assert (state[:, empty, Q] == 0).all()


def test_a_record_that_starts_later_has_the_same_days(
    tmp_path: Path, undisturbed: Path, signals: Signals
) -> None:
    part = generate(GRID, tmp_path / "s", signals=signals, start="2015-01-07", end="2015-01-19")
    assert part.manifest.n_steps == 13 * 96
    assert part.time[0] == np.datetime64("2015-01-07")
    whole = open_store(undisturbed)
    assert np.array_equal(part.read(), whole.read(slice("2015-01-07", "2015-01-20")))


@pytest.fixture(scope="module")
def stressed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Store, list[int], list[int]]:
    """A record with unsolvable steps at its start and across two blocks, and one too heavy."""
    out = tmp_path_factory.mktemp("stressed") / "s"
    return generate(GRID, out, signals=stressed_signals(), seed=0), UNSOLVABLE, HEAVY


def test_unsolvable_steps_have_the_last_solved_state_even_across_blocks(
    stressed: tuple[Store, list[int], list[int]],
) -> None:
    store, unsolvable, _ = stressed
    state, provenance = store.read(), store.provenance
    assert np.flatnonzero(provenance == CARRIED).tolist() == unsolvable
    for step in (959, 960, 961):
        assert np.array_equal(state[step], state[958])
    for step in (0, 1):  # no step lies before them, so they have the first solved state
        assert np.array_equal(state[step], state[2])
    assert np.isnan(np.asarray(store.array("backoff")[...])[unsolvable]).all()


def test_backed_off_steps_have_a_scale(
    stressed: tuple[Store, list[int], list[int]],
) -> None:
    store, _, heavy = stressed
    backoff = np.asarray(store.array("backoff")[...])
    assert np.flatnonzero(store.provenance == BACKED_OFF).tolist() == heavy
    assert 0.7 <= backoff[heavy[0]] < 1
    assert (backoff[store.provenance == NEWTON] == 1).all()
    assert store.manifest.provenance == [25 * 96 - 7, 0, 1, 6]


def test_a_record_without_any_solvable_step_raises(tmp_path: Path) -> None:
    signals = exact_signals(20)
    values = signals.values_mw.copy()
    values[-96:, 0] *= 100  # the mean over the record is solvable, its last day is not
    with pytest.raises(PowerFlowError, match="no step of the record"):
        generate(
            GRID,
            tmp_path / "s",
            signals=replace(signals, values_mw=values),
            start="2015-01-20",
        )


def test_the_fingerprint_does_not_depend_on_names(
    signals: Signals,
) -> None:
    grid = load_grid(GRID)
    options: dict[str, Any] = asdict(RecipeOptions())
    recipe = make_recipe(grid, signals, RecipeOptions())
    renamed = make_recipe(
        replace(grid, name="other"),
        replace(signals, edition="other", attribution="other"),
        RecipeOptions.parse(
            **{**options, "setpoint": "1.020", "start": "2015-01-01", "end": "20150130"}
        ),
    )
    assert renamed.fingerprint == recipe.fingerprint
    for change in ({"seed": 1}, {"dispatch": "slack"}, {"setpoint": "case"}, {"end": "2015-01-29"}):
        different = make_recipe(grid, signals, RecipeOptions.parse(**{**options, **change}))
        assert different.fingerprint != recipe.fingerprint


@pytest.mark.parametrize(
    ("options", "error", "fact"),
    [
        ({"grid": "iee14"}, UnknownName, "ieee14"),
        ({"grid": "no/such.m"}, CaseError, "no/such.m"),
        ({"dispatch": "proportionate"}, UnknownName, "proportional"),
        ({"engine": "dask"}, UnknownName, "local, ray"),
        ({"setpoint": "high"}, RecipeError, "'high'"),
        ({"setpoint": 102.0}, RecipeError, "102 p.u."),
        ({"start": "yesterday"}, RecipeError, "'yesterday'"),
        ({"start": "2016-01-01"}, RecipeError, "2015-01-01 to 2015-01-30"),
        ({"start": "2015-01-09", "end": "2015-01-08"}, RecipeError, "2015-01-09 to 2015-01-08"),
        ({"signals": "no.csv"}, SignalError, "no.csv"),
        ({"signals": "synthetic", "edition": "mine"}, SignalError, "'mine'"),
        ({"signals": "no.csv", "edition": "My Own"}, SignalError, "'My Own'"),
        ({"out": "s3://bucket/s"}, StoreError, "s3://bucket/s"),
        ({"work_steps": 0}, RecipeError, "work_steps 0"),
        ({"threads": 0}, RecipeError, "threads 0"),
        ({"edition": "mine"}, RecipeError, "edition"),
    ],
)
def test_invalid_options_raise_before_anything_is_written(
    tmp_path: Path,
    signals: Signals,
    options: dict[str, Any],
    error: type[PowerphaseError],
    fact: str,
) -> None:
    arguments: dict[str, Any] = {
        "grid": GRID,
        "out": tmp_path / "s",
        "signals": signals,
        **options,
    }
    with pytest.raises(error, match=fact):
        generate(**arguments)
    assert not (tmp_path / "s").exists()


def test_a_grid_that_cannot_be_solved_at_its_mean_raises(tmp_path: Path, signals: Signals) -> None:
    grid = load_grid(GRID)
    bus = grid.bus.copy()
    bus[:, PD] *= 30
    with pytest.raises(PowerFlowError, match="ieee14"):
        generate(replace(grid, bus=bus), tmp_path / "s", signals=signals)


def test_case_setpoints_and_slack_dispatch(tmp_path: Path, signals: Signals) -> None:
    grid = load_grid(GRID)
    options: dict[str, Any] = {"signals": signals, "end": "2015-01-02"}
    case = generate(GRID, tmp_path / "case", setpoint="case", **options)
    held = grid.bus_type != PQ
    assert np.allclose(case.read(variable="V")[:, held], grid.setpoint_pu[held], rtol=1e-7)
    slack = generate(GRID, tmp_path / "slack", dispatch="slack", **options)
    generator = int(grid.bus_id[np.flatnonzero((grid.bus_type == PV) & (grid.bus[:, PD] == 0))[0]])
    assert np.ptp(slack.read(bus=generator, variable="P")) == 0
    assert np.ptp(case.read(bus=generator, variable="P")) == 0  # the file has no generation there
    editions = [store.manifest.edition for store in (case, slack)]
    assert editions == [f"{signals.edition}-case", f"{signals.edition}-slack"]
    load = slack.read(variable="P")[:, grid.bus_type != SLACK].sum(axis=1)
    assert np.corrcoef(load, slack.read(bus=1, variable="P"))[0, 1] < -0.999


def test_memory_does_not_grow_with_the_record(tmp_path: Path) -> None:
    """Peak memory of a process after one block and after nine more."""
    code = f"""
import resource
from powerphase import generate

for end in ("2015-01-10", "2015-03-31"):
    generate("activsg500", {str(tmp_path)!r} + "/" + end, end=end, threads=2)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""
    command = [sys.executable, "-c", code]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    peaks = [int(line) for line in output.split()]
    assert peaks[1] < 1.15 * peaks[0] + 40_000  # KiB: two more blocks may wait to be written
