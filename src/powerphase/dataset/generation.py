"""Generate a data set from its recipe: make missing blocks, repair damaged ones."""

import os
from collections.abc import Callable, Generator
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from powerphase.dataset.layout import BLOCK_STEPS, Block, Static, is_url, sha256_of, static_files
from powerphase.dataset.manifest import Manifest, cpu_features, library_versions
from powerphase.dataset.options import RecipeOptions
from powerphase.dataset.recipe import Recipe, make_recipe, setpoints_pu
from powerphase.dataset.solving import (
    WORK_STEPS,
    StepSolver,
    solve_blocks,
    solve_blocks_on_ray,
)
from powerphase.dataset.store import Store, open_store
from powerphase.dataset.writer import StoreWriter, open_writer
from powerphase.errors import PowerFlowError, RecipeError, StoreError, UnknownName
from powerphase.grid.case import PQ, Grid
from powerphase.grid.catalog import licence_notice, load_grid
from powerphase.grid.powerflow import CARRIED
from powerphase.synthesis.injections import ARCHETYPES
from powerphase.synthesis.signals import SIGNALS, Signals
from powerphase.synthesis.sources import load_signals

Engine = Literal["local", "ray"]
Progress = Callable[[int, int], None]
"""Called with (steps done, steps in total)."""


def generate(
    grid: str | Path | Grid,
    out: str | Path,
    *,
    signals: str | Path | Signals = "synthetic",
    edition: str | None = None,
    seed: int = RecipeOptions.seed,
    dispatch: str = RecipeOptions.dispatch,
    setpoint: float | str = RecipeOptions.setpoint,
    start: str | None = RecipeOptions.start,
    end: str | None = RecipeOptions.end,
    threads: int | None = None,
    engine: str = "local",
    work_steps: int = WORK_STEPS,
    on_progress: Progress | None = None,
) -> Store:
    """Generate the data set at `out`, finish it if interrupted, repair it if damaged; open it.

    Args:
        grid: a name of the catalogue, the path of a MATPOWER `.m` file, or a `Grid`.
        out: a local directory.
        signals: `synthetic`, `opsd`, the path of a file with OPSD's columns, or `Signals`.
        edition: name of a file's signals in results; by default it is derived from their content.
        seed: determines archetypes, power factors and noise.
        dispatch: `proportional` (generation follows the load) or `slack` (it stays constant).
        setpoint: voltage of slack and PV buses [p.u.], or `case` for that of the case file.
        start: first day (UTC), by default the first of the signals.
        end: last day (UTC, included), by default the last of the signals.
        threads: by default one per processor; no effect on the result.
        engine: `local`, or `ray` to spread blocks over a Ray cluster.
        work_steps: steps that a thread solves in one piece; no effect on the result.
        on_progress: called with (steps done, steps in total) whenever a block is finished.
    """
    if engine not in get_args(Engine):
        raise UnknownName.among("engine", engine, get_args(Engine))
    if engine == "ray" and find_spec("ray") is None:
        raise RecipeError("engine 'ray' needs Ray; run pip install 'powerphase[cluster]'")
    if work_steps < 1 or (threads is not None and threads < 1):
        raise RecipeError(f"threads {threads} and work_steps {work_steps} must be at least 1")
    if edition is not None and isinstance(signals, Signals):
        raise RecipeError("edition is only for signals from a file; `Signals` have their own")
    if is_url(str(out)):
        raise StoreError(
            f"{out}: data sets are written to a local directory only; copy it afterwards"
        )
    network = grid if isinstance(grid, Grid) else load_grid(grid)
    source = signals if isinstance(signals, Signals) else load_signals(signals, edition)
    options = RecipeOptions.parse(
        seed=seed, dispatch=dispatch, setpoint=setpoint, start=start, end=end
    )
    recipe = make_recipe(network, source, options)
    solver = StepSolver(network, source, recipe)
    manifest, files = _start_manifest(solver, recipe)
    with open_writer(Path(out), manifest, files) as writer:
        todo = [(n, manifest.steps(n)) for n in _missing_or_damaged(writer.store)]
        if engine == "ray":
            blocks = solve_blocks_on_ray(network, source, recipe, todo)
        else:
            blocks = solve_blocks(solver, todo, threads or os.cpu_count() or 1, work_steps)
        with closing(blocks):
            _write_all(writer, blocks, manifest.n_steps - _count_steps(todo), on_progress)
        _carry_forward(writer)
    return open_store(out)


def _write_all(
    writer: StoreWriter,
    blocks: Generator[tuple[int, Block], None, None],
    done: int,
    on_progress: Progress | None,
) -> None:
    """Write blocks as they arrive, in any order."""
    report = on_progress or (lambda done, total: None)
    report(done, writer.manifest.n_steps)
    for number, block in blocks:
        writer.write(number, block)
        done += len(block.state)
        report(done, writer.manifest.n_steps)


def _missing_or_damaged(store: Store) -> list[int]:
    """The blocks that must be made or made again."""
    done = store.manifest.blocks
    return [n for n in range(store.manifest.n_blocks) if n not in done or store.check_block(n)[1]]


def _count_steps(blocks: list[tuple[int, slice]]) -> int:
    return sum(steps.stop - steps.start for _, steps in blocks)


def _carry_forward(writer: StoreWriter) -> None:
    """The last pass: unsolved steps get the state of the last solved step.

    It runs over the finished record, in order, because the last solved step may be in another
    block. Steps before the first solved step get the state of that step.
    """
    blocks = writer.manifest.blocks
    for number in sorted(n for n, record in blocks.items() if record.unsolved):
        store = writer.store
        first = store.manifest.steps(number).start
        before = first - 1 if number else _first_solved(store)
        state, mismatch = store.state[before], store.array("mismatch")[before]
        block = store.read_block(number)
        for row in range(len(block.state)):
            if np.isnan(block.state[row, 0]):
                block.state[row], block.mismatch[row] = state, mismatch
            state, mismatch = block.state[row], block.mismatch[row]
        writer.write(number, block)


def _first_solved(store: Store) -> int:
    solved = np.flatnonzero(store.provenance != CARRIED)
    if not solved.size:
        raise PowerFlowError(
            f"{store.path}: no step of the record can be solved, even with injections scaled to "
            "0.70; try another setpoint or dispatch"
        )
    return int(solved[0])


def _start_manifest(solver: StepSolver, recipe: Recipe) -> tuple[Manifest, dict[str, bytes]]:
    """The manifest of a data set without blocks, and its files outside the blocks."""
    grid, signals = solver.grid, solver.injections.signals
    n_steps, attribution = solver.last - solver.first, [licence_notice(grid), signals.attribution]
    edition = recipe.edition(signals.edition)
    attributes: dict[str, Any] = {"grid": grid.name, "edition": edition}
    attributes |= {"fingerprint": recipe.fingerprint, "attribution": attribution}
    files = static_files(n_steps, grid.n_buses, attributes, _static_arrays(solver, recipe))
    manifest = Manifest(
        grid=grid.name,
        edition=edition,
        fingerprint=recipe.fingerprint,
        recipe=recipe.as_json(),
        n_steps=n_steps,
        n_buses=grid.n_buses,
        block_steps=BLOCK_STEPS,
        attribution=attribution,
        filled_signal_values=signals.filled,
        made_with=library_versions(),
        cpu_features=cpu_features(),
        static_sha256={name: sha256_of(content) for name, content in files.items()},
    )
    return manifest, files


def _static_arrays(solver: StepSolver, recipe: Recipe) -> Static:
    """Clock, signals, the grid and the role of every bus."""
    grid, roles, signals = solver.grid, solver.injections.roles, solver.injections.signals
    record = slice(solver.first, solver.last)
    ybus = solver.flow.ybus
    return {
        "time": (signals.time[record].astype(np.int64), "start of step, seconds since 1970 UTC"),
        "signals": (signals.values_mw[record], f"{', '.join(SIGNALS)} [MW]"),
        "grid/base_mva": (np.array([grid.base_mva]), "power base [MVA]"),
        "grid/bus": (grid.bus, "MATPOWER's bus matrix, columns BUS_I to VMIN"),
        "grid/gen": (grid.gen, "MATPOWER's gen matrix, columns GEN_BUS to PMIN"),
        "grid/branch": (grid.branch, "MATPOWER's branch matrix, columns F_BUS to BR_STATUS"),
        "grid/bus_id": (grid.bus_id, "bus number in the case file"),
        "grid/bus_type": (grid.bus_type, "1 PQ, 2 PV, 3 slack, by generators in service"),
        "grid/setpoint_pu": (
            np.where(grid.bus_type == PQ, np.nan, setpoints_pu(recipe, grid)),
            "voltage that the bus is held at [p.u.]; NaN at PQ buses",
        ),
        "grid/archetype": (roles.archetype, f"-1 no load, else {', '.join(ARCHETYPES)} from 0"),
        "grid/power_factor": (roles.power_factor, "cos φ of the load; NaN without one"),
        "grid/region": (roles.region, "region of the shared noise"),
        "grid/high_voltage": (roles.high_voltage, "whether the load is of the high-voltage class"),
        "grid/ybus_data": (ybus.data, "admittance matrix [p.u.], CSR values"),
        "grid/ybus_indices": (ybus.indices.astype(np.int32), "admittance matrix, CSR columns"),
        "grid/ybus_indptr": (ybus.indptr.astype(np.int32), "admittance matrix, CSR row starts"),
    }
