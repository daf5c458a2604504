"""What the page of results says about noise, skill, and safety beside fidelity is so."""

from functools import cache

import numpy as np

from powerphase.grid import PAPER_GRIDS
from powerphase.records.result import find_results
from powerphase.report.buses import NEGLIGIBLE
from powerphase.report.leaderboard import Board, leaderboard
from powerphase.report.safety import GridSafety, safety
from powerphase.report.statistics import Verdict, against, skills, tradeoff
from tests.page_of_results import RESULTS, WORDS

LEAVING = PAPER_GRIDS[1:]
"""The grids whose voltages leave the band."""


@cache
def boards(edition: str = "opsd-r") -> dict[str, Board]:
    found = leaderboard(find_results([RESULTS]).values())
    return {board.grid: board for board in found if board.edition == edition}


def verdicts(board: Board, score: str, other: str | None = None) -> dict[str, Verdict]:
    return {c.name: c.verdict for c in against(board.entries, board.windows, score, other)}


@cache
def safety_of(grid: str) -> GridSafety:
    (found,) = safety(find_results([RESULTS]), grid=grid)
    return found


def test_factorforge_leads_by_more_than_noise_where_the_page_says_so() -> None:
    for grid in PAPER_GRIDS:
        assert set(verdicts(boards()[grid], "crps", "factorforge").values()) == {"worse"}, grid
        assert verdicts(boards()[grid], "crps", "oracle")["factorforge"] == "worse", grid
    for grid in LEAVING:
        for score in ("brier", "twcrps"):
            assert set(verdicts(boards()[grid], score, "factorforge").values()) == {"worse"}
        safe = verdicts(boards()[grid], "safety_mbrier", "factorforge")
        assert safe["powerforge"] == safe["last-week"] == "noise"
    synthetic = boards("synthetic")["activsg500"]
    assert verdicts(synthetic, "crps", "factorforge")["climatology"] == "noise"


def test_it_leads_in_nine_windows_and_not_on_31_december() -> None:
    lost = set()
    for grid, board in boards().items():
        windows = {e.name: e.by_window["crps"] for e in board.entries if e.rank is not None}
        own = windows.pop("factorforge")
        for name, other in windows.items():
            days = zip(board.windows, own, other, strict=True)
            lost |= {(grid, day[:10], name) for day, a, b in days if b <= a}
    eve = {one for one in lost if one[1] == "2016-12-31"}
    assert {grid for grid, _, name in eve if name == "climatology"} == set(PAPER_GRIDS)
    assert lost - eve == {("polish3120", "2016-07-21", "climatology")}


def test_what_climatology_and_powerforge_gain_is_noise_where_it_is_said() -> None:
    for grid in PAPER_GRIDS:
        far = verdicts(boards()[grid], "distortion", "climatology")
        assert far["last-week"] == far["last-7-days"] == "worse"
        assert (far["powerforge"] == "worse") == (grid in ("pegase1354", "pegase2869"))
        assert verdicts(boards()[grid], "crps", "climatology")["last-7-days"] == "noise"
        assert verdicts(boards()[grid], "mse", "climatology")["powerforge"] == "noise"


def test_powerforge_and_climatology_cannot_be_told_apart_on_five_grids() -> None:
    beside = {grid: verdicts(boards()[grid], "crps", "climatology") for grid in PAPER_GRIDS}
    assert {found["ets"] for found in beside.values()} == {"noise"}
    for grid in PAPER_GRIDS:
        assert verdicts(boards()[grid], "crps", "powerforge")["ets"] == "noise"
    board = boards()["activsg500"]
    tested = against(board.entries, board.windows, "crps", "climatology")
    (p,) = (contrast.adjusted for contrast in tested if contrast.name == "powerforge")
    assert f"on ACTIVSg 500 climatology is better, with a p of {p:.3f}." in WORDS
    assert {grid: found["powerforge"] for grid, found in beside.items()} == {
        "activsg500": "worse"
    } | dict.fromkeys(LEAVING, "noise")


def test_two_sundays_make_most_of_what_is_gained_over_the_last_seven_days() -> None:
    gained, shares = [], []
    for board in boards().values():
        entries = {entry.name: entry for entry in board.entries}
        days = np.array([window[:10] for window in board.windows], dtype="datetime64[D]")
        sunday = (days.astype(np.int64) + 3) % 7 == 6  # 1970 began on a Thursday
        assert days[sunday].astype(str).tolist() == ["2016-11-20", "2016-12-11"]
        found = verdicts(board, "crps", "last-7-days")
        for name in ("climatology", "powerforge"):
            assert found[name] == "noise", (board.grid, name)
            both = (entries[model].by_window["crps"] for model in ("last-7-days", name))
            difference = np.subtract(*map(np.array, both))
            shares.append(difference[sunday].sum() / difference.sum())
            gained.append(skills(board.entries, "crps")[name].skill.value)
    assert (round(100 * min(gained)), round(100 * max(gained))) == (11, 40)
    assert "their means are 11 to 40 % below" in WORDS
    assert f"make {100 * min(shares):.0f} % of the difference or more" in WORDS


def test_the_way_to_the_oracle_is_as_far_as_the_page_says() -> None:
    for model, words in (
        ("climatology", "climatology goes {} to {} % by CRPS"),
        ("powerforge", "PowerForge {} to {} %"),
        ("factorforge", "FactorForge {} to {} %"),
    ):
        found = [skills(b.entries, "crps")[model].reach.value for b in boards().values()]
        low, high = (f"{100 * value:.0f}" for value in (min(found), max(found)))
        assert words.format(low, high) in WORDS, (model, low, high)


def test_no_grid_has_opposite_orders_and_proper_scores_agree_more() -> None:
    found = {one.board.grid: one for one in safety(find_results([RESULTS]))}
    every = [t for one in found.values() for t in (one.ours, one.proper, one.paper)]
    assert all(one.kendall > 0 and one.spearman > 0 for one in every)
    printed = [found[grid].paper.kendall for grid in PAPER_GRIDS[:5]]
    assert f"(τ of {min(printed):.2f} to {max(printed):.2f})" in WORDS
    assert found["pegase9241"].paper.kendall < min(printed)
    for grid in LEAVING:
        assert found[grid].proper.kendall - found[grid].ours.kendall > 0.1, grid
    for kind, words in (("ours", "(τ of {} to {})"), ("proper", "({} to {})")):
        taus = [getattr(found[grid], kind).kendall for grid in LEAVING]
        assert words.format(f"{min(taus):.2f}", f"{max(taus):.2f}") in WORDS
    sizes = [len(found[grid].ours.names) for grid in PAPER_GRIDS]
    assert (min(sizes), max(sizes)) == (9, 13)
    steps = [4 / (n * (n - 1)) for n in (max(sizes), min(sizes))]
    assert f"moves τ by {steps[0]:.2f} to {steps[1]:.2f}" in WORDS


def test_over_the_paper_s_models_alone_safety_says_less_of_fidelity() -> None:
    taus = []
    for grid in PAPER_GRIDS:
        printed = {entry.name for entry in boards()[grid].paper}
        alone = [e for e in boards()[grid].entries if e.name.partition("+")[0] in printed]
        taus.append(tradeoff(alone).kendall)
        assert taus[-1] < tradeoff(boards()[grid].entries).kendall
    words = f"τ is lower still, {min(taus):.2f} to {max(taus):.2f},".replace("-", "−")
    assert f"Over the paper's models alone {words}" in WORDS
    assert max(np.abs(taus[3:])) < 0.2


def test_last_week_and_timemcl_part_the_orders_on_polish_2383() -> None:
    found = safety_of("polish2383")
    for orders, ranks, last_week, timemcl in (
        (found.ours, found.ours.safety, 1, 4),
        (found.ours, found.ours.fidelity, 4, 10),
        (found.proper, found.proper.safety, 5, 10),
    ):
        mean = dict(zip(orders.names, ranks, strict=True))
        place = {name: 1 + sum(other < own for other in ranks) for name, own in mean.items()}
        assert (place["last-week"], place["timemcl+short"]) == (last_week, timemcl)
        assert len(ranks) == 13
    safe = dict(zip(found.ours.names, found.ours.safety, strict=True))
    assert safe["timemcl+short"] == safe["tempflow+short"]


NEAR = ("factorforge", "powerforge", "climatology", "last-week", "last-7-days", "oracle")
"""Those that leave the band hardly anywhere but where voltages do."""


def scoring(found: GridSafety) -> dict[str, float]:
    """Of each model, at how many buses in a hundred it scores at all."""
    return {name: 100 * float((own > NEGLIGIBLE).mean()) for name, own in found.per_bus.items()}


def test_the_hard_buses_are_as_the_page_says() -> None:
    found = safety_of("polish2383")
    share = scoring(found)
    near = [share[name] for name in NEAR]
    assert f"{min(near):.1f} to {max(near):.1f} % of the buses of Polish" in WORDS
    far = ("deepar+short", "timeprism+short", "timegrad+subsampled-short")
    others = [value for name, value in share.items() if name not in far]
    assert f"and up to {max(others):.1f} % with most baselines" in WORDS
    assert [round(share[name]) for name in far] == [63, 100, 100]
    worst = {name: f"{own.max():.2f}" for name, own in found.per_bus.items()}
    assert [worst[n] for n in ("factorforge", "powerforge", "oracle")] == ["0.16", "0.22", "0.12"]
    worst_50 = {
        name: {k for k in np.argsort(-own, kind="stable")[:50] if own[k] > NEGLIGIBLE}
        for name, own in found.per_bus.items()
    }
    assert worst_50["factorforge"] | worst_50["powerforge"] <= worst_50["oracle"]
    sizes = [len(worst_50[name]) for name in ("factorforge", "powerforge", "oracle")]
    words = "All of FactorForge's {} hard buses and of PowerForge's {} are among the oracle's {}:"
    assert words.format(*sizes) in WORDS
    largest = safety_of("pegase9241")
    near = [scoring(largest)[name] for name in NEAR]
    assert (round(min(near)), round(max(near))) == (8, 11)
    hard = largest.pairs["factorforge", "powerforge"]
    assert (f"{hard.overlap:.2f}", f"{hard.spearman_scoring:.2f}") == ("0.48", "0.92")
