"""The command `quickstart`: data, forecasts, a leaderboard, tomorrow's risk and a site."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import MofNCompleteColumn

from powerphase.cli.data import generate, verify_store
from powerphase.cli.display import console, progress
from powerphase.cli.models import tomorrow
from powerphase.cli.options import make_task
from powerphase.cli.reports import leaderboard

if TYPE_CHECKING:
    from powerphase.evaluation.models import ModelSpec
    from powerphase.models.framework.base import Description
    from powerphase.records.result import Result
    from powerphase.task.windows import Task

GRID, SETPOINT = "activsg500", "case"
"""With the set-points of its case file, some of its buses are above the band on some nights, and
none all day; docs/data_sets.md compares grids and set-points."""

PRETRAINED = Path(__file__).parents[1] / "pretrained" / "powerforge-activsg500-synthetic"
"""The training of PowerForge that comes with the package."""

MODELS = ("last-week", "last-7-days", "climatology", "oracle", "factorforge", str(PRETRAINED))
SEED = 42
SHOWN_ROWS = 8


def quickstart(
    out: Annotated[Path, typer.Option(help="Folder for data, results and the site.")] = Path(
        "data/quickstart"
    ),
) -> None:
    """Make a data set, score forecasters, show tomorrow's risk, and build a site.

    The grid is ACTIVSg 500 with the set-points of its case file: two years, in which some voltages
    leave their band on some nights. FactorForge and the references are fitted on the spot;
    PowerForge comes trained. What is already there and valid is not made again.

    Example: `powerphase quickstart`
    """
    from powerphase.report.site.build import build_site

    data, results, runs = out / GRID, out / "results", out / "runs"
    generate(GRID, out=data, setpoint=SETPOINT)
    certificate = verify_store(str(data))
    if not certificate.valid:
        raise typer.Exit(1)
    task = make_task(str(data), "10")
    for model in MODELS:
        if model != str(PRETRAINED) or _is_trained_on(PRETRAINED, task):
            _score(model, task, results, runs)
    leaderboard([results])
    tomorrow(str(runs / "factorforge"), str(data), rows=SHOWN_ROWS)
    site = build_site([results], out / "site", data=[data], certificates={str(data): certificate})
    console.print(f"rows in {results}; `powerphase info ROW` shows all scores of a row")
    console.print(f"open {site.index.resolve()} in a browser", soft_wrap=True)


def _score(text: str, task: "Task", results: Path, runs: Path) -> None:
    """Add the model's row to the results, unless it is there."""
    from powerphase.evaluation.forecasting import forecast
    from powerphase.evaluation.models import resolve_model
    from powerphase.evaluation.scoring import score

    spec, name = resolve_model(text), Path(text).name
    (seed,) = (SEED,) if spec.run else spec.seeds([SEED])
    if _is_scored(_describe(spec, task, seed), task, results):
        console.print(f"{name} is scored already")
        return
    options: dict[str, Any] = {"run": runs / text} if spec.is_saved and not spec.run else {}
    with progress(f"{name} windows", MofNCompleteColumn()) as report:
        source = forecast(spec.make(task, seed, **options), task)
        score(source, task, on_progress=report).save(results)


def _describe(spec: "ModelSpec", task: "Task", seed: int) -> "Description":
    """What the model's row will state about it."""
    from powerphase.evaluation.models import load_training
    from powerphase.models.framework.base import describe

    if spec.run is not None:
        return describe(load_training(spec.run, task))
    return spec.description(task.layout.grid, seed)


def _is_scored(description: "Description", task: "Task", results: Path) -> bool:
    """Whether the results have a row of this model, data, task and version of the program."""
    from importlib.metadata import version

    from powerphase.records.result import read_result
    from powerphase.records.row_key import RowKey

    manifest = task.store.manifest
    identity = (description.model, description.variant, description.seed)
    path = results / RowKey(task.name, manifest.edition, manifest.grid, *identity).path
    if not (path.is_file() and path.with_suffix(".npz").is_file()):
        return False
    row: Result = read_result(path)
    expected = {
        "fingerprint": manifest.fingerprint,
        "task_version": task.protocol.version,
        "config": description.config,
        "model_version": description.version,
        "version": version("powerphase"),
    }
    return all(getattr(row, name) == value for name, value in expected.items())


def _is_trained_on(run: Path, task: "Task") -> bool:
    """Whether a training was made on the data of this task."""
    from powerphase.models.framework.run import RunFolder

    return bool(RunFolder.open(run).header.data == task.training.data)
