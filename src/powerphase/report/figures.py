"""Figures by name: those of the paper that are made from data, and others of their kind.

`draw_figure` draws a figure with notes for the reader; `write_figure` writes it to files. Equal
data give equal files with the same version of matplotlib.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from powerphase.errors import FigureError, UnknownName
from powerphase.files import disk_errors, replace_file
from powerphase.records.scores import SCORES, find_score
from powerphase.report.boards import Board, leaderboard
from powerphase.report.entries import representative
from powerphase.report.figure_rows import (
    FigureRow,
    Selection,
    budget_sentences,
    known_model,
    missing_note,
    rows_on,
    select,
)
from powerphase.report.style import STYLE
from powerphase.synthesis.sources import load_signals

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from powerphase.report.plots import Diagrams

FORMATS = ("pdf", "svg", "png")
# Dates would make equal figures differ.
UNDATED: Mapping[str, dict[str, Any]] = MappingProxyType(
    {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
)
GRID, SEED = "polish2383", 42
PAPER_FAN = ("powerforge", "timeprism", "tactis-2")
PAPER_SAFETY = ("powerforge", "transformer-tempflow", "tactis-2", "timemcl", "timeprism")
"""The models of the paper's figures."""


@dataclass(frozen=True)
class FigureOptions:
    """The options of a figure; None leaves the choice to the figure."""

    results: Sequence[Path] = (Path("results"),)
    edition: str | None = None
    grid: str | None = None
    models: Sequence[str] | None = None
    seed: int | None = None
    bus: int | None = None
    score: str | None = None
    signals: str | None = None


@dataclass(frozen=True)
class DrawnFigure:
    """A figure, the stem of its file names, and notes for the reader."""

    figure: "Figure"
    stem: str
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """A kind of figure: what it shows, how it is drawn, and which options it takes."""

    shows: str
    draw: Callable[[FigureOptions], DrawnFigure]
    takes: tuple[str, ...]


def draw_figure(name: str, options: FigureOptions | None = None) -> DrawnFigure:
    """Draw the figure `name` without writing it."""
    if name not in FIGURES:
        raise UnknownName.among("figure", name, FIGURES)
    kind, options = FIGURES[name], options or FigureOptions()
    _check_options(name, kind.takes, options)
    with _style():
        return kind.draw(options)


def write_figure(drawn: DrawnFigure, out: Path, formats: Iterable[str] = FORMATS) -> list[Path]:
    """Write the figure to the folder `out`, one file per format; returns the files."""
    written = []
    for name in formats:
        if name not in FORMATS:
            raise UnknownName.among("format", name, FORMATS)
        content = BytesIO()
        with _style():
            drawn.figure.savefig(content, format=name, metadata=UNDATED[name])
        file = out / f"{drawn.stem}.{name}"
        with disk_errors(file, FigureError):
            replace_file(file, content.getvalue())
        written.append(file)
    return written


def check_figure_file(file: Path) -> None:
    """Raise if a figure could not be written to this file."""
    if (suffix := file.suffix.removeprefix(".")) not in FORMATS:
        raise UnknownName.among("format", suffix, FORMATS)
    _style()


def calibration_figure(curves: "Mapping[str, Diagrams]", stem: str) -> DrawnFigure:
    """Reliability diagrams of the chance of a violation and of its hours, by model."""
    with _style():
        from powerphase.report.plots import calibration

        return DrawnFigure(calibration(curves), stem)


def _check_options(name: str, takes: Sequence[str], options: FigureOptions) -> None:
    """Raise on options that the figure would ignore."""
    names = [field.name for field in fields(FigureOptions)]
    used = {field for field in names if getattr(options, field) is not None}
    if others := sorted(used - {"results", "edition", *takes}):
        flags = ", ".join(f"--{other}" for other in others)
        raise FigureError(f"{flags}: figure {name} has no such option; leave it out")


def _style() -> AbstractContextManager[None]:
    """The style of all figures, whatever the user has configured."""
    if find_spec("matplotlib") is None:
        raise FigureError(
            "figures need matplotlib, which is not installed; pip install 'powerphase[figures]'"
        )
    from matplotlib import style

    return style.context(["default", dict(STYLE)])


def _archetypes(options: FigureOptions) -> DrawnFigure:
    from powerphase.report.plots import archetypes

    signals = load_signals(options.signals or "synthetic")
    return DrawnFigure(
        archetypes(signals), "archetypes", (f"signals of edition {signals.edition}",)
    )


def _voltages(options: FigureOptions) -> DrawnFigure:
    from powerphase.report.plots import voltages

    rows, selection = _select_rows(options, PAPER_FAN, most=3)
    if not selection.available:
        raise FigureError(f"{'; '.join(selection.notes)}; choose --models that have rows")
    figure, bus = voltages(selection.by_model, options.bus)
    grid = rows[0].row.grid
    return DrawnFigure(
        figure, f"voltages-{grid}", (f"bus {bus} of {rows[0].conditions}", *selection.notes)
    )


def _bus_safety(options: FigureOptions) -> DrawnFigure:
    from powerphase.report.plots import bus_safety

    return _line_per_model(options, "bus-safety", bus_safety)


def _reliability(options: FigureOptions) -> DrawnFigure:
    from powerphase.report.plots import reliability

    return _line_per_model(options, "reliability", reliability)


def _line_per_model(
    options: FigureOptions, name: str, draw: "Callable[[Mapping[str, FigureRow]], Figure]"
) -> DrawnFigure:
    """A figure with one line per model that has a row."""
    rows, selection = _select_rows(options, PAPER_SAFETY, most=8)
    if not selection.available:
        raise FigureError(f"{'; '.join(selection.notes)}; choose --models that have rows")
    stem = f"{name}-{rows[0].row.grid}"
    return DrawnFigure(draw(selection.available), stem, (rows[0].conditions, *selection.notes))


def _safety_fidelity(options: FigureOptions) -> DrawnFigure:
    from powerphase.report.plots import safety_fidelity

    # Only scores of which less is better have a meaning on an axis from good to bad.
    suited = [name for name, score in SCORES.items() if score.voltage_only and score.low == 0]
    score = find_score(options.score or "safety_mbrier", suited, "score of voltages")
    grid = options.grid or GRID
    rows = rows_on(options.results, grid, options.edition)
    (board,) = leaderboard([row.row for row in rows])
    entries = {entry.name: entry for entry in board.entries}
    chosen = _representatives(board, options.models)
    ours = [replace(entries[row], name=name) for name, row in chosen.items() if row in entries]
    paper = [
        entry
        for entry in board.paper
        if entry.name in chosen and None not in (entry.mean["crps"], entry.mean[score])
    ]
    missing = [name for name, row in chosen.items() if row not in entries]
    notes = missing_note(missing, grid)
    notes += budget_sentences({name: row for name, row in chosen.items() if row in entries})
    if not paper:
        notes.append(f"the paper has no {SCORES[score].title} for these models on {grid}")
    if not ours:
        raise FigureError(f"{'; '.join(notes)}; choose --models that have rows")
    shown = replace(board, entries=tuple(ours), paper=tuple(paper))
    return DrawnFigure(
        safety_fidelity(shown, score), f"safety-fidelity-{grid}", (board.title, *notes)
    )


def _lines(options: FigureOptions) -> DrawnFigure:
    from powerphase.report.plots import SCORES_OF_LINES, lines

    grid = options.grid or GRID
    rows = rows_on(options.results, grid, options.edition)
    (board,) = leaderboard([row.row for row in rows], paper=False)
    entries = {entry.name: entry for entry in board.entries}
    ranked = [name for name, entry in entries.items() if entry.rank or entry.kind == "oracle"]
    named = [known_model(name, entries) for name in options.models or ranked]
    chosen = {name: representative(name, entries) or name for name in named}
    scored = [
        entries[row]
        for row in chosen.values()
        if row in entries and entries[row].mean[SCORES_OF_LINES[0]] is not None
    ]
    missing = set(chosen.values()) - {entry.name for entry in scored}
    notes = [f"no scores of lines on {grid} for {', '.join(sorted(missing))}"] * bool(missing)
    if not scored:
        raise FigureError(f"{'; '.join(notes)}; score the forecasts again")
    shown = replace(board, entries=tuple(scored))
    return DrawnFigure(lines(shown), f"lines-{grid}", (board.title, *notes))


def _curves(options: FigureOptions) -> DrawnFigure:
    from powerphase.report.plots import curves

    rows = rows_on(options.results, options.grid or GRID, options.edition)
    grid, trained = rows[0].row.grid, [row for row in rows if row.row.training is not None]
    if not trained:
        raise FigureError(f"no row on {grid} has the curve of its training; train the models again")
    names = options.models or sorted({row.row.name for row in trained})
    seed = SEED if options.seed is None else options.seed
    selection = select(trained, names, (), most=24, seed=seed)
    if not selection.available:
        raise FigureError(f"{'; '.join(selection.notes)}; choose --models that have rows")
    notes = (rows[0].conditions, *selection.notes)
    return DrawnFigure(curves(selection.available), f"curves-{grid}", notes)


def _representatives(board: Board, models: Sequence[str] | None) -> dict[str, str]:
    """The row that represents each model; by default of all models in the rows or the paper."""
    ours, printed = ([entry.name for entry in part] for part in (board.entries, board.paper))
    known = dict.fromkeys(name.partition("+")[0] for name in (*ours, *printed))
    shown = [name for name in known if name in printed or representative(name, ours)]
    chosen = [known_model(name, [*shown, *ours]) for name in models or shown]
    return {name: representative(name, ours) or name for name in chosen}


def _select_rows(
    options: FigureOptions, first: Sequence[str], most: int
) -> tuple[list[FigureRow], Selection]:
    rows = rows_on(options.results, options.grid or GRID, options.edition)
    seed = SEED if options.seed is None else options.seed
    return rows, select(rows, options.models, first, most, seed)


FIGURES: Mapping[str, Kind] = MappingProxyType(
    {
        "archetypes": Kind("the five daily shapes of loads", _archetypes, ("signals",)),
        "voltages": Kind(
            "forecasts of one bus's voltage in three windows by up to three models",
            _voltages,
            ("grid", "models", "bus", "seed"),
        ),
        "bus-safety": Kind(
            "how Safety_mBrier is distributed over the buses, and the worst 200",
            _bus_safety,
            ("grid", "models", "seed"),
        ),
        "safety-fidelity": Kind(
            "CRPS against a score of voltages for all models, ours and the paper's",
            _safety_fidelity,
            ("grid", "models", "score"),
        ),
        "reliability": Kind(
            "how often voltages left the band, by the forecast probability",
            _reliability,
            ("grid", "models", "seed"),
        ),
        "lines": Kind(
            "how well each model forecasts the loading of lines, and their overloads",
            _lines,
            ("grid", "models"),
        ),
        "curves": Kind(
            "the loss and the validation criterion of each network by training step",
            _curves,
            ("grid", "models", "seed"),
        ),
    }
)
