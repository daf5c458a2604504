"""The files of one board: its rows, what happened, its network, and forecasts of every bus."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from powerphase.axes import VARIABLES, V
from powerphase.dataset.store import Store
from powerphase.errors import ReportError
from powerphase.records.forecast_file import ForecastFile
from powerphase.records.result import Result
from powerphase.records.sidecar import Arrays, read_sidecar
from powerphase.registry import model_kind
from powerphase.report import drawing
from powerphase.report.boards import Board
from powerphase.report.entries import Entry
from powerphase.report.quantiles import outside_band
from powerphase.report.site.data_sets import grid_title
from powerphase.report.site.folder import Folder
from powerphase.report.site.full_forecast import (
    BUSES_PER_FILE,
    bus_files,
    read_whole,
    truth_in,
)
from powerphase.report.site.packing import packed, script
from powerphase.report.site.rows import (
    first_shown,
    has_forecasts,
    missing_array,
    risk_of,
    row_file,
    truth_of,
)
from powerphase.report.site.tables import group_of
from powerphase.task.protocol import Protocol


class BoardPages:
    """Writes what pages load of one board, and describes it."""

    def __init__(self, folder: Folder, key: str, board: Board, store: Store | None) -> None:
        self._folder, self._key, self._board, self._store = folder, key, board, store
        self._drawing = (
            drawing.drawing_of(board.grid) if store is None else drawing.draw(store.grid)
        )
        self._ids: Int[np.ndarray, " N"] | None = None if store is None else store.grid.bus_id
        self._truths: dict[str, int] = {}
        self._scale = None if store is None else _scale(store)
        self._first: int | None = None

    def write(
        self, rows: Mapping[Path, Result], forecasts: Sequence[ForecastFile], kinds: Sequence[int]
    ) -> dict[str, Any]:
        """Write all files of the board; returns what the pages must know of it beforehand."""
        models = {row.key.stem: self._row(file, row) for file, row in rows.items()}
        for number, forecast in enumerate(forecasts):
            self._add_whole(models, f"forecast{number}", forecast, kinds)
        board = self._board
        return {
            "key": self._key,
            "grid": board.grid,
            "title": grid_title(board.grid),
            "edition": board.edition,
            "conditions": board.conditions,
            "task": board.task,
            "fingerprint": board.fingerprint,
            "windows": list(board.windows),
            "n_buses": 0 if self._ids is None else len(self._ids),
            "first_bus": self._first,
            "scale": self._scale,
            "network": self._network(),
            "truth": next(iter(rows.values())).truth,
            "models": sorted(models.values(), key=self._order),
            "entries": [_entry(entry) for entry in (*board.entries, *board.paper)],
        }

    def _order(self, model: dict[str, Any]) -> tuple[int, int]:
        """As in the table; of several seeds, the paper's middle one first."""
        names = [entry.name for entry in self._board.entries]
        place = names.index(model["name"]) if model["name"] in names else len(names)
        return place, (0 if model["seed"] == 42 else 1)

    def _row(self, file: Path, row: Result) -> dict[str, Any]:
        """Write what pages draw of a row, and say where."""
        model = _model(row.key.stem, row.name, row.seed)
        model |= {"kind": model_kind(row.model), "scenarios": row.scenarios}
        if not file.with_suffix(".npz").exists():
            return model
        sidecar = read_sidecar(file)
        lacking = missing_array(sidecar)
        if lacking:
            raise ReportError(
                f"{file.with_suffix('.npz')}: holds no array {lacking!r}; score the forecast "
                "again, or remove the file to have the row alone"
            )
        self._ids = self._bus_ids(len(sidecar["by_bus/brier"]))
        truth = self._truth(sidecar) if has_forecasts(sidecar) else None
        name = row.key.stem.replace("+", "_")
        content = row_file(sidecar, self._ids, truth)
        size = self._put(name, content)
        place = {"file": f"{self._key}/{name}", "bytes": size, "risk": "risk" in content}
        return model | place | {"shown": truth is not None}

    def _truth(self, sidecar: Arrays) -> str:
        """Write what happened at the shown buses, unless another row had the same; its key."""
        self._first = self._first or first_shown(sidecar)
        name, content = truth_of(sidecar)
        if name not in self._truths:
            self._truths[name] = self._put(name, content)
        return f"{self._key}/{name}"

    def _add_whole(
        self, models: dict[str, Any], name: str, file: ForecastFile, kinds: Sequence[int]
    ) -> None:
        """Write bands and risks of every bus, and join them to the model's row if it has one."""
        h = file.header
        model = models.setdefault(h.key.stem, _model(name, h.key.name, h.seed))
        model["scenarios"] = h.scenarios
        self._ids = self._bus_ids(h.n_channels // len(VARIABLES))
        found = read_whole(file, kinds)
        sizes = [self._put(f"{name}-{k}", part) for k, part in enumerate(bus_files(found.bands))]
        starts = [h.windows[window] for window in found.windows]
        truth = None
        happened = np.zeros_like(found.probability)
        if self._store is not None:
            series = truth_in(self._store, starts, h.horizon, h.scale)
            happened = outside_band(series[:, V]).transpose(1, 0, 2).astype(np.uint8)
            truth = self._whole_truth(series[:, kinds], sizes)
        risk = risk_of(found.probability, happened, found.windows) | {"known": truth is not None}
        sizes.append(self._put(f"{name}-risk", risk))
        self._scale = self._scale or list(h.scale)
        model["whole"] = {
            "file": f"{self._key}/{name}",
            "truth": truth,
            "buses_per_file": BUSES_PER_FILE,
            "windows": found.windows.tolist(),
            "variables": [VARIABLES[kind] for kind in kinds],
            "bytes": sum(sizes),
        }

    def _whole_truth(self, series: np.ndarray, sizes: list[int]) -> str:
        name = "happened"
        if name not in self._truths:
            parts = [self._put(f"{name}-{k}", one) for k, one in enumerate(bus_files(series))]
            self._truths[name] = sum(parts)
        return f"{self._key}/{name}"

    def _network(self) -> dict[str, Any] | None:
        """The drawing, if there is one of this grid; and bus numbers in any case."""
        ids, picture = self._ids, self._drawing
        if ids is None:
            return None
        self._put("buses", {"bus_id": packed(ids.astype(np.int32))})
        if picture is None or not np.array_equal(picture.bus_id, ids):
            return None
        top = np.iinfo(np.uint16).max
        places = np.stack([picture.x, picture.y]) * top
        content = {
            "place": packed(np.rint(places).astype(np.uint16)),
            "branches": packed(picture.branches.astype("u2" if len(ids) <= top else "u4")),
        }
        return {"file": f"{self._key}/network", "bytes": self._put("network", content)}

    def _bus_ids(self, n_buses: int) -> Int[np.ndarray, " N"]:
        """Bus numbers in the order of the scores; those of the case where no data set is given."""
        if self._ids is None:
            self._ids = np.arange(1, n_buses + 1)
            if self._drawing is not None and len(self._drawing.bus_id) == n_buses:
                self._ids = self._drawing.bus_id
        if len(self._ids) != n_buses:
            raise ReportError(
                f"{self._board.title}: {len(self._ids)} buses in one place and {n_buses} in "
                "another; give rows, data sets and forecasts of the same grid"
            )
        return self._ids

    def _put(self, name: str, value: Any) -> int:
        key = f"{self._key}/{name}"
        return self._folder.write(f"data/{key}.js", script(key, value))


def _model(key: str, name: str, seed: int) -> dict[str, Any]:
    """A model as the page lists it, before anything of it is written."""
    files = {"file": None, "bytes": 0, "risk": False, "shown": False, "whole": None}
    return {"id": key, "name": name, "seed": seed, "kind": "model", **files}


def _entry(entry: Entry) -> dict[str, Any]:
    return {
        "name": entry.name,
        "kind": entry.kind,
        "group": group_of(entry),
        "seeds": len(entry.seeds),
        "rank": entry.rank,
        "mean": dict(entry.mean),
        "std": dict(entry.std),
    }


def _scale(store: Store) -> list[float]:
    """The P [MW] and Q [MVAr] by which the task divides."""
    splits = Protocol().splits(store.time)
    return [value or 1.0 for value in store.largest_power(slice(splits.first, splits.train_stop))]
