"""Solve the steps of a record: pure computation, on threads or on a Ray cluster.

The values of a step depend only on the recipe, not on the day before, its block or the thread that
solves it. Blocks can therefore be made in any order, anywhere, with the same bytes.
"""

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from powerphase.axes import STEPS_PER_DAY, THETA, VARIABLES, P, Q, V
from powerphase.dataset.layout import Block
from powerphase.dataset.manifest import cpu_features, library_versions
from powerphase.dataset.recipe import Recipe, setpoints_pu, step_range
from powerphase.errors import RecipeError, StoreError
from powerphase.grid.admittance import consumption_mva, mismatch_pu
from powerphase.grid.case import PQ, SLACK, Grid
from powerphase.grid.powerflow import PowerFlow, solve_with_rescue
from powerphase.synthesis.injections import Injections
from powerphase.synthesis.signals import Signals

WORK_STEPS = 2 * STEPS_PER_DAY
"""Steps solved in one piece: enough to fill the solver's lanes, with little memory per thread."""


class StepSolver:
    """Solves any steps of a recipe's record."""

    def __init__(self, grid: Grid, signals: Signals, recipe: Recipe) -> None:
        self.grid = grid
        self.first, self.last = step_range(recipe, signals)
        self.injections = Injections(grid, signals, recipe.seed, recipe.dispatch)
        self.flow = PowerFlow(grid, setpoints_pu(recipe, grid), *self.injections.mean())
        self._p_solved = np.flatnonzero(grid.bus_type == SLACK)
        self._q_solved = np.flatnonzero(grid.bus_type != PQ)

    def solve(self, steps: slice, draw: tuple[str | int, ...] = ()) -> Block:
        """The states of these steps of the record (0 is its first), or of another noise `draw`.

        Steps that remain unsolved have NaN states.
        """
        injections = self.injections.steps(self.first + steps.start, self.first + steps.stop, draw)
        solution = solve_with_rescue(self.flow, *injections)
        solved_mva = consumption_mva(self.flow.ybus, self.grid.base_mva, solution.voltage)
        n_steps = len(solved_mva)
        state = np.empty((n_steps, self.grid.n_buses, len(VARIABLES)), dtype=np.float32)
        # Specified quantities are stored as specified, without the solver's rounding errors.
        state[..., P] = solution.p_mw
        state[..., Q] = solution.q_mvar
        state[:, self._p_solved, P] = solved_mva.real[:, self._p_solved]
        state[:, self._q_solved, Q] = solved_mva.imag[:, self._q_solved]
        state[..., V] = np.abs(solution.voltage)
        state[..., THETA] = np.angle(solution.voltage)
        mismatch = mismatch_pu(self.grid, solved_mva, solution.p_mw, solution.q_mvar)
        return Block(
            state=state.reshape(n_steps, -1),
            provenance=solution.provenance,
            backoff=solution.backoff.astype(np.float32),
            iterations=solution.iterations.astype(np.uint8),
            mismatch=mismatch.astype(np.float32),
        )


def solve_blocks(
    solver: StepSolver,
    blocks: Iterable[tuple[int, slice]],
    threads: int,
    work_steps: int = WORK_STEPS,
) -> Generator[tuple[int, Block], None, None]:
    """Solve numbered blocks in order on `threads` threads, which run ahead of the consumer.

    Each thread solves one piece at a time, from injections to states: the solver and NumPy release
    the interpreter lock, so that all of this work runs in parallel.
    """
    max_waiting = 1 + -(-2 * threads // 10)
    waiting: deque[tuple[int, list[Future[Block]]]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for number, steps in blocks:
            pieces = _split(steps, work_steps)
            waiting.append((number, [pool.submit(solver.solve, piece) for piece in pieces]))
            if len(waiting) > max_waiting:
                yield _collect(waiting)
        while waiting:
            yield _collect(waiting)
    finally:
        pool.shutdown(cancel_futures=True)


def _split(steps: slice, work_steps: int) -> list[slice]:
    starts = range(steps.start, steps.stop, work_steps)
    return [slice(start, min(start + work_steps, steps.stop)) for start in starts]


def _collect(waiting: deque[tuple[int, list[Future[Block]]]]) -> tuple[int, Block]:
    number, futures = waiting.popleft()
    pieces = [dict(future.result().arrays()) for future in futures]
    return number, Block(**{k: np.concatenate([piece[k] for piece in pieces]) for k in pieces[0]})


class _RayWorker:
    """A solver on one processor of the cluster, which solves one block after another."""

    def __init__(self, grid: Grid, signals: Signals, recipe: Recipe) -> None:
        self._solver = StepSolver(grid, signals, recipe)

    def ready(self) -> tuple[dict[str, str], list[str]]:
        """What determines the bits on this node; returns once the worker has a processor."""
        return library_versions(), cpu_features()

    def solve(self, number: int, steps: slice) -> tuple[int, dict[str, Any]]:
        ((_, block),) = solve_blocks(self._solver, [(number, steps)], threads=1)
        return number, dict(block.arrays())


def solve_blocks_on_ray(
    grid: Grid, signals: Signals, recipe: Recipe, blocks: list[tuple[int, slice]]
) -> Generator[tuple[int, Block], None, None]:
    """Solve numbered blocks on the processors of a Ray cluster, in whatever order they finish.

    Only the driver writes, so nodes need no shared disk. At most one block per worker waits for the
    driver, which bounds its memory.
    """
    ray = connect_ray()
    n_workers = min(len(blocks), max(1, int(ray.cluster_resources().get("CPU", 1))))
    ingredients = [ray.put(part) for part in (grid, signals, recipe)]
    remote: Any = ray.remote(num_cpus=1)(_RayWorker)
    workers = [remote.remote(*ingredients) for _ in range(n_workers)]
    # A worker gets its first block once it is ready: some may wait long for a processor.
    pending = {worker.ready.remote(): worker for worker in workers}
    try:
        yield from _distribute(ray, pending, list(reversed(blocks)))
    except ray.exceptions.RayError as error:
        raise StoreError(
            f"the Ray cluster lost a worker ({type(error).__name__}); finished blocks are kept, so "
            "run the same command again"
        ) from error


def _distribute(
    ray: Any, pending: dict[Any, Any], todo: list[tuple[int, slice]]
) -> Generator[tuple[int, Block], None, None]:
    """Give a block to every free worker until all blocks have come back."""
    first_calls, n_open = set(pending), len(todo)
    while n_open:
        (call,), _ = ray.wait(list(pending), num_returns=1)
        worker, result = pending.pop(call), ray.get(call)
        if call in first_calls:
            _check_node(*result)
        else:
            number, arrays = result
            n_open -= 1
            # Arrays from Ray's object store are read-only views; the driver may outlive them.
            yield number, Block(**{name: values.copy() for name, values in arrays.items()})
        if todo:
            pending[worker.solve.remote(*todo.pop())] = worker


def _check_node(versions: dict[str, str], features: list[str]) -> None:
    """Raise if a node may compute other bits than the driver."""
    expected = library_versions()
    different = [
        f"{name} {versions[name]}" for name in expected if versions[name] != expected[name]
    ]
    different += ["another kind of processor"] if features != cpu_features() else []
    if different:
        raise RecipeError(
            f"a node of the Ray cluster has {', '.join(different)}, which may give other bits than "
            "the driver; make the nodes alike"
        )


def connect_ray() -> Any:
    """Ray, connected to the running cluster, or to a new one on this machine."""
    import ray

    if not ray.is_initialized():
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            ray.init(address="auto", **quiet)
        except ConnectionError:
            ray.init(include_dashboard=False, **quiet)
    return ray
