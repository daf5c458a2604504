"""What the seeds of a model on a grid share: they are to be trained alike.

So epochs and batch size are those of a seed whose row or training is there, whatever the memory and
the speed of the machine are now.
"""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from powerphase.bench.budget import Settled
from powerphase.bench.plan import Cell, Plan, free_fields, same_config
from powerphase.errors import CheckpointError
from powerphase.models.framework.run import RunFolder, is_run


def settled(plan: Plan, cell: Cell, is_budgeted: bool) -> Settled | None:
    """What the cell's own training, or else another seed's row or training, has; None if none is.

    The longest of them counts where there are several.
    """
    wanted = cell.description.config
    ignored = free_fields(wanted, is_budgeted)
    found = [
        (seed == cell.seed, config["training"]["epochs"], config["training"]["batch_size"])
        for seed, config in _siblings(plan, cell)
        if same_config(config, wanted, ignored)
        and config["training"]["epochs"] <= wanted["training"]["epochs"]
    ]
    return Settled(*max(found, key=lambda one: one[:2])[1:]) if found else None


def _siblings(plan: Plan, cell: Cell) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Seed and config of every row and training of the cell's model on the cell's data."""
    model, fingerprint = cell.description.model, cell.data.fingerprint
    for row in plan.rows:
        if (row.model, row.grid, row.fingerprint) == (model, cell.grid, fingerprint):
            yield row.seed, row.config
    for folder in _folders(plan.runs / cell.data.edition / cell.grid):
        header = folder.header
        kept = folder.weights_file.exists()  # else nothing was trained yet
        if kept and (header.model, header.data.get("fingerprint")) == (model, fingerprint):
            yield header.seed, header.config


def _folders(place: Path) -> Iterator[RunFolder]:
    for path in sorted(place.iterdir()) if place.is_dir() else ():
        # One that is damaged is told by the cell that it belongs to.
        with suppress(CheckpointError):
            if is_run(path):
                yield RunFolder.open(path)
