"""The site: rows, sidecars, data sets and forecast files in; a folder of pages out."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from powerphase.dataset.certificate import Certificate
from powerphase.dataset.store import Store, open_store
from powerphase.errors import ReportError
from powerphase.records.forecast_file import ForecastFile, open_forecast
from powerphase.records.result import Result, find_results
from powerphase.records.row_key import read_failures
from powerphase.records.scores import SCORES
from powerphase.report.boards import COLUMNS, Board, leaderboard
from powerphase.report.entries import orders_forecasts
from powerphase.report.site.board_pages import BoardPages
from powerphase.report.site.data_sets import data_set
from powerphase.report.site.folder import INDEX, MARK, Folder
from powerphase.report.site.full_forecast import kinds_of
from powerphase.report.site.looks import looks
from powerphase.report.site.packing import script
from powerphase.report.site.tables import (
    FIDELITY,
    RANK,
    SAFETY,
    TIME,
    groups,
    meaning,
    unit_of,
)

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Site:
    """A site that was written."""

    index: Path
    sizes: Mapping[str, int]
    """Bytes of each file, by its path within the site."""

    @property
    def bytes(self) -> int:
        """Of all files together."""
        return sum(self.sizes.values())


def build_site(
    results: Sequence[str | Path],
    out: str | Path,
    *,
    data: Sequence[str | Path] = (),
    forecasts: Sequence[str | Path] = (),
    variables: Sequence[str] = ("V",),
    certificates: Mapping[str, Certificate] | None = None,
    on_progress: Progress | None = None,
) -> Site:
    """Write a site into the folder `out`, in place of an earlier one.

    Args:
        results: rows, or trees of them.
        out: an empty folder, a new one, or one with an earlier site.
        data: data sets, for what happened at every bus and for the page on data.
        forecasts: forecast files, for every bus rather than those that sidecars carry.
        variables: those of "P", "Q", "V", "theta" that are taken from forecast files.
        certificates: what verifying a data set found, by its place as given in `data`.
        on_progress: called with the number of boards done, and of all.
    """
    rows = find_results(results)
    boards = leaderboard(rows.values(), failures=read_failures(results))
    stores = {store.manifest.fingerprint: store for store in map(open_store, data)}
    found = certificates or {}
    files = _by_board(boards, [open_forecast(path) for path in forecasts])
    _check_used(boards, stores.values())
    kinds, folder = kinds_of(variables), Folder(Path(out))
    described = []
    for number, (board, key) in enumerate(zip(boards, _keys(boards), strict=True)):
        mine = {file: row for file, row in rows.items() if _is_of(row, board)}
        pages = BoardPages(folder, key, board, stores.get(board.fingerprint))
        described.append(pages.write(mine, files[number], kinds))
        if on_progress:
            on_progress(number + 1, len(boards))
    sets = [data_set(store, found.get(store.path)) for store in stores.values()]
    facts = _site(described, sets)
    folder.write("data/site.js", script("site", facts))
    tables = _tables(boards, list(rows.values()), described)
    folder.write(INDEX, _index(tables, sets, facts["looks"]).encode())
    return Site(Path(out) / INDEX, folder.sizes)


def _check_used(boards: Sequence[Board], stores: Iterable[Store]) -> None:
    """Refuse a data set that no row rests on: no page would show it."""
    for store in stores:
        m = store.manifest
        if m.fingerprint not in {board.fingerprint for board in boards}:
            raise ReportError(
                f"{store.path}: no row rests on this data set ({m.grid} {m.edition}, "
                f"{m.fingerprint[:12]}); score a forecast on it, or leave it out"
            )


def _is_of(row: Result, board: Board) -> bool:
    ours = (board.task, board.task_version, board.edition, board.grid, board.fingerprint)
    return (row.task, row.task_version, row.edition, row.grid, row.fingerprint) == ours


def _by_board(boards: Sequence[Board], files: list[ForecastFile]) -> list[list[ForecastFile]]:
    """The forecasts of each board; one of data or a task without rows is refused."""
    found: list[list[ForecastFile]] = [[] for _ in boards]
    for file in files:
        h = file.header
        for number, b in enumerate(boards):
            if (h.task, h.task_version, h.fingerprint) == (b.task, b.task_version, b.fingerprint):
                found[number].append(file)
                break
        else:
            raise ReportError(
                f"{file.path}: no row is of the same task and data ({h.grid} {h.edition}, "
                f"{h.fingerprint[:12]}); score it and give its row, or leave it out"
            )
    return found


def _keys(boards: Sequence[Board]) -> list[str]:
    """A short name for each board, for addresses and files."""
    names = [f"{b.grid}-{b.conditions}".replace(",", "").replace(" ", "-") for b in boards]
    return [
        name if names.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(names)
    ]


def _site(boards: list[dict[str, Any]], sets: list[dict[str, Any]]) -> dict[str, Any]:
    """What every page needs at once."""
    scores = {
        name: {
            "title": score.title,
            "question": score.question,
            "unit": score.unit,
            "safety": score.voltage_only,
            "ordering": orders_forecasts(name),
        }
        for name, score in SCORES.items()
    }
    shapes = {one["fingerprint"]: one["archetypes"] for one in sets}
    named = [one["name"] for board in boards for one in (*board["models"], *board["entries"])]
    return {
        "version": version("powerphase"),
        "scores": scores,
        "boards": boards,
        "looks": looks(named),
        "archetypes": shapes,
    }


def _tables(
    boards: Sequence[Board], rows: Sequence[Result], described: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The tables of all boards, for the template."""
    tables = []
    for board, facts in zip(boards, described, strict=True):
        machines = _hardware(row for row in rows if _is_of(row, board))
        tables.append({"board": facts, "notes": board.notes, "groups": groups(board, machines)})
    return tables


def _hardware(rows: Iterable[Result]) -> dict[str, str]:
    """What each entry ran on, by name: seeds, whose mean cost is shown, may be of several."""
    found: dict[str, dict[str, None]] = {}
    for row in rows:
        found.setdefault(row.name, {})[str(row.cost["hardware"])] = None
    return {name: " and ".join(machines) for name, machines in found.items()}


def _index(
    tables: list[dict[str, Any]], sets: list[dict[str, Any]], found: dict[str, dict[str, Any]]
) -> str:
    environment = Environment(
        loader=PackageLoader("powerphase.report.site"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("index.html.j2").render(
        mark=MARK,
        version=version("powerphase"),
        tables=tables,
        sets={one["fingerprint"]: one for one in sets},
        scores=SCORES,
        fidelity=FIDELITY,
        safety=SAFETY,
        columns=COLUMNS,
        units={name: unit_of(name) for name in COLUMNS},
        meanings={name: meaning(name) for name in SCORES},
        rank=RANK,
        time=TIME,
        looks=list(found.values()),
    )
