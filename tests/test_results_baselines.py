"""What the page of results says of the baselines is what their rows say."""

import re

import pytest

from powerphase.report.entries import representative
from powerphase.report.leaderboard import leaderboard
from tests.page_of_results import PAGE, WORDS, rows, rows_of, score

NAMES = ("crps", "distortion", "mse", "safety_mbrier", "necv", "cvar_0.1")
SECTION = PAGE.split("## ETS: which one is the paper's?")[1].split("\n## ")[0]
LINES = {
    "a day, from the context (our default)": None,
    "a day, from the end of training": "stale",
    "24 steps, from the context": "season-24",
    "24 steps, from the end of training": "season-24-stale",
    "the same with statsmodels' noise in the trend (`reference`)": "reference",
}


def table() -> dict[str, list[str]]:
    found = re.findall(r"^\| ([^|]+) \| (0\.\d{4}[^\n]*) \|$", SECTION, re.MULTILINE)
    return {name: cells.split(" | ") for name, cells in found}


def scores_of(variant: str | None) -> list[float]:
    (row,) = rows_of("activsg500", "ets", variant)
    return [row.scores[name] for name in NAMES]


def papers() -> list[float]:
    (board,) = (b for b in leaderboard(rows()) if b.grid == "activsg500")
    (entry,) = (e for e in board.paper if e.name == "ets")
    return [entry.mean[name] for name in NAMES]


def test_the_table_of_ets_is_what_the_rows_say() -> None:
    wanted = {line: scores_of(variant) for line, variant in LINES.items()}
    wanted["paper"] = papers()
    assert table() == {line: [f"{n:.4f}" for n in found] for line, found in wanted.items()}


def test_the_paper_s_ets_is_nearest_to_the_stale_one_with_24_steps() -> None:
    near = [
        ours / theirs for ours, theirs in zip(scores_of("season-24-stale"), papers(), strict=True)
    ]
    for variant in ("season-24", "reference"):
        others = zip(scores_of(variant), papers(), strict=True)
        assert all(
            1 < one < ours / theirs for one, (ours, theirs) in zip(near, others, strict=True)
        )
    assert f"still {min(near):.1f} to {max(near):.1f} times as high" in WORDS
    for variant in (None, "stale"):
        assert max(scores_of(variant)[3:]) < 1e-6


def test_ets_beside_powerforge() -> None:
    ours = score("activsg500", "ets", "crps")
    share = 1 - ours / score("activsg500", "powerforge", "crps")
    assert f"Our default's lies {100 * share:.0f} % below PowerForge's" in WORDS
    ratio = scores_of(None)[1] / score("activsg500", "powerforge", "distortion")
    assert f"its Distortion is {ratio:.1f} times PowerForge's" in WORDS
    assert scores_of(None)[3] == pytest.approx(4e-7, abs=0.5e-7)
    (board,) = (b for b in leaderboard(rows()) if b.grid == "activsg500")
    ranks = {e.name: e.rank for e in board.entries if e.rank is not None}
    ahead = {"powerforge", "last-week", "last-7-days", "climatology"}
    assert all(ranks[name] < ranks["ets"] for name in ahead)
    assert all(score("activsg500", name, "safety_mbrier") == 0 for name in ahead)
    assert scores_of("season-24")[0] / ours == pytest.approx(10, abs=0.5)


NETWORKS = ("deepar", "timemcl", "timeprism", "tactis-2")
GRIDS = ("activsg500", "pegase1354")


def of_networks(model: str, name: str) -> tuple[list[float], list[float]]:
    """A score on both grids: ours, and the paper's."""
    ours, theirs = [], []
    for grid in GRIDS:
        boards = (b for b in leaderboard(rows()) if (b.grid, b.edition) == (grid, "opsd-r"))
        (board,) = boards
        stands = representative(model, [e.name for e in board.entries])
        ours += [e.mean[name] for e in board.entries if e.name == stands]
        theirs += [e.mean[name] for e in board.paper if e.name == model]
    return ours, theirs


def pair(values: list[float], digits: int = 4) -> str:
    one, other = (f"{value:.{digits}f}" for value in values)
    return f"{one} and {other}"


def test_steps_and_batches_of_the_networks_are_as_told() -> None:
    for model in NETWORKS:
        found = [r for r in rows() if r.model == model and r.edition == "opsd-r"]
        assert {(r.grid, r.seed) for r in found} == {(grid, 42) for grid in GRIDS}
        steps, size = (600, 200) if model == "tactis-2" else (1500, 32)
        assert {(r.cost["steps"], r.config["training"]["batch_size"]) for r in found} == {
            (steps, size)
        }


def test_the_networks_beside_the_paper() -> None:
    for model in ("timemcl", "tactis-2"):
        ours, theirs = map(pair, of_networks(model, "crps"))
        assert f"of {ours} against {theirs}" in WORDS
    assert "(CVaR of 0 and 0.0011 against 0.19 and 0.064)" in WORDS
    assert of_networks("timemcl", "cvar_0.1")[0] == pytest.approx([0, 0.0011], abs=5e-5)
    assert of_networks("timemcl", "cvar_0.1")[1] == pytest.approx([0.1906, 0.0642])
    ours, theirs = of_networks("deepar", "crps")
    assert ours[0] / theirs[0] == pytest.approx(1 / 5, abs=0.01)
    assert ours[1] / theirs[1] == pytest.approx(1 / 4, abs=0.03)
    covered = min(of_networks("deepar", "coverage_80")[0])
    assert f"{100 * covered:.1f} % or more of what happens lies in its central 80 %" in WORDS


def test_timeprism_pays_with_its_tails() -> None:
    ours, theirs = of_networks("timeprism", "crps")
    shares = [f"{100 * a / b:.0f}" for a, b in zip(ours, theirs, strict=True)]
    assert f"Its CRPS is {shares[0]} and {shares[1]} % of the paper's" in WORDS
    highest = max(NETWORKS, key=lambda model: of_networks(model, "safety_mbrier")[0][1])
    assert highest == "timeprism"
    assert f"at {of_networks('timeprism', 'safety_mbrier')[0][1]:.2f}," in WORDS
    ours, theirs = of_networks("timeprism", "cvar_0.1")
    assert f"CVaR {ours[0]:.3f} and {ours[1]:.2f}." in WORDS
    assert f"higher still by CVaR, {pair(theirs, 1)}." in WORDS


def test_no_network_reaches_last_7_days_and_ets_is_ahead_of_all_four() -> None:
    bar = [score(grid, "last-7-days", "crps") for grid in GRIDS]
    assert f"reaches `last-7-days` by CRPS** ({pair(bar)})" in WORDS
    ets = [score(grid, "ets", "crps") for grid in GRIDS]
    for model in NETWORKS:
        ours, _ = of_networks(model, "crps")
        for one, other, known in zip(ours, bar, ets, strict=True):
            assert known < one > other
