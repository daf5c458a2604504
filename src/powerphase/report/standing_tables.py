"""The statistics of a board as tables: ranks, skill, and which differences exceed noise."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from powerphase.errors import UnknownName
from powerphase.records.scores import SCORES
from powerphase.report.boards import COUPLING, Board, coupling_notes, has_coupling
from powerphase.report.entries import (
    Entry,
    group_by,
    label_notes,
    ordering_score,
    places,
)
from powerphase.report.sheet import MISSING, Cell, Note, Sheet, as_csv, number
from powerphase.report.statistics import (
    LEVEL,
    ORACLE,
    REFERENCE,
    SEED_DEVIATIONS,
    Contrast,
    Skill,
    against,
    least_p,
    n_independent,
    pairs,
    procedure,
    skills,
)

TESTED = ("crps", "distortion", "safety_mbrier", "brier", "twcrps", "energy")
"""The scores shown by default."""

HEADER = (
    *("grid", "score", "model", COUPLING, "seeds", "mean", "place", "skill", "to oracle"),
    *("difference", "p", "seeds apart", "verdict"),
)
CSV_HEADER = (
    *("task", "task_version", "edition", "grid", "fingerprint", "score", "model", "seeds"),
    *("mean", "std", "rank", "place", "skill", "why_no_skill", "to_oracle", "why_not_to_oracle"),
    *("other", "difference", "p", "p_adjusted", "seeds_apart", "verdict"),
)
MANY = 99.9
"""Above this, a table shows only a bound: the seeds of some scores hardly vary."""

SIGNS = {"better": "<", "worse": ">", "noise": "≈"}


@dataclass(frozen=True)
class Standing:
    """One entry on one score: its rank, its skill, and its difference from another entry."""

    score: str
    entry: Entry
    place: float | None
    """The rank among competing entries, 1 is best; equal means share the mean of their ranks."""
    skill: Skill
    """Relative to `last-7-days`."""
    reach: Skill
    """The share of the way from `last-7-days` to the oracle."""
    contrast: Contrast | None
    """None for the entry that the others are compared with, and for entries without a rank."""


def standings(board: Board, score: str, other: str | None = None) -> tuple[Standing, ...]:
    """The competing entries from best to worst, then the reference entry and the oracle.

    Args:
        board: the table of one grid.
        score: a score that orders forecasts.
        other: the entry that all are compared with; by default the best.
    """
    score = ordering_score(score)
    competing = [e for e in board.entries if e.rank is not None and e.mean[score] is not None]
    place = dict(
        zip((e.name for e in competing), places([e.mean[score] for e in competing]), strict=True)
    )
    contrasts = {c.name: c for c in against(board.entries, board.windows, score, other)}
    by_name = skills(board.entries, score)
    shown = sorted(competing, key=lambda entry: place[entry.name])
    shown += [e for e in board.entries if e not in shown and e.name in (other, ORACLE)]
    return tuple(
        Standing(
            score,
            entry,
            place.get(entry.name),
            by_name[entry.name].skill,
            by_name[entry.name].reach,
            contrasts.get(entry.name),
        )
        for entry in shown
    )


def standings_sheets(
    boards: Iterable[Board], scores: Sequence[str] = TESTED, other: str | None = None
) -> list[Sheet]:
    """The standings on each of the scores: one table for all grids of a task and an edition."""
    together = group_by(boards, lambda b: (b.task, b.task_version, b.edition, b.windows))
    return [_sheet(group, scores, other) for group in together.values()]


def _sheet(boards: Sequence[Board], scores: Sequence[str], other: str | None) -> Sheet:
    groups = [(b, standings(b, score, other)) for b in boards for score in scores]
    first, alone = boards[0], len(boards) == 1
    sheet = Sheet(
        title=f"What differs, {first.title if alone else f'edition {first.conditions}'}",
        header=HEADER,
        groups=tuple(tuple(_line(b, line, lines[0]) for line in lines) for b, lines in groups),
        above=f"Task {first.task}, version {first.task_version}; {first.span}.",
        below=(*coupling_notes(scores), *_notes(groups, other)),
        names=4,
        dispensable=(*("grid",) * alone, "seeds", "place", "seeds apart", "to oracle", "p"),
    )
    is_known = has_coupling((entry for board in boards for entry in board.entries), scores)
    return sheet if is_known else sheet.without(COUPLING)


def pairs_sheets(boards: Iterable[Board], scores: Sequence[str] = TESTED) -> list[Sheet]:
    """For each board and score, every competing entry against every other."""
    return [pairs_sheet(board, score) for board in boards for score in scores]


def pairs_sheet(board: Board, score: str) -> Sheet:
    """Every competing entry against every other: < better, > worse, ≈ noise."""
    score = ordering_score(score)
    contrasts = pairs(board.entries, board.windows, score)
    ranked = [s.entry for s in standings(board, score) if s.place is not None]
    names = [entry.name for entry in ranked]
    signs = {(c.name, c.other): SIGNS[c.verdict] for c in contrasts}
    swap = str.maketrans("<>", "><")
    signs |= {(other, name): sign.translate(swap) for (name, other), sign in signs.items()}
    lines = tuple(
        (
            *((f"{k} {entry.name}", False), (entry.coupling or MISSING, False)),
            *((signs.get((entry.name, other), MISSING), False) for other in names),
        )
        for k, entry in enumerate(ranked, start=1)
    )
    sheet = Sheet(
        title=f"{board.title}: {SCORES[score].title} pair by pair",
        header=("model", COUPLING, *(str(k) for k in range(1, len(names) + 1))),
        groups=(lines,),
        above="< means that the model of the row is better than that of the column, ≈ that their "
        "difference is noise.",
        below=(*coupling_notes([score]), _power(board, len(names) - 1)),
        names=2,
    )
    return sheet if has_coupling(ranked, [score]) else sheet.without(COUPLING)


def standings_as_csv(
    boards: Iterable[Board], scores: Sequence[str] = TESTED, other: str | None = None
) -> str:
    """The standings unrounded: one line per score and entry."""
    lines = [
        (*_data(b), *_values(s)) for b in boards for n in scores for s in standings(b, n, other)
    ]
    return as_csv([CSV_HEADER, *lines])


def pairs_as_csv(boards: Iterable[Board], scores: Sequence[str] = TESTED) -> str:
    """All contrasts unrounded: one line per score and pair."""
    lines = [
        (*_data(board), score, contrast.name, *_contrast_values(contrast))
        for board in boards
        for score in scores
        for contrast in pairs(board.entries, board.windows, score)
    ]
    return as_csv([(*CSV_HEADER[:7], *CSV_HEADER[-6:]), *lines])


def check_other(boards: Iterable[Board], other: str | None) -> None:
    """Raise if no board has an entry of that name."""
    known = {entry.name for board in boards for entry in board.entries}
    if other is not None and other not in known:
        raise UnknownName.among("model with a row", other, known)


def _line(board: Board, standing: Standing, first: Standing) -> tuple[Cell, ...]:
    entry, score = standing.entry, standing.score
    stands_out = standing.place is not None and standing.place == first.place
    place = MISSING if standing.place is None else f"{standing.place:g}"
    values = (
        *(board.grid, SCORES[score].title, entry.label, entry.coupling or MISSING),
        *(str(len(entry.seeds)), number(entry.mean[score], entry.std[score]), place),
        *(_percent(standing.skill.value), _percent(standing.reach.value)),
        *_contrast_texts(standing.contrast, entry.mean[score]),
    )
    return tuple((text, stands_out and k == 5) for k, text in enumerate(values))


def _contrast_texts(contrast: Contrast | None, mean: float | None) -> Iterator[str]:
    if contrast is None or mean is None:
        yield from [MISSING] * 4
        return
    base = mean - contrast.difference
    # Where the other score is practically 0, a percentage is meaningless.
    relative = abs(base) > 1e-9 * abs(contrast.difference)
    yield f"{contrast.difference / base:+.1%}" if relative else number(contrast.difference)
    yield "< 0.001" if contrast.adjusted < 0.001 else f"{contrast.adjusted:.3f}"
    far = contrast.seeds is not None and abs(contrast.seeds) > MANY
    yield f"over {MANY:g}" if far else number(contrast.seeds, decimals=1)
    yield contrast.verdict


def _percent(value: float | None) -> str:
    return MISSING if value is None else f"{value:.1%}"


def _notes(groups: Sequence[tuple[Board, Sequence[Standing]]], other: str | None) -> Iterator[str]:
    skill, reach = "skill", "to oracle"
    yield Note(f"Skill is 1 − score / that of {REFERENCE}.", (skill,))
    yield Note(f"To oracle is the share of the distance from {REFERENCE} to the oracle.", (reach,))
    yield f"The difference is to {other or 'the best entry of its score, in bold'}."
    yield Note(f"p is from {procedure(groups[0][0].windows)}, after Holm's correction.", ("p",))
    yield Note(
        "Seeds apart is the difference in standard deviations of a single seed, pooled over the "
        "entries with several seeds.",
        ("seeds apart",),
    )
    yield from label_notes(line.entry for _, lines in groups for line in lines)
    yield (
        f"A difference is noise if p exceeds {LEVEL} or if it is smaller than {SEED_DEVIATIONS:g} "
        "deviations of a seed."
    )
    most = max(sum(line.contrast is not None for line in lines) for _, lines in groups)
    if most:
        yield _power(groups[0][0], most)
    else:
        needed = f"a row of {other} and another row" if other else "two ranked entries"
        yield f"No differences: a comparison needs {needed}."
    if missing := "; ".join(_missing_skill(groups)):
        yield Note(f"Missing skill: {missing}.", (skill, reach))
    if not all(SCORES[line.score].proper for _, lines in groups for line in lines):
        yield Note("Skill is defined for proper scores only.", (skill, reach))


def _missing_skill(groups: Sequence[tuple[Board, Sequence[Standing]]]) -> Iterator[str]:
    """Each reason for missing skill on a grid, with the scores it applies to."""
    missing = dict.fromkeys(
        (board.grid, part.why_not, SCORES[line.score].title)
        for board, lines in groups
        for line in lines
        for part in (line.skill, line.reach)
        if part.why_not and SCORES[line.score].proper
    )
    for (grid, reason), alike in group_by(missing, lambda item: item[:2]).items():
        yield f"{grid}, {', '.join(title for *_, title in alike)}: {reason}"


def _power(board: Board, n_contrasts: int) -> str:
    """The family of a comparison, and the lowest p that is possible in it."""
    least, n_weeks = least_p(board.windows), n_independent(board.windows)
    after = min(1.0, n_contrasts * least)
    as_one = f", of {n_weeks} weeks, each counted as one," if n_weeks < len(board.windows) else ""
    limit = f"{len(board.windows)} windows{as_one} allow no p below {least:.2g}"
    if least > LEVEL:
        return (
            f"{limit}: too few to distinguish any difference from noise; a longer record has "
            "more windows."
        )
    return (
        "A pair is corrected together with all comparisons of its better model on the same grid "
        "and score, so that it has one p whichever of the two the others are compared with. "
        f"{limit}, or {after:.2g} after Holm's correction for {n_contrasts} comparisons; with more "
        f"than {int(LEVEL / least)}, no difference could be significant."
    )


def _data(board: Board) -> tuple[Any, ...]:
    return board.task, board.task_version, board.edition, board.grid, board.fingerprint


def _values(standing: Standing) -> Iterator[Any]:
    entry, score = standing.entry, standing.score
    yield from (score, entry.name, len(entry.seeds), entry.mean[score], entry.std[score])
    yield from (entry.rank, standing.place)
    for part in (standing.skill, standing.reach):
        yield from (part.value, part.why_not)
    if standing.contrast is None:
        yield from [None] * 6
    else:
        yield from _contrast_values(standing.contrast)


def _contrast_values(c: Contrast) -> tuple[Any, ...]:
    return c.other, c.difference, c.p, c.adjusted, c.seeds, c.verdict
