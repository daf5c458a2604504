"""The cells of `docs/results.md` and `docs/replication.md`, also where rows are missing."""

from collections.abc import Iterator
from itertools import pairwise, product

import pytest

from docs import facts, fair_table
from docs.fair_table import duel_lines, flat_names, missing_grids, solved_lines, window_lines
from docs.replication import ablated_parts, compared_models, same_signs, shared_buses
from powerphase.evaluation import resolve_model
from powerphase.grid import PAPER_GRIDS
from powerphase.records import Result
from powerphase.report import MISSING
from tests.report.planted import planted

FLAT = {"P": 0.0, "Q": 0.0, "V": 0.0, "theta": 0.0}
GRID, OTHER, *_ = PAPER_GRIDS


def rows_of(edition: str) -> tuple[Result, ...]:
    """One grid with a tuned rival and a solved forecast; nothing on the other grids."""
    if edition != "synthetic":
        return ()
    crps = {"factorforge": 1e-3, "climatology": 4e-3, "ets": 3e-3, "oracle": 5e-4}
    rows = [planted(model, crps=value, grid=GRID) for model, value in crps.items()]
    rows += [planted("timemcl", crps=5e-3, grid=GRID, daily_slope=FLAT)]
    rows += [planted("timemcl", variant="tuned", crps=2e-3, grid=GRID)]
    rows += [planted("climatology", variant="physical", loading_crps=0.25, grid=GRID)]
    return tuple(rows)


@pytest.fixture
def _planted_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fair_table, "rows", rows_of)


def cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip("|").split("|")]


@pytest.mark.usefixtures("_planted_rows")
def test_the_best_rival_may_be_tuned_and_grids_without_rows_have_dashes() -> None:
    first, second, *_ = map(cells, duel_lines())
    assert first[1:] == ["1.000", "timemcl+tuned", "2.000", "0.50", "4.000", "0.500"]
    assert second[1:] == [MISSING] * 6
    assert len(list(duel_lines("opsd-r"))) == len(PAPER_GRIDS)


@pytest.mark.usefixtures("_planted_rows")
def test_windows_are_compared_with_the_best_rival_on_grids_that_have_one() -> None:
    (line,) = map(cells, window_lines())
    ahead, _, total = line[2].partition(" of ")
    assert (line[1], ahead) == ("timemcl+tuned", total)
    assert float(line[4]) < float(line[5])
    assert list(window_lines("opsd-r")) == []


@pytest.mark.usefixtures("_planted_rows")
def test_a_solved_forecast_stands_next_to_the_one_it_was_solved_from() -> None:
    (line,) = map(cells, solved_lines("synthetic"))
    assert line[1:4] == ["climatology", "joint", "0.5 / 0.25"]
    assert list(solved_lines("opsd-r")) == []


@pytest.mark.usefixtures("_planted_rows")
def test_flat_rows_and_missing_grids_are_named() -> None:
    assert list(flat_names().values()) == [["timemcl"]]
    gaps = missing_grids("synthetic", ["timemcl", "deepar"])
    assert [len(grids) for grids in gaps.values()] == [len(PAPER_GRIDS) - 1, len(PAPER_GRIDS)]


def test_claims_of_the_paper_are_shares_of_what_was_compared() -> None:
    assert 0 < len(set(same_signs())) <= ablated_parts() == 6
    assert shared_buses("deepar-of-nobody") == MISSING
    assert {"powerforge", "ets"} <= set(compared_models()) <= set(facts.PAPER_MODELS)
    assert 0 <= int(shared_buses("factorforge").removesuffix(" %")) <= 100


@pytest.mark.parametrize("edition", fair_table.EDITIONS)
def test_the_commands_of_an_edition_make_its_rows(edition: str) -> None:
    made = {cell for command in fair_table.bench_commands(edition) for cell in bench_cells(command)}
    made |= {solved_cell(command) for command in fair_table.solved_commands(edition)}
    assert made == {(row.grid, row.name, row.seed) for row in facts.rows(edition)}


def bench_cells(command: str) -> Iterator[tuple[str, str, int]]:
    """Grid, name and seed of each row that a bench makes."""
    options = options_of(command)
    lists = [options[name].split(",") for name in ("grids", "models", "seeds")]
    for grid, model, seed in product(*lists):
        made = resolve_model(model).description(grid, int(seed))
        yield grid, "+".join(filter(None, (made.model, made.variant))), made.seed or 0


def solved_cell(command: str) -> tuple[str, str, int]:
    """The same of a command that solves a forecast."""
    model, grid = command.split()[2], options_of(command)["data"].rpartition("/")[2]
    spec = resolve_model(model)
    made = spec.description(grid, fair_table.FIRST_SEED)
    variant = "-".join(filter(None, (made.variant, "physical")))
    return grid, f"{made.model}+{variant}", made.seed or 0


def options_of(command: str) -> dict[str, str]:
    words = command.split()
    return {a[2:]: b for a, b in pairwise(words) if a.startswith("--")}
