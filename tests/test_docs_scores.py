"""The page of the scores: every number on it is computed here, and every score has its picture."""

import importlib.util
import re
from functools import cache
from math import sqrt
from pathlib import Path
from types import ModuleType

import matplotlib
import numpy as np
import pytest
import torch

from powerphase.axes import VARIABLES
from powerphase.evaluation.sidecar import BY_BUS
from powerphase.grid import PD, PG, PQ, Grid, load_grid
from powerphase.metrics import N_PROJECTIONS, RELIABILITY_BINS, energy_score
from powerphase.records.result import Result
from powerphase.records.scores import RANKED, SCORES
from powerphase.report.leaderboard import leaderboard
from powerphase.report.statistics import reach, skill
from tests.records.rows import WINDOWS, random_scores, row

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "scores.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (.+)\n((?:(?!#).*\n)*)", PAGE, re.MULTILINE))
LINKED = re.findall(r"!\[(.+)\]\(figures/(.+)\.svg\)", PAGE)


def load_figures() -> ModuleType:
    """The script that draws the pictures, which is no part of the package."""
    spec = importlib.util.spec_from_file_location("figures", DOCS / "figures" / "scores.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


figures = load_figures()
scored, expected = figures.scored, figures.expected


def section_of(title: str) -> str:
    """The heading under which a score is explained; two that belong together share one."""
    (found,) = (head for head in SECTIONS if title.lower() in head.lower().split(" and "))
    return found


def energy(*scenarios: tuple[float, float]) -> float:
    """Of two channels that both became 0.05, without projections."""
    errors = (torch.tensor(scenarios, dtype=torch.float64) - 0.05) / sqrt(2)
    weights = torch.full((len(scenarios),), 1 / len(scenarios), dtype=torch.float64)
    return energy_score(errors[:, None], weights).item()


def covered(n_samples: int) -> float:
    """The share of truths in the central interval, if the truth has each rank among them once."""
    samples = np.arange(n_samples) + 0.5
    truths = np.arange(n_samples + 1)
    return scored(np.repeat(samples[:, None], len(truths), axis=1), truths)["coverage_80"]


@cache
def worked() -> dict[str, float]:
    """What each worked line of the page must come to, computed by the package."""
    example = scored(figures.VALUES, figures.TRUTH, figures.WEIGHTS)
    samples = scored(figures.VALUES, figures.TRUTH)
    safe = scored((1.0,), figures.TRUTH)
    errors = np.array(
        [[[0.06, 0], [0, 0]], [[0.02, 0.02], [0.02, 0.02]], [[0.04, 0.04], [0.02, 0]]]
    )
    found = {name: example[name] for name in SCORES}
    found |= {f"{name} of 1.0 p.u.": safe[name] for name in ("necv", "cvar_0.1", "brier")}
    found |= {f"{name} of 1.0 p.u.": safe[name] for name in ("twcrps", "excursion_bias")}
    for name in ("safety_mbrier", "brier"):
        found |= {f"{name}, saying {said:g}": expected(name, said, 0.3) for said in (0.3, 0)}
    found |= {f"coverage_80 of {n} samples": covered(n) for n in (7, 16, 100)}
    del found["energy"]  # which the page works without projections
    return found | {
        "crps as an area": example["crps"],
        "distortion": scored(np.tile(errors, 2), np.zeros((2, 4)))["distortion"],
        "fair_crps": samples["fair_crps"],
        "crps of these samples": samples["crps"],
        "crps of both": scored((0.05, -0.05), 0.05)["crps"],
        "energy, together": energy((0.05, 0.05), (-0.05, -0.05)),
        "energy, apart": energy((0.05, -0.05), (-0.05, 0.05)),
        "coverage_80 on ACTIVSg 500": covered_by_stillness(load_grid("activsg500")),
        "rank of A": ranks()["a"],
        "skill": skill(0.002, 0.005).value,
        "to oracle": reach(0.002, 0.005, 0.001).value,
    }


def covered_by_stillness(grid: Grid) -> float:
    """What 100 perfect samples cover: all that never moves, and 81 of 101 cases of the rest."""
    held = (grid.bus_type != PQ).sum()
    still = 2 * idle(grid) + held + 1
    return (still + (4 * grid.n_buses - still) * 81 / 101) / (4 * grid.n_buses)


def idle(grid: Grid) -> int:
    """How many buses have neither load nor generation."""
    generation = np.zeros(grid.n_buses)
    on = grid.generator_on
    np.add.at(generation, grid.generator_row[on], np.abs(grid.gen[on, PG]))
    return int(((grid.bus[:, PD] == 0) & (generation == 0)).sum())


def evaluate(arithmetic: str) -> float:
    """The value of arithmetic as the page writes it."""
    signs = {"·": "*", "−": "-", "²": "**2", "√": "sqrt", "≤": "<="}
    for sign, python in signs.items():
        arithmetic = arithmetic.replace(sign, python)
    arithmetic = re.sub(r"\|(.+)\|", r"abs(\1)", arithmetic)
    names = {"abs": abs, "min": min, "max": max, "sqrt": sqrt}
    return float(eval(arithmetic, {"__builtins__": {}}, names))


def worked_lines() -> list[tuple[str, str]]:
    return re.findall(r"^    ([^:\n]+): (.+)$", PAGE, re.MULTILINE)


def test_the_page_works_what_is_tested_and_nothing_else() -> None:
    assert sorted(label for label, _ in worked_lines()) == sorted(worked())


@pytest.mark.parametrize(("label", "line"), worked_lines())
def test_worked_arithmetic_is_right(label: str, line: str) -> None:
    first, *others = line.split(" = ")
    assert others, f"{label} has no result"
    for other in others:
        decimals = re.fullmatch(r"−?\d+\.?(\d*)", other)
        rounding = 0.5 * 10.0 ** -len(decimals[1]) if decimals and decimals[1] else 0
        assert evaluate(other) == pytest.approx(evaluate(first), rel=1e-9, abs=rounding + 1e-12)


def test_worked_numbers_are_the_package_s() -> None:
    found = worked()
    for label, line in worked_lines():
        by_hand = evaluate(line.split(" = ")[0])
        assert found[label] == pytest.approx(by_hand, rel=1e-9, abs=1e-12), label


def test_the_example_is_the_one_that_is_worked_and_drawn() -> None:
    lines = re.findall(r"^\| (?:\w+ scenario|second|third) \| ([\d. |]+) \|$", PAGE, re.MULTILINE)
    numbers = [[float(cell) for cell in line.split(" | ")] for line in lines]
    assert [number[:2] for number in numbers] == [
        list(pair) for pair in zip(figures.VALUES, figures.WEIGHTS, strict=True)
    ]
    distances = [scored((v,), 1.0)["necv"] for v in figures.VALUES]
    assert [number[2] for number in numbers] == pytest.approx(distances)
    assert f"| what happened | {figures.TRUTH} |" in PAGE


def row_with(model: str, places: dict[str, float]) -> Result:
    """A sound row with these scores in every window and for every type."""
    found = random_scores(0)
    for name, value in (places | {"brier": 0.0}).items():
        found["scores"][name], found["by_window"][name] = value, [value] * len(WINDOWS)
        for kind in VARIABLES:
            if name in found["by_type"][kind]:
                found["by_type"][kind][name] = value
    return row(model=model, **found)


def table_of_ranks() -> list[list[str]]:
    return [line.split(" | ") for line in re.findall(r"^\| ([ABC] \| .+) \|$", PAGE, re.MULTILINE)]


def ranks() -> dict[str, float | None]:
    """What the leaderboard makes of the made-up forecasters."""
    rows = []
    for model, *cells, _ in table_of_ranks():
        values = [float(cell.split(" ")[0]) for cell in cells]
        rows.append(row_with(model.lower(), dict(zip(RANKED, values, strict=True))))
    (board,) = leaderboard(rows, paper=False)
    return {entry.name: entry.rank for entry in board.entries}


def test_ranks_are_the_leaderboard_s() -> None:
    found = ranks()
    assert len(found) == 3
    for model, *cells, rank in table_of_ranks():
        places = [float(re.findall(r"\((.+)\)", cell)[0]) for cell in cells]
        assert found[model.lower()] == float(rank) == np.mean(places)


@pytest.mark.parametrize("name", SCORES)
def test_the_table_says_of_each_score_what_the_package_says(name: str) -> None:
    score = SCORES[name]
    anchor = re.sub(r"[^\w -]", "", section_of(score.title).lower()).replace(" ", "-")
    marks = ("yes" if mark else "–" for mark in (score.proper, score.in_paper, score.diagnostic))
    cells = (f"[{score.title}](#{anchor})", f"`{name}`", score.question, score.unit, *marks)
    assert f"| {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("name", SCORES)
def test_every_score_has_a_section_with_a_worked_example_and_a_picture(name: str) -> None:
    section = SECTIONS[section_of(SCORES[name].title)]
    assert re.search(rf"^    {re.escape(name)}[:,]", section, re.MULTILINE)
    ((words, picture),) = re.findall(r"!\[(.+)\]\(figures/(.+)\.svg\)", section)
    assert len(words) > 40
    assert (DOCS / "figures" / f"{picture}.svg").exists()


def test_every_picture_is_drawn_and_shown_once() -> None:
    files = {file.stem for file in (DOCS / "figures").glob("*.svg")}
    # These are of other pages, and held to what they show where their makers are tested.
    assert files - figures.PICTURES.keys() == {"powerforge_cost", "archetypes"}
    assert sorted(figures.PICTURES) == sorted(picture for _, picture in LINKED)
    assert figures.PICTURES.keys() <= files


@pytest.mark.parametrize("name", figures.PICTURES)
def test_pictures_are_small_and_hold_text_as_text(name: str) -> None:
    text = (DOCS / "figures" / f"{name}.svg").read_text(encoding="utf-8")
    assert len(text.encode()) < 40_000
    assert "</text>" in text
    assert "dc:date" not in text


# The two that are left out take seconds, and their numbers are tested below and above.
@pytest.mark.parametrize("name", sorted(figures.PICTURES.keys() - {"fair_crps", "probability"}))
def test_drawing_again_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    kept = (DOCS / "figures" / f"{name}.svg").read_bytes()
    if f"Matplotlib v{matplotlib.__version__}," not in kept.decode():
        pytest.skip("drawn with another matplotlib")
    figures.save(name, tmp_path)
    assert (tmp_path / f"{name}.svg").read_bytes() == kept


def percent(value: float) -> str:
    """As the page writes it: +6.2 %, −6.2 %, 0.0 %."""
    rounded = f"{value:+.1f}".replace("-", "−")
    return f"{rounded if float(f'{value:.1f}') else '0.0'} %"


@pytest.mark.parametrize(("kind", "sampled"), [("samples", True), ("quantiles", False)])
@pytest.mark.parametrize("n", [16, 100])
def test_few_samples_cost_what_the_page_says(n: int, kind: str, sampled: bool) -> None:
    plain, fair = figures.excess(n, sampled)
    assert f"| {n} {kind} | {percent(plain)} | {percent(fair)} |" in PAGE
    if sampled:
        assert plain == pytest.approx(100 / n, abs=0.3)
        assert fair == pytest.approx(0, abs=0.3)


def test_channels_that_never_move_are_as_many_as_the_page_says() -> None:
    activsg, polish = load_grid("activsg500"), load_grid("polish2383")
    words = PAGE.replace("\n", " ")
    assert f"{idle(activsg)} of the {activsg.n_buses} buses of ACTIVSg 500" in words
    assert f"{idle(polish)} of the {polish.n_buses:,} of Polish 2383" in words
    held = (activsg.bus_type != PQ).sum()
    still = 2 * idle(activsg) + held + 1
    assert f"2 · {idle(activsg)} + {held} + 1 = {still} channels of 2,000" in words


def test_the_page_speaks_of_rows_and_sidecars_as_they_are() -> None:
    assert f"| ({RELIABILITY_BINS + 1}, 3) |" in PAGE
    assert f"the others are {RELIABILITY_BINS} equal steps" in PAGE
    assert f"{N_PROJECTIONS} fixed random directions" in PAGE
    line = next(line for line in PAGE.splitlines() if line.startswith("| `by_bus/<score>`"))
    assert set(re.findall(r"`([\w.]+)`", line)) == set(BY_BUS)
