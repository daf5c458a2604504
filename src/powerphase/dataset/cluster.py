"""Blocks solved on a Ray cluster. Only the driver writes, so nodes need no shared disk."""

from collections.abc import Iterator
from typing import Any

from powerphase.dataset.layout import Block
from powerphase.dataset.recipe import Recipe
from powerphase.dataset.solving import StepSolver, solve_blocks
from powerphase.errors import RecipeError
from powerphase.grid.case import Grid
from powerphase.synthesis.signals import Signals


class _Worker:
    """A solver that lives on one processor of the cluster and is asked for block after block."""

    def __init__(self, grid: Grid, signals: Signals, recipe: Recipe) -> None:
        self._solver = StepSolver(grid, signals, recipe)

    def solve(self, number: int, steps: slice) -> tuple[int, dict[str, Any]]:
        ((_, block),) = solve_blocks(self._solver, [(number, steps)], threads=1)
        return number, dict(block.arrays())


def solve_blocks_on_ray(
    grid: Grid, signals: Signals, recipe: Recipe, blocks: list[tuple[int, slice]]
) -> Iterator[tuple[int, Block]]:
    """Solve numbered blocks on every processor of the cluster, in whatever order they finish.

    Uses the cluster that this process or machine belongs to, and starts a local one if there is
    none. At most one block per worker waits for the driver, which bounds the memory on its side.
    """
    try:
        import ray as ray_module
    except ImportError:
        raise RecipeError(
            "engine 'ray' needs Ray; pip install 'powerphase[cluster]' or use engine 'local'"
        ) from None
    ray: Any = ray_module
    if not ray.is_initialized():
        _connect(ray)
    if not blocks:
        return
    n_workers = min(len(blocks), max(1, int(ray.cluster_resources().get("CPU", 1))))
    ingredients = [ray.put(part) for part in (grid, signals, recipe)]
    remote: Any = ray.remote(num_cpus=1)(_Worker)
    idle = [remote.remote(*ingredients) for _ in range(n_workers)]
    todo = list(reversed(blocks))
    running: dict[Any, Any] = {}
    while todo or running:
        while todo and idle:
            worker = idle.pop()
            running[worker.solve.remote(*todo.pop())] = worker
        (finished,), _ = ray.wait(list(running), num_returns=1)
        idle.append(running.pop(finished))
        number, arrays = ray.get(finished)
        # Arrays from Ray's object store are read-only views; the driver may outlive them.
        yield number, Block(**{name: values.copy() for name, values in arrays.items()})


def _connect(ray: Any) -> None:
    """Join the running cluster, or start one on this machine."""
    try:
        ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
    except ConnectionError:
        ray.init(log_to_driver=False, logging_level="ERROR", include_dashboard=False)
