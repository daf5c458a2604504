"""Blocks solved on a Ray cluster. Only the driver writes, so nodes need no shared disk."""

from collections.abc import Generator
from typing import Any

from powerphase.dataset.layout import Block
from powerphase.dataset.manifest import cpu_features, made_with
from powerphase.dataset.recipe import Recipe
from powerphase.dataset.solving import StepSolver, solve_blocks
from powerphase.errors import RecipeError, StoreError
from powerphase.grid.case import Grid
from powerphase.synthesis.signals import Signals


class _Worker:
    """A solver that lives on one processor of the cluster and is asked for block after block."""

    def __init__(self, grid: Grid, signals: Signals, recipe: Recipe) -> None:
        self._solver = StepSolver(grid, signals, recipe)

    def ready(self) -> tuple[dict[str, str], list[str]]:
        """What decides the bits on this node; answered once the worker has a processor."""
        return made_with(), cpu_features()

    def solve(self, number: int, steps: slice) -> tuple[int, dict[str, Any]]:
        ((_, block),) = solve_blocks(self._solver, [(number, steps)], threads=1)
        return number, dict(block.arrays())


def solve_blocks_on_ray(
    grid: Grid, signals: Signals, recipe: Recipe, blocks: list[tuple[int, slice]]
) -> Generator[tuple[int, Block], None, None]:
    """Solve numbered blocks on the processors of the cluster, in whatever order they finish.

    Uses the cluster that this process or machine belongs to, and starts a local one if there is
    none. At most one block per worker waits for the driver, which bounds the memory on its side.
    """
    ray = connected()
    n_workers = min(len(blocks), max(1, int(ray.cluster_resources().get("CPU", 1))))
    ingredients = [ray.put(part) for part in (grid, signals, recipe)]
    remote: Any = ray.remote(num_cpus=1)(_Worker)
    workers = [remote.remote(*ingredients) for _ in range(n_workers)]
    # A worker gets its first block once it has answered: some may wait for a processor for long.
    asked = {worker.ready.remote(): worker for worker in workers}
    try:
        yield from _shared_out(ray, asked, list(reversed(blocks)))
    except ray.exceptions.RayError as error:
        raise StoreError(
            f"the Ray cluster lost a worker ({type(error).__name__}); nothing that was finished is "
            "lost, so run the same command again"
        ) from error


def _shared_out(
    ray: Any, asked: dict[Any, Any], todo: list[tuple[int, slice]]
) -> Generator[tuple[int, Block], None, None]:
    """Hand a block to every worker that is free, until none is left to do or to come back."""
    greeting, open_blocks = set(asked), len(todo)
    while open_blocks:
        (answered,), _ = ray.wait(list(asked), num_returns=1)
        worker, answer = asked.pop(answered), ray.get(answered)
        if answered in greeting:
            _check_node(*answer)
        else:
            number, arrays = answer
            open_blocks -= 1
            # Arrays from Ray's object store are read-only views; the driver may outlive them.
            yield number, Block(**{name: values.copy() for name, values in arrays.items()})
        if todo:
            asked[worker.solve.remote(*todo.pop())] = worker


def _check_node(versions: dict[str, str], features: list[str]) -> None:
    mine = made_with()
    other = [f"{name} {versions[name]}" for name in mine if versions[name] != mine[name]]
    other += ["another kind of processor"] if features != cpu_features() else []
    if other:
        raise RecipeError(
            f"a node of the Ray cluster has {', '.join(other)}, which may give other bits than "
            "here; make the nodes alike"
        )


def connected() -> Any:
    """Ray, joined to the running cluster, or to one started on this machine."""
    import ray

    if not ray.is_initialized():
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
        try:
            ray.init(address="auto", **quiet)
        except ConnectionError:
            ray.init(include_dashboard=False, **quiet)
    return ray
