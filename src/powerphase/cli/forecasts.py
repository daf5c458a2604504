"""Commands on written forecasts: reduce and export."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import MofNCompleteColumn

from powerphase.cli.display import console, progress, show_forecast
from powerphase.cli.options import Data
from powerphase.exports.formats import FORMATS


def reduce(
    forecast: Annotated[Path, typer.Argument(help="The directory of a forecast.")],
    to: Annotated[int, typer.Option(min=1, help="How many scenarios to keep in each window.")],
    out: Annotated[Path, typer.Option(help="Directory for the kept scenarios; must be new.")],
    method: Annotated[
        str,
        typer.Option(
            help="energy (least energy distance), or kmedoids or forward (least Kantorovich "
            "distance)."
        ),
    ] = "energy",
    factors: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a trained FactorForge, to compare scenarios by its factors.",
            show_default="by all channels",
        ),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="Directory or URL of the data set, to compare energy scores too."),
    ] = None,
) -> None:
    """Keep a few of a forecast's joint scenarios, with weights that stand for all of them.

    Shows what that costs, next to the mean of random choices of as many scenarios.

    Example: `powerphase reduce forecasts/draws --to 10 --out forecasts/reduced`
    """
    from powerphase.evaluation.reduction import Reduction
    from powerphase.evaluation.reduction import reduce as reduce_forecast
    from powerphase.models.factorforge.model import FactorForge
    from powerphase.records.forecast_file import open_forecast

    task = None
    if data is not None:
        from powerphase.task.protocol import Protocol
        from powerphase.task.windows import Task

        task = Task.of_protocol(data, Protocol.of_name(open_forecast(forecast).header.task))
    with progress(f"{forecast.name} windows", MofNCompleteColumn()) as report:
        reduced = reduce_forecast(
            forecast,
            to,
            method=method,
            factors=None if factors is None else FactorForge.load(factors),
            task=task,
            out=out,
            on_progress=report,
        )
    show_forecast(open_forecast(out))
    assert reduced.reduction is not None, "a reduced forecast says what it costs"
    console.print(str(Reduction(**reduced.reduction)), soft_wrap=True)


def export(
    forecast: Annotated[str, typer.Argument(help="The directory of a forecast.")],
    data: Data,
    to: Annotated[str, typer.Option(help=f"The format: {', '.join(FORMATS)}.")],
    out: Annotated[Path, typer.Option(help="File or folder to write, which must not exist.")],
    day: Annotated[
        str | None,
        typer.Option(help="Only the window that starts on this day.", show_default="all"),
    ] = None,
    actual: Annotated[
        bool,
        typer.Option(
            "--actual", help="What happened in these windows, as one scenario, not the forecast."
        ),
    ] = False,
) -> None:
    """Write the joint scenarios of a forecast as another program reads them.

    Marginal forecasts are refused: couple them first. What the formats hold is in docs/export.md.

    Example: `powerphase export forecasts/ranked --data data/ieee118 --to pypsa --out networks`
    """
    from powerphase.evaluation.physical import is_physical
    from powerphase.exports.exporting import export as export_forecast
    from powerphase.records.forecast_file import open_forecast

    path = export_forecast(forecast, data, to=to, out=out, day=day, actual=actual)
    header = open_forecast(forecast).header
    count = "1 window" if day else f"{len(header.windows)} windows"
    content = "what happened" if actual else f"{header.scenarios} scenarios"
    console.print(f"{path}: {count} of {content} for {to}", soft_wrap=True)
    if not (actual or is_physical(header.variant)):
        console.print(
            "V and θ of these scenarios need not fit P and Q; "
            "`powerphase forecast … --physical` solves the power flow",
            soft_wrap=True,
        )
