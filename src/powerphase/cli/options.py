"""Options that several commands take, and what their words mean."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from powerphase.task.protocol import WindowCount
    from powerphase.task.windows import Task

Windows = Annotated[str, typer.Option(help="Test windows: the paper's 10, any number, or all.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto for a GPU where there is one.")]
Data = Annotated[str, typer.Option(help="The data set's directory or URL.")]
Seed = Annotated[int, typer.Option(help="Fixes what is random; a training has its own.")]
Physical = Annotated[
    bool, typer.Option("--physical", help="Solve the power flow of every scenario and step.")
]
Results = Annotated[list[Path] | None, typer.Argument(help="Rows, or trees of them.")]
Format = Annotated[str, typer.Option(help="table, markdown or csv.")]
Edition = Annotated[
    str | None,
    typer.Option(help="Of the rows' data; by default their only one, or opsd-r of several."),
]


def task_of(data: str, windows: str) -> "Task":
    """The task on a data set."""
    from powerphase.task.windows import Task

    return Task(data, windows=window_count(windows))


def window_count(windows: str) -> "WindowCount":
    """How many windows, or all of them."""
    from powerphase.errors import TaskError

    if windows != "all" and not windows.isdecimal():
        raise TaskError(f"--windows {windows!r} is neither a number nor 'all'")
    return "all" if windows == "all" else int(windows)


def listed(text: str) -> list[str]:
    """Words with commas between them."""
    return [part.strip() for part in text.split(",") if part.strip()]


def places(results: list[Path] | None) -> list[Path]:
    """Where rows are, by default in the tree of the project."""
    return results or [Path("results")]
