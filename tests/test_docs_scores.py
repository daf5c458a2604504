"""The page of scores: its numbers are computed here, and every score has a figure."""

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

from powerphase import leaderboard, load_grid
from powerphase.axes import VARIABLES, P, Q, V
from powerphase.evaluation import BY_BUS
from powerphase.grid import PD, PG, PQ, Grid
from powerphase.metrics import N_PROJECTIONS, RELIABILITY_BINS, energy_score
from powerphase.records import RANKED, SCORES, Result
from powerphase.report import reach, skill
from tests.records.rows import WINDOWS, random_scores, row

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "scores.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^### (.+)\n((?:(?!#).*\n)*)", PAGE, re.MULTILINE))
LINKED = re.findall(r"!\[(.+)\]\(figures/(.+)\.svg\)", PAGE)


def load_figures() -> ModuleType:
    """The script that draws the figures, which is not part of the package."""
    spec = importlib.util.spec_from_file_location("figures", DOCS / "figures" / "scores.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


figures = load_figures()
scores_of, expected_score = figures.scores_of, figures.expected_score


def section_of(title: str) -> str:
    """The heading of the section of a score; related scores share a section."""
    (heading,) = (head for head in SECTIONS if title.lower() in head.lower().split(" and "))
    return heading


def energy(*scenarios: tuple[float, float]) -> float:
    """The energy score of two channels, both with the target 0.05, without projections."""
    errors = (torch.tensor(scenarios, dtype=torch.float64) - 0.05) / sqrt(2)
    weights = torch.full((len(scenarios),), 1 / len(scenarios), dtype=torch.float64)
    return energy_score(errors[:, None], weights).item()


def coverage_of(n_samples: int) -> float:
    """The share of targets in the central interval, with one target of each rank."""
    samples = np.arange(n_samples) + 0.5
    targets = np.arange(n_samples + 1)
    scenarios = np.repeat(samples[:, None], len(targets), axis=1)
    return float(scores_of(scenarios, targets)["coverage_80"])


@cache
def worked_results() -> dict[str, float | None]:
    """The result of each worked line of the page, computed by the package."""
    example = scores_of(figures.VALUES, figures.TRUTH, figures.WEIGHTS)
    samples = scores_of(figures.VALUES, figures.TRUTH)
    safe = scores_of((1.0,), figures.TRUTH)
    errors = np.array(
        [[[0.06, 0], [0, 0]], [[0.02, 0.02], [0.02, 0.02]], [[0.04, 0.04], [0.02, 0]]]
    )
    results = {name: example[name] for name in SCORES}
    results |= {f"{name} of 1.0 p.u.": safe[name] for name in ("necv", "cvar_0.1", "brier")}
    results |= {f"{name} of 1.0 p.u.": safe[name] for name in ("twcrps", "excursion_bias")}
    for name in ("safety_mbrier", "brier"):
        results |= {f"{name}, forecast {p:g}": expected_score(name, p, 0.3) for p in (0.3, 0)}
    results |= {f"coverage_80 of {n} samples": coverage_of(n) for n in (7, 16, 100)}
    del results["energy"]  # the page computes it without projections
    return results | {
        **line_results(),
        "crps as an area": example["crps"],
        "distortion": scores_of(np.tile(errors, 2), np.zeros((2, 4)))["distortion"],
        "fair_crps": samples["fair_crps"],
        "crps of these samples": samples["crps"],
        "crps of both": scores_of((0.05, -0.05), 0.05)["crps"],
        "energy, dependent": energy((0.05, 0.05), (-0.05, -0.05)),
        "energy, opposed": energy((0.05, -0.05), (-0.05, 0.05)),
        "coverage_80 on ACTIVSg 500": coverage_with_constants(load_grid("activsg500")),
        "rank of A": ranks()["a"],
        "skill": skill(0.002, 0.005).value,
        "to oracle": reach(0.002, 0.005, 0.001).value,
    }


def line_results() -> dict[str, float]:
    """The results of the section on lines and whole states."""
    true_angle = figures.angle_of(figures.LINE_TRUTH).item()
    line = figures.line_scores(figures.angle_of(figures.LOADING), true_angle)
    varied = figures.line_scores([0.04, 0.09, 0.01], 0.0625, [0.0004, 0.0009, 0.0001], 0.0025)
    states = np.zeros((1, 1, 8))
    states[..., V::4] = 1
    states[..., [P, 4 + Q]] = 3, 4
    return {
        **{name: line[name] for name in ("loading_crps", "overload_brier", "overload_twcrps")},
        **figures.count_scores(),
        **{name: varied[name] for name in ("variogram_theta", "variogram_v")},
        "balance_rms_mva": scores_of(states, states[0])["balance_rms_mva"],
    }


def coverage_with_constants(grid: Grid) -> float:
    """The coverage of 100 samples: all constant channels, and 81 of 101 targets of the others."""
    n_constant, n_channels = constant_channels(grid), 4 * grid.n_buses
    return (n_constant + (n_channels - n_constant) * 81 / 101) / n_channels


def constant_channels(grid: Grid) -> int:
    """P and Q of idle buses, V of slack and PV buses, θ of the slack bus."""
    return int(2 * idle_buses(grid) + (grid.bus_type != PQ).sum() + 1)


def idle_buses(grid: Grid) -> int:
    """The number of buses without load and generation."""
    generation = np.zeros(grid.n_buses)
    in_service = grid.generator_on
    np.add.at(generation, grid.generator_row[in_service], np.abs(grid.gen[in_service, PG]))
    return int(((grid.bus[:, PD] == 0) & (generation == 0)).sum())


def evaluate(arithmetic: str) -> float:
    """The value of an expression in the notation of the page."""
    signs = {"·": "*", "−": "-", "²": "**2", "√": "sqrt", "≤": "<="}
    for sign, python in signs.items():
        arithmetic = arithmetic.replace(sign, python)
    arithmetic = re.sub(r"\|(.+)\|", r"abs(\1)", arithmetic)
    names = {"abs": abs, "min": min, "max": max, "sqrt": sqrt}
    return float(eval(arithmetic, {"__builtins__": {}}, names))


def worked_lines() -> list[tuple[str, str]]:
    return re.findall(r"^    ([^:\n]+): (.+)$", PAGE, re.MULTILINE)


def test_every_worked_line_is_tested() -> None:
    assert sorted(label for label, _ in worked_lines()) == sorted(worked_results())


@pytest.mark.parametrize(("label", "line"), worked_lines())
def test_worked_arithmetic_is_correct(label: str, line: str) -> None:
    first, *others = line.split(" = ")
    assert others, f"{label} has no result"
    for result in others:
        decimals = re.fullmatch(r"−?\d+\.?(\d*)", result)
        rounding = 0.5 * 10.0 ** -len(decimals[1]) if decimals and decimals[1] else 0
        assert evaluate(result) == pytest.approx(evaluate(first), rel=1e-9, abs=rounding + 1e-12)


def test_worked_results_equal_the_package() -> None:
    results = worked_results()
    for label, line in worked_lines():
        by_hand = evaluate(line.split(" = ")[0])
        assert results[label] == pytest.approx(by_hand, rel=1e-9, abs=1e-12), label


def test_the_example_table_has_the_numbers_of_the_figures() -> None:
    lines = re.findall(r"^\| (?:\w+ scenario|second|third) \| ([\d. |]+) \|$", PAGE, re.MULTILINE)
    numbers = [[float(cell) for cell in line.split(" | ")] for line in lines]
    assert [number[:2] for number in numbers] == [
        list(pair) for pair in zip(figures.VALUES, figures.WEIGHTS, strict=True)
    ]
    distances = [scores_of((v,), 1.0)["necv"] for v in figures.VALUES]
    assert [number[2] for number in numbers] == pytest.approx(distances)
    assert f"| what happened | {figures.TRUTH} |" in PAGE


def test_the_table_of_the_line_has_the_numbers_of_the_figures() -> None:
    cells = r"^\| (?:low|middle|high|truth) \| ([\d.]+) \| ([\d.]+) \|"
    angles, loading = np.array(re.findall(cells, PAGE, re.MULTILINE), dtype=float).T
    assert [*figures.LOADING, figures.LINE_TRUTH] == loading.tolist()
    np.testing.assert_allclose(figures.angle_of(loading), angles, rtol=0, atol=5e-4)
    for share, weight in zip(figures.LOADING, figures.LINE_WEIGHTS, strict=True):
        assert f"| {share} | {weight} |" in PAGE


def row_with(model: str, values: dict[str, float]) -> Result:
    """A valid row with these scores in every window and for every type."""
    fields = random_scores(0)
    for name, value in (values | {"brier": 0.0}).items():
        fields["scores"][name], fields["by_window"][name] = value, [value] * len(WINDOWS)
        for kind in VARIABLES:
            if name in fields["by_type"][kind]:
                fields["by_type"][kind][name] = value
    return row(model=model, **fields)


def table_of_ranks() -> list[list[str]]:
    return [line.split(" | ") for line in re.findall(r"^\| ([ABC] \| .+) \|$", PAGE, re.MULTILINE)]


def ranks() -> dict[str, float | None]:
    """The ranks of the fictitious forecasters on a leaderboard."""
    rows = []
    for model, *cells, _ in table_of_ranks():
        values = [float(cell.split(" ")[0]) for cell in cells]
        rows.append(row_with(model.lower(), dict(zip(RANKED, values, strict=True))))
    (board,) = leaderboard(rows, paper=False)
    return {entry.name: entry.rank for entry in board.entries}


def test_ranks_equal_the_leaderboard() -> None:
    actual = ranks()
    assert len(actual) == 3
    for model, *cells, rank in table_of_ranks():
        numbers = [float(re.findall(r"\((.+)\)", cell)[0]) for cell in cells]
        assert actual[model.lower()] == float(rank) == np.mean(numbers)


@pytest.mark.parametrize("name", SCORES)
def test_the_table_matches_the_scores_of_the_package(name: str) -> None:
    score = SCORES[name]
    anchor = re.sub(r"[^\w -]", "", section_of(score.title).lower()).replace(" ", "-")
    marks = ("yes" if mark else "–" for mark in (score.proper, score.in_paper, score.diagnostic))
    cells = (f"[{score.title}](#{anchor})", f"`{name}`", score.question, score.unit, *marks)
    assert f"| {' | '.join(cells)} |" in PAGE


@pytest.mark.parametrize("name", SCORES)
def test_every_score_has_a_section_with_a_worked_example_and_a_figure(name: str) -> None:
    section = SECTIONS[section_of(SCORES[name].title)]
    assert re.search(rf"^    {re.escape(name)}[:,]", section, re.MULTILINE)
    ((description, figure),) = re.findall(r"!\[(.+)\]\(figures/(.+)\.svg\)", section)
    assert len(description) > 40
    assert (DOCS / "figures" / f"{figure}.svg").exists()


def test_every_figure_is_drawn_and_shown_once() -> None:
    files = {file.stem for file in (DOCS / "figures").glob("*.svg")}
    # Figures of other pages, which are tested with the code that draws them.
    others = {
        *("archetypes", "calibration-ieee57", "likelihood", "powerforge_cost"),
        "value_of_forecast",
    }
    assert files - figures.FIGURES.keys() == others
    assert sorted(figures.FIGURES) == sorted(name for _, name in LINKED)
    assert figures.FIGURES.keys() <= files


@pytest.mark.parametrize("name", figures.FIGURES)
def test_figures_are_small_and_contain_text_as_text(name: str) -> None:
    text = (DOCS / "figures" / f"{name}.svg").read_text(encoding="utf-8")
    assert len(text.encode()) < 40_000
    assert "</text>" in text
    assert "dc:date" not in text


# The two excluded ones take seconds; other tests check their numbers.
@pytest.mark.parametrize("name", sorted(figures.FIGURES.keys() - {"fair_crps", "probability"}))
def test_drawing_a_figure_again_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    committed = (DOCS / "figures" / f"{name}.svg").read_bytes()
    if f"Matplotlib v{matplotlib.__version__}," not in committed.decode():
        pytest.skip("drawn with another matplotlib")
    figures.save(name, tmp_path)
    assert (tmp_path / f"{name}.svg").read_bytes() == committed


def percent(value: float) -> str:
    """A percentage in the notation of the page: +6.2 %, −6.2 %, 0.0 %."""
    rounded = f"{value:+.1f}".replace("-", "−")
    return f"{rounded if float(f'{value:.1f}') else '0.0'} %"


@pytest.mark.parametrize(("kind", "are_samples"), [("samples", True), ("quantiles", False)])
@pytest.mark.parametrize("n", [16, 100])
def test_the_penalty_of_few_samples_is_as_stated(n: int, kind: str, are_samples: bool) -> None:
    plain, fair = figures.excess(n, are_samples)
    assert f"| {n} {kind} | {percent(plain)} | {percent(fair)} |" in PAGE
    if are_samples:
        assert plain == pytest.approx(100 / n, abs=0.3)
        assert fair == pytest.approx(0, abs=0.3)


def test_the_page_states_the_numbers_of_constant_channels() -> None:
    activsg, polish = load_grid("activsg500"), load_grid("polish2383")
    assert f"{idle_buses(activsg)} of the {activsg.n_buses} " in PAGE
    assert re.search(rf"{idle_buses(polish)} of the\s{polish.n_buses:,} ", PAGE)
    n_fixed, n_constant = (activsg.bus_type != PQ).sum(), constant_channels(activsg)
    assert f"2 · {idle_buses(activsg)} + {n_fixed} + 1 = {n_constant}" in PAGE


def test_the_page_states_the_shapes_of_arrays() -> None:
    assert f"| ({RELIABILITY_BINS + 1}, 3) |" in PAGE
    assert re.search(rf"\b{RELIABILITY_BINS} equal steps", PAGE)
    assert re.search(rf"\b{N_PROJECTIONS} .*directions", PAGE)
    line = next(line for line in PAGE.splitlines() if line.startswith("| `by_bus/<score>`"))
    assert set(re.findall(r"`([\w.]+)`", line)) == set(BY_BUS)
