"""The rows that a figure shows: one row per model on one grid, with its arrays."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from powerphase.errors import ResultError, UnknownName
from powerphase.records.result import Result, find_results
from powerphase.records.sidecar import FORECASTS, NOT_DRAWN_SEEDS, read_sidecar
from powerphase.registry import MODELS, model_kind
from powerphase.report.entries import edition_of, representative
from powerphase.task.protocol import PAPER_TASK


@dataclass(frozen=True)
class FigureRow:
    """A row, and the file that it was read from."""

    row: Result
    file: Path

    @property
    def conditions(self) -> str:
        """The grid, and the edition of its data."""
        return f"{self.row.grid}, edition {self.row.edition}"

    @cached_property
    def _arrays(self) -> dict[str, Shaped[np.ndarray, "..."]]:
        return read_sidecar(self.file, expanded=True)

    def array(self, name: str) -> Shaped[np.ndarray, "..."]:
        """An array of the row's sidecar."""
        if name not in self._arrays:
            file = self.file.with_suffix(".npz")
            if name.startswith(FORECASTS) and self.row.seed in NOT_DRAWN_SEEDS:
                raise ResultError(f"{file}: has no forecasts to draw; choose another seed")
            raise ResultError(f"{file}: has no array {name!r}; score the forecast again")
        return self._arrays[name]


@dataclass(frozen=True)
class Selection:
    """The models of a figure in order, with None for a model without a row."""

    by_model: dict[str, FigureRow | None]
    notes: tuple[str, ...]
    """What a reader of the figure must know about the choice."""

    @property
    def available(self) -> dict[str, FigureRow]:
        """The models that have a row."""
        return {name: row for name, row in self.by_model.items() if row is not None}


def rows_on(results: Iterable[Path], grid: str, edition: str | None = None) -> list[FigureRow]:
    """All rows of the grid and edition in the files and folders, scored on the same windows.

    If some of them have the paper's task, only those.
    """
    results_by_file = find_results(results)
    grids = {row.grid for row in results_by_file.values()}
    if grids and grid not in grids:
        raise UnknownName.among("row on grid", grid, grids)
    on_grid = [FigureRow(row, file) for file, row in results_by_file.items() if row.grid == grid]
    candidates = on_grid if edition else _prefer_paper_task(on_grid)
    edition = edition_of((row.row for row in candidates), edition, f"on {grid}")
    rows = _prefer_paper_task([row for row in on_grid if row.row.edition == edition])
    first = rows[0]
    for row in rows:
        if _data(row.row) != _data(first.row):
            raise ResultError(
                f"{row.file}: scored on other data or windows than {first.file}; name one tree of "
                "results with --results"
            )
    return rows


def _prefer_paper_task(rows: list[FigureRow]) -> list[FigureRow]:
    """The rows of the paper's task, or all if there are none."""
    return [row for row in rows if row.row.task == PAPER_TASK] or rows


def select(
    rows: Sequence[FigureRow],
    models: Sequence[str] | None,
    first: Sequence[str],
    most: int,
    seed: int,
) -> Selection:
    """The rows of `models`; by default of those in `first`, then of others, `most` in all."""
    by_name = _by_name(rows, seed)
    if models is not None:
        names = [known_model(name, by_name) for name in dict.fromkeys(models)]
        if len(names) > most:
            raise ResultError(f"{len(names)} models, but the figure shows at most {most}")
    else:
        others = sorted((name for name in by_name if "+" not in name), key=_order)
        names = list(dict.fromkeys(name for name in (*first, *others) if name in by_name))[:most]
    missing = [name for name in (models or first) if name not in by_name]
    notes = missing_note(missing, rows[0].row.grid)
    notes += [
        f"{name} is shown with seed {by_name[name].row.seed}, since it has no row with seed {seed}"
        for name in names
        if name in by_name and by_name[name].row.seed != seed and model_kind(name) == "model"
    ]
    notes += budget_sentences({name: by_name[name].row.name for name in names if name in by_name})
    return Selection({name: by_name.get(name) for name in names}, tuple(notes))


def _by_name(rows: Sequence[FigureRow], seed: int) -> dict[str, FigureRow]:
    """A row for each name, of this seed where possible; a model also by its representative."""
    by_name: dict[str, FigureRow] = {}
    for row in sorted(rows, key=lambda row: (row.row.seed != seed, row.row.seed)):
        by_name.setdefault(row.row.name, row)
    for model in {name.partition("+")[0] for name in by_name}:
        name = representative(model, by_name)
        if name is not None:
            by_name[model] = by_name[name]
    return by_name


def known_model(name: str, names: Iterable[str]) -> str:
    """The name, if a row or the registry has it."""
    if name not in MODELS and name not in names:
        raise UnknownName.among("model", name, {*MODELS, *names})
    return name


def budget_sentences(representatives: Mapping[str, str]) -> list[str]:
    """One sentence for each model that is represented by a smaller budget."""
    return [
        f"{model} is shown with a smaller budget ({row}), since it has no other row"
        for model, row in representatives.items()
        if row != model
    ]


def missing_note(names: Sequence[str], grid: str) -> list[str]:
    """A sentence about models that cannot be shown, if there are any."""
    return [f"no row on {grid} for {', '.join(names)}"] if names else []


def _order(name: str) -> tuple[int, int, str]:
    kind = ("model", "reference", "oracle").index(model_kind(name))
    return kind, list(MODELS).index(name) if name in MODELS else len(MODELS), name


def _data(row: Result) -> tuple[object, ...]:
    return row.task, row.task_version, row.fingerprint, row.windows
