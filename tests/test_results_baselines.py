"""What the page of results says of the baselines is what their rows say."""

import re
from statistics import fmean

import pytest

from powerphase.grid import PAPER_GRIDS
from powerphase.report.leaderboard import leaderboard
from powerphase.report.statistics import against
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
    """The means over seeds."""
    found = rows_of("activsg500", "ets", variant)
    return [fmean(row.scores[name] for row in found) for name in NAMES]


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
    assert scores_of(None)[3] == pytest.approx(8e-7, abs=0.5e-7)
    (board,) = (b for b in leaderboard(rows()) if b.grid == "activsg500")
    ranks = {e.name: e.rank for e in board.entries if e.rank is not None}
    ahead = {"powerforge", "last-week", "last-7-days", "climatology"}
    assert all(ranks[name] < ranks["ets"] for name in ahead)
    assert all(score("activsg500", name, "safety_mbrier") == 0 for name in ahead)
    assert scores_of("season-24")[0] / ours == pytest.approx(10, abs=0.5)


BATCHES = dict.fromkeys(PAPER_GRIDS, 32) | {"polish2383": 16, "pegase9241": 8}
GRIDS = {
    "deepar": PAPER_GRIDS[:5],
    "timemcl": PAPER_GRIDS,
    "timeprism": PAPER_GRIDS,
    "tempflow": PAPER_GRIDS[:5],
    "transformer-tempflow": PAPER_GRIDS,
    "timegrad": PAPER_GRIDS[:3],
    "tactis-2": PAPER_GRIDS[:5],
}
"""Where each of the networks has a row."""

THREE = {22, 42, 3142}
"""Seeds, of the networks on the first three grids."""
ONE = {("polish2383", "timegrad"), ("polish2383", "tactis-2")}
"""But for these."""


def beside(model: str, name: str) -> tuple[list[float], list[float]]:
    """A score on the model's grids: ours, and the paper's."""
    boards = {b.grid: b for b in leaderboard(rows()) if b.edition == "opsd-r"}
    of = [boards[grid] for grid in GRIDS[model]]
    ours = [e.mean[name] for b in of for e in b.entries if e.name.split("+")[0] == model]
    theirs = [e.mean[name] for b in of for e in b.paper if e.name == model]
    assert len(ours) == len(theirs) == len(of)
    return ours, theirs


def listed(values: list[float], digits: int = 4) -> str:
    *most, last = (f"{value:.{digits}f}" for value in values)
    return f"{', '.join(most)} and {last}"


def test_steps_batches_and_seeds_are_as_told() -> None:
    for model, grids in GRIDS.items():
        found = [r for r in rows() if r.model == model]
        assert {r.grid for r in found} == set(grids)
        for grid in grids:
            seeds = {r.seed for r in found if r.grid == grid}
            several = grid in PAPER_GRIDS[:3] and (grid, model) not in ONE
            assert seeds == (THREE if several else {42})
        for row in found:
            size = 200 if model == "tactis-2" else BATCHES[row.grid]
            assert row.config["training"]["batch_size"] == size
            assert row.cost["steps"] == {"tactis-2": 600, "timegrad": 750}.get(model, 1500)
            assert row.cost["train_s"] + row.cost["predict_s"] < 300
            assert row.cost["hardware"] == "NVIDIA H200"
            assert row.config.get("rows") == (4096 if model == "timegrad" else None)
            assert row.scenarios == {"timemcl": 16, "timeprism": 625}.get(model, 100)
    for size, words in ((200, "saw {} to {} % of the windows"), (100, "(TimePrism: {} to {} %)")):
        seen = [100 * 1500 * own / (6000 * size) for own in BATCHES.values()]
        assert words.format(round(min(seen)), round(max(seen))) in WORDS
    for grid in PAPER_GRIDS:
        assert {r.seed for r in rows_of(grid, "ets")} == THREE
    (largest,) = (b for b in leaderboard(rows()) if b.grid == "pegase9241")
    assert {e.name for e in largest.paper} - {"powerforge", "ets"} == {
        model for model, grids in GRIDS.items() if "pegase9241" in grids
    }


def test_timemcl_beside_the_paper() -> None:
    crps = beside("timemcl", "crps")
    ours, theirs = map(listed, crps)
    assert f"CRPS of {ours} against {theirs}" in WORDS
    apart = [a / b - 1 for a, b in zip(*crps, strict=True)]
    words = f"on Polish 2383 it is {100 * apart[2]:.0f} % higher, on PEGASE 2869"
    assert f"{words} {-100 * apart[3]:.0f} % lower" in WORDS
    furthest = max(abs(share) for share in (*apart[:2], *apart[4:]))
    assert f"CRPS is within {100 * furthest:.0f} % of the paper's on four grids" in WORDS
    found = [r for r in rows() if r.model == "timemcl"]
    near = [r for r in found if (r.grid, r.seed) != ("activsg500", 3142)]
    most, theirs = max(r.scores["cvar_0.1"] for r in near), min(beside("timemcl", "cvar_0.1")[1])
    assert f"(CVaR of {most:.4f} at most, against {theirs:.3f} at least)" in WORDS
    (far,) = (r for r in found if r not in near)
    assert (
        f"leaves it with a CVaR of {far.scores['cvar_0.1']:.3f}, where the others have 0" in WORDS
    )
    assert all(r.scores["cvar_0.1"] == 0 for r in near if r.grid == "activsg500")
    held = [100 * r.scores["coverage_80"] for r in near]
    assert f"holds {min(held):.0f} to {max(held):.0f} % of what happens" in WORDS
    assert f"With that seed it is {100 * far.scores['coverage_80']:.0f} %" in WORDS


def test_on_pegase_2869_all_of_the_paper_s_are_higher() -> None:
    (board,) = (b for b in leaderboard(rows()) if b.grid == "pegase2869")
    ours = {e.name.split("+")[0]: e.mean["crps"] for e in board.entries}
    ratio = {e.name: e.mean["crps"] / ours[e.name] for e in board.paper if e.name in ours}
    assert set(ratio) == {"powerforge", "ets", *GRIDS} - {"timegrad"}
    words = f"{min(ratio.values()):.1f} to {max(ratio.values()):.1f} times as high"
    assert f"{words}, PowerForge ({ratio['powerforge']:.1f} times) and ETS" in WORDS
    assert f"and ETS ({ratio['ets']:.1f}) among them" in WORDS


def test_tactis_and_the_flows_beside_the_paper() -> None:
    for model, given in (("tactis-2", "TACTiS-2"), ("tempflow", "TempFlow")):
        ours, theirs = map(listed, beside(model, "crps"))
        assert f"{given} has {ours} against {theirs}" in WORDS
    one, other = (beside(model, "crps")[0] for model in ("tempflow", "transformer-tempflow"))
    apart = max(abs(a / b - 1) for a, b in zip(one, other, strict=False))
    assert f"Transformer-TempFlow the same to {100 * apart:.0f} %" in WORDS
    ours, theirs = (found[-1] for found in beside("transformer-tempflow", "crps"))
    assert f"on PEGASE 9241, {ours:.4f} against {theirs:.4f}" in WORDS
    flows = [beside(model, "safety_mbrier") for model in ("tempflow", "transformer-tempflow")]
    theirs = [value for _, found in flows for value in found[:2]]
    assert f"(Safety_mBrier of {min(theirs):.2f} to {max(theirs):.2f})" in WORDS
    most = max(value for found, _ in flows for value in found[:2])
    assert f"ours hardly do ({most:.3f} at most)" in WORDS
    polish = max(found[k] for _, found in flows for k in (2, 4))
    assert f"hardly leave it ({polish:.3f} at most)" in WORDS
    ahead = {
        model: [a < b for a, b in zip(*beside(model, "crps"), strict=True)][:5]
        for model in ("tempflow", "transformer-tempflow", "tactis-2")
    }
    of_flows = [True, True, False, True, False]
    assert list(ahead.values()) == [of_flows, of_flows, [True, False, False, True, False]]


def test_timegrad_beside_the_paper() -> None:
    found = beside("timegrad", "crps")
    ours, theirs = map(listed, found)
    assert (
        f"With CRPS of {ours} it is ahead of the paper's on two grids and level on PEGASE" in WORDS
    )
    assert f"level on PEGASE 1354 ({theirs})" in WORDS
    ratio = [a / b for a, b in zip(*found, strict=True)]
    assert ratio[0] < 1 > ratio[2]
    assert ratio[1] == pytest.approx(1, abs=0.01)
    safety = beside("timegrad", "safety_mbrier")[0]
    assert f"Safety_mBrier is {listed(safety, 2)}, more than ten times TACTiS-2's" in WORDS
    others = beside("tactis-2", "safety_mbrier")[0]
    assert all(own > 10 * other for own, other in zip(safety, others, strict=False))
    assert max(spreads(), key=spreads().__getitem__) == ("pegase1354", "timegrad")
    three = sorted(
        rows_of("pegase1354", "timegrad", "subsampled-short"), key=lambda r: r.scores["crps"]
    )
    assert f"with a CRPS of {listed([r.scores['crps'] for r in three])}; the last" in WORDS
    *most, last = (f"{100 * r.scores['coverage_80']:.0f}" for r in three)
    words = f"the last has {last} % of what happens in its central 80 %, the others"
    assert f"{words} {' and '.join(sorted(most))} %" in WORDS


def spreads() -> dict[tuple[str, str], float]:
    """Of each network and grid, the highest CRPS of a seed over the lowest."""
    return {
        (grid, model): max(values) / min(values)
        for model, grids in GRIDS.items()
        for grid in grids
        if (values := [r.scores["crps"] for r in rows() if (r.grid, r.model) == (grid, model)])
    }


def test_deepar_beside_the_paper() -> None:
    shares = [a / b for a, b in zip(*beside("deepar", "crps"), strict=True)]
    assert f"CRPS is {100 * min(shares):.0f} to {100 * max(shares):.0f} % of the paper's" in WORDS
    covered = min(beside("deepar", "coverage_80")[0])
    assert f"{100 * covered:.1f} % or more of what happens lies in its central 80 %" in WORDS
    for model in GRIDS:
        others = zip(beside(model, "crps")[0], beside("deepar", "crps")[0], strict=False)
        assert all(one <= other for one, other in others)


def test_timeprism_pays_with_its_tails() -> None:
    shares = [100 * a / b for a, b in zip(*beside("timeprism", "crps"), strict=True)]
    assert f"Its CRPS is {listed(shares, 0)} % of the paper's" in WORDS
    lowest = {
        grid: min(
            (m for m in GRIDS if grid in GRIDS[m]),
            key=lambda model: beside(model, "distortion")[0][GRIDS[model].index(grid)],
        )
        for grid in PAPER_GRIDS
    }
    assert set(lowest.values()) == {"timeprism"}
    safety, _ = beside("timeprism", "safety_mbrier")
    assert f"Safety_mBrier is {listed(safety, 2)}," in WORDS
    ours, theirs = beside("timeprism", "cvar_0.1")
    assert f"CVaR {min(ours):.2f} to {max(ours):.2f}." in WORDS
    assert f"higher still by CVaR, {min(theirs):.1f} to {max(theirs):.1f}." in WORDS
    three = sorted(r.scores["crps"] for r in rows_of("pegase1354", "timeprism", "short"))
    assert f"Its seeds differ too, on PEGASE 1354 with a CRPS of {listed(three)}." in WORDS


def test_one_network_reaches_last_7_days_once_none_climatology_and_ets_is_ahead_of_all() -> None:
    reached = []
    for model, grids in GRIDS.items():
        for grid, ours in zip(grids, beside(model, "crps")[0], strict=True):
            assert score(grid, "ets", "crps") < min(ours, score(grid, "last-7-days", "crps"))
            assert ours > score(grid, "climatology", "crps")
            if ours < score(grid, "last-7-days", "crps"):
                reached.append((model, grid))
    assert reached == [("timeprism", "pegase9241")]


def test_what_is_said_of_networks_and_noise_is_so() -> None:
    level = []
    for board in leaderboard(rows()):
        for other in ("climatology", "ets", "last-7-days"):
            found = {
                contrast.name.split("+")[0]: contrast.verdict
                for contrast in against(board.entries, board.windows, "crps", other)
            }
            told = {model for model in GRIDS if found.get(model) == "noise"}
            assert not told or other == "last-7-days"
            level += sorted(told)
    assert level.count("timeprism") == level.count("tactis-2") == 4
    assert set(level) == {"timeprism", "tactis-2"}


def test_the_best_network_of_each_grid_is_one_that_looks_at_the_whole_week() -> None:
    for grid in PAPER_GRIDS:
        own = {m: beside(m, "crps")[0][GRIDS[m].index(grid)] for m in GRIDS if grid in GRIDS[m]}
        assert min(own, key=own.__getitem__) in ("timeprism", "tactis-2")
