"""The `powerphase` command: parses, delegates, and shows; what it shows is computed elsewhere."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from powerphase.errors import PowerphaseError

if TYPE_CHECKING:
    from powerphase.dataset.certificate import Certificate
    from powerphase.dataset.store import Store

app = typer.Typer(
    name="powerphase",
    help="Probabilistic forecasting of whole power grids.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
)
signals_app = typer.Typer(help="The national signals that drive every data set.")
app.add_typer(signals_app, name="signals", no_args_is_help=True)

console = Console(highlight=False, markup=False, emoji=False)
INTERRUPTED = 130
"""The exit status that typer gives to Ctrl-C, as shells do."""

problems = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def main() -> None:
    """Run the command; an error is one sentence on standard error and a non-zero exit."""
    debug = "--debug" in sys.argv
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
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
        kind = type(error).__name__
        problems.print(f"powerphase: {kind}: {error}; this is a bug, --debug shows where")
        sys.exit(1)
    except SystemExit as stop:
        if stop.code == INTERRUPTED:
            problems.print("powerphase: stopped; run the same command again to continue")
        raise


@app.callback(invoke_without_command=True)
def _version(
    version: Annotated[bool, typer.Option("--version", help="Show the version.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    if version:
        import powerphase

        console.print(powerphase.__version__)
        raise typer.Exit


@app.command()
def grids() -> None:
    """List the grids known by name. Any MATPOWER .m file can be given by path instead.

    Example: `powerphase grids`
    """
    from powerphase.grid.catalog import CATALOG, load_grid

    table = Table("name", "grid", *("buses", "PQ", "channels"), "in the paper", "licence")
    for column in table.columns[2:5]:
        column.justify = "right"
    for name, entry in CATALOG.items():
        grid = load_grid(name)
        counts = (grid.n_buses, grid.n_pq_in_file, 4 * grid.n_buses)
        row = [name, entry.title, *(f"{count:,}" for count in counts)]
        table.add_row(*row, "yes" if entry.in_paper else "", entry.licence)
    console.print(table)


@signals_app.command()
def fetch() -> None:
    """Download the OPSD file (112 MB) into the cache, verified; an interrupted one continues.

    Example: `powerphase signals fetch`
    """
    from powerphase.synthesis.opsd import fetch as fetch_opsd

    with _progress("OPSD time series", DownloadColumn()) as report:
        path = fetch_opsd(on_progress=report)
    console.print(f"{path} is complete and verified; use it with `--signals opsd`", soft_wrap=True)


@app.command()
def generate(
    grid: Annotated[str, typer.Argument(help="A name of `powerphase grids`, or a .m file.")],
    out: Annotated[Path | None, typer.Option(help="Where to; by default data/GRID.")] = None,
    signals: Annotated[str, typer.Option(help="synthetic, opsd, or a file.")] = "synthetic",
    edition: Annotated[str | None, typer.Option(help="Names a file's signals in results.")] = None,
    seed: Annotated[int, typer.Option(help="Fixes load types, power factors, noise.")] = 2,
    dispatch: Annotated[str, typer.Option(help="proportional or slack.")] = "proportional",
    setpoint: Annotated[str, typer.Option(help="Voltage at generators [p.u.], or case.")] = "1.02",
    start: Annotated[str | None, typer.Option(help="First day, e.g. 2015-01-01.")] = None,
    end: Annotated[str | None, typer.Option(help="Last day, included.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="By default, all cores.")] = None,
    engine: Annotated[str, typer.Option(help="local, or ray for a Ray cluster.")] = "local",
) -> None:
    """Make a data set; finish it if it was interrupted; mend it if it is damaged.

    Example: `powerphase generate activsg500 --out data/activsg500`
    """
    from powerphase.dataset.generation import generate as generate_data

    place = out or Path("data") / Path(grid).stem
    with _progress(f"{Path(grid).stem} steps", MofNCompleteColumn()) as report:
        store = generate_data(
            grid,
            place,
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
    _show_store(store)


@app.command()
def verify(
    store: Annotated[str, typer.Argument(help="A data set's directory or URL.")],
) -> None:
    """Check every byte and every step of a data set; exit 1 if it cannot be trusted.

    Example: `powerphase verify data/activsg500`
    """
    from powerphase.dataset.certificate import verify as verify_data

    with _progress("verifying", MofNCompleteColumn()) as report:
        certificate = verify_data(store, on_progress=report)
    _show_certificate(certificate)
    if not certificate.valid:
        raise typer.Exit(1)


@app.command()
def info(store: Annotated[str, typer.Argument(help="A data set's directory or URL.")]) -> None:
    """Say what a data set holds, at a glance.

    Example: `powerphase info data/activsg500`
    """
    from powerphase.dataset.store import open_store

    _show_store(open_store(store, unfinished_ok=True))


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Where to.")] = Path("data/quickstart"),
) -> None:
    """Make and verify two years of ACTIVSg 500 with embedded signals, on a CPU, in minutes.

    Example: `powerphase quickstart`
    """
    generate("activsg500", out=out)
    verify(str(out))


def _show_store(store: "Store") -> None:
    from powerphase.grid.rescue import PROVENANCE

    m, grid = store.manifest, store.grid
    days = f"{m.recipe['start']} to {m.recipe['end']}"
    done = "complete" if m.complete else f"UNFINISHED, {len(m.blocks)} of {m.n_blocks} blocks"
    options = {k: m.recipe[k] for k in ("seed", "dispatch", "setpoint")}
    solved = zip(PROVENANCE, m.provenance, strict=True)
    table = _facts(f"data set {store.path}")
    table.add_row("grid", f"{m.grid}: {m.n_buses:,} buses, {4 * m.n_buses:,} channels")
    table.add_row("", f"{len(grid.branch):,} branches, {len(grid.gen):,} generators")
    table.add_row("record", f"{days}, {m.n_steps:,} steps of 15 min, {done}")
    table.add_row("signals", f"{m.edition} ({m.filled_signal_values:,} values filled)")
    table.add_row("options", ", ".join(f"{k} {v}" for k, v in options.items()))
    table.add_row("solved by", ", ".join(f"{name} {count:,}" for name, count in solved if count))
    table.add_row("fingerprint", m.fingerprint)
    table.add_row("made with", ", ".join(f"{k} {v}" for k, v in m.made_with.items()))
    table.add_row("sources", "\n".join(m.attribution))
    console.print(table)


def _show_certificate(certificate: "Certificate") -> None:
    from powerphase.grid.rescue import PROVENANCE

    table = _facts("certificate")
    table.add_row("bytes", "; ".join(certificate.damaged) or "all as the manifest says")
    for name, unit, found in (("P", "MW", certificate.p_mw), ("Q", "MVAr", certificate.q_mvar)):
        levels = ", ".join(f"{level:.1%} {value:.2g}" for level, value in found.quantiles.items())
        text = f"at most {found.largest:.2g} {unit}; worst bus of a step: {levels}"
        table.add_row(f"{name} mismatch", text)
    share = f"{certificate.largest_share:.0%} of what float32 rounding can explain"
    if isnan(certificate.largest_share):
        share = "not checked"
    bad = certificate.inconsistent_steps
    table.add_row("AC equations", share if not bad else f"VIOLATED in {len(bad)} steps: {bad[:5]}")
    table.add_row("before rounding", f"at most {certificate.solver_mismatch_pu:.1e} p.u.")
    counts = zip(PROVENANCE, certificate.provenance, strict=True)
    table.add_row("solved by", ", ".join(f"{name} {count:,}" for name, count in counts))
    table.add_row("record", "complete" if certificate.complete else "UNFINISHED")
    table.add_row("verdict", "valid" if certificate.valid else "NOT VALID")
    console.print(table)


def _facts(title: str) -> Table:
    table = Table(title=title, show_header=False, title_justify="left", box=None)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


@contextmanager
def _progress(label: str, amount: ProgressColumn) -> Iterator[Callable[[int, int], None]]:
    """A bar with the time left, on standard error; yields what to call with (done, in all)."""
    columns = (TextColumn("{task.description}"), BarColumn(), amount)
    bar = Progress(*columns, TimeElapsedColumn(), TimeRemainingColumn(), console=problems)
    with bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
