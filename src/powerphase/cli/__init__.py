"""The `powerphase` command: it parses and displays; everything is computed elsewhere."""

import logging
import sys
from typing import Annotated

import typer

from powerphase.cli import bench, data, forecasts, models, reports
from powerphase.cli.display import console, problems
from powerphase.cli.importing import import_record
from powerphase.cli.quickstart import quickstart
from powerphase.errors import PowerphaseError, user_code_location

app = typer.Typer(
    name="powerphase",
    help="Probabilistic forecasting of whole power grids.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
signals_app = typer.Typer(
    help="National load, solar and wind signals, from which data sets are made."
)
app.add_typer(signals_app, name="signals", no_args_is_help=True)
signals_app.command()(data.fetch)
for _command in (
    *(data.grids, data.generate, data.verify, data.info),
    *(models.train, models.forecast, models.tomorrow, models.calibration),
    *(models.score, bench.bench, forecasts.reduce, forecasts.export),
    *(reports.leaderboard, reports.table, reports.compare, reports.safety, reports.figure),
    *(reports.report, quickstart),
):
    app.command()(_command)

app.command("import")(import_record)

INTERRUPTED = 130
"""The exit status of Ctrl-C, in typer as in shells."""


def main() -> None:
    """Run the command; an error prints one sentence on standard error and exits with 1."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    if not debug:
        # Zarr drops the other reads when one fails. Python would report each of them at exit.
        logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    try:
        app(arguments)
    except PowerphaseError as error:
        if debug:
            raise
        problems.print(f"powerphase: {error}")
        sys.exit(1)
    except Exception as error:
        if debug:
            raise
        problems.print(f"powerphase: {_sentence(error)}")
        sys.exit(1)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            problems.print("powerphase: stopped; run the same command again to continue")
        raise


def _sentence(error: Exception) -> str:
    """The message for an error that powerphase did not raise itself."""
    location = user_code_location(error)
    if location is None and isinstance(error, OSError) and error.filename is not None:
        reason = f"{error.filename}: {error.strerror}"
        return f"{reason}; check the path, its permissions and the free space on the disk"
    if location is None:
        advice = "this is a bug in powerphase; --debug shows the traceback"
    else:
        advice = f"in {location}; --debug shows the traceback"
    return f"{type(error).__name__}: {error}; {advice}"


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    if version:
        import powerphase

        console.print(powerphase.__version__)
        raise typer.Exit
