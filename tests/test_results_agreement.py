"""What the page of results says of the order of the paper's models is so, by SciPy and the rows."""

from functools import cache

import numpy as np
import pytest
from scipy import stats

from powerphase.grid import PAPER_GRIDS
from powerphase.records.scores import RANKED
from powerphase.report.leaderboard import Board, leaderboard
from powerphase.report.statistics import against
from tests.page_of_results import WORDS, rows


@cache
def board(grid: str) -> Board:
    (found,) = (found for found in leaderboard(rows()) if found.grid == grid)
    return found


@cache
def both(grid: str) -> dict[str, np.ndarray]:
    """Of each model of the paper that has a row: ours and the paper's, by ranked score."""
    ours = {e.name.split("+")[0]: e for e in board(grid).entries if e.rank is not None}
    return {
        e.name: np.array([[side.mean[name] for name in RANKED] for side in (ours[e.name], e)])
        for e in board(grid).paper
        if e.name in ours
    }


def scores(grid: str, without: str | None = None) -> np.ndarray:
    """By model, side and score."""
    return np.array([found for name, found in both(grid).items() if name != without])


def standing(grid: str) -> dict[str, list[int]]:
    """Of each model, the places by Rank that ours and the paper's have: 1 and those ahead."""
    ranks = stats.rankdata(scores(grid), axis=0).mean(axis=2)
    ahead = stats.rankdata(ranks, axis=0, method="min").astype(int)
    return {name: place.tolist() for name, place in zip(both(grid), ahead, strict=True)}


def test_the_first_and_the_last_are_the_same() -> None:
    for grid in PAPER_GRIDS:
        found = standing(grid)
        assert found["powerforge"] == [1, 1]
        if "deepar" in found:
            last = {"deepar", "timegrad"} if grid == "polish2383" else {"deepar"}
            for side in (0, 1):
                lowest = max(places[side] for places in found.values())
                assert {n for n, places in found.items() if places[side] == lowest} == last


def test_powerforge_is_best_as_often_as_is_said() -> None:
    best, missed = np.zeros(2, dtype=int), set()
    for grid in PAPER_GRIDS:
        least = scores(grid).min(axis=0)
        reached = both(grid)["powerforge"] == least
        best += reached.sum(axis=1)
        for name, is_best in zip(RANKED, reached[0], strict=True):
            if not is_best:
                k = RANKED.index(name)
                (ahead,) = (
                    m for m, f in both(grid).items() if f[0, k] < both(grid)["powerforge"][0, k]
                )
                missed.add((grid, name, ahead))
    assert f"place in {best[0]} of 24 grids and scores, in the paper in {best[1]};" in WORDS
    assert missed == {
        ("activsg500", "crps", "ets"),
        ("pegase2869", "crps", "ets"),
        ("pegase2869", "cvar_0.1", "timemcl"),
    }
    for grid, name, ahead in missed:
        found = against(board(grid).entries, board(grid).windows, name, "powerforge")
        assert {c.verdict for c in found if c.name.split("+")[0] == ahead} == {"noise"}


@pytest.mark.parametrize(
    ("score", "words"),
    [
        ("crps", "{} to {} by CRPS, "),
        ("distortion", "{} to {} by Distortion, "),
        ("cvar_0.1", "{} to {} by CVaR_0.1, and least"),
        ("safety_mbrier", "least by Safety_mBrier, with {} to {}."),
    ],
)
def test_the_orders_agree_as_far_as_is_said(score: str, words: str) -> None:
    k = RANKED.index(score)
    taus = [stats.kendalltau(*scores(grid)[:, :, k].T).statistic for grid in PAPER_GRIDS]
    assert min(taus) > 0
    assert words.format(f"{min(taus):.2f}", f"{max(taus):.2f}") in WORDS


def test_two_models_move_as_is_said() -> None:
    ordinals = ["first", "second", "third", "fourth", "fifth", "sixth", "seventh"]
    ets = {grid: standing(grid)["ets"] for grid in PAPER_GRIDS}
    assert {own for own, _ in ets.values()} == {2}
    assert min(paper for _, paper in ets.values()) == 4
    assert ets["pegase9241"][1] == len(both("pegase9241"))
    taus = [stats.kendalltau(*scores(g, "ets")[:, :, 0].T).statistic for g in PAPER_GRIDS]
    assert f"without it τ by CRPS is {min(taus):.2f} to {max(taus):.2f}" in WORDS
    moved = np.array([standing(grid)["tactis-2"] for grid in PAPER_GRIDS[:5]])
    (low, high), (least, most) = ([ordinals[k - 1] for k in (x.min(), x.max())] for x in moved.T)
    assert f"TACTiS-2 is {low} to {high}, in the paper {least} to {most}." in WORDS
    shifts = {
        m: np.mean([abs(np.subtract(*standing(g)[m])) for g in PAPER_GRIDS if m in both(g)])
        for m in both("activsg500")
    }
    assert set(sorted(shifts, key=shifts.__getitem__)[-2:]) == {"ets", "tactis-2"}


def test_chance_allows_a_tau_below_0_55_of_nine() -> None:
    """The last put first is τ = 20/36; one exchange of neighbours more is the next lower τ."""
    assert "of nine models, one below 0.55 is no more than what chance allows at 5 %" in WORDS
    found = [
        stats.kendalltau(range(9), order, method="exact")
        for order in ([8, 0, 1, 2, 3, 4, 5, 6, 7], [8, 1, 0, 2, 3, 4, 5, 6, 7])
    ]
    assert [tau.statistic for tau in found] == pytest.approx([20 / 36, 18 / 36])
    assert found[0].pvalue < 0.05 < found[1].pvalue
