"""Safety and fidelity: planted disagreements, known survival, known overlap."""

import csv
import re
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from typer.testing import CliRunner

from powerphase import cli
from powerphase.errors import ResultError, UnknownName
from powerphase.grid import PAPER_GRIDS, load_grid
from powerphase.records import Result, find_results, write_result
from powerphase.report import (
    FIDELITY,
    PROPER_SAFETY,
    SAFETY,
    by_bus,
    hard_buses,
    leaderboard,
    paper_entries,
    safety,
    safety_as_csv,
    safety_sheets,
    survival,
    tradeoff,
    worst,
)
from tests.report.planted import planted

often = settings(deadline=None, derandomize=True)
shares = st.lists(st.floats(0, 1), min_size=1, max_size=30).map(np.array)
N = 500


def scored(model: str, fidelity: float, safety: float, proper: float, **changes: Any) -> Result:
    """A row with the same value in all scores of a set."""
    scores = dict.fromkeys(FIDELITY, fidelity) | dict.fromkeys(SAFETY, safety)
    return planted(model, scores=scores | dict.fromkeys(PROPER_SAFETY, proper), **changes)


def test_a_planted_trade_off_is_detected_and_vanishes_with_proper_scores() -> None:
    rows = [
        scored(model, 0.1 * k, 0.5 - 0.1 * k, 0.01 * k)
        for k, model in enumerate(("ets", "deepar", "timemcl", "timegrad"), start=1)
    ]
    entries = leaderboard(rows)[0].entries
    usual, proper = tradeoff(entries), tradeoff(entries, safety=PROPER_SAFETY)
    assert usual.names == proper.names == ("ets", "deepar", "timemcl", "timegrad")
    assert (usual.fidelity, usual.safety) == ((1, 2, 3, 4), (4, 3, 2, 1))
    assert (usual.kendall, usual.spearman) == (-1, -1)
    assert (proper.kendall, proper.spearman) == (1, 1)


def test_oracle_and_variants_are_not_ranked() -> None:
    rows = [scored("ets", 0.1, 0.1, 0.01), scored("deepar", 0.2, 0.2, 0.02)]
    rows += [scored("oracle", 0.05, 0.3, 0.0), scored("ets", 0.01, 0.4, 0.0, variant="stale")]
    ranks = tradeoff(leaderboard(rows)[0].entries)
    assert (ranks.names, ranks.fidelity, ranks.safety) == (("ets", "deepar"), (1, 2), (1, 2))


def test_safety_has_no_order_if_no_voltage_leaves_the_band() -> None:
    rows = [scored("ets", 0.1, 0.0, 0.0), scored("deepar", 0.2, 0.0, 0.0)]
    ranks = tradeoff(leaderboard(rows)[0].entries)
    assert ranks.safety == (1.5, 1.5)
    assert ranks.kendall is ranks.spearman is None


@pytest.mark.parametrize("grid", PAPER_GRIDS)
def test_ranks_of_the_paper_match_scipy_over_its_printed_scores(grid: str) -> None:
    entries = paper_entries(grid)
    order = tradeoff(entries)
    largest = grid == "pegase9241"
    assert order.fidelity_scores == (("crps", "distortion") if largest else FIDELITY)
    assert order.safety_scores == (("safety_mbrier", "cvar_0.1") if largest else SAFETY)
    by_name = {entry.name: entry for entry in entries}
    for scores, ranks in (
        (order.fidelity_scores, order.fidelity),
        (order.safety_scores, order.safety),
    ):
        values = [[by_name[name].mean[score] for name in order.names] for score in scores]
        expected_ranks = np.mean([stats.rankdata(np.array(v, float)) for v in values], axis=0)
        assert expected_ranks == pytest.approx(ranks)
    expected = stats.spearmanr(order.fidelity, order.safety).statistic
    assert order.spearman == pytest.approx(expected)


def test_survival_worked_by_hand() -> None:
    per_bus = np.array([0.0, 0.0, 0.001, 0.02, 0.02, 0.3, 0.0, 0.0, 0.0, 1.0])
    x, share = survival(per_bus, np.array([0.0, 0.001, 0.01, 0.02, 0.5, 1.0]))
    assert share.tolist() == [0.5, 0.4, 0.4, 0.2, 0.1, 0.0]
    assert x.tolist() == [0.0, 0.001, 0.01, 0.02, 0.5, 1.0]


@often
@given(shares)
def test_survival_decreases_to_zero(per_bus: np.ndarray) -> None:
    x, share = survival(per_bus)
    assert (np.diff(x) > 0).all()
    assert (np.diff(share) <= 0).all()
    assert share[-1] == 0
    assert share == pytest.approx([(per_bus > threshold).mean() for threshold in x])


@often
@given(shares, st.integers(1, 40))
def test_the_worst_buses_are_complete_and_in_descending_order(per_bus: np.ndarray, n: int) -> None:
    positions, values = worst(per_bus, n)
    assert values.tolist() == sorted(per_bus.tolist(), reverse=True)[:n]
    assert per_bus[positions].tolist() == values.tolist()
    assert len(set(positions.tolist())) == len(positions)


def ladder(first: int, n: int = 50) -> np.ndarray:
    """n hard buses from `first` on, in descending order; all others score 0."""
    per_bus = np.zeros(N)
    per_bus[first : first + n] = np.linspace(0.9, 0.2, n)
    return per_bus


def test_a_planted_overlap_is_measured() -> None:
    hard = hard_buses(ladder(0), ladder(20))
    assert (hard.n, hard.shared, hard.overlap) == (50, 30, 0.6)
    assert hard_buses(ladder(0), 0.5 * ladder(0)).overlap == 1
    assert hard_buses(ladder(0), ladder(100)).overlap == 0


def test_correlation_over_all_buses_matches_scipy_and_hides_opposite_orders() -> None:
    a, b = ladder(0), np.roll(ladder(0)[::-1], 50)  # fifty buses in order, and the other way round
    assert ((a > 0) == (b > 0)).all()
    hard = hard_buses(a, b)
    assert hard.spearman == pytest.approx(stats.spearmanr(a, b).statistic)
    assert hard.spearman is not None
    assert hard.spearman > 0.7
    assert hard.spearman_scoring == pytest.approx(-1)


def test_a_bus_with_score_0_is_never_hard() -> None:
    few, more = ladder(0, 10), ladder(0, 20)
    hard = hard_buses(few, more)
    assert (hard.shared, hard.overlap) == (10, 0.5)
    nothing = hard_buses(np.zeros(N), np.zeros(N))
    assert (nothing.shared, nothing.overlap, nothing.spearman) == (0, None, None)


def test_rounding_errors_make_no_bus_hard() -> None:
    rounded = ladder(0) + np.linspace(0, 9e-7, N) * (ladder(0) == 0)
    assert hard_buses(rounded, ladder(0)) == hard_buses(ladder(0), ladder(0))


def test_ties_for_the_last_rank_follow_the_order_of_buses() -> None:
    flat = np.full(N, 0.5)
    assert hard_buses(flat, ladder(0)).overlap == 1
    assert hard_buses(flat, ladder(N - 50)).overlap == 0


def tree(root: Path) -> Path:
    """Rows of four entries and a variant; two seeds of one differ in their buses."""
    rows = [scored("ets", 0.1, 0.4, 0.01, seed=seed) for seed in (1, 2)]
    rows += [scored("deepar", 0.2, 0.3, 0.02), scored("timemcl", 0.3, 0.2, 0.03)]
    rows += [scored("oracle", 0.01, 0.1, 0.0), scored("ets", 0.1, 0.4, 0.01, variant="stale")]
    first = {"ets": 0, "deepar": 0, "timemcl": 25, "oracle": 100, "ets+stale": 200}
    for row in rows:
        per_bus = (2 / 3 if row.seed == 1 else 4 / 3) * ladder(first[row.name])
        if row.name != "ets":
            per_bus = ladder(first[row.name])
        write_result(row, {"by_bus/safety_mbrier": per_bus, "by_bus/crps": np.ones((N, 4))}, root)
    return root


def test_seeds_are_averaged_by_bus(tmp_path: Path) -> None:
    rows = find_results([tree(tmp_path)])
    scores = by_bus(rows)
    assert scores["ets"] == pytest.approx(ladder(0))
    assert by_bus(rows, "crps")["deepar"] == pytest.approx(np.ones(N))
    with pytest.raises(ResultError, match=r"deepar-42\.npz.*brier"):
        by_bus(rows, "brier")


def test_rows_of_several_data_sets_raise(tmp_path: Path) -> None:
    write_result(scored("ets", 0.1, 0.1, 0.1, grid="ieee14", fingerprint="f" * 64), {}, tmp_path)
    rows = find_results([tree(tmp_path)])
    with pytest.raises(ResultError, match="2"):
        by_bus(rows)


def test_scores_by_bus_are_read_for_a_chosen_grid_only(tmp_path: Path) -> None:
    rows = find_results([tree(tmp_path)])
    (overview,) = safety(rows, "synthetic")
    assert overview.per_bus == {}
    assert len(safety_sheets([overview])) == 1
    (tables,) = safety(rows, "synthetic", "activsg500")
    assert set(tables.per_bus) == {"ets", "deepar", "timemcl", "oracle"}
    overlap = {frozenset(pair): hard.overlap for pair, hard in tables.pairs.items()}
    assert overlap[frozenset(("ets", "deepar"))] == 1
    assert overlap[frozenset(("ets", "timemcl"))] == 0.5
    assert overlap[frozenset(("ets", "oracle"))] == 0
    assert (tables.ours.spearman, tables.proper.spearman) == (-1, 1)
    assert tables.paper.spearman == tradeoff(paper_entries("activsg500")).spearman


def test_tables_contain_the_numbers(tmp_path: Path) -> None:
    tables = safety_sheets(safety(find_results([tree(tmp_path)]), "synthetic", "activsg500"))
    text = "\n".join(table.as_markdown() for table in tables)
    assert re.search(r"τ.*-1\.00.* 1\.00.*0\.69", text)  # ours, with proper scores, the paper's
    assert "| ets | 1.00 | 3.00 | 1.00 |" in text
    assert "| ets | 10.0% | 10.0% | 10.0% | 10.0% | 10.0% | 0.9000 | " in text
    assert "| ets | 1 | 2 | 3 | 4 | 5 |" in text  # the numbers of its first buses
    assert "| oracle | 101 | 102 | 103 | 104 | 105 |" in text
    for table in tables:
        assert {len(line) for group in table.groups for line in group} == {len(table.header)}
    (overview,) = safety_sheets(safety(find_results([tmp_path]), "synthetic"))
    line = "| activsg500 | 3 | -1.00 | -1.00 | 1.00 | 1.00 | 9 | 0.69 | 0.79 |"
    assert line in overview.as_markdown()


def test_a_grid_without_risk_has_no_tables_of_hard_buses(tmp_path: Path) -> None:
    for k, model in enumerate(("ets", "deepar")):
        arrays = {"by_bus/safety_mbrier": np.zeros(500)}
        write_result(scored(model, 0.1 + k, 0.1, 0.1), arrays, tmp_path)
    (table,) = safety_sheets(safety(find_results([tmp_path]), "synthetic", "activsg500"))
    assert len(table.below) == 2


def test_buses_have_the_numbers_of_the_catalogue_or_their_positions(tmp_path: Path) -> None:
    """IEEE 300 numbers its buses with gaps: its 18th is bus 19."""
    per_bus = np.zeros(300)
    per_bus[17] = 0.5
    for grid in ("ieee300", "mine"):
        row = scored(
            "ets", 0.1, 0.1, 0.1, grid=grid, fingerprint=grid.encode().hex().ljust(64, "0")
        )
        write_result(row, {"by_bus/safety_mbrier": per_bus}, tmp_path)
    rows = find_results([tmp_path])
    texts = {
        grid: safety_sheets(safety(rows, "synthetic", grid))[2].as_markdown()
        for grid in ("ieee300", "mine")
    }
    assert "| ets | 19 | – | – | – | – |" in texts["ieee300"]
    assert "| ets | 18 | – | – | – | – |" in texts["mine"]


def test_a_chosen_grid_excludes_the_others(tmp_path: Path) -> None:
    write_result(scored("ets", 0.1, 0.1, 0.1, grid="ieee14", fingerprint="f" * 64), {}, tmp_path)
    rows = find_results([tree(tmp_path)])
    assert [grid.board.grid for grid in safety(rows, "synthetic")] == ["activsg500", "ieee14"]
    assert [g.board.grid for g in safety(rows, "synthetic", "activsg500")] == ["activsg500"]


def test_an_edition_or_grid_without_rows_raises(tmp_path: Path) -> None:
    rows = find_results([tree(tmp_path)])
    with pytest.raises(ResultError, match=r"'opsd-r'.*synthetic"):
        safety(rows, "opsd-r")
    with pytest.raises(UnknownName, match=r"'ieee14'.*activsg500"):
        safety(rows, grid="ieee14")


def test_the_command_shows_the_tables(tmp_path: Path) -> None:
    grids = safety(find_results([tree(tmp_path)]), "synthetic", "activsg500")
    arguments = ["safety", str(tmp_path), "--grid", "activsg500"]
    markdown = CliRunner().invoke(cli.app, [*arguments, "--format", "markdown"])
    assert markdown.stdout == "\n".join(table.as_markdown() for table in safety_sheets(grids))
    table = CliRunner().invoke(cli.app, [*arguments, "--format", "csv"]).stdout
    assert table == safety_as_csv(grids)
    lines = list(csv.DictReader(StringIO(table)))
    worst_of_ets = [line for line in lines if (line["what"], line["model"]) == ("worst", "ets")]
    assert len(worst_of_ets) == 200
    assert float(worst_of_ets[0]["value"]) == pytest.approx(0.9)
    first = load_grid("activsg500").bus_id[:3]
    assert [int(line["other"]) for line in worst_of_ets[:3]] == first.tolist()
    assert "4 oracle" in CliRunner().invoke(cli.app, arguments).stdout
