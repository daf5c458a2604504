"""Commands about models: train, forecast, tomorrow, score; and bench, which makes a table."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import MofNCompleteColumn

from powerphase.cli.display import (
    console,
    progress,
    show_forecast,
    show_result,
    show_run,
    training_progress,
)
from powerphase.cli.options import (
    Data,
    Device,
    Format,
    Physical,
    Seed,
    Windows,
    listed,
    task_of,
    window_count,
)
from powerphase.records.scores import NORMAL_BAND_PU
from powerphase.registry import models_help

if TYPE_CHECKING:
    from powerphase.evaluation.scoring import Evaluation
    from powerphase.task.windows import Task

LOWEST, HIGHEST = NORMAL_BAND_PU

Model = Annotated[
    str, typer.Argument(help=f"{models_help()}; package.module:Class; or the folder of a training.")
]


def train(
    model: Annotated[str, typer.Argument(help=f"{models_help('model')}; or NAME+VARIANT.")],
    data: Data,
    out: Annotated[Path | None, typer.Option(help="By default runs/MODEL-GRID-SEED.")] = None,
    seed: Seed = 42,
    config: Annotated[Path | None, typer.Option(help="A .toml or .json file of fields.")] = None,
    epochs: Annotated[int | None, typer.Option(help="Instead of the configured ones.")] = None,
    batch_size: Annotated[int | None, typer.Option(help="Instead of the model's own.")] = None,
    channel_block: Annotated[
        int | None, typer.Option(min=4, help="Channels at a time: less memory, more time.")
    ] = None,
    device: Device = "auto",
    backend: Annotated[
        str, typer.Option(help="triton, torch, or auto for Triton's on a GPU; both compute alike.")
    ] = "auto",
) -> None:
    """Train a model; an interrupted training continues, and ends as if it had not been.

    FactorForge and ETS are fitted in one go, and have no epochs, batches, blocks or backends.

    On several GPUs: `torchrun --nproc-per-node 4 --no-python powerphase train …`

    Example: `powerphase train powerforge --data data/activsg500 --out runs/powerforge`
    """
    from powerphase.evaluation.models import train as train_model
    from powerphase.evaluation.models import training_request
    from powerphase.models.framework.run import RunFolder

    lesson = training_request(
        model,
        config,
        device=device,
        epochs=epochs,
        batch_size=batch_size,
        channel_block=channel_block,
        backend=backend,
    )
    task = task_of(data, "1")  # a training is the same for any test windows
    run = out or Path("runs") / f"{model}-{task.layout.grid}-{seed}"
    if lesson.is_network:
        with training_progress(model) as report:
            network = lesson.begin(task, seed, run, report)
            console.print(f"{model} {lesson.needs(network, task)}")
            train_model(network, task)
    else:
        with progress(lesson.label, MofNCompleteColumn()) as report:
            train_model(lesson.begin(task, seed, run, report), task)
    show_run(RunFolder.open(run))


def forecast(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="The directory for the scenarios.")],
    windows: Windows = "10",
    seed: Seed = 42,
    device: Device = "auto",
    physical: Physical = False,
) -> None:
    """Fit a model and write its scenarios for the test windows; an interrupted one continues.

    Example: `powerphase forecast last-7-days --data data/activsg500 --out forecasts/last-7-days`
    """
    from powerphase.evaluation.forecasting import forecast as make_forecast
    from powerphase.evaluation.models import model_for
    from powerphase.evaluation.physical import physical as make_physical
    from powerphase.records.forecast_file import open_forecast

    task = task_of(data, windows)
    with progress(f"{model} windows", MofNCompleteColumn()) as report:
        fitted = model_for(model, task, seed, device)
        if physical:
            live = make_forecast(fitted, task, device=device)
            made = make_physical(live, task, out=out, on_progress=report)
        else:
            made = make_forecast(fitted, task, out=out, device=device, on_progress=report)
    show_forecast(open_forecast(out))
    _show_balance(made.balance, made.description.variant)


def score(
    forecast: Annotated[
        str,
        typer.Argument(
            help="The folder of a forecast or training, a model's name, or package.module:Class."
        ),
    ],
    data: Data,
    out: Annotated[Path | None, typer.Option(help="A tree of results to add the row to.")] = None,
    windows: Windows = "10",
    seed: Seed = 42,
    device: Device = "auto",
    physical: Physical = False,
) -> None:
    """Score a forecast; or a model by name or training, whose scenarios are scored as they come.

    Example: `powerphase score last-7-days --data data/activsg500 --out results`
    """
    task = task_of(data, windows)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # a place that cannot be should not cost the scores
    evaluation = scored(forecast, task, seed, device, physical)
    show_result(evaluation.row)
    _show_balance(evaluation.balance, evaluation.row.variant)
    if out is not None:
        console.print(f"written to {evaluation.save(out)}", soft_wrap=True)


def tomorrow(
    model: Model,
    data: Data,
    buses: Annotated[int, typer.Option(min=1, help="How many to show; csv has all.")] = 20,
    low: Annotated[float, typer.Option(help="The band's lowest voltage [p.u.].")] = LOWEST,
    high: Annotated[float, typer.Option(help="The highest.")] = HIGHEST,
    seed: Seed = 42,
    device: Device = "auto",
    format: Format = "table",
) -> None:
    """Show which buses may leave their band on the day after the record, how likely, and when.

    Example: `powerphase tomorrow factorforge --data data/ieee57`
    """
    from powerphase.cli.outlook_display import show_outlook
    from powerphase.evaluation.models import model_for
    from powerphase.evaluation.outlook import outlook

    task = task_of(data, "1")  # what is tested does not matter here
    asked, band_pu = model_for(model, task, seed, device), (low, high)
    show_outlook(lambda: outlook(asked, task, band_pu=band_pu, device=device), buses, format)


def bench(
    grids: Annotated[str, typer.Option(help="Names or .m files; the paper's six.")] = "",
    models: Annotated[
        str, typer.Option(help="As in `train`, or package.module:Class; all by default.")
    ] = "",
    seeds: Annotated[str, typer.Option(help="Of models that take one.")] = "22,42,3142",
    data: Annotated[Path, typer.Option(help="Where data sets are: DIR/GRID.")] = Path("data"),
    signals: Annotated[
        str | None, typer.Option(help="To make missing data sets of, as in `generate`.")
    ] = None,
    edition: Annotated[str | None, typer.Option(help="Of all data sets.")] = None,
    out: Annotated[Path, typer.Option(help="The tree of results.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Where trainings are kept.")] = Path("runs"),
    windows: Windows = "10",
    device: Device = "auto",
    epochs: Annotated[int | None, typer.Option(min=1, help="Of networks; else their own.")] = None,
    batch_size: Annotated[int | None, typer.Option(min=1, help="The same.")] = None,
    seconds: Annotated[
        float | None, typer.Option(help="What a training may take; epochs are cut to fit.")
    ] = None,
    limit: Annotated[
        float | None, typer.Option(help="Seconds after which a cell is stopped.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Cells at a time; by default, one for each GPU.")
    ] = None,
    engine: Annotated[str, typer.Option(help="local, or ray for a Ray cluster.")] = "local",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show all cells and what they will take.")
    ] = False,
) -> None:
    """Train, forecast and score a whole table: every grid, model and seed that has no row yet.

    A cell that fails is recorded beside where its row would be, and the rest goes on. Run again,
    the bench goes on where it was, in the middle of a training too.

    Example: `powerphase bench --grids activsg500,pegase1354 --models powerforge,ets --seeds 22,42`

    Within an hour for each training: `powerphase bench --seconds 3600 --limit 7200`

    A model of your own: `powerphase bench --grids ieee118 --models mymodel:MyForecaster`
    """
    from powerphase.bench.request import Table as BenchTable
    from powerphase.cli.bench_display import BenchDisplay, show_failures, show_plan

    table = BenchTable(
        grids=listed(grids),
        models=listed(models),
        seeds=listed(seeds),
        data=data,
        signals=signals,
        edition=edition,
        out=out,
        runs=runs,
        windows=window_count(windows),
        device=device,
        epochs=epochs,
        batch_size=batch_size,
        seconds=seconds,
        limit=limit,
        workers=workers,
        engine=engine,
    )
    if dry_run:
        show_plan(table.plan(), table.on_gpu, seconds)
        return
    with BenchDisplay() as watcher:
        failures = table.run(watcher)
    show_failures(failures)
    if failures:
        raise typer.Exit(1)


def scored(
    forecast: str, task: "Task", seed: int, device: str, physical: bool = False
) -> "Evaluation":
    """Score the forecast in a directory, or a model by its name as it predicts."""
    from powerphase.evaluation.models import forecast_for
    from powerphase.evaluation.physical import physical as make_physical
    from powerphase.evaluation.scoring import score as score_forecast

    with progress(f"{Path(forecast).name} windows", MofNCompleteColumn()) as report:
        given = forecast_for(forecast, task, seed, device)
        if physical:
            given = make_physical(given, task)
        return score_forecast(given, task, device=device, on_progress=report)


def _show_balance(balance: Mapping[str, Any] | None, variant: str | None) -> None:
    """What was found when scenarios were made physical, if they were."""
    from powerphase.evaluation.physical import Balance, is_physical

    if balance is not None:
        console.print(str(Balance(**balance)), soft_wrap=True)
    elif is_physical(variant):
        console.print("power balance  not known, as the forecast was interrupted")
