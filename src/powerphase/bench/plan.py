"""The plan of a bench: its cells, and which of them are done.

A cell is a grid, a model with its variants, and a seed. It is done when a row exists with the data,
task and config that it would have now. A different row in its place is reported before anything
starts, and never overwritten.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from powerphase.bench.request import BenchRequest, DataSet, find_data_sets
from powerphase.errors import ForecastError, ResultError, TaskError
from powerphase.evaluation.models import ModelSpec, resolve_model
from powerphase.models.framework.base import Description
from powerphase.models.framework.neural import with_training
from powerphase.records.result import Result, read_results
from powerphase.records.row_key import RowKey
from powerphase.task.protocol import PAPER_TASK, PROTOCOL_VERSION, Protocol

State = Literal["done", "to do", "failed before"]

MAX_FIELDS = 3
"""How many differing config fields an error names."""


@dataclass(frozen=True, eq=False)
class Cell:
    """A grid, a model with its variants, and a seed."""

    data: DataSet
    spec: ModelSpec
    seed: int
    task: str
    description: Description
    """With the full budget."""

    @property
    def grid(self) -> str:
        """The grid's name."""
        return self.data.grid

    @property
    def key(self) -> RowKey:
        """The key of its row with the full budget."""
        return self.key_for(self.description)

    @property
    def group(self) -> tuple[str, str]:
        """What it has in common with its other seeds."""
        return self.grid, self.key.name

    def key_for(self, description: Description) -> RowKey:
        """The key of its row with that description."""
        model, variant = description.model, description.variant
        return RowKey(self.task, self.data.edition, self.grid, model, variant, self.seed)

    def reduced(self, epochs: int) -> Description:
        """Its description with another budget."""
        config = with_training(self.spec.config, {"epochs": epochs})
        return self.spec.description(self.grid, self.seed, config)

    def possible_descriptions(self, is_budgeted: bool) -> list[Description]:
        """The descriptions that its row may have: with the full budget, or also with less."""
        descriptions = [self.description]
        if is_budgeted and self.spec.is_network and self.spec.config.training.epochs > 1:
            descriptions.append(self.reduced(1))
        return list({(each.model, each.variant): each for each in descriptions}.values())

    def __str__(self) -> str:
        return f"{self.key.stem} on {self.grid}"


@dataclass
class Plan:
    """All cells in the order in which they start, and what is known about each."""

    request: BenchRequest
    cells: list[Cell]
    rows: list[Result]
    """All rows in the tree of results."""
    done: dict[Cell, Result] = field(default_factory=dict)

    @property
    def is_budgeted(self) -> bool:
        """Whether trainings may be cut to fit into the time."""
        return self.request.is_budgeted

    @property
    def pending(self) -> list[Cell]:
        """The cells that have no row."""
        return [cell for cell in self.cells if cell not in self.done]

    def finish(self, cell: Cell, row: Result) -> None:
        """Note the cell's row, and remove the record of an earlier failure."""
        self.done[cell] = row
        self.rows.append(row)
        self.failure_file(cell).unlink(missing_ok=True)

    def state(self, cell: Cell) -> State:
        """Whether its row exists, or a record of its failure."""
        if cell in self.done:
            return "done"
        return "failed before" if self.failure_file(cell).exists() else "to do"

    def failure_file(self, cell: Cell) -> Path:
        """Where a failure of the cell is recorded."""
        return self.request.out / cell.key.failure_path

    def run_folder(self, key: RowKey) -> Path:
        """The folder of the training that leads to that row.

        Trainings for other contexts, horizons, steps, origins or calendars than the paper's are in
        a folder of their task.
        """
        task = Protocol.of_name(key.task).training_name
        return self.request.runs / ("" if task == PAPER_TASK else task) / key.run_path


def make_plan(request: BenchRequest) -> Plan:
    """The cells of the request, compared with the rows that exist; raises what cannot be made."""
    specs = [_resolve(model, request) for model in request.models]
    data = find_data_sets(request.grids, request.data, request.signals, request.edition)
    cells = [
        Cell(
            data_set,
            spec,
            seed,
            request.protocol(data_set).name,
            spec.description(data_set.grid, seed),
        )
        for data_set in data
        for spec in specs
        for seed in spec.seeds(request.seeds)
    ]
    _check_names(cells)
    cells = list({cell.key: cell for cell in cells}.values())
    rows = read_results([request.out]) if any(request.out.glob("**/*.json")) else []
    plan = Plan(request, cells, rows)
    _find_done(plan)
    return plan


def _resolve(model: str, request: BenchRequest) -> ModelSpec:
    spec = resolve_model(model, request.training)
    if spec.run is not None:
        raise TaskError(
            f"{model}: is the folder of a training, and a bench trains its models itself; give "
            "the model's name, or use `powerphase score`"
        )
    return spec


def _find_done(plan: Plan) -> None:
    """Note the rows that exist; raise if a different row is in the place of one."""
    rows = {row.key: row for row in plan.rows}
    problems: list[str] = []
    for cell in plan.cells:
        for description in cell.possible_descriptions(plan.is_budgeted):
            row = rows.get(cell.key_for(description))
            if row is None:
                continue
            departures = _departures(row, cell, plan.request, description)
            if not departures:
                plan.done[cell] = row
                break
            problems.append(
                f"{plan.request.out / row.path}: this row has another {' and '.join(departures)} "
                f"than the one to be made{_config_changes(row, description, plan.is_budgeted)}; "
                "remove it, or choose another --out"
            )
    if problems:
        raise ResultError("\n".join(problems))


def same_config(config: Mapping[str, Any], other: Mapping[str, Any], *, is_budgeted: bool) -> bool:
    """Whether two configs agree, apart from their epochs if trainings may be cut."""
    return _comparable(config, is_budgeted) == _comparable(other, is_budgeted)


def _comparable(config: Mapping[str, Any], is_budgeted: bool) -> Mapping[str, Any]:
    training = config.get("training")
    if not is_budgeted or not isinstance(training, Mapping):
        return config
    kept = {name: value for name, value in training.items() if name != "epochs"}
    return {**config, "training": kept}


def _check_names(cells: Iterable[Cell]) -> None:
    """Raise if two models have one name: their rows could not be distinguished."""
    first: dict[tuple[str, str], ModelSpec] = {}
    for cell in cells:
        spec, known = cell.spec, first.setdefault(cell.group, cell.spec)
        if known.identity != spec.identity:
            raise ForecastError(
                f"{known.text} and {spec.text} are both called {cell.key.name}, so their rows "
                "could not be distinguished; give one of them another name or variant"
            )


def _departures(
    row: Result, cell: Cell, request: BenchRequest, description: Description
) -> list[str]:
    """In what the row differs from the one that the cell would get."""
    checks = {
        # They also determine the windows.
        "fingerprint": row.fingerprint == cell.data.fingerprint,
        "task version": row.task_version == PROTOCOL_VERSION,
        "version of the model's results": (row.model_version or 1) == description.version,
        "config": same_config(row.config, description.config, is_budgeted=request.is_budgeted),
    }
    return [name for name, agrees in checks.items() if not agrees]


def _config_changes(row: Result, description: Description, is_budgeted: bool) -> str:
    """The fields in which the row's config differs, in parentheses; empty if there are none."""
    configs = (row.config, description.config)
    old, new = (_flat(_comparable(config, is_budgeted)) for config in configs)
    differing = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    changes = [f"{name} {old.get(name)!r}, not {new.get(name)!r}" for name in differing]
    if len(changes) > MAX_FIELDS:
        changes[MAX_FIELDS:] = [f"and {len(changes) - MAX_FIELDS} more"]
    return f" ({'; '.join(changes)})" if changes else ""


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """All fields of a config, nested ones as `part.field`."""
    fields: dict[str, Any] = {}
    for name, value in config.items():
        is_nested = isinstance(value, Mapping)
        fields |= _flat(value, f"{prefix}{name}.") if is_nested else {f"{prefix}{name}": value}
    return fields
