"""What `powerphase calibration` shows: how often what a model said of a day came true."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import echo

from powerphase.cli.display import console, show_sheets
from powerphase.errors import UnknownName
from powerphase.records.row_key import full_name
from powerphase.report.sheet import Cell, Sheet

if TYPE_CHECKING:
    from powerphase.evaluation.calibration import Bin, Calibration, Decomposition
    from powerphase.report.plots import Diagrams

FORMATS = ("table", "markdown", "json")
WORDS = {
    "buses": ("bus-days", "leaving the band", "left their band"),
    "lines": ("line-days", "overload", "were overloaded"),
}
"""What forecasts are counted in, and what a violation is called."""
MARGINAL = (
    "The model forecasts every step by itself, not whole days: its chance is that of the worst "
    "step, a lower bound."
)


def check_request(out: Path | None, format: str) -> None:
    """Raise if the answer could not be shown or drawn; this is known before the work."""
    if format not in FORMATS:
        raise UnknownName.among("format", format, FORMATS)
    if out is not None:
        from powerphase.report.figures import check_figure_file

        check_figure_file(out)


def show_calibration(calibration: "Calibration", out: Path | None, format: str) -> None:
    """Show the tables, or everything as JSON, and draw the diagrams into a file."""
    if format == "json":
        echo(json.dumps(as_json(calibration), indent=1))
    else:
        show_sheets(format, lambda: sheets(calibration))
    if out is not None:
        from powerphase.report.figures import calibration_figure, write_figure

        drawn = calibration_figure({_name(calibration): points(calibration)}, out.stem)
        write_figure(drawn, out.parent, [out.suffix.removeprefix(".")])
        if format == "table":
            console.print(f"written to {out}", soft_wrap=True)


def sheets(calibration: "Calibration") -> "list[Sheet]":
    """A table of the chance of a violation, and one of its hours."""
    brier, crps = calibration.brier, calibration.hours_crps[calibration.known].mean()
    note = (MARGINAL,) if calibration.description.joint is False else ()
    case, violation, past = WORDS[calibration.subject]
    n_days, n_counted = calibration.chance.shape
    subject = (
        f"{n_counted:,} of {len(calibration.counts):,} {calibration.subject} {past} on some, but "
        f"not all, days of the training record; forecasts of {n_days} {calibration.split} days by "
        f"{calibration.n_scenarios} scenarios. Limits: {calibration.limits}, rating "
        f"{calibration.rating.upper()}."
    )
    chance = _sheet(
        f"{_name(calibration)} on {calibration.layout.grid}: chance of {violation}",
        ("forecast", case, "said", "happened"),
        [
            (_percent(b.low, b.high), b, f"{b.said:.0%}", f"{b.happened:.0%}")
            for b in calibration.chance_bins
        ],
        subject,
        (f"Brier score {_parts(brier)}.", *note),
    )
    hours = _sheet(
        f"{_name(calibration)} on {calibration.layout.grid}: hours of {violation}",
        ("forecast [h]", case, "said [h]", "happened [h]"),
        [
            (f"{b.low:g} to {b.high:g}", b, f"{b.said:.2f}", f"{b.happened:.2f}")
            for b in calibration.hour_bins
        ],
        f"Expected hours of the same {calibration.subject} and days.",
        (
            f"CRPS of the hours {crps:.4f} h; squared error of the expected hours "
            f"{_parts(calibration.squared_hours)} h².",
        ),
    )
    return [chance, hours]


def as_json(calibration: "Calibration") -> dict[str, Any]:
    """Scores and bins."""
    n_days, n_counted = calibration.chance.shape
    return {
        "model": _name(calibration),
        "grid": calibration.layout.grid,
        "subject": calibration.subject,
        "split": calibration.split,
        "limits": calibration.limits,
        "rating": calibration.rating,
        "joint": calibration.description.joint,
        "scenarios": calibration.n_scenarios,
        "days": n_days,
        "counted": n_counted,
        "all": len(calibration.counts),
        "brier": asdict(calibration.brier),
        "hours_crps": float(calibration.hours_crps[calibration.known].mean()),
        "squared_hours": asdict(calibration.squared_hours),
        "mean": {
            "chance": float(calibration.chance[calibration.known].mean()),
            "violated": float(calibration.violated[calibration.known].mean()),
            "hours": float(calibration.hours[calibration.known].mean()),
            "hours_violated": float(calibration.hours_violated[calibration.known].mean()),
        },
        "chance_bins": [b._asdict() for b in calibration.chance_bins],
        "hour_bins": [b._asdict() for b in calibration.hour_bins],
    }


def points(calibration: "Calibration") -> "Diagrams":
    """The points of both diagrams: number, forecast and outcome of each bin."""
    both = (calibration.chance_bins, calibration.hour_bins)
    chance, hours = ([(b.cases, b.said, b.happened) for b in bins] for bins in both)
    return chance, hours


def _sheet(
    title: str,
    header: tuple[str, ...],
    lines: "Sequence[tuple[str, Bin, str, str]]",
    above: str,
    below: tuple[str, ...],
) -> Sheet:
    texts = [(first, f"{b.cases:,}", said, happened) for first, b, said, happened in lines]
    cells: tuple[tuple[Cell, ...], ...] = tuple(
        tuple((text, False) for text in line) for line in texts
    )
    return Sheet(title=title, header=header, groups=(cells,), above=above, below=below)


def _name(calibration: "Calibration") -> str:
    return full_name(calibration.description.model, calibration.description.variant)


def _percent(low: float, high: float) -> str:
    return f"{100 * low:.0f} to {100 * high:.0f} %"


def _parts(score: "Decomposition") -> str:
    return (
        f"{score.score:.4f} = reliability {score.reliability:.4f} (0 is best) - resolution "
        f"{score.resolution:.4f} + uncertainty {score.uncertainty:.4f}"
    )
