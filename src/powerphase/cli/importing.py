"""The command `import`: a record of states from elsewhere becomes a data set."""

from pathlib import Path
from typing import Annotated

import typer

from powerphase.cli.display import console, show_store


def import_record(
    source: Annotated[
        Path,
        typer.Argument(
            help="A table (.csv, .parquet), NetCDF file, Zarr store, PyPSA file, or a folder of "
            "pandapower's output writer."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Directory for the data set.")],
    grid: Annotated[
        str | None,
        typer.Option(
            help="A name from `powerphase grids`, a .m file, or a network of pandapower (.json) "
            "or PyPSA (.nc).",
            show_default="no lines, no power flow",
        ),
    ] = None,
    map: Annotated[
        Path | None,
        typer.Option(help="A .toml file with the names, units and signs of columns."),
    ] = None,
    append: Annotated[
        bool, typer.Option("--append", help="Add later steps to the record in the directory.")
    ] = False,
    kind: Annotated[
        str,
        typer.Option(help="simulated, measured, or auto for what the power balance says."),
    ] = "auto",
    gaps: Annotated[str, typer.Option(help="fill missing values, or refuse them.")] = "fill",
    suspects: Annotated[
        str, typer.Option(help="fill stuck and impossible values, keep, or refuse them.")
    ] = "fill",
    edition: Annotated[str, typer.Option(help="Name of the data in results.")] = "imported",
    country: Annotated[
        str | None,
        typer.Option(help="Country whose holidays models know, or none.", show_default="DE"),
    ] = None,
    zone: Annotated[
        str | None,
        typer.Option(help="Time zone of the people's days.", show_default="that of the country"),
    ] = None,
) -> None:
    """Import a record of P, Q, V and theta that was measured or simulated elsewhere.

    What the grid determines is solved, gaps are filled and never scored. Nothing is written unless
    all of it is; a record that grows stays readable meanwhile.

    Example: `powerphase import states.csv --grid my_grid.m --map states.toml --out data/mine`

    With the newest rows: `powerphase import today.csv --out data/mine --map states.toml --append`
    """
    from powerphase.importing.importer import import_states

    store = import_states(
        source,
        out,
        grid=grid,
        mapping=map,
        append=append,
        kind=kind,
        gaps=gaps,
        suspects=suspects,
        edition=edition,
        country=country,
        zone=zone,
    )
    show_store(store)
    if append:
        console.print(f"the record ends at {store.time[-1]} UTC", soft_wrap=True)
