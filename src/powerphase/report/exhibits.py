"""The rows that a figure shows: those of one grid, one for each model, with their arrays."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from powerphase.errors import ResultError, UnknownName
from powerphase.records.result import Result, find_results
from powerphase.records.sidecar import FORECASTS, NOT_DRAWN_SEEDS, expanded, read_sidecar
from powerphase.registry import MODELS, model_kind
from powerphase.report.entries import edition_of, representative
from powerphase.task.protocol import PAPER_TASK


@dataclass(frozen=True)
class Exhibit:
    """A row and where it was read."""

    row: Result
    file: Path

    @property
    def place(self) -> str:
        """The grid, and the edition of its data."""
        return f"{self.row.grid}, edition {self.row.edition}"

    @cached_property
    def _arrays(self) -> dict[str, Shaped[np.ndarray, "..."]]:
        return expanded(read_sidecar(self.file))

    def array(self, name: str) -> Shaped[np.ndarray, "..."]:
        """An array that lies beside the row."""
        if name not in self._arrays:
            file = self.file.with_suffix(".npz")
            if name.startswith(FORECASTS) and self.row.seed in NOT_DRAWN_SEEDS:
                raise ResultError(f"{file}: has no forecasts to draw; choose another seed")
            raise ResultError(f"{file}: holds no array {name!r}; score the forecast again")
        return self._arrays[name]


@dataclass(frozen=True)
class Selection:
    """The models of a figure in order; a model without a row has none here."""

    exhibits: dict[str, Exhibit | None]
    notes: tuple[str, ...]
    """What a reader of the figure must be told about the choice."""

    @property
    def found(self) -> dict[str, Exhibit]:
        """Those that have a row."""
        return {name: one for name, one in self.exhibits.items() if one is not None}


def exhibits_on(results: Iterable[Path], grid: str, edition: str | None = None) -> list[Exhibit]:
    """All rows of the grid and edition in the files and folders, scored on the same windows.

    Where there are some of the paper's task, those alone.
    """
    rows = find_results(results)
    grids = {row.grid for row in rows.values()}
    if grids and grid not in grids:
        raise UnknownName.among("row on grid", grid, grids)
    of_grid = [Exhibit(row, file) for file, row in rows.items() if row.grid == grid]
    known = of_grid if edition else _of_paper(of_grid)
    edition = edition_of((one.row for one in known), edition, f"on {grid}")
    exhibits = _of_paper([one for one in of_grid if one.row.edition == edition])
    first = exhibits[0]
    for one in exhibits:
        if _data(one.row) != _data(first.row):
            raise ResultError(
                f"{one.file}: scored on other data or windows than {first.file}; name one tree of "
                "results with --results"
            )
    return exhibits


def _of_paper(exhibits: list[Exhibit]) -> list[Exhibit]:
    """Those of the paper's task; all, where it has none."""
    return [one for one in exhibits if one.row.task == PAPER_TASK] or exhibits


def select(
    exhibits: Sequence[Exhibit], models: Sequence[str] | None, first: Sequence[str], most: int,
    seed: int,
) -> Selection:  # fmt: skip
    """The rows of `models`; by default of those in `first`, then of others, `most` in all."""
    rows: dict[str, Exhibit] = {}
    for one in sorted(exhibits, key=lambda one: (one.row.seed != seed, one.row.seed)):
        rows.setdefault(one.row.name, one)
    for model in {name.partition("+")[0] for name in rows}:
        stands = representative(model, rows)
        if stands is not None:
            rows[model] = rows[stands]
    grid = exhibits[0].row.grid
    if models is not None:
        chosen = [known_model(name, rows) for name in dict.fromkeys(models)]
        if len(chosen) > most:
            raise ResultError(f"{len(chosen)} models, but the figure shows at most {most}")
    else:
        others = sorted((name for name in rows if "+" not in name), key=_order)
        chosen = list(dict.fromkeys([name for name in (*first, *others) if name in rows]))[:most]
    missing = [name for name in (models or first) if name not in rows]
    notes = without_rows(missing, grid)
    notes += [
        f"{name} is shown with seed {rows[name].row.seed}, as it has no row with seed {seed}"
        for name in chosen
        if name in rows and rows[name].row.seed != seed and model_kind(name) == "model"
    ]
    notes += with_less({name: rows[name].row.name for name in chosen if name in rows})
    return Selection({name: rows.get(name) for name in chosen}, tuple(notes))


def known_model(name: str, rows: Iterable[str]) -> str:
    """The name, if it is that of a row or of a model that may get one."""
    if name not in MODELS and name not in rows:
        raise UnknownName.among("model", name, {*MODELS, *rows})
    return name


def with_less(stands: Mapping[str, str]) -> list[str]:
    """Sentences about models that stand there with less than they ask for."""
    return [
        f"{model} is shown with a smaller budget ({row}), as it has no row of its own"
        for model, row in stands.items()
        if row != model
    ]


def without_rows(names: Sequence[str], grid: str) -> list[str]:
    """What to say of models that cannot be shown, if there are any."""
    return [f"no row on {grid} is there for {', '.join(names)}"] if names else []


def _order(name: str) -> tuple[int, int, str]:
    kind = ("model", "reference", "oracle").index(model_kind(name))
    return kind, list(MODELS).index(name) if name in MODELS else len(MODELS), name


def _data(row: Result) -> tuple[object, ...]:
    return row.task, row.task_version, row.fingerprint, row.windows
