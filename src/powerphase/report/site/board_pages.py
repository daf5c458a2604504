"""The data files of one board: its rows, the truth, its network, and forecasts of every bus."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from reprlib import repr as short
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
from powerphase.report.site.folder import Folder, pack, script
from powerphase.report.site.forecasts import (
    BUSES_PER_FILE,
    bus_contents,
    excursion_content,
    excursions,
    first_shown_bus,
    has_forecasts,
    missing_array,
    passing_risk,
    read_full_forecast,
    read_truth,
    risk_content,
    row_content,
    truth_content,
)
from powerphase.report.site.index_page import grid_title, group_of
from powerphase.task.protocol import Protocol, band_of


class BoardPages:
    """Writes the data files that pages load for one board, and describes them."""

    def __init__(self, folder: Folder, key: str, board: Board, store: Store | None) -> None:
        self._folder, self._key, self._board, self._store = folder, key, board, store
        self._drawing = (
            drawing.drawing_of(board.grid) if store is None else drawing.draw(store.grid)
        )
        self._bus_ids: Int[np.ndarray, " N"] | None = None if store is None else store.grid.bus_id
        self._truth_names: set[str] = set()
        self._scale = None if store is None else _scale(store)
        self._first_bus: int | None = None
        self._passing_risk = 0.0

    def write(
        self, rows: Mapping[Path, Result], forecasts: Sequence[ForecastFile], kinds: Sequence[int]
    ) -> dict[str, Any]:
        """Write all data files of the board; returns the description that pages load first."""
        models = {row.key.stem: self._write_row(file, row) for file, row in rows.items()}
        for number, forecast in enumerate(forecasts):
            self._write_full_forecast(models, f"forecast{number}", forecast, kinds)
        board = self._board
        return {
            "key": self._key,
            "grid": board.grid,
            "title": grid_title(board.grid),
            "edition": board.edition,
            "conditions": board.conditions,
            "task": board.task,
            "band": band_of(board.task),
            "fingerprint": board.fingerprint,
            "windows": list(board.windows),
            "n_buses": 0 if self._bus_ids is None else len(self._bus_ids),
            "first_bus": self._first_bus,
            "passing_risk": self._passing_risk,
            "scale": self._scale,
            "network": self._write_network(),
            "truth": next(iter(rows.values())).truth,
            "models": sorted(models.values(), key=self._order),
            "entries": [_entry(entry) for entry in (*board.entries, *board.paper)],
        }

    def _order(self, model: dict[str, Any]) -> tuple[int, int]:
        """The order of the table; among several seeds, the paper's middle one first."""
        names = [entry.name for entry in self._board.entries]
        rank = names.index(model["name"]) if model["name"] in names else len(names)
        return rank, (0 if model["seed"] == 42 else 1)

    def _write_row(self, file: Path, row: Result) -> dict[str, Any]:
        """Write what pages draw of a row; returns its description."""
        model = _model(row.key.stem, row.name, row.seed)
        model |= {"kind": model_kind(row.model), "scenarios": row.scenarios}
        if not file.with_suffix(".npz").exists():
            return model
        sidecar = read_sidecar(file)
        missing = missing_array(sidecar)
        if missing:
            raise ReportError(
                f"{file.with_suffix('.npz')}: has no array {missing!r}; score the forecast again, "
                "or remove the file to show the row alone"
            )
        self._passing_risk = passing_risk(sidecar)
        bus_ids = self._set_bus_ids(len(sidecar["by_bus/brier"]))
        truth = self._write_truth(sidecar) if has_forecasts(sidecar) else None
        name = row.key.stem.replace("+", "_")
        content = row_content(sidecar, bus_ids, truth)
        size = self._put(name, content)
        description = {"file": f"{self._key}/{name}", "bytes": size, "risk": "risk" in content}
        return model | description | {"shown": truth is not None}

    def _write_truth(self, sidecar: Arrays) -> str:
        """Write the truth at the shown buses unless another row had the same; returns its key."""
        self._first_bus = self._first_bus or first_shown_bus(sidecar)
        name, content = truth_content(sidecar)
        if name not in self._truth_names:
            self._put(name, content)
            self._truth_names.add(name)
        return f"{self._key}/{name}"

    def _write_full_forecast(
        self, models: dict[str, Any], name: str, file: ForecastFile, kinds: Sequence[int]
    ) -> None:
        """Write bands and risks of every bus, and add them to the model's row if it has one."""
        h = file.header
        self._check_forecast(file)
        model = models.setdefault(h.key.stem, _model(name, h.key.name, h.seed))
        model["scenarios"] = h.scenarios
        self._set_bus_ids(h.n_channels // len(VARIABLES))
        full = read_full_forecast(file, kinds)
        sizes = [self._put(f"{name}-{k}", part) for k, part in enumerate(bus_contents(full.bands))]
        starts = [h.windows[window] for window in full.windows]
        truth = None
        happened, beyond = np.zeros_like(full.probability), np.zeros_like(full.excursion)
        if self._store is not None:
            series = read_truth(self._store, starts, h.horizon, h.scale)
            happened = outside_band(series[:, V]).transpose(1, 0, 2).astype(np.uint8)
            days = series[:, V].transpose(1, 2, 0)[:, None]  # one scenario of weight 1
            beyond = np.stack([excursions(day, np.ones((1, day.shape[-1]), "f4")) for day in days])
            truth = self._write_full_truth(series[:, kinds])
        risk = risk_content(full.probability, happened, full.windows)
        risk |= excursion_content(full.excursion, beyond)
        sizes.append(self._put(f"{name}-risk", risk | {"known": truth is not None}))
        model["whole"] = {
            "file": f"{self._key}/{name}",
            "truth": truth,
            "buses_per_file": BUSES_PER_FILE,
            "windows": full.windows.tolist(),
            "variables": [VARIABLES[kind] for kind in kinds],
            "bytes": sum(sizes),
        }

    def _check_forecast(self, file: ForecastFile) -> None:
        """Raise if the windows or scales of a forecast are not those of the board's task."""
        h = file.header
        self._scale = self._scale or list(h.scale)
        for name, actual, needed in (
            ("scale", h.scale, self._scale),
            ("windows", h.windows, list(self._board.windows)),
        ):
            if actual != needed:
                raise ReportError(
                    f"{file.path}: its {name} {short(actual)} differ from {short(needed)}, those "
                    f"of {self._board.title}; make the forecast again, or leave it out"
                )

    def _write_full_truth(self, series: np.ndarray) -> str:
        """Write the truth at every bus, once; returns its key."""
        name = "happened"
        if name not in self._truth_names:
            for number, part in enumerate(bus_contents(series)):
                self._put(f"{name}-{number}", part)
            self._truth_names.add(name)
        return f"{self._key}/{name}"

    def _write_network(self) -> dict[str, Any] | None:
        """Write the bus numbers, and the drawing if it is of this grid."""
        bus_ids, picture = self._bus_ids, self._drawing
        if bus_ids is None:
            return None
        self._put("buses", {"bus_id": pack(bus_ids.astype(np.int32))})
        if picture is None or not np.array_equal(picture.bus_id, bus_ids):
            return None
        top = np.iinfo(np.uint16).max
        position = np.stack([picture.x, picture.y]) * top
        content = {
            "position": pack(np.rint(position).astype(np.uint16)),
            "branches": pack(picture.branches.astype("u2" if len(bus_ids) <= top else "u4")),
        }
        return {"file": f"{self._key}/network", "bytes": self._put("network", content)}

    def _set_bus_ids(self, n_buses: int) -> Int[np.ndarray, " N"]:
        """Bus numbers in the order of the scores; without a data set, those of the case file."""
        if self._bus_ids is None:
            self._bus_ids = np.arange(1, n_buses + 1)
            if self._drawing is not None and len(self._drawing.bus_id) == n_buses:
                self._bus_ids = self._drawing.bus_id
        if len(self._bus_ids) != n_buses:
            raise ReportError(
                f"{self._board.title}: both {len(self._bus_ids)} and {n_buses} buses; pass rows, "
                "data sets and forecasts of the same grid"
            )
        return self._bus_ids

    def _put(self, name: str, value: Any) -> int:
        key = f"{self._key}/{name}"
        return self._folder.write(f"data/{key}.js", script(key, value))


def _model(key: str, name: str, seed: int) -> dict[str, Any]:
    """The description of a model before any of its files is written."""
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
