"""What the page of results says about PowerForge, number by number."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from statistics import fmean
from typing import Any, get_args

import numpy as np
import pytest

from powerphase.axes import VARIABLES
from powerphase.clock import holiday_share
from powerphase.grid import CATALOG, PAPER_GRIDS
from powerphase.models.powerforge.config import BATCH_SIZES, PowerForgeConfig
from powerphase.records.scores import SCORES
from powerphase.records.sidecar import read_sidecar
from powerphase.report.comparison import Difference, Pair, compare, paper_ablations
from powerphase.report.leaderboard import paper_entries
from tests.page_of_results import (
    PAGE,
    RESULTS,
    WORDS,
    measured,
    percent,
    rows,
    rows_of,
    score,
    spread,
    trainings,
)


@cache
def pairs() -> tuple[Pair, ...]:
    return compare(rows(), "powerforge").pairs


def differences() -> list[Pair]:
    return [pair for pair in pairs() if pair.difference]


def leads() -> dict[str, str]:
    """The paragraphs on differences, by their first words."""
    section = PAGE.partition("\n## Where the two differ\n")[2].partition("\n## ")[0]
    found = re.findall(r"^\*\*(.+?)\.\*\*((?:.+\n)+)", section, re.MULTILINE)
    return {lead: " ".join(text.split()) for lead, text in found}


def named(lead: str) -> dict[str, tuple[str, str]]:
    """What `PEGASE 1354, CRPS and Distortion better` speaks of: grid and difference by score."""
    grid, _, rest = lead.partition(", ")
    found: dict[str, tuple[str, str]] = {}
    waiting: list[str] = []
    for word in re.findall(r"[\w.]+", rest.replace(" and ", " ")):
        if word in get_args(Difference):
            found |= {title: (grid, word) for title in waiting}
            waiting = []
        else:
            waiting.append(word)
    assert not waiting, lead
    return found


def test_every_difference_from_the_paper_has_its_paragraph() -> None:
    found = [(*place, title) for lead in leads() for title, place in named(lead).items()]
    wanted = [(CATALOG[p.grid].title, p.difference, SCORES[p.score].title) for p in differences()]
    assert sorted(found) == sorted(wanted)


@pytest.mark.parametrize("lead", leads())
def test_a_paragraph_on_a_difference_begins_with_both_numbers(lead: str) -> None:
    by_place = {(CATALOG[p.grid].title, SCORES[p.score].title): p for p in differences()}
    found = [by_place[grid, title] for title, (grid, _) in named(lead).items()]
    ours, papers = (re.findall(r"0\.\d+", part) for part in leads()[lead].split(" beside "))
    assert len(ours) == len(found)
    for pair, own, printed in zip(found, ours, papers, strict=False):
        assert round(pair.mean, len(own) - 2) == float(own)
        assert pair.paper_mean == float(printed)


@pytest.mark.parametrize("grid", PAPER_GRIDS)
def test_only_angles_are_learned(grid: str) -> None:
    """The table of kinds, and that V is the reference day's."""
    alone, own = measured("reference_day")["grids"][grid], rows_of(grid, "powerforge")
    gain, cells = {}, []
    for kind in VARIABLES:
        crps, reference = fmean(r.by_type[kind]["crps"] for r in own), alone["crps_by_type"][kind]
        gain[kind] = 1 - crps / reference
        cells.append(f"{crps:.5f} ({reference:.5f})")
    coverage = percent(score(grid, "powerforge", "coverage_80"))
    assert f"| {CATALOG[grid].title} | {coverage} | {' | '.join(cells)} |" in PAGE
    assert max(gain["P"], gain["Q"]) < 0
    assert abs(gain["V"]) < 1e-4
    assert 0.275 < gain["theta"] < 0.415
    for row in own:
        for kind in ("P", "Q"):
            assert row.by_type[kind]["crps"] > alone["crps_by_type"][kind]
        assert row.by_type["V"]["width_80"] < 4e-8
        for name in ("safety_mbrier", "necv"):
            assert row.scores[name] == pytest.approx(alone["scores"][name], rel=1e-4)


def test_the_bound_of_voltages_falls_through_its_floor_where_width_is_punished() -> None:
    punished = [t for t in trainings() if t["first_epoch"]["width"]]
    free, winner = (t for t in trainings() if not t["first_epoch"]["width"])
    assert f"in all {len(punished)} trainings with the width penalty" in WORDS
    assert max(t["voltage_range"] for t in punished) < PowerForgeConfig().voltage_range_floor
    assert free["variant"] == "no-quantile-regularisation"
    assert f"it has grown to {free['voltage_range']:.3f} p.u." in WORDS
    assert winner["variant"] == "winner-takes-all"
    assert winner["voltage_range"] < PowerForgeConfig().voltage_range_floor
    assert PowerForgeConfig().voltage_range / PowerForgeConfig().training.learning_rate == 50
    firsts = [t["first_epoch"] for t in punished if t["variant"] != "no-anchor"]
    ratios = sorted(first["width"] / first["pinball"] for first in firsts)
    assert f"it is {ratios[0]:.0f} to {ratios[-1]:.0f} times the pinball loss" in WORDS


def test_the_voltages_of_the_paper_part_as_the_page_says() -> None:
    """How far CVaR_0.1 is from NECV, in the paper's rows and in ours."""
    printed = paper_ablations("powerforge")["pegase1354"]
    apart = {name: float(of["cvar_0.1"]) / float(of["necv"]) - 1 for name, of in printed.items()}
    ours = [rows_of("pegase1354", "powerforge", "no-quantile-regularisation")[0]]
    ours += rows_of("pegase1354", "oracle")
    free, oracle = (row.scores["cvar_0.1"] / row.scores["necv"] - 1 for row in ours)
    words = (
        f"0.000752 and 0.000741: {percent(apart[None], 1)} apart, where our training without the"
    )
    assert f"{words} penalty has {percent(free, 1)} and the oracle {percent(oracle)}." in WORDS
    assert apart["no-quantile-regularisation"] < 0.02
    words = f"without the anchor, by {percent(apart['no-anchor'])}, and with winner-takes-all, by "
    assert words + percent(apart["winner-takes-all"]) in WORDS
    for name in ("no-anchor", "winner-takes-all"):
        (row,) = rows_of("pegase1354", "powerforge", name)
        assert row.scores["cvar_0.1"] == pytest.approx(row.scores["necv"], rel=1e-6)


def test_what_is_said_of_seeds_and_of_climatology_is_so() -> None:
    assert {len(rows_of(grid, "powerforge")) for grid in PAPER_GRIDS} == {3}
    spreads = {grid: spread(grid) for grid in PAPER_GRIDS}
    low, high = (100 * part(spreads.values()) for part in (min, max))
    assert f"Between seeds it varies by {low:.1f} to {high:.1f} % (a standard deviation)" in WORDS
    assert max(spreads, key=spreads.__getitem__) == "pegase2869"
    below = {}
    for grid in PAPER_GRIDS:
        base = score(grid, "climatology", "crps")
        below[grid] = sum(row.scores["crps"] < base for row in rows_of(grid, "powerforge"))
    assert below == dict.fromkeys(PAPER_GRIDS, 0) | {
        "polish2383": 3,
        "polish3120": 1,
        "pegase9241": 3,
    }
    models = ("powerforge", "climatology")
    own, base = (score("polish3120", model, "crps") for model in models)
    assert f"on Polish 3120 by {percent(own / base - 1, 1)}, less than the seeds differ" in WORDS
    assert own / base - 1 < spreads["polish3120"]


def test_trainings_are_those_of_the_rows() -> None:
    own = {(r.grid, r.variant, r.seed): r for r in rows() if r.model == "powerforge"}
    assert len(trainings()) == len(own)
    for found in trainings():
        row = own[found["grid"], found["variant"], found["seed"]]
        assert row.cost["train_s"] == pytest.approx(found["train_s"], abs=0.01)


def rounded_oracle(grid: str) -> float:
    """Safety_mBrier of saying 0 or 1, whichever is nearer to the oracle's probability."""
    (row,) = rows_of(grid, "oracle")
    bins = read_sidecar(RESULTS.parent / row.path)["reliability"]
    number, said, happened = bins[bins[:, 0] > 0].T
    return float(np.average(np.where(said > 0.5, 1 - happened, happened), weights=number))


@pytest.mark.parametrize("grid", PAPER_GRIDS[1:])
def test_the_table_of_safety_is_that_of_the_rows(grid: str) -> None:
    printed = {pair.score: pair.paper_mean for pair in pairs() if pair.grid == grid}
    models = ("oracle", "last-week", "powerforge")
    oracle, last_week, own = (score(grid, model, "safety_mbrier") for model in models)
    safety = (oracle, rounded_oracle(grid), last_week, own, printed["safety_mbrier"])
    necv = (rows_of(grid, "oracle")[0].truth["necv"], score(grid, "powerforge", "necv"))
    cells = [f"{n:.5f}" for n in necv]
    cells.append(f"{printed['necv']:.4f}" if "necv" in printed else "–")
    cells += [f"{n:.4f}" for n in safety]
    assert f"| {CATALOG[grid].title} | {' | '.join(cells)} |" in PAGE


def test_what_is_said_of_pegase_1354_and_2869_is_so() -> None:
    last_week = {
        grid: [score(grid, "last-week", name) for name in ("crps", "distortion", "mse")]
        for grid in ("pegase1354", "pegase2869")
    }
    assert "learns nothing, has {:.4f} and {:.4f}:".format(*last_week["pegase1354"]) in WORDS
    (free,) = rows_of("pegase1354", "powerforge", "no-quantile-regularisation")
    assert f"on width and jitter it is {free.scores['safety_mbrier']:.4f}" in WORDS
    safety = [row.scores["safety_mbrier"] for row in rows_of("pegase1354", "powerforge")]
    assert max(safety) == pytest.approx(min(safety), rel=1e-5)
    necv = [score("pegase1354", r, "necv") for r in ("oracle", "climatology", "last-7-days")]
    assert f"between {min(necv):.5f} and {max(necv):.5f}" in WORDS
    texts = "on ours `last-week` has {:.4f}, {:.4f} and {:.5f}".format(*last_week["pegase2869"])
    assert texts in WORDS
    for name, value in zip(("crps", "distortion", "mse"), last_week["pegase2869"], strict=True):
        assert value < min(entry.mean[name] for entry in paper_entries("pegase2869"))
    own = rows_of("pegase2869", "powerforge")
    crps = sorted(row.scores["crps"] for row in own)
    assert f"from {crps[0]:.4f} to {crps[-1]:.4f} in CRPS" in WORDS
    share = sum(row.by_type["theta"]["crps"] / 4 for row in own) / sum(crps)
    assert f"Angles make {percent(share)} of our CRPS" in WORDS


def test_what_is_said_of_polish_3120_is_so() -> None:
    truth = rows_of("polish3120", "oracle")[0].truth
    assert f"on ours {percent(truth['violations'], 1)} of the voltages leave the band" in WORDS
    least = min(entry.mean["necv"] for entry in paper_entries("polish3120"))
    assert round(least / truth["necv"]) == 16
    far = {pair.score for pair in differences() if pair.grid == "polish3120"}
    assert far == {"safety_mbrier", "necv", "cvar_0.1"}


def test_what_is_said_of_the_windows_of_pegase_9241_is_so() -> None:
    own = rows_of("pegase9241", "powerforge")
    repeated, oracle = (rows_of("pegase9241", model)[0] for model in ("last-week", "oracle"))
    day = repeated.windows.index("2016-10-31T00:00")
    means = [score("pegase9241", model, "distortion") for model in ("climatology", "oracle")]
    assert "climatology has {:.4f} and the oracle {:.4f}".format(*means) in WORDS
    by_seed = sorted(row.scores["distortion"] for row in own)
    assert f"the three have {by_seed[0]:.4f} to {by_seed[-1]:.4f}" in WORDS
    found = [row.by_window["distortion"] for row in own]
    on_it = sorted(by_window[day] for by_window in found)
    words = (
        f"31 October 2016, with {on_it[0]:.3f} to {on_it[-1]:.3f}; the mean of the other nine is"
    )
    words = f"Nearly a quarter of the sum of ten windows is one day, {words}"
    assert f"{words} {fmean(map(others_than(day), found)):.4f}" in WORDS
    assert all(0.22 < by_window[day] / sum(by_window) < 0.25 for by_window in found)
    worst, usual = repeated.by_window["distortion"], oracle.by_window["distortion"]
    assert max(worst) == worst[day]
    assert f"too, with {worst[day]:.3f}, and the oracle is not, with {usual[day]:.3f}" in WORDS
    for grid in PAPER_GRIDS:
        for model in ("last-week", "powerforge"):
            means = np.mean([row.by_window["crps"] for row in rows_of(grid, model)], axis=0)
            assert means.argmax() == day
    shares = holiday_share(np.array(["2016-10-31T12", "2016-11-01T12"], dtype="datetime64[h]"))
    assert all((shares > 0) & (shares < 1))
    crps = [row.by_window["crps"] for row in own]
    here, elsewhere = fmean(c[day] for c in crps), fmean(map(others_than(day), crps))
    (pair,) = (p for p in pairs() if (p.grid, p.score) == ("pegase9241", "crps"))
    words = f"has {here:.4f} on that day and {elsewhere:.4f} on the others"
    assert f"CRPS, {pair.distance:.1f} deviations above the paper's, {words}" in WORDS


def others_than(window: int) -> Callable[[Sequence[float]], float]:
    """The mean over all windows but one."""
    return lambda by_window: fmean(x for k, x in enumerate(by_window) if k != window)


def test_what_is_said_of_the_training_of_pegase_9241_is_so() -> None:
    full = trainings(variant=None)
    own = [t for t in full if t["grid"] == "pegase9241"]
    others = [t for t in full if t["grid"] != "pegase9241"]
    best, first = (sorted(found(t) for t in own) for found in (best_epoch, first_halved))
    words = "{}, {} and {} of 200, where the full models of the other grids have".format(*best)
    late = sorted(map(best_epoch, others))
    assert f"Its best epochs are {words} theirs at {late[0]} to {late[-1]}." in WORDS
    assert {len(t["halved_before_epochs"]) for t in own} == {11}
    late = sorted(map(first_halved, others))
    words = "first before epochs {}, {} and {}, where the others had it whole".format(*first)
    assert f"{words} until {late[0] - 1} to {late[-1] - 1}." in WORDS
    falls = sorted(1 - t["last_epoch"]["pinball"] / t["best"]["pinball"] for t in own)
    assert f"falls by another {100 * falls[0]:.0f} to {percent(falls[-1])}" in WORDS
    assert set(BATCH_SIZES.values()) == {8, 16, 32}
    assert BATCH_SIZES["pegase9241"] == 8
    cvar = [score("pegase9241", model, "cvar_0.1") for model in ("oracle", "climatology")]
    assert "oracle has {:.4f} and climatology {:.4f}".format(*cvar) in WORDS


def best_epoch(training: Mapping[str, Any]) -> int:
    """The one whose weights are kept."""
    return int(training["best_epoch"])


def first_halved(training: Mapping[str, Any]) -> int:
    """The epoch before which the rate was halved for the first time."""
    return int(training["halved_before_epochs"][0])
