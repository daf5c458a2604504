"""The paper's figures that are made from data, and others of their kind, by name.

`draw_figure` draws one with notes for the reader; `write_figure` writes it to files. Equal data
give equal files, unless matplotlib has another version.
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
from powerphase.report.entries import representative
from powerphase.report.exhibits import (
    Exhibit,
    Selection,
    exhibits_on,
    known_model,
    select,
    with_less,
    without_rows,
)
from powerphase.report.figure_style import STYLE
from powerphase.report.leaderboard import Board, leaderboard
from powerphase.synthesis.sources import load_signals

if TYPE_CHECKING:
    from matplotlib.figure import Figure

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
    """What may be chosen about a figure; none where it is left to the figure."""

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
    """A figure, the name of its files, and what must be said about it."""

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
    """The figure `name`, drawn and not written."""
    if name not in FIGURES:
        raise UnknownName.among("figure", name, FIGURES)
    kind, options = FIGURES[name], options or FigureOptions()
    _refuse_others(name, kind.takes, options)
    with _style():
        return kind.draw(options)


def write_figure(drawn: DrawnFigure, out: Path, formats: Iterable[str] = FORMATS) -> list[Path]:
    """The figure's files in the folder `out`, one for each format."""
    written = []
    for one in formats:
        if one not in FORMATS:
            raise UnknownName.among("format", one, FORMATS)
        content = BytesIO()
        with _style():
            drawn.figure.savefig(content, format=one, metadata=UNDATED[one])
        file = out / f"{drawn.stem}.{one}"
        with disk_errors(file, FigureError):
            replace_file(file, content.getvalue())
        written.append(file)
    return written


def _refuse_others(name: str, takes: Sequence[str], options: FigureOptions) -> None:
    """FigureOptions of other figures would be passed over in silence."""
    given = {one.name for one in fields(FigureOptions) if getattr(options, one.name) is not None}
    if others := sorted(given - {"results", "edition", *takes}):
        named = ", ".join(f"--{other}" for other in others)
        raise FigureError(f"{named}: figure {name} has nothing of the kind to choose; leave it out")


def _style() -> AbstractContextManager[None]:
    """Our style, whatever the user's own is."""
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
    from powerphase.report.fans import voltages

    exhibits, selection = _chosen(options, PAPER_FAN, most=3)
    if not selection.found:
        raise FigureError(f"{'; '.join(selection.notes)}; choose --models that have rows")
    figure, bus = voltages(selection.exhibits, options.bus)
    grid = exhibits[0].row.grid
    return DrawnFigure(
        figure, f"voltages-{grid}", (f"bus {bus} of {exhibits[0].place}", *selection.notes)
    )


def _bus_safety(options: FigureOptions) -> DrawnFigure:
    from powerphase.report.plots import bus_safety

    return _of_found(options, "bus-safety", bus_safety)


def _reliability(options: FigureOptions) -> DrawnFigure:
    from powerphase.report.plots import reliability

    return _of_found(options, "reliability", reliability)


def _of_found(
    options: FigureOptions, name: str, draw: "Callable[[Mapping[str, Exhibit]], Figure]"
) -> DrawnFigure:
    """A figure of one line for each model that has a row."""
    exhibits, selection = _chosen(options, PAPER_SAFETY, most=8)
    if not selection.found:
        raise FigureError(f"{'; '.join(selection.notes)}; choose --models that have rows")
    stem = f"{name}-{exhibits[0].row.grid}"
    return DrawnFigure(draw(selection.found), stem, (exhibits[0].place, *selection.notes))


def _safety_fidelity(options: FigureOptions) -> DrawnFigure:
    from powerphase.report.plots import safety_fidelity

    # Of the others, less is not better.
    suited = [name for name, one in SCORES.items() if one.voltage_only and one.low == 0]
    score = find_score(options.score or "safety_mbrier", suited, "score of voltages")
    grid = options.grid or GRID
    exhibits = exhibits_on(options.results, grid, options.edition)
    (board,) = leaderboard([one.row for one in exhibits])
    own = {one.name: one for one in board.entries}
    stands = _standing(board, options.models)
    ours = [replace(own[row], name=name) for name, row in stands.items() if row in own]
    paper = [
        one
        for one in board.paper
        if one.name in stands and None not in (one.mean["crps"], one.mean[score])
    ]
    missing = [name for name, row in stands.items() if row not in own]
    notes = without_rows(missing, grid)
    notes += with_less({name: row for name, row in stands.items() if row in own})
    if not paper:
        notes.append(f"the paper prints no {SCORES[score].title} of these models on {grid}")
    if not ours:
        raise FigureError(f"{'; '.join(notes)}; choose --models that have rows")
    shown = replace(board, entries=tuple(ours), paper=tuple(paper))
    return DrawnFigure(
        safety_fidelity(shown, score), f"safety-fidelity-{grid}", (board.title, *notes)
    )


def _standing(board: Board, models: Sequence[str] | None) -> dict[str, str]:
    """The row that stands for each of the models; by default, of all that are here or printed."""
    own, printed = ([one.name for one in entries] for entries in (board.entries, board.paper))
    there = dict.fromkeys(name.partition("+")[0] for name in (*own, *printed))
    shown = [name for name in there if name in printed or representative(name, own)]
    wanted = [known_model(name, [*shown, *own]) for name in models or shown]
    return {name: representative(name, own) or name for name in wanted}


def _chosen(
    options: FigureOptions, first: Sequence[str], most: int
) -> tuple[list[Exhibit], Selection]:
    exhibits = exhibits_on(options.results, options.grid or GRID, options.edition)
    seed = SEED if options.seed is None else options.seed
    return exhibits, select(exhibits, options.models, first, most, seed)


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
            "CRPS against a score of voltages, all models, ours and the paper's apart",
            _safety_fidelity,
            ("grid", "models", "score"),
        ),
        "reliability": Kind(
            "how often voltages left the band, by the forecast probability",
            _reliability,
            ("grid", "models", "seed"),
        ),
    }
)
