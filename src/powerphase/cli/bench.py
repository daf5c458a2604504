"""The command that runs every model, grid and seed of a table."""

from pathlib import Path
from typing import Annotated

import typer

from powerphase.cli.options import (
    CONTEXT,
    HORIZON,
    ORIGIN,
    Context,
    Country,
    Device,
    Horizon,
    Known,
    Limits,
    Origin,
    Rating,
    Windows,
    Zone,
    parse_seeds,
    parse_windows,
    split_list,
)
from powerphase.registry import bench_models


def bench(
    grids: Annotated[
        str,
        typer.Option(
            help="Grid names or .m files, separated by commas.", show_default="the paper's 6"
        ),
    ] = "",
    models: Annotated[
        str,
        typer.Option(
            help="Names, with or without +VARIANT, or package.module:Class, separated by commas.",
            show_default="all",
        ),
    ] = "",
    seeds: Annotated[
        str, typer.Option(help="Seeds of the models that have one, separated by commas.")
    ] = "22,42,3142",
    data: Annotated[
        Path, typer.Option(help="Folder of the data sets: each is in DATA/GRID.")
    ] = Path("data"),
    signals: Annotated[
        str | None,
        typer.Option(help="Signals for missing data sets: synthetic, opsd, or a file."),
    ] = None,
    edition: Annotated[
        str | None, typer.Option(help="The edition that all data sets must have.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Folder of trainings.")] = Path("runs"),
    windows: Windows = "10",
    horizon: Horizon = HORIZON,
    context: Context = CONTEXT,
    origin: Origin = ORIGIN,
    country: Country = None,
    zone: Zone = None,
    known: Known = None,
    limits: Limits = "normal",
    rating: Rating = "a",
    device: Device = "auto",
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Overrides the epochs of all networks.")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=1, help="Overrides the batch size of all networks.")
    ] = None,
    seconds: Annotated[
        float | None,
        typer.Option(help="Time limit of each training; its epochs are reduced to fit."),
    ] = None,
    limit: Annotated[
        float | None, typer.Option(help="Seconds after which a cell is stopped.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            min=1, help="Number of cells at a time.", show_default="one for each GPU, or 1"
        ),
    ] = None,
    engine: Annotated[str, typer.Option(help="local, or ray for a Ray cluster.")] = "local",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only show all cells and their estimated cost.")
    ] = False,
) -> None:
    """Train, forecast and score every combination of grid, model and seed that has no row yet.

    A combination (a cell) that fails is recorded in place of its row, and the others continue. To
    continue an interrupted bench, run the same command again; trainings resume where they stopped.

    Example: `powerphase bench --grids activsg500,pegase1354 --models powerforge,ets --seeds 22,42`

    With at most an hour for each training: `powerphase bench --seconds 3600 --limit 7200`

    With your own model: `powerphase bench --grids ieee118 --models mymodel:MyForecaster`
    """
    from powerphase.bench.plan import make_plan
    from powerphase.bench.request import BenchRequest
    from powerphase.bench.scheduler import run_bench
    from powerphase.cli.bench_display import BenchDisplay, show_failures, show_plan
    from powerphase.grid.catalog import PAPER_GRIDS

    request = BenchRequest(
        grids=split_list(grids) or PAPER_GRIDS,
        models=split_list(models) or bench_models(),
        seeds=parse_seeds(seeds),
        data=data,
        signals=signals,
        edition=edition,
        out=out,
        runs=runs,
        context=context,
        horizon=horizon,
        windows=parse_windows(windows),
        origin=origin,
        country=country,
        zone=zone,
        known=known,
        limits=limits,
        rating=rating.lower(),
        device=device,
        epochs=epochs,
        batch_size=batch_size,
        seconds=seconds,
        limit=limit,
        workers=workers,
        engine=engine,
    )
    if dry_run:
        show_plan(make_plan(request), request.on_gpu)
        return
    with BenchDisplay() as watcher:
        failures = run_bench(request, watcher)
    show_failures(failures)
    if failures:
        raise typer.Exit(1)
