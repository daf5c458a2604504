"""What the page of results says about all days of the test half is so."""

from functools import cache

import numpy as np
import pytest

from powerphase.records.result import Result, read_results
from powerphase.report.leaderboard import Board, leaderboard
from powerphase.report.statistics import against, skills
from tests.page_of_results import RESULTS, WORDS, rows_of

GRIDS = ("activsg500", "pegase1354")
REFERENCES = ("climatology", "last-7-days", "last-week")
DAYS = RESULTS.parent / "powerphase-day-ahead-all"


@cache
def board(grid: str) -> Board:
    (found,) = (b for b in leaderboard(read_results([DAYS])) if b.grid == grid)
    return found


@cache
def of_days(grid: str, model: str) -> np.ndarray:
    (entry,) = (e for e in board(grid).entries if e.name == model)
    return np.array(entry.by_window["crps"])


def ten_of(grid: str, model: str) -> Result:
    """The row of the ten windows with the same seed."""
    (entry,) = (e for e in board(grid).entries if e.name == model)
    (row,) = (r for r in rows_of(grid, model) if r.seed in entry.seeds)
    return row


def verdicts(grid: str, score: str, other: str) -> dict[str, str]:
    found = against(board(grid).entries, board(grid).windows, score, other)
    return {contrast.name: contrast.verdict for contrast in found}


def more(grid: str, model: str) -> float:
    """By which share the mean over all days is above that of the ten windows, same seed."""
    return of_days(grid, model).mean() / ten_of(grid, model).scores["crps"] - 1


@pytest.mark.parametrize("grid", GRIDS)
def test_the_ten_windows_are_among_the_days_and_score_alike(grid: str) -> None:
    """A fit of FactorForge on another machine may differ by a thousandth."""
    for model in ("factorforge", "ets", "oracle", *REFERENCES):
        ten = ten_of(grid, model)
        day = [board(grid).windows.index(window) for window in ten.windows]
        np.testing.assert_allclose(of_days(grid, model)[day], ten.by_window["crps"], rtol=1e-3)


def test_factorforge_leads_on_nearly_every_day() -> None:
    days, lost = [], []
    for grid in GRIDS:
        found = against(board(grid).entries, board(grid).windows, "crps", "factorforge")
        assert all(c.verdict == "worse" and c.adjusted < 0.001 for c in found)
        others = np.min([of_days(grid, contrast.name) for contrast in found], axis=0)
        behind = np.flatnonzero(others <= of_days(grid, "factorforge"))
        days.append(184 - len(behind))
        lost.append({board(grid).windows[k][:10] for k in behind})
    assert f"the lowest of them on {days[0]} and {days[1]} of the 184 days" in WORDS
    both = {f"2016-12-{day}" for day in (20, 24, 25, 31)}
    assert lost == [both, both | {"2016-09-28"}]
    safe = against(
        board("pegase1354").entries, board("pegase1354").windows, "safety_mbrier", "factorforge"
    )
    assert all(contrast.verdict == "worse" for contrast in safe)
    (p,) = (contrast.adjusted for contrast in safe if contrast.name == "last-week")
    assert f"`last-week`'s included (p of {p:.3f})" in WORDS
    way = [skills(board(g).entries, "crps")["factorforge"].reach.value for g in GRIDS]
    (share,) = {f"{100 * one:.0f}" for one in way}
    assert f"the oracle it goes {share} % of the way" in WORDS


@pytest.mark.parametrize("grid", GRIDS)
def test_the_others_fall_into_an_order_but_for_the_repetitions(grid: str) -> None:
    beside = verdicts(grid, "crps", "climatology")
    assert {beside[name] for name in ("ets", "last-7-days", "last-week")} == {"worse"}
    assert verdicts(grid, "crps", "last-7-days")["ets"] == "better"
    assert verdicts(grid, "crps", "last-7-days")["last-week"] == "noise"


def test_what_ten_windows_flatter() -> None:
    ets = [100 * more(grid, "ets") for grid in GRIDS]
    assert f"CRPS is {ets[0]:.0f} and {ets[1]:.0f} % higher over all days" in WORDS
    usual = [100 * more(grid, model) for grid in GRIDS for model in REFERENCES]
    assert f"of the references {min(usual):.0f} to {max(usual):.0f} % higher" in WORDS
    own = [-100 * more(grid, "factorforge") for grid in GRIDS]
    assert f"FactorForge's {own[0]:.0f} and {own[1]:.0f} % lower" in WORDS
    assert all(abs(more(grid, "oracle")) < 0.02 for grid in GRIDS)


def test_ets_knows_no_week() -> None:
    above, below = [], []
    for grid in GRIDS:
        days = np.array([w[:10] for w in board(grid).windows], dtype="datetime64[D]")
        weekday = (days.astype(np.int64) + 3) % 7  # 1970 began on a Thursday
        own = of_days(grid, "ets")
        apart = [100 * (own[weekday == k].mean() / own.mean() - 1) for k in range(7)]
        above += [apart[k] for k in (5, 6, 0)]
        below += [-apart[k] for k in (1, 2, 3, 4)]
    words = f"CRPS is {min(above):.0f} to {max(above):.0f} % above its mean, from Tuesday to Friday"
    assert f"{words} {min(below):.0f} to {max(below):.0f} % below" in WORDS
