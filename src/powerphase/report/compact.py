"""One score of all forecasters on all grids, in one small table."""

from collections.abc import Iterable, Sequence
from math import inf

from powerphase.records.scores import SCORES, find_score
from powerphase.report.entries import PAPER_DECIMALS, Entry, explained, grouped, orders_forecasts
from powerphase.report.leaderboard import Board
from powerphase.report.sheet import Cell, Sheet, number


def compact(boards: Iterable[Board], score: str = "crps") -> list[Sheet]:
    """A table for each edition and task: a line for each forecaster, a column for each grid.

    Variants are left out, but for smaller budgets that compete. A grid with several data sets has
    several columns.
    """
    score = find_score(score)
    together = grouped(boards, lambda board: board.conditions)
    return [_sheet(conditions, own, score) for conditions, own in together.items()]


def _sheet(conditions: str, boards: Sequence[Board], score: str) -> Sheet:
    ours = _by_name((board.entries for board in boards), score)
    papers = _by_name((board.paper for board in boards), score)
    less = explained(ours)
    return Sheet(
        title=f"{SCORES[score].title}, edition {conditions}",
        header=("model", *(board.grid for board in boards)),
        groups=tuple(_lines(entries, boards, score) for entries in (ours, papers) if entries),
        above=f"{SCORES[score].question} Means over seeds and windows; the best of those that "
        "compete is bold, and rows marked (paper) are the paper's, on its own data.",
        below=(f"{less}.",) * bool(less),
    )


def _by_name(groups: Iterable[Sequence[Entry]], score: str) -> dict[str, list[Entry | None]]:
    """For each name its entry on every board, None where it has none.

    In the order of the first board; who is not on it follows in the order of the next, and the
    oracle is last.
    """
    boards = [{entry.name: entry for entry in group if _is_shown(entry)} for group in groups]
    names = dict.fromkeys(name for board in boards for name in board)
    found = {name: [board.get(name) for board in boards] for name in names}

    def order(name: str) -> tuple[bool, list[float]]:
        own = found[name]
        return any(e and e.kind == "oracle" for e in own), [_size(e, score) for e in own]

    return {name: found[name] for name in sorted(found, key=order)}


def _size(entry: Entry | None, score: str) -> float:
    mean = None if entry is None else entry.mean[score]
    return inf if mean is None else mean


def _is_shown(entry: Entry) -> bool:
    return entry.rank is not None or not entry.is_variant


def _lines(
    entries: dict[str, list[Entry | None]], boards: Sequence[Board], score: str
) -> tuple[tuple[Cell, ...], ...]:
    best = [_best([own[k] for own in entries.values()], score) for k in range(len(boards))]
    return tuple(
        (
            (next(entry.label for entry in own if entry is not None), False),
            *(_cell(entry, score, least) for entry, least in zip(own, best, strict=True)),
        )
        for own in entries.values()
    )


def _best(column: Sequence[Entry | None], score: str) -> float | None:
    """The lowest of those that compete; None of a score that does not order forecasts."""
    found = [entry.mean[score] for entry in column if entry is not None and entry.rank is not None]
    known = [value for value in found if value is not None]
    return min(known) if known and orders_forecasts(score) else None


def _cell(entry: Entry | None, score: str, best: float | None) -> Cell:
    if entry is None:
        return number(None), False
    mean = entry.mean[score]
    decimals = PAPER_DECIMALS if entry.kind == "paper" else None
    return number(mean, decimals=decimals), entry.rank is not None and mean == best
