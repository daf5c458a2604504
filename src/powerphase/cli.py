"""The `powerphase` command: parses, delegates, and shows; what it shows is computed elsewhere."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import DownloadColumn, MofNCompleteColumn
from rich.table import Table

from powerphase.display import (
    console,
    problems,
    progress,
    show_certificate,
    show_checks,
    show_failure,
    show_forecast,
    show_result,
    show_run,
    show_sheets,
    show_store,
    training_progress,
)
from powerphase.errors import PowerphaseError, place_in_own_code

if TYPE_CHECKING:
    from powerphase.bench.evaluation import Evaluation
    from powerphase.dataset.certificate import Certificate
    from powerphase.records.result import Result
    from powerphase.task.protocol import WindowCount
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

PRETRAINED = Path(__file__).parent / "pretrained" / "powerforge-activsg500-synthetic"
"""A training that comes with the package, for the data set of the quickstart."""

INTERRUPTED = 130
"""The exit status that typer gives to Ctrl-C, as shells do."""


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
        place = place_in_own_code(error)
        where = f"in {place}; --debug shows all" if place else "this is a bug, --debug shows where"
        problems.print(f"powerphase: {type(error).__name__}: {error}; {where}")
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

    table = Table("name", "grid", *("buses", "PQ", "channels"), "paper", "licence", box=None)
    for column in table.columns[:2]:
        column.no_wrap = True  # names are there to be copied
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

    with progress("OPSD time series", DownloadColumn()) as report:
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
    with progress(f"{Path(grid).stem} steps", MofNCompleteColumn()) as report:
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
    show_store(store)


@app.command()
def verify(
    store: Annotated[str, typer.Argument(help="A data set's directory or URL.")],
) -> None:
    """Check every byte and every step of a data set; exit 1 if it cannot be trusted.

    Example: `powerphase verify data/activsg500`
    """
    if not _verified(store).valid:
        raise typer.Exit(1)


@app.command()
def info(
    path: Annotated[str, typer.Argument(help="A data set, training, forecast or result row.")],
) -> None:
    """Say what a data set, a training, a forecast or a result row holds, at a glance.

    Example: `powerphase info data/activsg500`
    """
    from powerphase.dataset.store import open_store
    from powerphase.records.failure import is_failure, read_failure
    from powerphase.records.forecast_file import is_forecast, open_forecast
    from powerphase.records.result import read_result

    if is_failure(path):
        show_failure(read_failure(Path(path)))
    elif path.endswith(".json"):
        show_result(read_result(path))
    elif (Path(path) / "model.json").is_file():
        from powerphase.models.run import RunFolder

        show_run(RunFolder.open(path))
    elif is_forecast(path):
        show_forecast(open_forecast(path))
    else:
        show_store(open_store(path, unfinished_ok=True))


Windows = Annotated[str, typer.Option(help="Test windows: the paper's 10, any number, or all.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto for a GPU where there is one.")]
Data = Annotated[str, typer.Option(help="The data set's directory or URL.")]
Seed = Annotated[int, typer.Option(help="Fixes what is random; a training has its own.")]
Physical = Annotated[
    bool, typer.Option("--physical", help="Solve the power flow of every scenario and step.")
]


@app.command()
def train(
    model: Annotated[str, typer.Argument(help="Its name, or NAME+VARIANT, as powerforge+short.")],
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
    from powerphase.bench.models import trainable
    from powerphase.models.configuration import read_config
    from powerphase.models.run import RunFolder
    from powerphase.models.trained import Trained, with_training
    from powerphase.models.variants import with_variants

    name, *words = model.split("+")
    kind, task = trainable(name), _task(data, "1")  # a training is the same for any test windows
    configs = kind.config_type
    read = configs() if config is None else read_config(configs, config)
    given = with_variants(read, words, configs.VARIANTS)
    changes = {"epochs": epochs, "batch_size": batch_size}
    run = out or Path("runs") / f"{model}-{task.layout.grid}-{seed}"
    if not issubclass(kind, Trained):
        network_only = {
            **changes,
            "channel_block": channel_block,
            "device": None if kind.takes_device or device in ("auto", "cpu") else device,
            "backend": None if backend == "auto" else backend,
        }
        _refuse(name, [option for option, value in network_only.items() if value is not None])
        _fit_in_one_go(kind, given, task, seed, run, device)
        show_run(RunFolder.open(run))
        return
    if backend != "auto" and not kind.takes_backend:
        _refuse(name, ["backend"])
    with training_progress(model) as report:
        trained = kind(
            with_training(given, changes),
            seed=seed,
            device=device,
            channel_block=channel_block,
            backend=backend,
            run=run,
            on_progress=report,
        )
        trained.settle(task.training)
        needed = trained.memory_gib(task.training, channel_block)
        size = f"{task.layout.n_channels:,} channels in batches of"
        size = f"{size} {trained.config.training.batch_size}"
        console.print(f"{model} on {size}: about {needed:.1f} GiB beside torch itself")
        trained.fit(task.training)
    show_run(RunFolder.open(run))


@app.command()
def forecast(
    model: Annotated[str, typer.Argument(help="A model's name, or the folder of a training.")],
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
    from powerphase.bench.forecasting import forecast as make_forecast
    from powerphase.bench.models import model_for
    from powerphase.bench.physical import physical as make_physical
    from powerphase.records.forecast_file import open_forecast

    task = _task(data, windows)
    with progress(f"{model} windows", MofNCompleteColumn()) as report:
        fitted = model_for(model, task, seed, device)
        if physical:
            live = make_forecast(fitted, task, device=device)
            made = make_physical(live, task, out=out, on_progress=report)
        else:
            made = make_forecast(fitted, task, out=out, device=device, on_progress=report)
    show_forecast(open_forecast(out))
    _show_balance(made.balance, made.description.variant)


@app.command()
def score(
    forecast: Annotated[str, typer.Argument(help="A forecast, a training, or a model's name.")],
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
    evaluation = _score(forecast, _task(data, windows), seed, device, physical)
    show_result(evaluation.row)
    _show_balance(evaluation.balance, evaluation.row.variant)
    if out is not None:
        console.print(f"written to {evaluation.save(out)}", soft_wrap=True)


Results = Annotated[list[Path] | None, typer.Argument(help="Rows, or trees of them.")]
Format = Annotated[str, typer.Option(help="table, markdown or csv.")]


@app.command()
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
    from powerphase.bench.table import Table as BenchTable
    from powerphase.bench_display import BenchDisplay, show_failures, show_plan

    table = BenchTable(
        grids=_listed(grids),
        models=_listed(models),
        seeds=_listed(seeds),
        data=data,
        signals=signals,
        edition=edition,
        out=out,
        runs=runs,
        windows=_windows(windows),
        device=device,
        epochs=epochs,
        batch_size=batch_size,
        seconds=seconds,
        limit=limit,
        workers=workers,
        engine=engine,
    )
    if dry_run:
        show_plan(table.plan(), seconds)
        return
    with BenchDisplay() as watcher:
        failures = table.run(watcher)
    show_failures(failures)
    if failures:
        raise typer.Exit(1)


def _listed(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


@app.command()
def leaderboard(
    results: Results = None,
    format: Format = "table",
    paper: Annotated[bool, typer.Option(help="Show the paper's rows beside ours.")] = True,
    statistics: Annotated[
        bool, typer.Option("--statistics", help="Skill, and which differences are noise.")
    ] = False,
    against: Annotated[
        str | None, typer.Option(help="With --statistics: whom to lay all beside, else the best.")
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="With --statistics: each beside each other.")
    ] = False,
    score: Annotated[
        list[str] | None, typer.Option(help="With --statistics: only this score; may be repeated.")
    ] = None,
    recompute: Annotated[
        bool, typer.Option("--recompute", help="Score forecasts again; exit 1 if a row is wrong.")
    ] = False,
    forecasts: Annotated[
        Path | None, typer.Option(help="With --recompute: where forecasts lie.")
    ] = None,
    data: Annotated[Path | None, typer.Option(help="With --recompute: where data lie.")] = None,
) -> None:
    """Rank what was scored, grid by grid; by default all rows under results/.

    With --statistics, say which differences are more than noise; with --recompute, score every
    forecast that is there again and say which rows still hold.

    Example: `powerphase leaderboard results --format markdown`
    """
    from powerphase.records.failure import read_failures
    from powerphase.records.result import read_results
    from powerphase.report import leaderboard as table
    from powerphase.report import standings

    places = results or [Path("results")]
    rows, failures = read_results(places), read_failures(places)
    if recompute:
        if statistics:
            raise typer.BadParameter("--recompute and --statistics are two questions; ask one")
        _recompute(rows, forecasts, data, format)
        return
    _refuse_without("--recompute", forecasts=forecasts, data=data)
    boards = table.leaderboard(rows, paper, failures)
    noted = [failure for board in boards for failure in board.failures]
    for failure in failures:
        if failure not in noted:  # on a grid without any row
            problems.print(f"without a row: {failure.path}: {failure.sentence}")
    if not statistics:
        _refuse_without("--statistics", against=against, pairs=pairs, score=score)
        show_sheets(format, lambda: map(table.sheet, boards), lambda: table.as_csv(boards))
        return
    standings.check_other(boards, against)
    scores = tuple(score or standings.TESTED)
    if pairs:
        every = (boards, scores)
        sheets, as_csv = standings.pairs_sheets, standings.pairs_as_csv
        show_sheets(format, lambda: sheets(*every), lambda: as_csv(*every))
    else:
        one = (boards, scores, against)
        show_sheets(format, lambda: standings.sheets(*one), lambda: standings.as_csv(*one))


@app.command()
def compare(
    model: Annotated[str, typer.Argument(help="A model of the paper, such as powerforge.")],
    results: Results = None,
    edition: Annotated[str, typer.Option(help="The edition of the data of our rows.")] = "opsd-r",
    format: Annotated[str, typer.Option(help="table or markdown.")] = "table",
) -> None:
    """Lay a model beside the paper's numbers for it, grid by grid, and its ablation where scored.

    Example: `powerphase compare powerforge results --format markdown`
    """
    from powerphase.records.result import read_results
    from powerphase.report.comparison import compare as comparison_of
    from powerphase.report.comparison import sheets

    rows = read_results(results or [Path("results")])
    show_sheets(format, lambda: sheets(comparison_of(rows, model, edition)))


@app.command()
def safety(
    results: Results = None,
    grid: Annotated[str | None, typer.Option(help="Look at one grid, bus by bus.")] = None,
    edition: Annotated[str, typer.Option(help="The edition of the data.")] = "opsd-r",
    format: Format = "table",
) -> None:
    """Do fidelity and safety order forecasters alike? And which buses are hard, and for whom?

    Example: `powerphase safety results --grid polish2383`
    """
    from powerphase.records.result import find_results
    from powerphase.report import safety as report

    found = report.safety(find_results(results or [Path("results")]), edition, grid)
    show_sheets(format, lambda: report.sheets(found), lambda: report.as_csv(found))


@app.command()
def figure(
    name: Annotated[str, typer.Argument(help="archetypes, voltages, bus-safety, …")],
    grid: Annotated[str | None, typer.Option(help="By default polish2383.")] = None,
    models: Annotated[str | None, typer.Option(help="Names with commas between them.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of rows, where a model has several.")] = None,
    bus: Annotated[int | None, typer.Option(help="Its number, for voltages.")] = None,
    score: Annotated[str | None, typer.Option(help="Of voltages, for safety-fidelity.")] = None,
    signals: Annotated[
        str | None, typer.Option(help="synthetic, opsd, or a file, for archetypes.")
    ] = None,
    edition: Annotated[str, typer.Option(help="The edition of the data of our rows.")] = "opsd-r",
    results: Annotated[Path, typer.Option(help="A tree of results.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="The folder for the files.")] = Path("figures"),
    format: Annotated[str, typer.Option(help="With commas between them.")] = "pdf,svg,png",
) -> None:
    """Draw a figure of the paper from the rows that are there, as PDF, SVG and PNG.

    Example: `powerphase figure voltages --grid polish2383 --models powerforge,factorforge`
    """
    from powerphase.report.figures import Options, figure_of, write_figure

    named = models.split(",") if models is not None else None
    drawn = figure_of(name, Options((results,), edition, grid, named, seed, bus, score, signals))
    files = write_figure(drawn, out, format.split(","))
    for note in drawn.notes:
        console.print(note, soft_wrap=True)
    console.print(f"written to {', '.join(map(str, files))}", soft_wrap=True)


@app.command()
def report(
    results: Annotated[list[Path] | None, typer.Argument(help="Rows, or trees of them.")] = None,
    out: Annotated[Path, typer.Option(help="Where to.")] = Path("site"),
    data: Annotated[
        list[str] | None, typer.Option(help="A data set of the rows; any number.")
    ] = None,
    forecasts: Annotated[
        list[Path] | None, typer.Option(help="A forecast file, for every bus; any number.")
    ] = None,
    variables: Annotated[
        str, typer.Option(help="Of forecast files: some of P,Q,V,theta; each adds as much again.")
    ] = "V",
    verify: Annotated[
        bool, typer.Option("--verify", help="Show the data sets' certificates.")
    ] = False,
) -> None:
    """Write a site that a browser opens without a server: scores, forecasts, safety, grid, data.

    Example: `powerphase report results --data data/activsg500 --out site`
    """
    from powerphase.report.site.build import build_site

    stores = data or []
    certificates = {store: _verified(store) for store in stores if verify}
    with progress("boards", MofNCompleteColumn()) as on_progress:
        site = build_site(
            results or [Path("results")],
            out,
            data=stores,
            forecasts=forecasts or [],
            variables=variables.split(","),
            certificates=certificates,
            on_progress=on_progress,
        )
    size = f"{len(site.sizes)} files, {site.bytes / 1e6:.1f} MB"
    console.print(f"{size}; open {site.index.resolve()}", soft_wrap=True)


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option(help="Where to.")] = Path("data/quickstart"),
) -> None:
    """From nothing to a leaderboard and a site: make two years of ACTIVSg 500, forecast and score.

    The references and FactorForge are fitted here; PowerForge was trained on the same data before.

    Example: `powerphase quickstart`
    """
    from powerphase.report.site.build import build_site

    data, results = out / "activsg500", out / "results"
    generate("activsg500", out=data)
    certificate = _verified(str(data))
    if not certificate.valid:
        raise typer.Exit(1)
    references = ("last-week", "last-7-days", "climatology", "oracle")
    for model in (*references, "factorforge", str(PRETRAINED)):
        _score(model, _task(str(data), "10"), seed=42, device="auto").save(results)
    leaderboard([results])
    console.print(
        "FactorForge was fitted just now; PowerForge comes trained with the package, with the "
        "paper's budget. The oracle is not ranked."
    )
    site = build_site([results], out / "site", data=[data], certificates={str(data): certificate})
    console.print(f"rows in {results}; `powerphase info ROW` shows all scores of one")
    console.print(f"open {site.index.resolve()} to look at them", soft_wrap=True)


def _verified(store: str) -> "Certificate":
    """Check a data set, and show what was found."""
    from powerphase.dataset.certificate import verify as verify_data

    with progress("verifying", MofNCompleteColumn()) as on_progress:
        certificate = verify_data(store, on_progress=on_progress)
    show_certificate(certificate)
    return certificate


def _recompute(
    rows: "list[Result]", forecasts: Path | None, data: Path | None, format: str
) -> None:
    """Score what is there again, and say of every row what became of it."""
    from powerphase.bench.recheck import recheck

    if forecasts is None or data is None:
        raise typer.BadParameter("--recompute needs --forecasts and --data")
    checks = []
    with progress("rows", MofNCompleteColumn()) as report:
        for check in recheck(rows, forecasts, data):
            checks.append(check)
            report(len(checks), len(rows))
    show_checks(checks, format)
    if any(check.outcome == "differs" for check in checks):
        raise typer.Exit(1)


def _refuse_without(needed: str, **options: Any) -> None:
    """Options that mean nothing without another one."""
    given = [f"--{name}" for name, value in options.items() if value]
    if given:
        raise typer.BadParameter(f"{', '.join(given)} needs {needed}")


def _refuse(model: str, options: list[str]) -> None:
    """Options of other models."""
    from powerphase.errors import TrainingError

    if options:
        named = ", ".join(f"--{option.replace('_', '-')}" for option in options)
        raise TrainingError(f"{named}: {model} has nothing of the kind to choose; leave it out")


def _fit_in_one_go(kind: Any, config: Any, task: "Task", seed: int, run: Path, device: str) -> None:
    """Fit a model that is no network; of FactorForge, note what its factors follow."""
    from powerphase.bench.models import drivers

    place = {"device": device} if kind.takes_device else {}
    with progress(f"{kind.name}, {kind.counts}", MofNCompleteColumn()) as report:
        model = kind(config, seed=seed, run=run, on_block=report, **place)
        model.fit(task.training)
        if hasattr(model, "follow"):
            model.follow(drivers(task))


def _show_balance(balance: Mapping[str, Any] | None, variant: str | None) -> None:
    """What was found when scenarios were made physical, if they were."""
    from powerphase.bench.physical import Balance, is_physical

    if balance is not None:
        console.print(str(Balance(**balance)), soft_wrap=True)
    elif is_physical(variant):
        console.print("power balance  not known, as the forecast was interrupted")


def _task(data: str, windows: str) -> "Task":
    from powerphase.task.windows import Task

    return Task(data, windows=_windows(windows))


def _windows(windows: str) -> "WindowCount":
    from powerphase.errors import TaskError

    if windows != "all" and not windows.isdecimal():
        raise TaskError(f"--windows {windows!r} is neither a number nor 'all'")
    return "all" if windows == "all" else int(windows)


def _score(
    forecast: str, task: "Task", seed: int, device: str, physical: bool = False
) -> "Evaluation":
    """Score the forecast in a directory, or a model by its name as it predicts."""
    from powerphase.bench.evaluation import score as score_forecast
    from powerphase.bench.forecasting import forecast as make_forecast
    from powerphase.bench.forecasting import load_forecast
    from powerphase.bench.models import model_for
    from powerphase.bench.physical import physical as make_physical
    from powerphase.models.run import is_run
    from powerphase.records.forecast_file import is_forecast

    with progress(f"{Path(forecast).name} windows", MofNCompleteColumn()) as report:
        if is_forecast(forecast) or ("/" in forecast and not is_run(forecast)):
            given = load_forecast(forecast)
        else:
            given = make_forecast(model_for(forecast, task, seed, device), task, device=device)
        if physical:
            given = make_physical(given, task)
        return score_forecast(given, task, device=device, on_progress=report)
