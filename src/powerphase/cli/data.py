"""Commands for data sets: grids, signals, generate and verify; and info, for any file."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import DownloadColumn, MofNCompleteColumn
from rich.table import Table

from powerphase.cli.display import (
    console,
    progress,
    show_certificate,
    show_failure,
    show_forecast,
    show_result,
    show_run,
    show_store,
)
from powerphase.dataset.options import RecipeOptions

if TYPE_CHECKING:
    from powerphase.dataset.certificate import Certificate


def grids() -> None:
    """List the built-in grids; the path of a MATPOWER .m file also works as a grid.

    Example: `powerphase grids`
    """
    from powerphase.grid.catalog import CATALOG, load_grid

    table = Table("name", "grid", *("buses", "PQ", "channels"), "paper", "licence", box=None)
    for column in table.columns[:2]:
        column.no_wrap = True  # names must be easy to copy
    for column in table.columns[2:5]:
        column.justify = "right"
    for name, entry in CATALOG.items():
        grid = load_grid(name)
        counts = (grid.n_buses, grid.n_pq_in_file, 4 * grid.n_buses)
        row = [name, entry.title, *(f"{count:,}" for count in counts)]
        table.add_row(*row, "yes" if entry.in_paper else "", entry.licence)
    console.print(table)


def fetch() -> None:
    """Download the OPSD file (112 MB) into the cache and verify it.

    An interrupted download continues.

    Example: `powerphase signals fetch`
    """
    from powerphase.synthesis.sources import fetch_opsd

    with progress("OPSD time series", DownloadColumn()) as report:
        path = fetch_opsd(on_progress=report)
    console.print(f"{path} is complete and verified; use it with `--signals opsd`", soft_wrap=True)


def generate(
    grid: Annotated[str, typer.Argument(help="A name from `powerphase grids`, or a .m file.")],
    out: Annotated[
        Path | None, typer.Option(help="Directory for the data set.", show_default="data/GRID")
    ] = None,
    signals: Annotated[
        str, typer.Option(help="National load, solar and wind: synthetic, opsd, or a file.")
    ] = "synthetic",
    edition: Annotated[
        str | None, typer.Option(help="Name in results for data made from a file of signals.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Random seed of load types, power factors and noise.")
    ] = RecipeOptions.seed,
    dispatch: Annotated[
        str,
        typer.Option(help="What follows the load: all generators (proportional), or only slack."),
    ] = RecipeOptions.dispatch,
    setpoint: Annotated[
        str, typer.Option(help="Voltage at generators [p.u.], or 'case' to take the file's.")
    ] = str(RecipeOptions.setpoint),
    start: Annotated[
        str | None,
        typer.Option(help="First day, such as 2015-01-01.", show_default="that of the signals"),
    ] = None,
    end: Annotated[
        str | None, typer.Option(help="Last day, included.", show_default="that of the signals")
    ] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Number of threads.", show_default="all cores")
    ] = None,
    engine: Annotated[str, typer.Option(help="local, or ray for a Ray cluster.")] = "local",
) -> None:
    """Make a data set; an interrupted one is finished, and a damaged one repaired.

    Example: `powerphase generate activsg500 --out data/activsg500`
    """
    from powerphase.dataset.generation import generate as generate_data

    path = out or Path("data") / Path(grid).stem
    with progress(f"{Path(grid).stem} steps", MofNCompleteColumn()) as report:
        store = generate_data(
            grid,
            path,
            signals=signals,
            edition=edition,
            seed=seed,
            dispatch=dispatch,
            setpoint=setpoint,
            start=start,
            end=end,
            threads=threads,
            engine=engine,
            on_progress=report,
        )
    show_store(store)


def verify(
    store: Annotated[str, typer.Argument(help="Directory or URL of the data set.")],
) -> None:
    """Check every byte and every step of a data set; exit with 1 if anything is wrong.

    Example: `powerphase verify data/activsg500`
    """
    if not verify_store(store).valid:
        raise typer.Exit(1)


def verify_store(store: str) -> "Certificate":
    """Check a data set, and show the certificate."""
    from powerphase.dataset.certificate import verify as verify_data

    with progress("verifying", MofNCompleteColumn()) as on_progress:
        certificate = verify_data(store, on_progress=on_progress)
    show_certificate(certificate)
    return certificate


def info(
    path: Annotated[
        str, typer.Argument(help="Path of a data set, training, forecast or result row.")
    ],
) -> None:
    """Summarise a data set, a training, a forecast or a result row.

    Example: `powerphase info data/activsg500`
    """
    from powerphase.dataset.store import open_store, read_manifest
    from powerphase.errors import StoreError
    from powerphase.records.forecast_file import is_forecast, open_forecast
    from powerphase.records.result import read_result
    from powerphase.records.row_key import is_failure, read_failure

    if is_failure(path):
        show_failure(read_failure(Path(path)))
    elif path.endswith(".json"):
        show_result(read_result(path))
    elif (Path(path) / "model.json").is_file():
        from powerphase.models.framework.run import RunFolder

        show_run(RunFolder.open(path))
    elif is_forecast(path):
        show_forecast(open_forecast(path))
    elif read_manifest(path) is None:
        raise StoreError(
            f"{path}: not a data set, training, forecast or result row; check the path"
        )
    else:
        show_store(open_store(path, unfinished_ok=True))
