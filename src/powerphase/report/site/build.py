"""Builds a site from rows, sidecars, data sets and forecast files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from powerphase.dataset.certificate import Certificate
from powerphase.dataset.store import Store, open_store
from powerphase.errors import ReportError
from powerphase.records.forecast_file import ForecastFile, open_forecast
from powerphase.records.result import Result, find_results
from powerphase.records.row_key import read_failures
from powerphase.records.scores import GROUPS, SCORES
from powerphase.report.boards import Board, leaderboard
from powerphase.report.entries import orders_forecasts
from powerphase.report.site.board_pages import BoardPages
from powerphase.report.site.folder import INDEX, Folder, script
from powerphase.report.site.forecasts import kinds_of
from powerphase.report.site.index_page import (
    data_set_facts,
    render_index,
    sides_of,
    table_groups,
)
from powerphase.report.style import page_looks
from powerphase.task.protocol import PAPER_TASK, has_paper_clock

Progress = Callable[[int, int], None]

GROUP_TITLES = {
    "fidelity": "Fidelity",
    "safety": "Safety",
    "lines": "Lines",
    "joint": "The grid as a whole",
}
"""The headings of the groups in a list of all scores."""


@dataclass(frozen=True)
class Site:
    """A written site."""

    index: Path
    sizes: Mapping[str, int]
    """Bytes of each file, by its path within the site."""

    @property
    def bytes(self) -> int:
        """Total size of all files."""
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
    """Write a site to the folder `out`, replacing an earlier one.

    Args:
        results: rows, or trees of them.
        out: an empty folder, a new one, or one with an earlier site.
        data: data sets, for the truth at every bus and for the page on data.
        forecasts: forecast files, to show every bus instead of those in sidecars.
        variables: those of "P", "Q", "V", "theta" to read from forecast files.
        certificates: the certificates of verified data sets, by path as passed in `data`.
        on_progress: called with the number of boards done and the number of all boards.
    """
    rows = find_results(results)
    boards = leaderboard(rows.values(), failures=read_failures(results))
    stores = {store.manifest.fingerprint: store for store in map(open_store, data)}
    files = _by_board(boards, [open_forecast(path) for path in forecasts])
    _check_used(boards, stores.values())
    _check_clocks(boards)
    kinds, folder = kinds_of(variables), Folder(Path(out))
    descriptions = []
    for number, (board, key) in enumerate(zip(boards, _keys(boards), strict=True)):
        board_rows = {file: row for file, row in rows.items() if _belongs_to(row, board)}
        pages = BoardPages(folder, key, board, stores.get(board.fingerprint))
        descriptions.append(pages.write(board_rows, files[number], kinds))
        if on_progress:
            on_progress(number + 1, len(boards))
    certificates = certificates or {}
    data_sets = [data_set_facts(store, certificates.get(store.path)) for store in stores.values()]
    facts = _site_facts(descriptions, data_sets) | {"start": _start(descriptions)}
    folder.write("data/site.js", script("site", facts))
    tables = _tables(boards, list(rows.values()), descriptions)
    page = render_index(tables, data_sets, list(facts["looks"].values()), facts["start"])
    folder.write(INDEX, page.encode())
    return Site(Path(out) / INDEX, folder.sizes)


def _check_used(boards: Sequence[Board], stores: Iterable[Store]) -> None:
    """Raise if no row was scored on a data set: no page would show it."""
    for store in stores:
        m = store.manifest
        if m.fingerprint not in {board.fingerprint for board in boards}:
            raise ReportError(
                f"{store.path}: no row was scored on this data set ({m.grid} {m.edition}, "
                f"{m.fingerprint[:12]}); score a forecast on it, or leave it out"
            )


def _check_clocks(boards: Sequence[Board]) -> None:
    """Raise if the axes of the pages, quarter-hours from midnight on, do not fit a task."""
    for board in boards:
        if not has_paper_clock(board.task):
            raise ReportError(
                f"rows of {board.task} on {board.grid}: a site shows only tasks with steps of 15 "
                "minutes from midnight UTC on; leave these rows out, and see "
                "`powerphase leaderboard` for them"
            )


def _belongs_to(row: Result, board: Board) -> bool:
    conditions = (board.task, board.task_version, board.edition, board.grid, board.fingerprint)
    return (row.task, row.task_version, row.edition, row.grid, row.fingerprint) == conditions


def _by_board(boards: Sequence[Board], files: list[ForecastFile]) -> list[list[ForecastFile]]:
    """The forecasts of each board; raise if one has data or a task without rows."""
    by_board: list[list[ForecastFile]] = [[] for _ in boards]
    for file in files:
        h = file.header
        for number, b in enumerate(boards):
            if (h.task, h.task_version, h.fingerprint) == (b.task, b.task_version, b.fingerprint):
                by_board[number].append(file)
                break
        else:
            raise ReportError(
                f"{file.path}: no row has the same task and data ({h.grid} {h.edition}, "
                f"{h.fingerprint[:12]}); score it and pass its row, or leave it out"
            )
    return by_board


def _keys(boards: Sequence[Board]) -> list[str]:
    """A short name for each board, for addresses and files."""
    names = [f"{b.grid}-{b.conditions}".replace(",", "").replace(" ", "-") for b in boards]
    return [
        name if names.count(name) == 1 else f"{name}-{number}" for number, name in enumerate(names)
    ]


def _site_facts(
    descriptions: list[dict[str, Any]], data_sets: list[dict[str, Any]]
) -> dict[str, Any]:
    """What every page needs from the start."""
    groups = {name: GROUP_TITLES[group] for group, names in GROUPS.items() for name in names}
    scores = {
        name: {
            "title": score.title,
            "question": score.question,
            "unit": score.unit,
            "safety": score.voltage_only,
            "group": groups[name],
            "ordering": orders_forecasts(name),
        }
        for name, score in SCORES.items()
    }
    names = [
        item["name"] for board in descriptions for item in (*board["models"], *board["entries"])
    ]
    return {
        "version": version("powerphase"),
        "scores": scores,
        "boards": descriptions,
        "looks": page_looks(names),
        "archetypes": {
            facts["fingerprint"]: facts["archetypes"] for facts in data_sets if facts["archetypes"]
        },
    }


def _start(descriptions: list[dict[str, Any]]) -> str:
    """The board to begin with: most risk that comes and goes, of the paper's task if it has any."""

    def interest(board: dict[str, Any]) -> tuple[bool, float]:
        risk = board["passing_risk"]
        return board["task"] == PAPER_TASK and risk > 0, risk

    return str(max(descriptions, key=interest)["key"]) if descriptions else ""


def _tables(
    boards: Sequence[Board], rows: Sequence[Result], descriptions: list[dict[str, Any]]
) -> list[dict[str, Any]]:
    """The tables of all boards, for the template."""
    tables = []
    for board, facts in zip(boards, descriptions, strict=True):
        hardware = _hardware(row for row in rows if _belongs_to(row, board))
        groups = table_groups(board, hardware)
        ties = any(line.has_ties for group in groups for line in group.lines)
        table = {"board": facts, "notes": board.notes, "groups": groups, "has_ties": ties}
        tables.append(table | {"sides": sides_of(board)})
    return tables


def _hardware(rows: Iterable[Result]) -> dict[str, str]:
    """The hardware of each entry by name; the seeds of an entry may differ in it."""
    by_name: dict[str, dict[str, None]] = {}
    for row in rows:
        by_name.setdefault(row.name, {})[str(row.cost["hardware"])] = None
    return {name: " and ".join(machines) for name, machines in by_name.items()}
