"""Figures: they draw what rows hold, say what is missing, and are written whole and alike."""

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
from powerphase.records import compact, expanded
from powerphase.records.result import read_result, read_results, write_result
from powerphase.registry import MODELS as REGISTRY
from powerphase.report import figures
from powerphase.report.buses import WORST
from powerphase.report.figure_style import looks_of
from powerphase.report.figures import FIGURES, FORMATS, FigureOptions, draw_figure, write_figure
from powerphase.report.leaderboard import leaderboard, paper_entries
from powerphase.report.quantiles import LEVELS, weighted_quantiles
from powerphase.synthesis import load_shapes, load_signals
from tests.records.rows import row

N_BUSES, KEPT, STEPS = 300, 5, 96
BUS_IDS = np.array([11, 22, 33, 44, 55])
MODELS = ("powerforge", "climatology", "home-made")


def sidecar(draw: int) -> dict[str, NDArray[Any]]:
    """Arrays like those beside a row; bus 44 is half of the time outside the band, 33 always."""
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
        one = row(draw=draw, model=model, seed=seed, grid="polish2383", edition="opsd-r")
        write_result(one, sidecar(draw), root)
    return root


def options(tree: Path, **changes: Any) -> FigureOptions:
    return FigureOptions(results=(tree,), **changes)


def lines(axes: Axes) -> list[NDArray[Any]]:
    return [np.asarray(line.get_xydata()) for line in axes.lines]


def panels(figure: Figure) -> list[Axes]:
    return list(figure.axes)


def test_archetypes_are_the_recipe_s_shapes() -> None:
    drawn = draw_figure("archetypes", FigureOptions(signals="synthetic"))
    signals = load_signals("synthetic")
    days = signals.time.astype("datetime64[D]")
    chosen = (days >= np.datetime64("2015-04-14")) & (days < np.datetime64("2015-04-17"))
    (axes,) = panels(drawn.figure)
    for line, shape in zip(lines(axes)[:5], load_shapes(signals)[chosen].T, strict=True):
        np.testing.assert_array_equal(line[:, 1], shape)
        np.testing.assert_allclose(line[:, 0], np.arange(3 * 96) / 4)
    assert "synthetic" in drawn.notes[0]


def test_voltages_are_the_kept_scenarios_their_median_and_what_happened(tree: Path) -> None:
    drawn = draw_figure("voltages", options(tree, models=MODELS, bus=22))
    grid = np.reshape(panels(drawn.figure), (3, 3))
    for m, w in product(range(3), range(3)):
        arrays = expanded(sidecar(m))
        truth = arrays["shown/target"][w, :, 1, 2]
        scenarios = arrays["shown/scenario"][w, :, :, 1, 2]
        shown = [line[:, 1] for line in lines(grid[m, w]) if len(line) == STEPS]
        np.testing.assert_array_equal(shown[:4], scenarios)
        np.testing.assert_array_equal(shown[-1], truth)
        weights = arrays["shown/weight"][w, :, 1, 2]
        fan = weighted_quantiles(scenarios[..., None], weights[:, None])
        median = fan[LEVELS.index(0.5), :, 0]
        np.testing.assert_array_equal(shown[4], median)
    assert drawn.notes[0] == "bus 22 of polish2383, edition opsd-r"
    assert [axes.get_title() for axes in grid[0]] == [
        "Fri 1 Jul 2016", "Thu 21 Jul 2016", "Thu 11 Aug 2016"
    ]  # fmt: skip


def test_a_record_of_a_failure_is_no_row_of_a_figure(tree: Path) -> None:
    usual = draw_figure("voltages", options(tree, models=MODELS, bus=22))
    (folder,) = {file.parent for file in tree.glob("**/*.json")}
    failed = folder / "deepar-22.failed.json"
    failed.write_text("{}")
    try:
        drawn = draw_figure("voltages", options(tree, models=MODELS, bus=22))
    finally:
        failed.unlink()
    assert drawn.notes == usual.notes


def test_the_bus_that_is_half_outside_the_band_is_shown_by_default(tree: Path) -> None:
    notes = draw_figure("voltages", options(tree)).notes
    assert notes[0] == "bus 44 of polish2383, edition opsd-r"


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


def test_safety_fidelity_shows_means_over_seeds_and_the_paper_s_numbers(tree: Path) -> None:
    drawn = draw_figure("safety-fidelity", options(tree, score="cvar_0.1"))
    rows = [read_result(file) for file in tree.glob("**/*.json")]
    expected = [leaderboard(rows)[0].entries, paper_entries("polish2383")]
    for axes, entries in zip(panels(drawn.figure), expected, strict=True):
        points = {tuple(line[0]) for line in lines(axes) if len(line) == 1}
        assert points == {(one.mean["crps"], one.mean["cvar_0.1"]) for one in entries}
    assert drawn.notes[0] == "polish2383, edition opsd-r"
    assert "timeprism" in drawn.notes[1]
    assert "powerforge" not in drawn.notes[1]


def test_safety_fidelity_shows_a_small_budget_as_its_model_and_says_so(tmp_path: Path) -> None:
    short = row(draw=1, model="timemcl", variant="short", grid="polish2383", edition="opsd-r")
    for one in (row(draw=0, model="powerforge", grid="polish2383", edition="opsd-r"), short):
        write_result(one, sidecar(0), tmp_path)
    drawn = draw_figure("safety-fidelity", options(tmp_path))
    points = {
        tuple(np.asarray(line.get_xydata())[0])
        for line in panels(drawn.figure)[0].lines
        if line.get_color() == REGISTRY["timemcl"].look.colour
    }
    assert points == {(short.scores["crps"], short.scores["safety_mbrier"])}
    assert any("timemcl is shown with a smaller budget (timemcl+short)" in n for n in drawn.notes)


@pytest.mark.parametrize("models", [None, ["mine"]])
def test_safety_fidelity_shows_a_small_budget_of_a_model_that_the_paper_lacks(
    tmp_path: Path, models: list[str] | None
) -> None:
    place = {"grid": "polish2383", "edition": "opsd-r"}
    for draw, variant in enumerate((None, "short", "no-anchor")):
        model = "mine" if variant == "short" else "powerforge"
        write_result(row(draw=draw, model=model, variant=variant, **place), sidecar(0), tmp_path)
    notes = draw_figure("safety-fidelity", options(tmp_path, models=models)).notes
    assert any("mine is shown with a smaller budget (mine+short)" in note for note in notes)
    assert not any("no row on polish2383 is there for mine" in note for note in notes)


def test_a_score_that_the_paper_lacks_leaves_one_panel_and_a_note(tree: Path) -> None:
    drawn = draw_figure("safety-fidelity", options(tree, score="brier", models=MODELS))
    assert len(panels(drawn.figure)) == 1
    assert drawn.notes[1:] == ("the paper prints no Brier of these models on polish2383",)


@pytest.mark.parametrize("grid", ["activsg500", "polish2383", "pegase9241"])
@pytest.mark.parametrize("score", ["brier", "safety_mbrier"])
def test_numbers_on_the_axis_of_crps_do_not_lie_on_one_another(grid: str, score: str) -> None:
    results = (Path(__file__).parents[2] / "results",)
    figure = draw_figure(
        "safety-fidelity", FigureOptions(results=results, grid=grid, score=score)
    ).figure
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


def test_reliability_shows_the_bins_that_are_filled(tree: Path) -> None:
    (axes,) = panels(draw_figure("reliability", options(tree, models=MODELS)).figure)
    for draw, line in enumerate(lines(axes)[1:]):
        np.testing.assert_array_equal(line, sidecar(draw)["reliability"][:20, 1:])


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_written_whole_and_alike_each_time(
    name: str, tree: Path, tmp_path: Path
) -> None:
    given = FigureOptions() if name == "archetypes" else options(tree)
    first = write_figure(draw_figure(name, given), tmp_path / "a", FORMATS)
    assert [file.suffix for file in first] == [".pdf", ".svg", ".png"]
    assert sorted((tmp_path / "a").iterdir()) == sorted(first)
    pdf, svg, png = (file.read_bytes() for file in first)
    again = write_figure(draw_figure(name, given), tmp_path / "b", FORMATS[:2])
    assert [file.read_bytes() for file in again] == [pdf, svg]
    assert pdf.startswith(b"%PDF")
    assert pdf.rstrip().endswith(b"%%EOF")
    assert b"CreationDate" not in pdf
    assert b"/Type3" not in pdf  # publishers refuse such fonts
    assert b"<text" in svg
    assert b"<dc:date>" not in svg
    assert svg.rstrip().endswith(b"</svg>")
    assert png.startswith(b"\x89PNG")
    assert png.endswith(b"IEND\xaeB`\x82")


def test_a_model_that_was_asked_for_and_has_no_row_gets_a_place_that_says_so(tree: Path) -> None:
    drawn = draw_figure("voltages", options(tree, models=["timeprism", "powerforge"]))
    texts = [text.get_text() for axes in panels(drawn.figure) for text in axes.texts]
    assert texts == ["no row"] * 3
    assert drawn.notes[1] == "no row on polish2383 is there for timeprism"


def test_by_default_the_paper_s_models_come_first_and_others_fill_up(tree: Path) -> None:
    drawn = draw_figure("voltages", options(tree))
    labels = [axes.get_ylabel().split("\n")[0] for axes in panels(drawn.figure)[::3]]
    assert labels == ["PowerForge", "home-made", "climatology"]
    assert drawn.notes[1] == "no row on polish2383 is there for timeprism, tactis-2"


def test_another_seed_is_shown_if_it_is_asked_for_and_said_where_it_is_lacking(tree: Path) -> None:
    drawn = draw_figure("reliability", options(tree, models=MODELS, seed=22))
    (axes,) = panels(drawn.figure)
    np.testing.assert_array_equal(lines(axes)[1], sidecar(3)["reliability"][:20, 1:])
    assert drawn.notes == (
        "polish2383, edition opsd-r",
        "home-made is shown with seed 42, as it has no row with seed 22",
    )


@pytest.mark.parametrize(
    ("name", "changes", "sentence"),
    [
        ("voltage", {}, "no figure 'voltage'; did you mean voltages?"),
        ("voltages", {"models": ["powerforge", "timeprim"]}, "no model 'timeprim'.*timeprism"),
        ("voltages", {"grid": "polish2384"}, "no row on grid 'polish2384'.*polish2383"),
        (
            "voltages",
            {"edition": "opsd"},
            "no row on polish2383 has edition 'opsd'; choose of opsd-r",
        ),
        ("safety-fidelity", {"score": "brir"}, "no score of voltages 'brir'; did you mean brier"),
        ("voltages", {"bus": 7}, "no scenarios of bus 7.*choose of 11, 22, 33, 44, 55"),
        ("archetypes", {"bus": 7, "grid": "x"}, "--bus, --grid: figure archetypes has nothing"),
        ("voltages", {"models": ["a", *list(REGISTRY)[:3]]}, "no model 'a'"),
        ("voltages", {"models": list(REGISTRY)[:4]}, "4 models, but the figure shows at most 3"),
        ("bus-safety", {"models": ["ets"]}, "no row on polish2383 is there for ets; choose"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_a_sentence(
    name: str, changes: dict[str, Any], sentence: str, tree: Path
) -> None:
    with pytest.raises((UnknownName, ResultError, FigureError), match=sentence):
        draw_figure(name, options(tree, **changes))


def test_an_unknown_format_is_refused(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="no format 'jpg'"):
        write_figure(draw_figure("reliability", options(tree)), tmp_path, ["jpg"])


def test_no_results_and_results_of_other_data_are_refused(tree: Path, tmp_path: Path) -> None:
    with pytest.raises(ResultError, match="none: "):
        draw_figure("voltages", options(tmp_path / "none"))
    other = row(fingerprint="f" * 64, grid="polish2383", edition="opsd-r", model="ets")
    write_result(other, sidecar(9), tmp_path)
    with pytest.raises(ResultError, match="scored on other data or windows"):
        draw_figure("voltages", FigureOptions(results=(tree, tmp_path)))


def test_a_missing_sidecar_or_array_is_named(tmp_path: Path) -> None:
    one = row(grid="polish2383", edition="opsd-r")
    arrays = sidecar(0)
    del arrays["reliability"]
    path = write_result(one, arrays, tmp_path)
    with pytest.raises(ResultError, match=r"npz: holds no array 'reliability'; score the forecast"):
        draw_figure("reliability", options(tmp_path))
    path.with_suffix(".npz").unlink()
    with pytest.raises(ResultError, match="npz: "):
        draw_figure("bus-safety", options(tmp_path))


def test_without_matplotlib_a_sentence_says_what_to_install(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "find_spec", lambda name: None)
    with pytest.raises(FigureError, match=r"pip install 'powerphase\[figures\]'"):
        draw_figure("voltages", options(tree))


def test_models_look_different_even_in_grey() -> None:
    looks = looks_of([*REGISTRY, "home-made", "powerforge+no-anchor"])
    assert len({look.colour for look in looks.values()}) == len(looks)
    assert len({look.marker for look in looks.values()}) == len(looks)
    assert looks["powerforge+no-anchor"].title == "PowerForge+no-anchor"


def test_the_command_writes_the_files_and_says_what_is_missing(tree: Path, tmp_path: Path) -> None:
    models = "ets, powerforge"  # as people write lists
    given = ["--results", tree, "--out", tmp_path, "--format", "svg", "--models", models]
    done = CliRunner().invoke(
        cli.app, ["figure", "reliability", *map(str, given)], env={"COLUMNS": "200"}
    )
    assert done.exit_code == 0, done.output
    assert "no row on polish2383 is there for ets" in done.output
    assert [file.name for file in tmp_path.iterdir()] == ["reliability-polish2383.svg"]
    refused = CliRunner().invoke(
        cli.app, ["figure", "reliability", *map(str, given), "--format", ""]
    )
    assert isinstance(refused.exception, UnknownName)


def test_the_help_lists_every_figure() -> None:
    shown = CliRunner().invoke(cli.app, ["figure", "--help"], env={"COLUMNS": "200"}).stdout
    assert ", ".join(FIGURES) in shown


def test_the_page_lists_every_figure_with_its_options() -> None:
    page = (Path(__file__).parents[2] / "docs" / "figures.md").read_text()
    for name, kind in FIGURES.items():
        (line,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert line.endswith(f"| {', '.join(f'`--{option}`' for option in kind.takes)} |")


def test_rows_that_are_committed_can_all_be_drawn() -> None:
    results = Path(__file__).parents[2] / "results"
    drawn = draw_figure("bus-safety", FigureOptions(results=(results,), grid="activsg500"))
    assert len(panels(drawn.figure)[0].lines) >= 6


def test_the_page_shows_the_load_shapes_as_they_are_drawn(tmp_path: Path) -> None:
    (file,) = write_figure(draw_figure("archetypes", FigureOptions()), tmp_path, ["svg"])
    kept = Path(__file__).parents[2] / "docs" / "figures" / "archetypes.svg"
    assert file.read_text() == kept.read_text(), "draw it anew: powerphase figure archetypes"


def test_a_smaller_budget_stands_for_a_model_without_another_row(
    tree: Path, tmp_path: Path
) -> None:
    root = tmp_path / "results"
    for one in read_results([tree]):
        write_result(one, sidecar(0), root)
    place = {"grid": "polish2383", "edition": "opsd-r", "seed": 42, "variant": "short"}
    for model in ("deepar", "powerforge"):
        write_result(row(draw=5, model=model, **place), sidecar(5), root)
    drawn = draw_figure("bus-safety", options(root, models=["deepar", "powerforge"]))
    notes = [note for note in drawn.notes if "smaller budget" in note]
    assert notes == [
        "deepar is shown with a smaller budget (deepar+short), as it has no row of its own"
    ]
    highest = [lines(axes)[0][:, 1].max() for axes in panels(drawn.figure)[1:]]
    assert highest == [sidecar(5)["by_bus/safety_mbrier"].max()]
