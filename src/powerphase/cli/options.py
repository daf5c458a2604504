"""Options that several commands share, and how their values are parsed."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from powerphase.errors import TaskError

if TYPE_CHECKING:
    from powerphase.task.protocol import WindowCount
    from powerphase.task.windows import Task

Windows = Annotated[
    str, typer.Option(help="Number of test windows (the paper has 10), or 'all' days.")
]
Horizon = Annotated[str, typer.Option(help="How much is forecast: 24h, 2d, 90min, or steps.")]
Context = Annotated[str, typer.Option(help="What a forecaster sees before: 7d, 36h, or steps.")]
Origin = Annotated[str, typer.Option(help="The time of day at which windows start, UTC.")]
Country = Annotated[
    str | None,
    typer.Option(
        help="Whose holidays models know, such as FR, or none.", show_default="the data set's"
    ),
]
Zone = Annotated[
    str | None,
    typer.Option(
        help="By whose clock they count days, such as Europe/Paris.",
        show_default="the country's",
    ),
]
Known = Annotated[
    str | None,
    typer.Option(
        metavar="made|record|FILE",
        help="Forecasts of load, sun and wind that models are given: made from the true signals "
        "(made:2 doubles the error of the wind), OPSD's record of them, or a table.",
        show_default="none",
    ),
]
HORIZON, CONTEXT, ORIGIN = "24h", "7d", "00:00"
"""The paper's."""
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto to use a GPU if there is one.")]
Data = Annotated[str, typer.Option(help="Directory or URL of the data set.")]
Seed = Annotated[
    int, typer.Option(help="Random seed of the model; a finished training keeps its own.")
]
Couple = Annotated[
    str | None,
    typer.Option(
        help="Couple a marginal forecast into joint scenarios: ranked, in the rank order of draws, "
        "or schaake, in that of past days."
    ),
]
Physical = Annotated[
    bool, typer.Option("--physical", help="Solve the power flow of every scenario and step.")
]
Limits = Annotated[
    str,
    typer.Option(
        help="Voltage band [p.u.]: normal (0.95 to 1.05), case for each bus's own, or LOW-HIGH."
    ),
]
Rating = Annotated[str, typer.Option(help="Rating of the branches in the case file: a, b or c.")]
Results = Annotated[
    list[Path] | None,
    typer.Argument(help="Result rows or folders of them.", show_default="results"),
]
Format = Annotated[str, typer.Option(help="table, markdown or csv.")]
Edition = Annotated[
    str | None,
    typer.Option(help="Edition of the data.", show_default="the only one, or opsd-r if several"),
]


def make_task(
    data: str,
    windows: str,
    limits: str = "normal",
    rating: str = "a",
    *,
    horizon: str = HORIZON,
    context: str = CONTEXT,
    origin: str = ORIGIN,
    country: str | None = None,
    zone: str | None = None,
    as_of: str | None = None,
    known: str | None = None,
) -> "Task":
    """The task on a data set."""
    from powerphase.task.windows import Task

    return Task(
        data,
        context=context,
        horizon=horizon,
        windows=parse_windows(windows),
        origin=origin,
        limits=limits,
        rating=rating.lower(),
        country=country,
        zone=zone,
        as_of=as_of,
        known=known,
    )


def parse_windows(text: str) -> "WindowCount":
    """The number of windows, or `all`."""
    if text != "all" and not text.isdecimal():
        raise TaskError(f"--windows must be a whole number or 'all', got {text!r}")
    return "all" if text == "all" else int(text)


def parse_seeds(text: str) -> list[int]:
    """The seeds in a list separated by commas."""
    words = split_list(text)
    for word in words:
        if not word.isdecimal():
            raise TaskError(
                f"--seeds: {word!r} is not a seed; give whole numbers such as 22,42,3142"
            )
    return [int(word) for word in words]


def split_list(text: str) -> list[str]:
    """The words in a list separated by commas, but for those within parentheses."""
    return [word.strip() for word in re.split(r",(?![^()]*\))", text) if word.strip()]


def result_paths(results: list[Path] | None) -> list[Path]:
    """The given paths, or the default tree of results."""
    return results or [Path("results")]
