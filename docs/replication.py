"""The numbers of `replication.md`: the paper's claims, each with what our rows say."""

from collections.abc import Sequence

from docs.facts import (
    GRIDS,
    PAPER_MODELS,
    ablation_change,
    board,
    entry,
    grid_safety,
    has_row,
    pairs,
    paper,
    paper_change,
)
from docs.measurements import truth_necv
from powerphase.records import RANKED
from powerphase.report import MISSING, mean_ranks, paper_ablations

ABLATION_GRID = "pegase1354"
HARD_BUSES_GRID = "polish2383"
"""The paper shows hard buses on this grid."""
EXCURSIONS_IN_PAPER = ("pegase1354", "polish2383", "pegase2869", "polish3120")
"""The grids for which the paper prints an NECV above 0."""


def compared_models() -> list[str]:
    """The paper's models that have rows."""
    return [model for model in PAPER_MODELS if any(has_row(grid, model) for grid in GRIDS)]


def first_grids() -> int:
    """The number of grids on which PowerForge has the best Rank of the paper's models with rows."""
    return sum(_is_first(grid) for grid in GRIDS)


def _is_first(grid: str) -> bool:
    models = [paper.name for paper in board(grid).paper if has_row(grid, paper.name)]
    ranks = mean_ranks([entry(board(grid), model) for model in models], RANKED)
    return "powerforge" in models and ranks[models.index("powerforge")] == ranks.min()


def reached_grids() -> int:
    """The number of grids on which PowerForge's CRPS is not worse than the paper's."""
    known = [pair for (_, score), pair in pairs().items() if score == "crps" and pair.seeds]
    return sum(pair.difference != "worse" for pair in known)


def same_signs() -> list[str]:
    """The ablations of PowerForge that change CRPS in the same direction as in the paper."""
    variants = [name for name in paper_ablations("powerforge")[ABLATION_GRID] if name]
    return [
        name
        for name in variants
        if (ablation_change(name) > 0) == (not paper_change(name).startswith("-"))
    ]


def ablated_parts() -> int:
    """The number of parts that the paper removes."""
    return sum(name is not None for name in paper_ablations("powerforge")[ABLATION_GRID])


def shared_buses(model: str) -> str:
    """The share of the hard buses that PowerForge and another model have in common."""
    if not (has_row(HARD_BUSES_GRID, "powerforge") and has_row(HARD_BUSES_GRID, model)):
        return MISSING
    names = {entry(board(HARD_BUSES_GRID), name).name for name in ("powerforge", model)}
    (hard,) = (h for both, h in grid_safety(HARD_BUSES_GRID).pairs.items() if {*both} == names)
    return MISSING if hard.overlap is None else f"{hard.overlap:.0%}".replace("%", " %")


def necv_factors(
    network: str = "case file",
    setpoint: str | float = 1.02,
    grids: Sequence[str] = EXCURSIONS_IN_PAPER,
) -> list[float]:
    """NECV of what happens in a form of a grid, over that of the paper's PowerForge."""
    return [
        truth_necv(grid, network, setpoint) / paper("necv", grid, "powerforge") for grid in grids
    ]
