"""One score of every forecaster on every grid, as a table."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import inf

from powerphase.records.scores import SCORES, find_score
from powerphase.report.boards import COUPLING, Board, coupling_notes, has_coupling
from powerphase.report.entries import (
    PAPER_DECIMALS,
    Entry,
    budget_notes,
    group_by,
    label_notes,
    orders_forecasts,
)
from powerphase.report.sheet import MISSING, Cell, Sheet, number

LONG = 1e-2
"""A table is in thousandths if a score is below this: it would take eight characters or more, and
six grids would not fit into 80 columns."""


def compact_sheets(boards: Iterable[Board], score: str = "crps") -> list[Sheet]:
    """One score of all forecasters on all grids: a table for each edition and task.

    Variants are omitted, except smaller budgets that are ranked. A grid with several data sets has
    several columns.
    """
    score = find_score(score)
    together = group_by(boards, lambda board: board.conditions)
    return [_compact_sheet(conditions, group, score) for conditions, group in together.items()]


def _compact_sheet(conditions: str, boards: Sequence[Board], score: str) -> Sheet:
    ours = _entries_by_name((board.entries for board in boards), score)
    papers = _entries_by_name((board.paper for board in boards), score)
    entries = [entry for line in ours.values() for entry in line if entry]
    budgets = budget_notes(ours)
    shift = 3 if any(0 < abs(entry.mean[score] or 0) < LONG for entry in entries) else 0
    sheet = Sheet(
        title=f"{SCORES[score].title}{' · 10³' * bool(shift)}, edition {conditions}",
        header=("model", COUPLING, *(board.grid for board in boards)),
        groups=tuple(
            _compact_lines(lines, boards, score, shift) for lines in (ours, papers) if lines
        ),
        above=f"{SCORES[score].question} Means over seeds and windows"
        + ("; the best ranked entry is bold" if orders_forecasts(score) else "")
        + (", and rows marked (paper) are the paper's, on its data." if papers else "."),
        below=(
            *coupling_notes([score]),
            *(f"{budgets}.",) * bool(budgets),
            *label_notes(entries),
        ),
        names=2,
    )
    return sheet if has_coupling(entries, [score]) else sheet.without(COUPLING)


def _entries_by_name(
    groups: Iterable[Sequence[Entry]], score: str
) -> dict[str, list[Entry | None]]:
    """The entry of each name on every board, None where it is missing.

    Sorted by the score on the first board, then on the next; the oracle is last.
    """
    boards = [{entry.name: entry for entry in group if _is_in_compact(entry)} for group in groups]
    names = dict.fromkeys(name for board in boards for name in board)
    by_name = {name: [board.get(name) for board in boards] for name in names}

    def order(name: str) -> tuple[bool, list[float]]:
        entries = by_name[name]
        is_oracle = any(entry and entry.kind == "oracle" for entry in entries)
        return is_oracle, [_mean_or_inf(entry, score) for entry in entries]

    return {name: by_name[name] for name in sorted(by_name, key=order)}


def _mean_or_inf(entry: Entry | None, score: str) -> float:
    mean = None if entry is None else entry.mean[score]
    return inf if mean is None else mean


def _is_in_compact(entry: Entry) -> bool:
    return entry.rank is not None or not entry.is_variant


def _compact_lines(
    entries: dict[str, list[Entry | None]], boards: Sequence[Board], score: str, shift: int
) -> tuple[tuple[Cell, ...], ...]:
    best = [
        _lowest_in_column([line[k] for line in entries.values()], score) for k in range(len(boards))
    ]
    return tuple(
        (
            (_compact_label(line), False),
            (_compact_coupling(line), False),
            *(
                _compact_cell(entry, score, least, shift)
                for entry, least in zip(line, best, strict=True)
            ),
        )
        for line in entries.values()
    )


def _compact_coupling(line: Sequence[Entry | None]) -> str:
    """How the scenarios of a forecaster are coupled, if it is the same on all grids."""
    couplings = {entry.coupling for entry in line if entry is not None}
    return (couplings.pop() if len(couplings) == 1 else "") or MISSING


def _compact_label(line: Sequence[Entry | None]) -> str:
    """The label of a forecaster, marked if it is flat or outdated on any grid."""
    entries = [entry for entry in line if entry is not None]
    return replace(
        entries[0],
        is_flat=any(entry.is_flat for entry in entries),
        is_outdated=any(entry.is_outdated for entry in entries),
    ).label


def _lowest_in_column(column: Sequence[Entry | None], score: str) -> float | None:
    """The lowest mean of ranked entries; None if the score does not order forecasts."""
    means = [entry.mean[score] for entry in column if entry is not None and entry.rank is not None]
    known = [mean for mean in means if mean is not None]
    return min(known) if known and orders_forecasts(score) else None


def _compact_cell(entry: Entry | None, score: str, best: float | None, shift: int) -> Cell:
    """A score times ten to the power of `shift`."""
    mean = None if entry is None else entry.mean[score]
    if entry is None or mean is None:
        return MISSING, False
    decimals = PAPER_DECIMALS - shift if entry.kind == "paper" else None
    return number(10**shift * mean, decimals=decimals), entry.rank is not None and mean == best
