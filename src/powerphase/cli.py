"""The `powerphase` command: parses, delegates, and shows; what it shows is computed elsewhere."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

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
    from powerphase.bench.evaluation import Evaluation
    from powerphase.dataset.certificate import Certificate
    from powerphase.dataset.store import Store
    from powerphase.records.forecast_file import ForecastFile
    from powerphase.records.result import Result
    from powerphase.task.windows import Task

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
def info(
    path: Annotated[str, typer.Argument(help="A data set, a forecast, or a result row.")],
) -> None:
    """Say what a data set, a forecast or a result row holds, at a glance.

    Example: `powerphase info data/activsg500`
    """
    from powerphase.dataset.store import open_store
    from powerphase.records.forecast_file import is_forecast, open_forecast
    from powerphase.records.result import read_result

    if path.endswith(".json"):
        _show_result(read_result(path))
    elif is_forecast(path):
        _show_forecast(open_forecast(path))
    else:
        _show_store(open_store(path, unfinished_ok=True))


Windows = Annotated[str, typer.Option(help="Test windows: the paper's 10, any number, or all.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto for a GPU where there is one.")]
Data = Annotated[str, typer.Option(help="The data set's directory or URL.")]
Seed = Annotated[int, typer.Option(help="Fixes what is random in the model.")]


@app.command()
def forecast(
    model: Annotated[str, typer.Argument(help="last-week, last-7-days, climatology or oracle.")],
    data: Data,
    out: Annotated[Path, typer.Option(help="The directory for the scenarios.")],
    windows: Windows = "10",
    seed: Seed = 42,
    device: Device = "auto",
) -> None:
    """Fit a model and write its scenarios for the test windows; an interrupted one continues.

    Example: `powerphase forecast last-7-days --data data/activsg500 --out forecasts/last-7-days`
    """
    from powerphase.bench.forecasting import forecast as make_forecast
    from powerphase.bench.references import model_for
    from powerphase.records.forecast_file import open_forecast

    task = _task(data, windows)
    with _progress(f"{model} windows", MofNCompleteColumn()) as report:
        fitted = model_for(model, task, seed)
        make_forecast(fitted, task, out=out, device=device, on_progress=report)
    _show_forecast(open_forecast(out))


@app.command()
def score(
    forecast: Annotated[str, typer.Argument(help="A forecast's directory, or a model's name.")],
    data: Data,
    out: Annotated[Path | None, typer.Option(help="A tree of results to add the row to.")] = None,
    windows: Windows = "10",
    seed: Seed = 42,
    device: Device = "auto",
) -> None:
    """Score a forecast; or a model by its name, whose scenarios are then scored as they come.

    Example: `powerphase score last-7-days --data data/activsg500 --out results`
    """
    evaluation = _score(forecast, _task(data, windows), seed, device)
    _show_result(evaluation.row)
    if out is not None:
        console.print(f"written to {evaluation.save(out)}", soft_wrap=True)


@app.command()
def leaderboard(
    results: Annotated[list[Path] | None, typer.Argument(help="Rows, or trees of them.")] = None,
    format: Annotated[str, typer.Option(help="table, markdown or csv.")] = "table",
    paper: Annotated[bool, typer.Option(help="Show the paper's rows beside ours.")] = True,
) -> None:
    """Rank what was scored, grid by grid; by default all rows under results/.

    Example: `powerphase leaderboard results --format markdown`
    """
    from powerphase.errors import UnknownName
    from powerphase.records.result import read_results
    from powerphase.report.leaderboard import as_csv, as_markdown, as_table
    from powerphase.report.leaderboard import leaderboard as boards_of

    if format not in ("table", "markdown", "csv"):
        raise UnknownName.among("format", format, ("table", "markdown", "csv"))
    boards = boards_of(read_results(results or [Path("results")]), paper)
    if format == "table":
        for board in boards:
            console.print(as_table(board, console.width))
    else:
        render = as_markdown if format == "markdown" else as_csv
        typer.echo(render(boards), nl=False)


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Where to.")] = Path("data/quickstart"),
) -> None:
    """From nothing to a leaderboard: make two years of ACTIVSg 500, verify, forecast and score.

    Example: `powerphase quickstart`
    """
    data, results = out / "activsg500", out / "results"
    generate("activsg500", out=data)
    verify(str(data))
    for model in ("last-week", "last-7-days", "climatology", "oracle"):
        _score(model, _task(str(data), "10"), seed=42, device="auto").save(results)
    leaderboard([results])
    console.print(f"rows in {results}; `powerphase info ROW` shows all scores of one")


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


def _task(data: str, windows: str) -> "Task":
    from powerphase.errors import TaskError
    from powerphase.task.windows import Task

    if windows != "all" and not windows.isdecimal():
        raise TaskError(f"--windows {windows!r} is neither a number nor 'all'")
    return Task(data, windows="all" if windows == "all" else int(windows))


def _score(forecast: str, task: "Task", seed: int, device: str) -> "Evaluation":
    """Score the forecast in a directory, or a model by its name as it predicts."""
    from powerphase.bench.evaluation import score as score_forecast
    from powerphase.bench.forecasting import forecast as make_forecast
    from powerphase.bench.forecasting import load_forecast
    from powerphase.bench.references import model_for

    with _progress(f"{forecast} windows", MofNCompleteColumn()) as report:
        if Path(forecast).exists() or "/" in forecast:
            given = load_forecast(forecast)
        else:
            given = make_forecast(model_for(forecast, task, seed), task, device=device)
        return score_forecast(given, task, device=device, on_progress=report)


def _show_forecast(file: "ForecastFile") -> None:
    h = file.header
    table = _facts(f"forecast {file.path}")
    table.add_row("model", _model(h.model, h.variant, h.seed))
    table.add_row("task", f"{h.task}, version {h.task_version}")
    table.add_row("data", f"{h.grid} {h.edition}, {h.n_channels:,} channels, {h.fingerprint}")
    table.add_row("windows", f"{len(h.windows)}, from {h.windows[0]} to {h.windows[-1]}")
    table.add_row("scenarios", f"{h.scenarios} of {h.horizon} steps from {h.context}")
    _add_cost(table, file.cost)
    console.print(table)


def _show_result(row: "Result") -> None:
    from powerphase.records.scores import SCORES

    table = _facts(f"{_model(row.model, row.variant, row.seed)} on {row.grid} {row.edition}")
    table.add_row("task", f"{row.task}, version {row.task_version}, {len(row.windows)} windows")
    for name, value in row.scores.items():
        shown = "–" if value is None else f"{value:.6f}"
        table.add_row(SCORES[name].title, f"{shown:<9}  {SCORES[name].question}")
    _add_cost(table, row.cost)
    console.print(table)


def _add_cost(table: Table, cost: Mapping[str, Any]) -> None:
    units = {"train_s": "s to fit", "predict_s": "s to predict", "score_s": "s to score"}
    shown = [f"{cost[k]:.1f} {unit}" for k, unit in units.items() if cost.get(k) is not None]
    if cost.get("peak_memory_gib") is not None:
        shown.append(f"at most {cost['peak_memory_gib']:.1f} GiB")
    table.add_row("cost", f"{', '.join(shown)} on {cost['hardware']}")


def _model(model: str, variant: str | None, seed: int) -> str:
    name = f"{model}+{variant}" if variant else model
    return f"{name}, seed {seed}" if seed else name


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
