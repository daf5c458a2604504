"""The plan of a bench: its cells, and which of them are done.

A cell is a grid, a model with its variants, and a seed. It is done when its row is there: of the
same data, task and config as would be made now. A row that is there and is another one is never
written over; it is told before anything is started.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from powerphase.bench.data import DataSet
from powerphase.errors import ForecastError, ResultError
from powerphase.evaluation.entrants import ModelSpec
from powerphase.models.framework.base import Description
from powerphase.models.framework.neural import with_training
from powerphase.records.result import Result, read_results
from powerphase.records.row_key import RowKey
from powerphase.task.protocol import Protocol

State = Literal["done", "to do", "failed before"]

TOLD = 3
"""So many fields of a config are named where a row has another one."""


@dataclass(frozen=True, eq=False)
class Cell:
    """A grid, a model with its variants, and a seed."""

    data: DataSet
    entrant: ModelSpec
    seed: int
    task: str
    description: Description
    """At its full budget."""

    @property
    def grid(self) -> str:
        """The grid's name."""
        return self.data.grid

    @property
    def name(self) -> str:
        """The model and its variant, as its row has them at its full budget."""
        return self.key.name

    @property
    def key(self) -> RowKey:
        """The key of its row at its full budget."""
        return self.key_of(self.description)

    def key_of(self, description: Description) -> RowKey:
        """The key of its row with that description."""
        model, variant = description.model, description.variant
        return RowKey(self.task, self.data.edition, self.grid, model, variant, self.seed)

    @property
    def group(self) -> tuple[str, str]:
        """What it shares with its other seeds."""
        return self.grid, self.name

    def __str__(self) -> str:
        return f"{self.key.stem} on {self.grid}"


@dataclass
class Plan:
    """All cells in the order in which they are begun, and what is known of each."""

    task: str
    out: Path
    runs: Path
    cells: list[Cell]
    rows: list[Result]
    """All that are in the tree of results."""
    done: dict[Cell, Result] = field(default_factory=dict)

    def finish(self, cell: Cell, row: Result) -> None:
        """Note the row that the cell has now; it has not failed any more."""
        self.done[cell] = row
        self.rows.append(row)
        self.failure_file(cell).unlink(missing_ok=True)

    def state(self, cell: Cell) -> State:
        """Whether its row is there, or a record of its failure."""
        if cell in self.done:
            return "done"
        return "failed before" if self.failure_file(cell).exists() else "to do"

    def left(self) -> list[Cell]:
        """The cells that have no row."""
        return [cell for cell in self.cells if cell not in self.done]

    def failure_file(self, cell: Cell) -> Path:
        """Where a failure of the cell is recorded."""
        return self.out / cell.key.failure_path

    def run_folder(self, key: RowKey) -> Path:
        """The folder of the training that the row of that key comes from."""
        return self.runs / key.run_path


def make_plan(
    data: Sequence[DataSet],
    entrants: Sequence[ModelSpec],
    seeds: Sequence[int],
    *,
    out: Path,
    runs: Path,
    protocol: Protocol,
    is_budgeted: bool = False,
) -> Plan:
    """The cells of these data sets, models and seeds, compared with the rows in `out`.

    Args:
        data: one data set for each grid.
        entrants: the models.
        seeds: for each model that takes one.
        out: the tree of results.
        runs: where trainings are kept.
        protocol: the task.
        is_budgeted: whether trainings may be shorter than asked for, so that `short` rows count.
    """
    cells = [
        _cell(one, entrant, seed, protocol.name)
        for one in data
        for entrant in entrants
        for seed in entrant.seeds(seeds)
    ]
    _check_names(cells)
    cells = list({(cell.grid, cell.name, cell.seed): cell for cell in cells}.values())
    rows = read_results([out]) if any(out.glob("**/*.json")) else []
    by_key = {row.key: row for row in rows}
    done: dict[Cell, Result] = {}
    problems: list[str] = []
    for cell in cells:
        for description in possible(cell, is_budgeted):
            key = cell.key_of(description)
            if key not in by_key:
                continue
            wrong = _departures(by_key[key], cell, protocol, description, is_budgeted)
            if not wrong:
                done[cell] = by_key[key]
                break
            problems.append(
                f"{out / key.path}: holds a row with another {' and '.join(wrong)} than this bench "
                f"would make{_told(by_key[key], description, is_budgeted)}; remove it, or choose "
                "another --out"
            )
    if problems:
        raise ResultError("\n".join(problems))
    return Plan(protocol.name, out, runs, cells, rows, done)


def possible(cell: Cell, is_budgeted: bool) -> list[Description]:
    """The descriptions that the cell's row may have: its full budget's, or also a short one's."""
    found = [cell.description]
    if is_budgeted and cell.entrant.is_trained and cell.entrant.config.training.epochs > 1:
        found.append(reduced(cell, 1))
    return list({(one.model, one.variant): one for one in found}.values())


def reduced(cell: Cell, epochs: int | None, batch_size: int | None = None) -> Description:
    """The cell's description with another budget."""
    changes = {"epochs": epochs, "batch_size": batch_size}
    config = with_training(cell.entrant.config, changes)
    return cell.entrant.description(cell.grid, cell.seed, config)


def same_config(
    one: Mapping[str, Any], other: Mapping[str, Any], ignored: Iterable[str] = ()
) -> bool:
    """Whether two configs agree, but for these fields of their trainings."""
    return _without(one, ignored) == _without(other, ignored)


def _without(config: Mapping[str, Any], ignored: Iterable[str]) -> dict[str, Any]:
    training = config.get("training")
    if not isinstance(training, Mapping):
        return dict(config)
    left = {name: value for name, value in training.items() if name not in ignored}
    return {**config, "training": left}


def _cell(data: DataSet, entrant: ModelSpec, seed: int, task: str) -> Cell:
    return Cell(data, entrant, seed, task, entrant.description(data.grid, seed))


def _check_names(cells: Iterable[Cell]) -> None:
    """Refuse two models of one name: the rows of one would be taken for those of the other."""
    first: dict[tuple[str, str], ModelSpec] = {}
    for cell in cells:
        one, other = first.setdefault(cell.group, cell.entrant), cell.entrant
        if (one.kind, one.config) != (other.kind, other.config):
            raise ForecastError(
                f"{one.given} and {other.given} are both called {cell.name}, by which rows are "
                "found; give one of them a name or a variant of its own"
            )


def _departures(
    row: Result, cell: Cell, protocol: Protocol, description: Description, is_budgeted: bool
) -> list[str]:
    """In what the row is not the one that the cell would have."""
    config = description.config
    checks = {
        # They also fix the windows.
        "fingerprint": row.fingerprint == cell.data.fingerprint,
        "task version": row.task_version == protocol.version,
        "config": same_config(row.config, config, free_fields(config, is_budgeted)),
    }
    return [name for name, holds in checks.items() if not holds]


def free_fields(config: Mapping[str, Any], is_budgeted: bool) -> list[str]:
    """The fields of a training in which a row may differ from what was asked for."""
    # A batch size that the config leaves open is what fitted into memory.
    is_open = (config.get("training") or {}).get("batch_size", 0) is None
    return ["batch_size"] * is_open + ["epochs"] * is_budgeted


def _told(row: Result, description: Description, is_budgeted: bool) -> str:
    """The fields in which the row's config is another one; nothing where there are none."""
    ignored = free_fields(description.config, is_budgeted)
    there, here = (_flat(_without(one, ignored)) for one in (row.config, description.config))
    differing = [name for name in {**there, **here} if there.get(name) != here.get(name)]
    fields = [f"{name} {there.get(name)!r}, not {here.get(name)!r}" for name in differing[:TOLD]]
    fields += [f"and {len(differing) - TOLD} more"] * (len(differing) > TOLD)
    return f" ({'; '.join(fields)})" if fields else ""


def _flat(config: Mapping[str, Any], place: str = "") -> dict[str, Any]:
    """All fields of a config, those of its parts as `part.field`."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        is_part = isinstance(value, Mapping)
        found |= _flat(value, f"{place}{name}.") if is_part else {f"{place}{name}": value}
    return found
