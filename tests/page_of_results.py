"""The page of results, and what it is held against: rows, and what was measured beside them.

Parts of the page are written by commands, which stand above them. `make results` writes them anew.
"""

import json
import os
import re
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from typer.testing import CliRunner

from powerphase import cli
from powerphase.records.result import Result, read_results

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results" / "powerphase-day-ahead"
"""The rows of the paper's ten windows."""
FILE, README = ROOT / "docs" / "results.md", ROOT / "README.md"
PAGE = FILE.read_text(encoding="utf-8")
WORDS = " ".join(PAGE.split())

END = "\n<!-- end of what the command writes -->\n"
PART = re.compile(r"(<!-- powerphase (?P<command>.*?) -->\n\n)(?P<text>.*?)" + END, re.DOTALL)


def written(page: str) -> str:
    """The page as its commands write it."""
    return PART.sub(lambda part: part[1] + output(part["command"]) + END, page)


def output(command: str) -> str:
    """What a command writes in the root of the repository."""
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        shown = CliRunner().invoke(cli.app, command.split())
    finally:
        os.chdir(before)
    if shown.exit_code:
        raise RuntimeError(f"powerphase {command}: {shown.output or shown.exception}")
    return shown.stdout


@cache
def rows() -> tuple[Result, ...]:
    """All that are committed, of the real signals."""
    return tuple(row for row in read_results([RESULTS]) if row.edition == "opsd-r")


def rows_of(grid: str, model: str, variant: str | None = None) -> list[Result]:
    """With all seeds."""
    place = (grid, model, variant)
    return [row for row in rows() if (row.grid, row.model, row.variant) == place]


def score(grid: str, model: str, name: str) -> float:
    """The mean over seeds."""
    return fmean(row.scores[name] for row in rows_of(grid, model))


def spread(grid: str) -> float:
    """The standard deviation of PowerForge's CRPS over its seeds, as a share of the mean."""
    found = [row.scores["crps"] for row in rows_of(grid, "powerforge")]
    return stdev(found) / fmean(found)


@cache
def measured(name: str) -> Any:
    """What is kept of trainings and of the reference day."""
    file = ROOT / "benchmarks" / "measured" / f"powerforge_{name}.json"
    return json.loads(file.read_text(encoding="utf-8"))


def trainings(**wanted: Any) -> list[dict[str, Any]]:
    """Those behind the rows, in the order of grids, variants and seeds."""
    found = measured("trainings")["trainings"]
    return [t for t in found if all(t[name] == value for name, value in wanted.items())]


def percent(share: float, decimals: int = 0) -> str:
    """As the page writes it."""
    return f"{100 * share:.{decimals}f} %"


if __name__ == "__main__":
    for file in (FILE, README):
        file.write_text(written(file.read_text(encoding="utf-8")), encoding="utf-8")
