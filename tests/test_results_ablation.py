"""What the page of results says about PowerForge's ablation, number by number."""

from math import exp
from statistics import fmean, stdev

from powerphase.axes import VARIABLES
from powerphase.grid import PAPER_GRIDS
from powerphase.records.result import Result
from powerphase.report.entries import paper_ablations
from tests.page_of_results import WORDS, measured, percent, rows_of, spread, trainings

ABLATED = [name for name in paper_ablations("powerforge")["pegase1354"] if name]


def variant_of(name: str | None) -> Result:
    """On PEGASE 1354 with the seed of the ablation."""
    (found,) = (r for r in rows_of("pegase1354", "powerforge", name) if r.seed == 42)
    return found


def test_what_is_said_of_the_spread_between_seeds_is_so() -> None:
    found = [row.scores["crps"] for row in rows_of("pegase1354", "powerforge")]
    mean, deviation = fmean(found), stdev(found)
    words = (
        f"{mean:.6f} ± {deviation:.6f} over its three, a spread of {percent(deviation / mean, 1)}"
    )
    assert words in WORDS
    others = sorted(100 * spread(grid) for grid in PAPER_GRIDS if grid != "pegase1354")
    assert f"the other grids have {others[0]:.1f} to {others[-1]:.1f} %" in WORDS
    far = {name: (variant_of(name).scores["crps"] - mean) / deviation for name in ABLATED}
    words = f"{far['no-bridge']:.1f} deviations above the mean of the full model's seeds"
    assert words in WORDS
    words = f"{-far['no-mixer']:.1f} and {-far['no-physics']:.1f} deviations from their mean"
    assert f"below all three seeds, {words}" in WORDS
    assert max(variant_of(name).scores["crps"] for name in ("no-mixer", "no-physics")) < min(found)
    assert variant_of(None).commit not in {variant_of(name).commit for name in ABLATED}


def test_the_fan_opens_without_its_penalties_as_the_page_says() -> None:
    full, free = variant_of(None), variant_of("no-quantile-regularisation")
    (base,) = rows_of("pegase1354", "climatology")
    covered = [percent(row.scores["coverage_80"]) for row in (free, full)]
    words = "{} of the truth is in the central 80 %, where it was {}:".format(*covered)
    kinds = (percent(free.by_type[kind]["coverage_80"]) for kind in VARIABLES)
    assert words + " {} of P, {} of Q, {} of V and {} of θ.".format(*kinds) in WORDS
    crps = [row.by_type["V"]["crps"] for row in (free, full)]
    assert "with a CRPS of {:.5f} instead of {:.5f}".format(*crps) in WORDS
    alone = measured("reference_day")["grids"]["pegase1354"]["crps_by_type"]
    powers = [*(free.by_type[kind]["crps"] for kind in ("P", "Q")), alone["P"], alone["Q"]]
    words = "with {:.5f} and {:.5f} where the reference day has {:.5f} and {:.5f}".format(*powers)
    assert words in WORDS
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


def test_what_is_said_of_winner_takes_all_is_so() -> None:
    full, row = rows_of("pegase1354", "powerforge"), variant_of("winner-takes-all")
    rise = row.scores["crps"] / variant_of(None).scores["crps"] - 1
    printed = paper_ablations("powerforge")["pegase1354"]["winner-takes-all"]["crps_change"]
    assert printed == "+27%"
    assert f"CRPS is {percent(rise, 1)} higher (27 % in the paper)" in WORDS
    (training,) = trainings(variant="winner-takes-all")
    # The mean cross-entropy of the weights: how far they are from certainty.
    weight = exp(-training["best"]["score"])
    assert {row.by_type[kind]["width_80"] for kind in VARIABLES} == {0}
    words = f"One scenario has {percent(weight, 2)} of the weight, the central 80 % has no width"
    covered = percent(row.scores["coverage_80"])
    assert f"{words} for any kind, and it holds {covered} of the truth" in WORDS
    mse = sorted(seed.scores["mse"] for seed in full)
    words = f"MSE is {row.scores['mse']:.6f}, where the full model's seeds have {mse[0]:.6f} to"
    powers = [row.by_type[kind]["crps"] for kind in ("P", "Q")]
    words += f" {mse[-1]:.6f}, and P and Q beat the reference day, with {powers[0]:.5f} and"
    assert f"{words} {powers[1]:.5f}." in WORDS
    alone = measured("reference_day")["grids"]["pegase1354"]["crps_by_type"]
    assert powers[0] < alone["P"]
    assert powers[1] < alone["Q"]
    times = sorted(seed.cost["train_s"] or 0 for seed in full)
    words = f"took {training['train_s']:.0f} s, where the full model takes {times[0]:.0f} to"
    assert f"{words} {times[-1]:.0f}:" in WORDS
    assert row.cost["peak_memory_gib"] is None
