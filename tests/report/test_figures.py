"""Figures: they draw what rows contain, note what is missing, and repeat byte for byte."""

import json
import re
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from typer.testing import CliRunner

from powerphase import cli
from powerphase.errors import FigureError, ResultError, UnknownName
from powerphase.records import Result, compact, expand, read_result, read_results, write_result
from powerphase.registry import MODELS as REGISTRY
from powerphase.report import (
    FIGURES,
    LEVELS,
    WORST,
    FigureOptions,
    draw_figure,
    figures,
    leaderboard,
    looks_of,
    paper_entries,
    voltage_limits,
    weighted_quantiles,
    write_figure,
)
from powerphase.synthesis import load_shapes, load_signals
from powerphase.task import Protocol
from tests.records.rows import first_schema, row
from tests.report.planted import planted

N_BUSES, KEPT, STEPS = 300, 5, 96
ROOT = Path(__file__).parents[2]
CONDITIONS: dict[str, Any] = {"grid": "polish2383", "edition": "opsd-r"}
BUS_IDS = np.array([11, 22, 33, 44, 55])
MODELS = ("powerforge", "climatology", "home-made")


def sidecar(draw: int) -> dict[str, NDArray[Any]]:
    """Arrays like a row's sidecar; bus 44 is outside the band half of the time, 33 always."""
    random = np.random.default_rng(draw)
    wave = np.sin(2 * np.pi * np.arange(STEPS) / STEPS)[:, None]
    target = np.broadcast_to(1 + 0.02 * wave * np.array([1, 2, 0.5, 0, 1.5]), (3, STEPS, KEPT))
    target = (
        target + np.array([0, 0, 0.2, 0.05 - 1e-9, 0]) + 0.01 * wave * np.array([0, 0, 0, 1, 0])
    )
    points = np.append(random.integers(1, 99, 20), 0)
    by_bus = np.where(random.random(N_BUSES) < 0.5, 0, random.random(N_BUSES))
    return compact({
        "by_bus/safety_mbrier": by_bus.astype(np.float32),
        "reliability": np.stack([points, random.random(21), random.random(21)], axis=1),
        "shown/bus_id": BUS_IDS,
        "shown/window": np.arange(3),
        "shown/target": np.stack([target] * 4, axis=-1).astype(np.float32),
        "shown/scenario": random.normal(1, 0.01, (3, 4, STEPS, KEPT, 4)).astype(np.float32),
        "shown/weight": random.dirichlet(np.ones(4), (3, KEPT, 4)).transpose(0, 3, 1, 2)
        .astype(np.float32),
    })  # fmt: skip


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of three models, one with two seeds, on the figures' default grid."""
    root = tmp_path_factory.mktemp("results")
    for draw, (model, seed) in enumerate([*product(MODELS, [42]), ("powerforge", 22)]):
        result = row(draw=draw, model=model, seed=seed, **CONDITIONS)
        write_result(result, sidecar(draw), root)
    return root


def options(tree: Path, **changes: Any) -> FigureOptions:
    return FigureOptions(results=(tree,), **changes)


def lines(axes: Axes) -> list[NDArray[Any]]:
    return [np.asarray(line.get_xydata()) for line in axes.lines]


def panels(figure: Figure) -> list[Axes]:
    return list(figure.axes)


def committed(grid: str) -> tuple[Path, ...]:
    """The committed rows of one grid; reading those of all grids takes seconds."""
    return (ROOT / "results" / "powerphase-day-ahead" / "opsd-r" / grid,)


def test_archetypes_draws_the_load_shapes_of_the_recipe() -> None:
    drawn = draw_figure("archetypes", FigureOptions(signals="synthetic"))
    signals = load_signals("synthetic")
    days = signals.time.astype("datetime64[D]")
    chosen = (days >= np.datetime64("2015-04-14")) & (days < np.datetime64("2015-04-17"))
    (axes,) = panels(drawn.figure)
    for line, shape in zip(lines(axes)[:5], load_shapes(signals)[chosen].T, strict=True):
        np.testing.assert_array_equal(line[:, 1], shape)
        np.testing.assert_allclose(line[:, 0], np.arange(3 * 96) / 4)
    assert "synthetic" in drawn.notes[0]


def test_voltages_draws_the_kept_scenarios_their_median_and_the_truth(tree: Path) -> None:
    drawn = draw_figure("voltages", options(tree, models=MODELS, bus=22))
    grid = np.array(panels(drawn.figure), dtype=object).reshape(3, 3)
    for m, w in product(range(3), range(3)):
        arrays = expand(sidecar(m))
        truth = arrays["shown/target"][w, :, 1, 2]
        scenarios = arrays["shown/scenario"][w, :, :, 1, 2]
        shown = [line[:, 1] for line in lines(grid[m, w]) if len(line) == STEPS]
        np.testing.assert_array_equal(shown[:4], scenarios)
        np.testing.assert_array_equal(shown[-1], truth)
        weights = arrays["shown/weight"][w, :, 1, 2]
        fan = weighted_quantiles(scenarios[..., None], weights[:, None])
        median = fan[LEVELS.index(0.5), :, 0]
        np.testing.assert_array_equal(shown[4], median)
    assert all(fact in drawn.notes[0] for fact in ("bus 22", "polish2383", "opsd-r"))
    assert [axes.get_title() for axes in grid[0]] == [
        "Fri 1 Jul 2016", "Thu 21 Jul 2016", "Thu 11 Aug 2016"
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("limits", "band"),
    [("normal", [0.95, 1.05]), ("0.98-1.03", [0.98, 1.03]), ("case", [])],
)
def test_voltages_draws_the_limits_of_the_task(
    tmp_path: Path, limits: str, band: list[float]
) -> None:
    task = Protocol(limits=limits).name
    write_result(row(task=task, model="timeprism", **CONDITIONS), sidecar(0), tmp_path)
    drawn = draw_figure("voltages", options(tmp_path, models=["timeprism"]))
    for axes in panels(drawn.figure):
        flat = [line[0, 1] for line in lines(axes) if len(line) == 2]
        assert sorted(flat) == band
    (legend,) = drawn.figure.legends
    assert len(legend.get_texts()) == 3 + bool(band)


def test_one_bad_model_does_not_flatten_the_others() -> None:
    hour = np.linspace(0, 2 * np.pi, STEPS)
    truth = 1 + 0.01 * np.sin(hour)
    weights = np.full(4, 0.25)
    sound = [(truth + 0.002 * np.arange(4)[:, None], weights, truth)]
    bad = [(truth + 0.3 * np.arange(-2, 2)[:, None], weights, truth)]
    low, high = voltage_limits([sound, sound, bad])
    assert low < truth.min()
    assert high > max(truth.max(), sound[0][0].max())
    assert high - low < 4 * np.ptp(truth)  # with the bad model it would be 30 times
    assert voltage_limits([sound, sound]) == pytest.approx((0.99, 1.016), abs=2e-3)


def test_a_figure_says_how_much_of_a_model_is_beyond_its_axis(tmp_path: Path) -> None:
    arrays = dict(expand(sidecar(0)))
    arrays["shown/scenario"] = arrays["shown/scenario"].copy()
    arrays["shown/scenario"][:, 0, :, :, 2] += 50  # one of four scenarios
    for model, content in (("powerforge", sidecar(0)), ("timeprism", compact(arrays))):
        write_result(row(model=model, **CONDITIONS), content, tmp_path)
    drawn = draw_figure("voltages", options(tmp_path, models=["powerforge", "timeprism"]))
    said = [[text.get_text() for text in axes.texts] for axes in panels(drawn.figure)]
    assert ["25.0 %" in " ".join(texts) for texts in said] == [False] * 5 + [True]


def test_a_failure_file_is_not_read_as_a_row(tree: Path) -> None:
    expected = draw_figure("reliability", options(tree, models=MODELS)).notes
    (folder,) = {file.parent for file in tree.glob("**/*.json")}
    failed = folder / "deepar-22.failed.json"
    failed.write_text("{}")
    try:
        notes = draw_figure("reliability", options(tree, models=MODELS)).notes
    finally:
        failed.unlink()
    assert notes == expected


def test_the_default_bus_is_the_one_outside_the_band_half_of_the_time(tree: Path) -> None:
    assert "bus 44" in draw_figure("voltages", options(tree)).notes[0]


def test_bus_safety_counts_the_buses_above_each_value(tree: Path) -> None:
    drawn = draw_figure("bus-safety", options(tree, models=MODELS))
    left, right = panels(drawn.figure)
    for draw in range(3):
        per_bus = sidecar(draw)["by_bus/safety_mbrier"]
        for x, share in lines(left)[draw]:
            assert share == pytest.approx((per_bus > x).mean())
        assert lines(left)[draw][0, 0] == pytest.approx(1e-6)
        np.testing.assert_array_equal(
            lines(right)[draw][:, 1], sorted(per_bus, reverse=True)[:WORST]
        )


def test_safety_fidelity_shows_seed_means_and_the_numbers_of_the_paper(tree: Path) -> None:
    drawn = draw_figure("safety-fidelity", options(tree, score="cvar_0.1"))
    rows = [read_result(file) for file in tree.glob("**/*.json")]
    expected = [leaderboard(rows)[0].entries, paper_entries("polish2383")]
    for axes, entries in zip(panels(drawn.figure), expected, strict=True):
        points = {tuple(line[0]) for line in lines(axes) if len(line) == 1}
        assert points == {(entry.mean["crps"], entry.mean["cvar_0.1"]) for entry in entries}
    assert all(fact in drawn.notes[0] for fact in CONDITIONS.values())
    assert "timeprism" in drawn.notes[1]
    assert "powerforge" not in drawn.notes[1]


def test_safety_fidelity_shows_a_smaller_budget_in_the_look_of_its_model(tmp_path: Path) -> None:
    short = row(draw=1, model="timemcl", variant="short", **CONDITIONS)
    for result in (row(draw=0, model="powerforge", **CONDITIONS), short):
        write_result(result, sidecar(0), tmp_path)
    drawn = draw_figure("safety-fidelity", options(tmp_path))
    points = {
        tuple(np.asarray(line.get_xydata())[0])
        for line in panels(drawn.figure)[0].lines
        if line.get_color() == REGISTRY["timemcl"].look.colour
    }
    assert points == {(short.scores["crps"], short.scores["safety_mbrier"])}
    assert any("timemcl+short" in note for note in drawn.notes)


@pytest.mark.parametrize("models", [None, ["mine"]])
def test_safety_fidelity_shows_a_smaller_budget_of_a_model_that_is_not_in_the_paper(
    tmp_path: Path, models: list[str] | None
) -> None:
    for draw, variant in enumerate((None, "short", "no-anchor")):
        model = "mine" if variant == "short" else "powerforge"
        result = row(draw=draw, model=model, variant=variant, **CONDITIONS)
        write_result(result, sidecar(0), tmp_path)
    notes = draw_figure("safety-fidelity", options(tmp_path, models=models)).notes
    assert [("mine+short" in note) for note in notes if "mine" in note] == [True]


def test_a_score_that_is_not_in_the_paper_gives_one_panel_and_a_note(tree: Path) -> None:
    drawn = draw_figure("safety-fidelity", options(tree, score="brier", models=MODELS))
    assert len(panels(drawn.figure)) == 1
    (note,) = drawn.notes[1:]
    assert "Brier" in note
    assert "polish2383" in note


@pytest.mark.parametrize("grid", ["activsg500", "polish2383", "pegase9241"])
@pytest.mark.parametrize("score", ["brier", "safety_mbrier"])
def test_the_numbers_on_the_axis_of_crps_do_not_overlap(grid: str, score: str) -> None:
    chosen = FigureOptions(results=committed(grid), grid=grid, score=score)
    figure = draw_figure("safety-fidelity", chosen).figure
    figure.draw_without_rendering()
    for axes in panels(figure):
        boxes = [
            label.get_window_extent()
            for label in (*axes.get_xticklabels(), *axes.get_xticklabels(minor=True))
            if label.get_text() and axes.bbox.x0 <= label.get_window_extent().x1 <= axes.bbox.x1
        ]
        ordered = sorted(boxes, key=lambda box: box.x0)
        assert all(a.x1 < b.x0 for a, b in pairwise(ordered))
        assert len(ordered) >= 2


def test_reliability_draws_the_bins_that_are_not_empty(tree: Path) -> None:
    (axes,) = panels(draw_figure("reliability", options(tree, models=MODELS)).figure)
    for draw, line in enumerate(lines(axes)[1:]):
        np.testing.assert_array_equal(line, sidecar(draw)["reliability"][:20, 1:])


def test_lines_draws_each_model_from_best_to_worst_and_marginal_ones_hollow(tmp_path: Path) -> None:
    names = ("climatology", "powerforge", "ets", "oracle")
    crps = dict(zip(names, (4e-3, 1e-3, 2e-3, 5e-4), strict=True))
    for model, value in crps.items():
        scores = {"loading_crps": value, "overload_brier": value / 10}
        joint = model in ("ets", "oracle")
        write_result(planted(model, joint=joint, scores=scores, **CONDITIONS), {}, tmp_path)
    first, second = panels(draw_figure("lines", options(tmp_path)).figure)
    means = sorted(crps.values(), reverse=True)
    for axes, factor in ((first, 1.0), (second, 0.1)):
        points = np.concatenate(lines(axes))
        np.testing.assert_allclose(points[np.argsort(points[:, 1]), 0], factor * np.array(means))
    hollow = [line.get_markerfacecolor() == "white" for line in first.lines]
    assert hollow == [True, False, True, False]  # in the order of the labels
    labels = [text.get_text() for text in first.get_yticklabels()]
    assert labels == ["climatology", "ETS", "PowerForge", "oracle"]


def test_lines_names_models_without_scores_of_lines(tmp_path: Path) -> None:
    old = first_schema(model="powerforge", **CONDITIONS)
    write_result(Result.from_json(json.dumps(old), "row.json"), {}, tmp_path)
    with pytest.raises(FigureError, match="powerforge"):
        draw_figure("lines", options(tmp_path))
    write_result(row(model="ets", **CONDITIONS), {}, tmp_path)
    assert "powerforge" in draw_figure("lines", options(tmp_path)).notes[1]


@pytest.mark.parametrize("criterion", ["loss", "crps"])
def test_curves_draws_both_columns_of_a_training(criterion: str, tmp_path: Path) -> None:
    curve = {"step": [10, 20, 30], "loss": [9.0, -1.0, -2.0], "validation": [3.0, 1.0, None]}
    training = {"windows_seen": 960, "best_epoch": 2, "criterion": criterion, "curve": curve}
    for model, known in (("powerforge", training), ("climatology", None)):
        write_result(row(model=model, training=known, **CONDITIONS), {}, tmp_path)
    axes, *right = panels(draw_figure("curves", options(tmp_path)).figure)
    assert len(right) == (criterion == "crps")
    drawn = [line for part in (axes, *right) for line in lines(part)]
    by_step = [line for line in drawn if line[:, 0].tolist() == curve["step"]]
    np.testing.assert_array_equal([line[:2, 1] for line in by_step], [[9.0, -1.0], [3.0, 1.0]])
    assert [20, 20] in [line[:, 0].tolist() for line in drawn]  # the step that was kept


def test_curves_needs_the_curve_of_a_training(tmp_path: Path) -> None:
    write_result(row(model="powerforge", training=None, **CONDITIONS), {}, tmp_path)
    with pytest.raises(FigureError, match="polish2383"):
        draw_figure("curves", options(tmp_path))


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_written_completely_and_repeats_byte_for_byte(
    name: str, tree: Path, tmp_path: Path
) -> None:
    chosen = FigureOptions() if name == "archetypes" else options(tree)
    svg, pdf = write_figure(draw_figure(name, chosen), tmp_path / "first", ["svg", "pdf"])
    assert sorted((tmp_path / "first").iterdir()) == [pdf, svg]
    (again,) = write_figure(draw_figure(name, chosen), tmp_path / "second", ["svg"])
    assert again.read_bytes() == svg.read_bytes()
    content = pdf.read_bytes()
    assert content.startswith(b"%PDF")
    assert content.rstrip().endswith(b"%%EOF")
    assert b"CreationDate" not in content
    assert b"/Type3" not in content  # publishers reject such fonts
    content = svg.read_bytes()
    assert b"<text" in content
    assert b"<dc:date>" not in content
    assert content.rstrip().endswith(b"</svg>")


def test_a_figure_is_written_in_all_formats_by_default(tree: Path, tmp_path: Path) -> None:
    drawn = draw_figure("reliability", options(tree))
    pdf, svg, png = write_figure(drawn, tmp_path)
    assert [file.suffix for file in (pdf, svg, png)] == [".pdf", ".svg", ".png"]
    assert png.read_bytes().startswith(b"\x89PNG")
    assert png.read_bytes().endswith(b"IEND\xaeB`\x82")
    (again,) = write_figure(draw_figure("reliability", options(tree)), tmp_path / "again", ["pdf"])
    assert again.read_bytes() == pdf.read_bytes()


def test_a_chosen_model_without_a_row_leaves_empty_panels_and_a_note(tree: Path) -> None:
    drawn = draw_figure("voltages", options(tree, models=["timeprism", "powerforge"]))
    assert [len(axes.lines) > 0 for axes in panels(drawn.figure)] == [False] * 3 + [True] * 3
    (note,) = drawn.notes[1:]
    assert "timeprism" in note


def test_the_models_of_the_paper_come_first_by_default(tree: Path) -> None:
    drawn = draw_figure("voltages", options(tree))
    labels = [axes.get_ylabel().split("\n")[0] for axes in panels(drawn.figure)[::3]]
    assert labels == ["PowerForge", "home-made", "climatology"]
    (note,) = drawn.notes[1:]
    assert "timeprism, tactis-2" in note


def test_a_chosen_seed_is_drawn_and_its_absence_noted(tree: Path) -> None:
    drawn = draw_figure("reliability", options(tree, models=MODELS, seed=22))
    (axes,) = panels(drawn.figure)
    np.testing.assert_array_equal(lines(axes)[1], sidecar(3)["reliability"][:20, 1:])
    (note,) = drawn.notes[1:]  # the climatology has no seed of its own to miss
    assert all(fact in note for fact in ("home-made", "seed 42", "seed 22"))


@pytest.mark.parametrize(
    ("name", "changes", "error", "facts"),
    [
        ("voltage", {}, UnknownName, ["voltages"]),
        ("voltages", {"models": ["powerforge", "timeprim"]}, UnknownName, ["timeprism"]),
        ("voltages", {"grid": "polish2384"}, UnknownName, ["'polish2384'", "polish2383"]),
        ("voltages", {"edition": "opsd"}, ResultError, ["polish2383", "'opsd'", "opsd-r"]),
        ("safety-fidelity", {"score": "brir"}, UnknownName, ["'brir'", "brier"]),
        ("voltages", {"bus": 7}, ResultError, ["bus 7", "11, 22, 33, 44, 55"]),
        ("archetypes", {"bus": 7, "grid": "x"}, FigureError, ["archetypes", "--bus", "--grid"]),
        ("voltages", {"models": ["a", *list(REGISTRY)[:3]]}, UnknownName, ["'a'"]),
        ("voltages", {"models": list(REGISTRY)[:4]}, ResultError, ["4 models", "3"]),
        ("bus-safety", {"models": ["ets"]}, FigureError, ["ets", "--models"]),
    ],
)
def test_what_cannot_be_drawn_raises(
    name: str, changes: dict[str, Any], error: type[Exception], facts: list[str], tree: Path
) -> None:
    with pytest.raises(error) as raised:
        draw_figure(name, options(tree, **changes))
    assert [fact for fact in facts if fact not in str(raised.value)] == []


def test_an_unknown_format_raises(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="'jpg'"):
        write_figure(draw_figure("reliability", options(tree)), tmp_path, ["jpg"])


def test_missing_results_and_results_of_other_data_raise(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="none"):
        draw_figure("voltages", options(tmp_path / "none"))
    other = row(fingerprint="f" * 64, model="ets", **CONDITIONS)
    file = write_result(other, sidecar(9), tmp_path)
    with pytest.raises(ResultError, match=re.escape(str(file))):
        draw_figure("voltages", FigureOptions(results=(tree, tmp_path)))


def test_a_missing_sidecar_or_array_is_named(tmp_path: Path) -> None:
    arrays = sidecar(0)
    del arrays["reliability"]
    file = write_result(row(**CONDITIONS), arrays, tmp_path).with_suffix(".npz")
    with pytest.raises(ResultError, match=f"{file.name}.*'reliability'"):
        draw_figure("reliability", options(tmp_path))
    file.unlink()
    with pytest.raises(ResultError, match=file.name):
        draw_figure("bus-safety", options(tmp_path))


def test_without_matplotlib_the_error_names_the_extra_to_install(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    with pytest.raises(FigureError, match=r"powerphase\[figures\]"):
        draw_figure("voltages", options(tree))


def test_models_look_different_even_in_grey() -> None:
    looks = looks_of([*REGISTRY, "home-made", "powerforge+no-anchor"])
    assert len({look.colour for look in looks.values()}) == len(looks)
    assert len({look.marker for look in looks.values()}) == len(looks)
    assert looks["powerforge+no-anchor"].title == "PowerForge+no-anchor"


def test_the_command_writes_the_files_and_names_missing_models(tree: Path, tmp_path: Path) -> None:
    models = "ets, powerforge"  # as people write lists
    arguments = ["--results", tree, "--out", tmp_path, "--format", "svg", "--models", models]
    command = ["figure", "reliability", *map(str, arguments)]
    done = CliRunner().invoke(cli.app, command, env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    assert "ets" in done.output
    assert [file.name for file in tmp_path.iterdir()] == ["reliability-polish2383.svg"]
    failed = CliRunner().invoke(cli.app, [*command, "--format", ""])
    assert isinstance(failed.exception, UnknownName)


def test_the_help_lists_every_figure() -> None:
    shown = CliRunner().invoke(cli.app, ["figure", "--help"], env={"COLUMNS": "200"}).stdout
    assert ", ".join(FIGURES) in shown


def test_the_page_lists_every_figure_with_its_options() -> None:
    page = (ROOT / "docs" / "figures.md").read_text()
    for name, kind in FIGURES.items():
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert line.endswith(f"| {', '.join(f'`--{option}`' for option in kind.takes)} |")


def test_committed_rows_can_be_drawn() -> None:
    chosen = FigureOptions(results=committed("activsg500"), grid="activsg500")
    drawn = draw_figure("bus-safety", chosen)
    assert len(panels(drawn.figure)[0].lines) >= 6


def test_the_figure_on_the_page_is_up_to_date(tmp_path: Path) -> None:
    (file,) = write_figure(draw_figure("archetypes", FigureOptions()), tmp_path, ["svg"])
    on_page = ROOT / "docs" / "figures" / "archetypes.svg"
    assert file.read_text() == on_page.read_text(), "draw it again: powerphase figure archetypes"


def test_a_smaller_budget_represents_a_model_without_another_row(
    tree: Path, tmp_path: Path
) -> None:
    root = tmp_path / "results"
    for result in read_results([tree]):
        write_result(result, sidecar(0), root)
    for model in ("deepar", "powerforge"):
        short = row(draw=5, model=model, variant="short", seed=42, **CONDITIONS)
        write_result(short, sidecar(5), root)
    drawn = draw_figure("bus-safety", options(root, models=["deepar", "powerforge"]))
    (note,) = (note for note in drawn.notes if "+short" in note)
    assert "deepar+short" in note
    highest = [lines(axes)[0][:, 1].max() for axes in panels(drawn.figure)[1:]]
    assert highest == [sidecar(5)["by_bus/safety_mbrier"].max()]
