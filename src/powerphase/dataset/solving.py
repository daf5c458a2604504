"""From a recipe's ingredients to blocks of the record: pure computation, no files.

A step's values depend on nothing but the recipe: not on the day before, the block it falls into or
the thread that solves it. That is what lets blocks be made in any order, anywhere, with the
same bytes.
"""

from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from powerphase.axes import STEPS_PER_DAY, THETA, VARIABLES, P, Q, V
from powerphase.dataset.layout import Block
from powerphase.dataset.recipe import Recipe, setpoints_pu, step_range
from powerphase.grid.admittance import consumption_mva, mismatch_pu
from powerphase.grid.case import PQ, SLACK, Grid
from powerphase.grid.powerflow import PowerFlow
from powerphase.grid.rescue import solve_with_rescue
from powerphase.synthesis.injections import Injections
from powerphase.synthesis.signals import Signals

WORK_STEPS = 2 * STEPS_PER_DAY
"""Steps solved in one piece: enough to fill the solver's lanes, and not much memory per thread."""


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
        """The states of the given steps of the record (0 is its first step), or of a fresh draw.

        The states of steps that no rescue solves are NaN.
        """
        injections = self.injections.steps(self.first + steps.start, self.first + steps.stop, draw)
        solution = solve_with_rescue(self.flow, *injections)
        found = consumption_mva(self.flow.ybus, self.grid.base_mva, solution.voltage)
        state = np.empty((len(found), self.grid.n_buses, len(VARIABLES)), dtype=np.float32)
        # Specified quantities are stored as specified; only what the solver decides is computed.
        state[..., P] = solution.p_mw
        state[..., Q] = solution.q_mvar
        state[:, self._p_solved, P] = found.real[:, self._p_solved]
        state[:, self._q_solved, Q] = found.imag[:, self._q_solved]
        state[..., V] = np.abs(solution.voltage)
        state[..., THETA] = np.angle(solution.voltage)
        return Block(
            state=state.reshape(len(found), -1),
            provenance=solution.provenance,
            backoff=solution.backoff.astype(np.float32),
            iterations=solution.iterations.astype(np.uint8),
            mismatch=mismatch_pu(self.grid, found, solution.p_mw, solution.q_mvar).astype(
                np.float32
            ),
        )


def solve_blocks(
    solver: StepSolver,
    blocks: Iterable[tuple[int, slice]],
    threads: int,
    work_steps: int = WORK_STEPS,
) -> Generator[tuple[int, Block], None, None]:
    """Solve numbered blocks in order on `threads` threads, which run ahead of the consumer.

    Each thread solves one piece at a time from injections to state: the solver and NumPy release
    the interpreter's lock, so all of the work is spread and not just the sweep.
    """
    ahead = 1 + -(-2 * threads // 10)
    waiting: deque[tuple[int, list[Future[Block]]]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for number, steps in blocks:
            pieces = _pieces(steps, work_steps)
            waiting.append((number, [pool.submit(solver.solve, piece) for piece in pieces]))
            if len(waiting) > ahead:
                yield _collect(waiting)
        while waiting:
            yield _collect(waiting)
    finally:
        pool.shutdown(cancel_futures=True)


def _pieces(steps: slice, work_steps: int) -> list[slice]:
    starts = range(steps.start, steps.stop, work_steps)
    return [slice(start, min(start + work_steps, steps.stop)) for start in starts]


def _collect(waiting: deque[tuple[int, list[Future[Block]]]]) -> tuple[int, Block]:
    number, futures = waiting.popleft()
    pieces = [dict(future.result().arrays()) for future in futures]
    return number, Block(**{k: np.concatenate([piece[k] for piece in pieces]) for k in pieces[0]})
