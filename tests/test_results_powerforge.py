"""What the page of results says about PowerForge, number by number."""

import json
import re
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, get_args

import numpy as np
import pytest

from powerphase.axes import VARIABLES
from powerphase.grid.catalog import CATALOG
from powerphase.models.powerforge.config import BATCH_SIZES, PowerForgeConfig
from powerphase.records.result import Result, read_results, read_sidecar
from powerphase.records.scores import SCORES
from powerphase.report.comparison import Difference, Pair, compare, paper_ablations
from powerphase.report.leaderboard import PAPER_GRIDS, paper_entries

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
PAGE = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())


@cache
def rows() -> tuple[Result, ...]:
    """All that are committed, of the real signals."""
    return tuple(row for row in read_results([RESULTS]) if row.edition == "opsd-r")


def rows_of(grid: str, model: str, variant: str | None = None) -> list[Result]:
    place = (grid, model, variant)
    return [row for row in rows() if (row.grid, row.model, row.variant) == place]


def score(grid: str, model: str, name: str) -> float:
    """The mean over seeds."""
    return fmean(row.scores[name] for row in rows_of(grid, model))


@cache
def pairs() -> tuple[Pair, ...]:
    return compare(rows(), "powerforge").pairs


def differences() -> list[Pair]:
    return [pair for pair in pairs() if pair.difference]


@cache
def measured(name: str) -> Any:
    """What is kept of trainings and of the reference day."""
    file = ROOT / "benchmarks" / "measured" / f"powerforge_{name}.json"
    return json.loads(file.read_text(encoding="utf-8"))


def trainings(**wanted: Any) -> list[dict[str, Any]]:
    found = measured("trainings")["trainings"]
    return [t for t in found if all(t[name] == value for name, value in wanted.items())]


def percent(share: float, decimals: int = 0) -> str:
    return f"{100 * share:.{decimals}f} %"


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
        assert row.by_type["V"]["width_80"] < 2e-8
        for name in ("safety_mbrier", "necv"):
            assert row.scores[name] == pytest.approx(alone["scores"][name], rel=1e-4)


def test_the_bound_of_voltages_falls_through_its_floor_where_width_is_punished() -> None:
    punished = [t for t in trainings() if t["first_epoch"]["width"]]
    (free,) = (t for t in trainings() if not t["first_epoch"]["width"])
    assert f"in all {len(punished)} trainings with the width penalty" in WORDS
    assert max(t["voltage_range"] for t in punished) < PowerForgeConfig().voltage_range_floor
    assert free["variant"] == "no-quantile-regularisation"
    assert f"it has grown to {free['voltage_range']:.3f} p.u." in WORDS
    firsts = [t["first_epoch"] for t in punished if t["variant"] != "no-anchor"]
    ratios = sorted(first["width"] / first["pinball"] for first in firsts)
    assert f"it is {ratios[0]:.0f} to {ratios[-1]:.0f} times the pinball loss" in WORDS


def test_trainings_are_those_of_the_rows() -> None:
    own = {(r.grid, r.variant, r.seed): r for r in rows() if r.model == "powerforge"}
    for found in trainings():
        row = own[found["grid"], found["variant"], found["seed"]]
        assert row.cost["train_s"] == pytest.approx(found["train_s"], abs=0.01)


def rounded_oracle(grid: str) -> float:
    """Safety_mBrier of saying 0 or 1, whichever is nearer to the oracle's probability."""
    (row,) = rows_of(grid, "oracle")
    bins = read_sidecar(RESULTS / row.path)["reliability"]
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
    necv = [score("pegase1354", r, "necv") for r in ("oracle", "climatology", "last-7-days")]
    assert f"between {min(necv):.5f} and {max(necv):.5f}" in WORDS
    texts = "on ours `last-week` has {:.4f}, {:.4f} and {:.5f}".format(*last_week["pegase2869"])
    assert texts in WORDS
    for name, value in zip(("crps", "distortion", "mse"), last_week["pegase2869"], strict=True):
        assert value < min(entry.mean[name] for entry in paper_entries("pegase2869"))
    (row,) = rows_of("pegase2869", "powerforge")
    share = row.by_type["theta"]["crps"] / 4 / row.scores["crps"]
    assert f"Angles make {percent(share)} of our CRPS" in WORDS


def test_what_is_said_of_polish_3120_is_so() -> None:
    truth = rows_of("polish3120", "oracle")[0].truth
    assert f"on ours {percent(truth['violations'], 1)} of the voltages leave the band" in WORDS
    least = min(entry.mean["necv"] for entry in paper_entries("polish3120"))
    assert round(least / truth["necv"]) == 16
    far = {pair.score for pair in differences() if pair.grid == "polish3120"}
    assert far == {"safety_mbrier", "necv", "cvar_0.1"}


def test_what_is_said_of_the_windows_of_pegase_9241_is_so() -> None:
    models = ("powerforge", "last-week", "oracle")
    own, repeated, oracle = (rows_of("pegase9241", model)[0] for model in models)
    day = own.windows.index("2016-10-31T00:00")
    means = [score("pegase9241", model, "distortion") for model in ("climatology", "oracle")]
    assert "climatology has {:.4f} and the oracle {:.4f}".format(*means) in WORDS
    found = own.by_window["distortion"]
    others = fmean(found[:day] + found[day + 1 :])
    words = f"31 October 2016, with {found[day]:.3f}; the mean of the other nine is {others:.4f}"
    assert f"Nearly a quarter of the sum of ten windows is one day, {words}" in WORDS
    assert 0.22 < found[day] / sum(found) < 0.25
    worst, usual = repeated.by_window["distortion"], oracle.by_window["distortion"]
    assert max(worst) == worst[day]
    assert f"too, with {worst[day]:.3f}, and the oracle is not, with {usual[day]:.3f}" in WORDS
    crps = own.by_window["crps"]
    others = fmean(crps[:day] + crps[day + 1 :])
    (pair,) = (p for p in pairs() if (p.grid, p.score) == ("pegase9241", "crps"))
    words = f"has {crps[day]:.4f} on that day and {others:.4f} on the others"
    assert f"CRPS, {pair.distance:.1f} deviations above the paper's, {words}" in WORDS


def test_what_is_said_of_the_training_of_pegase_9241_is_so() -> None:
    (own,) = trainings(grid="pegase9241")
    best, last = own["best"], own["last_epoch"]
    low, high = own["later_validation_crps"]
    words = f"Its best epoch is {own['best_epoch']} of {own['epochs']}, with a validation CRPS of "
    words += f"{own['validation_crps']:.5f}; after it the log has {low:.5f} to {high:.5f}."
    assert words in WORDS
    halved = own["halved_before_epochs"]
    assert len(halved) == 11
    others = [t["halved_before_epochs"][0] for t in trainings(variant=None) if t is not own]
    words = f"first before epoch {halved[0]}, where the full models of the other grids had it whole"
    assert f"{words} until {min(others) - 1} to {max(others) - 1}" in WORDS
    assert f"fell from {best['loss']:.4f} to {last['loss']:.4f}" in WORDS
    assert f"width penalty ({best['width']:.4f} to {last['width']:.5f})" in WORDS
    assert f"pinball loss went from {best['pinball']:.5f} to {last['pinball']:.5f}" in WORDS
    assert set(BATCH_SIZES.values()) == {8, 16, 32}
    assert BATCH_SIZES["pegase9241"] == 8
    cvar = [score("pegase9241", model, "cvar_0.1") for model in ("oracle", "climatology")]
    assert "oracle has {:.4f} and climatology {:.4f}".format(*cvar) in WORDS


def variant_of(name: str | None) -> Result:
    """On PEGASE 1354 with the seed of the ablation."""
    (found,) = (r for r in rows_of("pegase1354", "powerforge", name) if r.seed == 42)
    return found


def test_what_is_said_of_the_spread_between_seeds_is_so() -> None:
    two, three = (
        [row.scores["crps"] for row in rows_of(grid, "powerforge")]
        for grid in ("pegase1354", "activsg500")
    )
    assert len(three) == 3
    assert f"{fmean(two):.6f} ± {stdev(two):.6f} over two of them" in WORDS
    spread = stdev(three) / fmean(three)
    assert f"± {stdev(three):.6f}, or {percent(spread, 1)}" in WORDS
    full = variant_of(None).scores["crps"]
    for name in ("no-mixer", "no-physics"):
        gain = 1 - variant_of(name).scores["crps"] / full
        assert 10 * stdev(two) / full < gain < 2 * spread
    assert variant_of(None).commit != variant_of("no-mixer").commit


def test_the_fan_opens_without_its_penalties_as_the_page_says() -> None:
    full, free = variant_of(None), variant_of("no-quantile-regularisation")
    (base,) = rows_of("pegase1354", "climatology")
    covered = [percent(row.scores["coverage_80"]) for row in (free, full)]
    words = "{} of the truth is in the central 80 %, where it was {}:".format(*covered)
    kinds = (percent(free.by_type[kind]["coverage_80"]) for kind in VARIABLES)
    assert words + " {} of P, {} of Q, {} of V and {} of θ.".format(*kinds) in WORDS
    crps = [row.by_type["V"]["crps"] for row in (free, full)]
    assert "with a CRPS of {:.5f} instead of {:.5f}".format(*crps) in WORDS
    crps = [row.scores["crps"] for row in (free, base)]
    words = "to {:.5f}, below climatology's {:.5f}".format(*crps)
    fall = percent(1 - free.scores["crps"] / full.scores["crps"], 1)
    assert f"CRPS falls by {fall} {words}" in WORDS
    brier = [row.scores["brier"] for row in (full, free, base)]
    assert "Brier from {:.4f} to {:.4f}, below climatology's {:.4f}".format(*brier) in WORDS
    distortion = [row.scores["distortion"] for row in (free, base)]
    assert "Distortion, at {:.4f}, stays above its {:.4f}".format(*distortion) in WORDS
    (training,) = trainings(grid="pegase1354", variant=None, seed=42)
    first = training["first_epoch"]
    assert f"width is {first['width'] / first['jitter']:.0f} times the other" in WORDS


def test_what_other_switches_do_is_what_the_page_says() -> None:
    full, blind = variant_of(None), variant_of("no-anchor")
    printed = paper_ablations("powerforge")["pegase1354"]
    times = blind.scores["crps"] / full.scores["crps"]
    papers = float(printed["no-anchor"]["crps"]) / float(printed[None]["crps"])
    assert f"CRPS is {times:.1f} times as high ({papers:.1f} times in the paper)" in WORDS
    rise = {kind: blind.by_type[kind]["crps"] - full.by_type[kind]["crps"] for kind in VARIABLES}
    assert f"{percent(rise['V'] / sum(rise.values()))} of the increase is V" in WORDS
    assert blind.scores["necv"] == 0
    assert f"Angles lose {percent(rise['theta'] / full.by_type['theta']['crps'])}." in WORDS
    names = ("no-bridge", "no-mixer", "no-physics")
    bridge, mixer, physics = (variant_of(n).scores["crps"] / full.scores["crps"] for n in names)
    assert f"Without the bridge CRPS is {percent(bridge - 1, 1)} higher" in WORDS
    words = f"{percent(1 - mixer, 1)} lower, and without the physics terms "
    assert words + percent(1 - physics, 1) in WORDS
    worth = {name: line.get("crps_change") for name, line in printed.items()}
    assert (worth["no-mixer"], worth["no-physics"]) == ("+4%", "+27%")
    assert worth["no-quantile-regularisation"] == "+37%"
    assert not [row for row in rows() if row.variant == "winner-takes-all"]
