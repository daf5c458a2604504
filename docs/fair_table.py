"""The numbers of `results.md`: scores of lines, and every forecaster at its best.

A cell without a row, or whose row lacks the score, is a dash, so that the page can be rendered from
any rows.
"""

from collections.abc import Iterator, Sequence

import numpy as np
from jaxtyping import Float64

from docs.facts import GRIDS, TEN_DAYS, by_type, has_row, rows, rows_of, title
from powerphase.axes import VARIABLES
from powerphase.registry import MODELS
from powerphase.report import MISSING, Board, Entry, leaderboard

LEADING, REPLICATION = "synthetic", "opsd-r"
"""The edition of the leaderboard, and that of the comparison with the paper."""
EDITIONS = (LEADING, REPLICATION)
MODELS_OF_TABLE = tuple(MODELS)
"""Every model should have a row on every grid."""
SOLVED_SCORES = ("loading_crps", "overload_brier", "variogram_theta", "balance_rms_mva")
"""What solving the power flow may change."""
SOLVED = "physical"
"""The last word of the name of a forecaster whose power flow was solved."""
OF_EDITION = {LEADING: "", REPLICATION: " --signals opsd-r.csv.gz --edition opsd-r"}
"""What a command adds to make data of an edition."""
FIRST_SEED = 42
"""The seed of a bench whose models have none."""

Cells = tuple[tuple[tuple[int, ...], tuple[str, ...]], ...]
"""Seeds, and the grids that have rows of just these."""


def folder(edition: str) -> str:
    """The rows of an edition, for a command."""
    return f"{TEN_DAYS.relative_to(TEN_DAYS.parents[1])}/{edition}"


def boards(edition: str) -> dict[str, Board]:
    """The tables of an edition by grid."""
    return {table.grid: table for table in leaderboard(rows(edition), paper=False)}


def duel_lines(edition: str = LEADING) -> Iterator[str]:
    """For each grid a line of a table: CRPS of FactorForge, its best rival, and what frames them.

    The best rival is the ranked model with the lowest CRPS, as its reference sets it or tuned.
    """
    tables = boards(edition)
    for grid in GRIDS:
        entries = tables[grid].entries if grid in tables else ()
        by_name = {entry.name: entry for entry in entries}
        rival = best_rival(tables[grid]) if grid in tables else ""
        crps, best = (_crps(by_name.get(name)) for name in ("factorforge", rival))
        cells = [title(grid), _thousandths(crps), rival or MISSING]
        cells += [_thousandths(best), f"{crps / best:.2f}" if crps and best else MISSING]
        cells += [_thousandths(_crps(by_name.get(name))) for name in ("climatology", "oracle")]
        yield f"| {' | '.join(cells)} |"


def window_lines(edition: str = LEADING) -> Iterator[str]:
    """For each grid with a rival: in how many windows FactorForge is ahead, and the worst one."""
    for grid, table in boards(edition).items():
        rival = best_rival(table)
        crps, other = (crps_by_window(grid, name, edition) for name in ("factorforge", rival))
        if crps.size and other.size:
            worst = int((crps - other).argmax())
            cells = [title(grid), rival, f"{(crps < other).sum()} of {len(crps)}"]
            cells += [table.windows[worst][:10], _thousandths(crps[worst])]
            yield f"| {' | '.join([*cells, _thousandths(other[worst])])} |"


def best_rival(table: Board) -> str:
    """The ranked model with the lowest CRPS that is not FactorForge; empty if there is none."""
    rivals = filter(_is_rival, table.entries)
    scored = [entry for entry in rivals if entry.mean["crps"] is not None]
    best = min(scored, key=lambda entry: entry.mean["crps"] or 0.0, default=None)
    return best.name if best else ""


def crps_by_window(grid: str, name: str, edition: str = LEADING) -> Float64[np.ndarray, " windows"]:
    """CRPS of each window, as a mean over seeds; empty without rows."""
    seeds = [
        np.array(row.by_window["crps"], dtype=float)
        for row in rows(edition)
        if (row.grid, row.name) == (grid, name)
    ]
    return np.mean(seeds, axis=0) if seeds else np.empty(0)


def solved_lines(edition: str) -> Iterator[str]:
    """For each forecast that was solved as well a line: scores before and after."""
    for grid, table in boards(edition).items():
        by_name = {entry.name: entry for entry in table.entries}
        for name, entry in by_name.items():
            solved = by_name.get(_solved_name(name))
            if solved is not None:
                cells = [title(grid), name, entry.coupling or MISSING]
                cells += [_both(entry, solved, score) for score in SOLVED_SCORES]
                yield f"| {' | '.join(cells)} |"


def flat_names(edition: str = LEADING) -> dict[str, list[str]]:
    """The forecasters that did not learn the day, by grid."""
    flat = {g: [e.name for e in table.entries if e.is_flat] for g, table in boards(edition).items()}
    return {title(grid): names for grid, names in flat.items() if names}


def variable_lines(model: str, other: str, edition: str = LEADING) -> Iterator[str]:
    """For each grid with rows of a model a line of a table: its CRPS by variable, and another's."""
    for grid in _grids_of(model, edition):
        cells = [title(grid), str(len(rows_of(grid, model, edition=edition)))]
        for kind in VARIABLES:
            both = (by_type("crps", grid, name, kind, edition) for name in (model, other))
            ours, theirs = map(_thousandths, both)
            cells.append(f"{ours} ({theirs})")
        yield f"| {' | '.join(cells)} |"


def of_variable(score: str, model: str, kind: str, edition: str = LEADING) -> list[float]:
    """A model's score of one variable on each grid where it has a row."""
    return [by_type(score, grid, model, kind, edition) for grid in _grids_of(model, edition)]


def missing_grids(edition: str, models: Sequence[str]) -> dict[str, list[str]]:
    """The grids on which a model has no row of any variant, for models that lack some."""
    known = {(row.model, row.grid) for row in rows(edition)}
    gaps = {model: [title(g) for g in GRIDS if (model, g) not in known] for model in models}
    return {model: grids for model, grids in gaps.items() if grids}


def bench_commands(edition: str) -> Iterator[str]:
    """The commands that make the rows of an edition, one for all models with the same cells."""
    models: dict[Cells, list[str]] = {}
    for name in sorted({row.name for row in rows(edition) if not is_solved(row.name)}):
        models.setdefault(_cells(edition, name), []).append(name)
    for cells, names in sorted(models.items(), key=lambda item: item[1]):
        for seeds, grids in cells:
            yield (
                f"powerphase bench --grids {','.join(grids)} --models {','.join(names)}"
                f" --seeds {','.join(map(str, seeds))}{OF_EDITION[edition]}"
            )


def solved_commands(edition: str) -> Iterator[str]:
    """The commands that make the rows of solved forecasts."""
    for row in sorted(rows(edition), key=lambda row: (row.grid, row.name)):
        if is_solved(row.name):
            forecaster = row.name.removesuffix(SOLVED).rstrip("+-")
            yield f"powerphase score {forecaster} --data data/{row.grid} --physical --out results"


def is_solved(name: str) -> bool:
    """Whether the power flow of this forecaster's scenarios was solved."""
    return name.endswith(SOLVED)


def _cells(edition: str, name: str) -> Cells:
    """The grids on which a model has rows, by the seeds that it has there."""
    seeds: dict[str, list[int]] = {}
    for row in rows(edition):
        if row.name == name:
            seeds.setdefault(row.grid, []).append(row.seed or FIRST_SEED)
    grids: dict[tuple[int, ...], list[str]] = {}
    for grid in filter(seeds.__contains__, GRIDS):
        grids.setdefault(tuple(sorted(seeds[grid])), []).append(grid)
    return tuple((chosen, tuple(names)) for chosen, names in grids.items())


def anchors() -> list[str]:
    """The names of the strong statistical references."""
    return [name for name, info in MODELS.items() if info.page == "anchors.md"]


def anchor_lines(scores: Sequence[str], edition: str = LEADING) -> Iterator[str]:
    """For each grid and anchor with a row a line of a table: its scores, next to FactorForge's."""
    for grid, table in boards(edition).items():
        by_name = {entry.name: entry for entry in table.entries}
        if any(name in by_name for name in anchors()):
            for name in ("factorforge", "factorforge+days", *anchors(), "climatology", "oracle"):
                if name in by_name:
                    values = (by_name[name].mean[score] for score in scores)
                    cells = [MISSING if value is None else f"{value:.3g}" for value in values]
                    yield f"| {' | '.join([title(grid), f'`{name}`', *cells])} |"


def anchors_ahead(scores: Sequence[str], edition: str = LEADING) -> Iterator[str]:
    """For each grid and score in which anchors are ahead of FactorForge a line that names them."""
    for grid, table in boards(edition).items():
        means = {entry.name: entry.mean for entry in table.entries}
        for score in scores:
            own = means["factorforge"][score] if "factorforge" in means else None
            ahead = [
                f"`{name}` by {1 - value / own:.1%}"
                for name in anchors()
                if own and (value := means.get(name, {}).get(score)) is not None and value < own
            ]
            if ahead:
                yield f"| {title(grid)} | {score} | {', '.join(ahead)} |"


def _grids_of(model: str, edition: str) -> list[str]:
    """The grids on which a model, as it is by default, has a row."""
    return [grid for grid in GRIDS if has_row(grid, model, edition)]


def _is_rival(entry: Entry) -> bool:
    """Whether it is ranked, no reference, and not FactorForge."""
    model = entry.name.partition("+")[0]
    return entry.rank is not None and entry.kind == "model" and model != "factorforge"


def _solved_name(name: str) -> str:
    return f"{name}-{SOLVED}" if "+" in name else f"{name}+{SOLVED}"


def _crps(entry: Entry | None) -> float | None:
    return None if entry is None else entry.mean["crps"]


def _thousandths(value: float | None) -> str:
    return MISSING if value is None else f"{1000 * value:.3f}"


def _both(entry: Entry, solved: Entry, score: str) -> str:
    """A score before and after, with three significant digits."""
    values = (forecast.mean[score] for forecast in (entry, solved))
    return " / ".join(MISSING if value is None else f"{value:.3g}" for value in values)
