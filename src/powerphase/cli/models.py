"""Commands that run one model: train, forecast, score, tomorrow and calibration."""

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
    CONTEXT,
    HORIZON,
    ORIGIN,
    Context,
    Country,
    Couple,
    Data,
    Device,
    Horizon,
    Known,
    Limits,
    Origin,
    Physical,
    Rating,
    Seed,
    Windows,
    Zone,
    make_task,
)
from powerphase.registry import models_help

if TYPE_CHECKING:
    from powerphase.evaluation.scoring import Evaluation
    from powerphase.task.windows import Task

Model = Annotated[
    str,
    typer.Argument(
        help=f"A model ({models_help()}), your own class or object as package.module:Class, one of "
        "another library as statsforecast:AutoTheta, or the folder of a training."
    ),
]


def train(
    model: Annotated[
        str, typer.Argument(help=f"A model ({models_help('model')}), or NAME+VARIANT.")
    ],
    data: Data,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder for the training.", show_default="runs/MODEL-GRID-SEED"),
    ] = None,
    horizon: Horizon = HORIZON,
    context: Context = CONTEXT,
    origin: Origin = ORIGIN,
    country: Country = None,
    zone: Zone = None,
    known: Known = None,
    seed: Seed = 42,
    config: Annotated[
        Path | None, typer.Option(help="A .toml or .json file with fields of the model's config.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Overrides the config's epochs.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Overrides the config's batch size.")
    ] = None,
    channel_block: Annotated[
        int | None,
        typer.Option(min=4, help="Channels processed at a time: less memory, more time."),
    ] = None,
    device: Device = "auto",
    backend: Annotated[
        str,
        typer.Option(help="triton, torch, or auto for Triton on a GPU; the results are the same."),
    ] = "auto",
) -> None:
    """Train a model. An interrupted training continues, with the same result.

    FactorForge and ETS are fitted in a single pass: they have no epochs, batches, channel blocks
    or backends.

    On several GPUs: `torchrun --nproc-per-node 4 --no-python powerphase train …`

    Example: `powerphase train powerforge --data data/activsg500 --out runs/powerforge`
    """
    from powerphase.evaluation.trainings import request_training, train_model
    from powerphase.models.framework.run import RunFolder

    request = request_training(
        model,
        config,
        device=device,
        epochs=epochs,
        batch_size=batch_size,
        channel_block=channel_block,
        backend=backend,
    )
    task = make_task(
        data,
        "1",  # a training does not depend on the test windows
        horizon=horizon,
        context=context,
        origin=origin,
        country=country,
        zone=zone,
        known=known,
    )
    run = out or Path("runs") / f"{model}-{task.layout.grid}-{seed}"
    if request.is_network:
        with training_progress(model) as report:
            network = request.make(task, seed, run, report)
            console.print(f"{model} {request.memory_note(network, task)}")
            train_model(network, task)
    else:
        with progress(request.label, MofNCompleteColumn()) as report:
            train_model(request.make(task, seed, run, report), task)
    show_run(RunFolder.open(run))


def forecast(
    model: Model,
    data: Data,
    out: Annotated[Path, typer.Option(help="Directory for the scenarios.")],
    windows: Windows = "10",
    horizon: Horizon = HORIZON,
    context: Context = CONTEXT,
    origin: Origin = ORIGIN,
    country: Country = None,
    zone: Zone = None,
    known: Known = None,
    seed: Seed = 42,
    device: Device = "auto",
    couple: Couple = None,
    physical: Physical = False,
) -> None:
    """Write a model's scenarios for the test windows. An interrupted forecast continues.

    Models that need no training are fitted first.

    Example: `powerphase forecast last-7-days --data data/activsg500 --out forecasts/last-7-days`
    """
    from powerphase.cli.series_display import SeriesDisplay
    from powerphase.evaluation.forecasting import forecast as make_forecast
    from powerphase.evaluation.models import make_forecaster
    from powerphase.evaluation.physical import physical as make_physical
    from powerphase.records.forecast_file import open_forecast

    task = make_task(
        data,
        windows,
        horizon=horizon,
        context=context,
        origin=origin,
        country=country,
        zone=zone,
        known=known,
    )
    with progress(f"{model} windows", MofNCompleteColumn()) as report:
        forecaster = make_forecaster(model, task, seed, device, couple)
        display = SeriesDisplay(report, len(task.test))
        display.watch(forecaster)
        show = display.show_windows
        if physical:
            live = make_forecast(forecaster, task, device=device)
            written = make_physical(live, task, out=out, on_progress=show)
        else:
            written = make_forecast(forecaster, task, out=out, device=device, on_progress=show)
    show_forecast(open_forecast(out))
    _show_balance(written.balance, written.description.variant)


def score(
    forecast: Annotated[
        str,
        typer.Argument(
            help="The directory of a forecast, the folder of a training, a model's name, your own "
            "class or object as package.module:Class, or one of another library as "
            "'statsforecast:AutoTheta(season_length=96)'."
        ),
    ],
    data: Data,
    out: Annotated[
        Path | None, typer.Option(help="Folder of results to which the row is added.")
    ] = None,
    windows: Windows = "10",
    horizon: Horizon = HORIZON,
    context: Context = CONTEXT,
    origin: Origin = ORIGIN,
    country: Country = None,
    zone: Zone = None,
    known: Known = None,
    seed: Seed = 42,
    device: Device = "auto",
    couple: Couple = None,
    physical: Physical = False,
    limits: Limits = "normal",
    rating: Rating = "a",
) -> None:
    """Score a forecast or a model; the scenarios of a model are not written.

    Rows that are scored by other limits than the paper's are of another task, and say so.

    Example: `powerphase score last-7-days --data data/activsg500 --out results`
    """
    task = make_task(
        data,
        windows,
        limits,
        rating,
        horizon=horizon,
        context=context,
        origin=origin,
        country=country,
        zone=zone,
        known=known,
    )
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)  # fails before the work, not after it
    evaluation = evaluate(forecast, task, seed, device, physical, couple)
    show_result(evaluation.row)
    _show_balance(evaluation.balance, evaluation.row.variant)
    if out is not None:
        console.print(f"written to {evaluation.save(out)}", soft_wrap=True)


def tomorrow(
    model: Model,
    data: Data,
    rows: Annotated[
        int, typer.Option(min=1, help="Buses and lines to show; csv and json have all.")
    ] = 20,
    horizon: Horizon = HORIZON,
    context: Context = CONTEXT,
    origin: Origin = "end",
    country: Country = None,
    zone: Zone = None,
    known: Known = None,
    limits: Limits = "normal",
    rating: Rating = "a",
    fail_above: Annotated[
        float | None,
        typer.Option(
            metavar="PROBABILITY",
            help="Exit with status 3 if the chance of a violation is above this anywhere.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder to which DAY.json and the scenarios of the day are added."),
    ] = None,
    couple: Couple = None,
    seed: Seed = 42,
    device: Device = "auto",
    format: Annotated[str, typer.Option(help="table, markdown, csv or json.")] = "table",
) -> None:
    """Show which buses and lines may violate their limits on the day after the record, and when.

    The day starts where the record ends, or at the last `--origin` before its end. The exit status
    is 0, whatever the risk, unless `--fail-above` is given; 1 is an error. A training of a record
    that was imported stays usable when the record has grown.

    Example: `powerphase tomorrow factorforge --data data/activsg500`

    In a script: `powerphase tomorrow factorforge --data data/activsg500 --format json --fail-above
    0.5`
    """
    from powerphase.cli.outlook_display import RISK_STATUS, show_outlook, write_outlook
    from powerphase.cost import reuse_memory
    from powerphase.dataset.store import open_store
    from powerphase.evaluation.models import fitted_on, make_forecaster
    from powerphase.evaluation.outlook import Outlook, outlook

    reuse_memory()
    task = make_task(
        data,
        "1",  # the test windows do not matter
        limits,
        rating,
        horizon=horizon,
        context=context,
        origin=origin,
        country=country,
        zone=zone,
        known=known,
        as_of=fitted_on(model, open_store(data)),
    )
    forecaster = make_forecaster(model, task, seed, device, couple)

    def make() -> Outlook:
        if out is None:
            return outlook(forecaster, task, device=device)
        day = str(task.tomorrow.future_time[0, 0].astype("datetime64[m]")).replace(":", "")
        made = outlook(forecaster, task, out=out / day, device=device)
        write_outlook(made, out / f"{day}.json")
        return made

    if show_outlook(make, rows, format, fail_above):
        raise typer.Exit(RISK_STATUS)


def calibration(
    model: Model,
    data: Data,
    out: Annotated[
        Path | None, typer.Option(help="File for the diagrams: .svg, .pdf or .png.")
    ] = None,
    windows: Windows = "all",
    horizon: Horizon = HORIZON,
    context: Context = CONTEXT,
    origin: Origin = ORIGIN,
    country: Country = None,
    zone: Zone = None,
    known: Known = None,
    split: Annotated[
        str, typer.Option(help="test, for a final score, or validation, for choices.")
    ] = "test",
    scored: Annotated[
        bool,
        typer.Option("--scored", help="Take the scenarios that are scored, joint or not."),
    ] = False,
    lines: Annotated[
        bool, typer.Option("--lines", help="Overloads of lines instead of voltages of buses.")
    ] = False,
    limits: Limits = "normal",
    rating: Rating = "a",
    couple: Couple = None,
    seed: Seed = 42,
    device: Device = "auto",
    format: Annotated[str, typer.Option(help="table, markdown or json.")] = "table",
) -> None:
    """Compare what `tomorrow` would have said of every test day with what happened.

    Shows how often buses left their band or, with `--lines`, lines were overloaded, and for how
    many hours, by what was forecast. Diagrams need matplotlib.

    Example: `powerphase calibration factorforge --data data/ieee57 --out calibration.svg`
    """
    from powerphase.cli.calibration_display import check_request, show_calibration
    from powerphase.evaluation.calibration import calibrate
    from powerphase.evaluation.models import make_forecaster

    check_request(out, format)
    task = make_task(
        data,
        windows,
        limits,
        rating,
        horizon=horizon,
        context=context,
        origin=origin,
        country=country,
        zone=zone,
        known=known,
    )
    forecaster = make_forecaster(model, task, seed, device, couple)
    with progress(f"{Path(model).name} windows", MofNCompleteColumn()) as report:
        done = calibrate(
            forecaster,
            task,
            subject="lines" if lines else "buses",
            split=split,
            joint=not scored,
            device=device,
            on_progress=report,
        )
    show_calibration(done, out, format)


def evaluate(
    forecast: str,
    task: "Task",
    seed: int,
    device: str,
    physical: bool = False,
    couple: str | None = None,
) -> "Evaluation":
    """Score the forecast in a directory, or that of a model; it may be coupled, then solved."""
    from powerphase.cli.series_display import SeriesDisplay
    from powerphase.evaluation.models import find_forecast
    from powerphase.evaluation.physical import physical as make_physical
    from powerphase.evaluation.scoring import score as score_forecast

    with progress(f"{Path(forecast).name} windows", MofNCompleteColumn()) as report:
        display = SeriesDisplay(report, len(task.test))
        source = find_forecast(forecast, task, seed, device, couple, display.watch)
        if physical:
            source = make_physical(source, task)
        evaluation = score_forecast(source, task, device=device, on_progress=display.show_windows)
    return evaluation


def _show_balance(balance: Mapping[str, Any] | None, variant: str | None) -> None:
    """Show the power balance of scenarios that were made physical."""
    from powerphase.evaluation.physical import Balance, is_physical

    if balance is not None:
        console.print(str(Balance(**balance)), soft_wrap=True)
    elif is_physical(variant):
        console.print("power balance  unknown, because the forecast was interrupted")
