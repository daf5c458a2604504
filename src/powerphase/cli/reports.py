"""Commands about rows: leaderboard, table, compare, safety, figure, and report, the site."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import MofNCompleteColumn

from powerphase.cli.data import verified
from powerphase.cli.display import console, problems, progress, show_checks, show_sheets
from powerphase.cli.options import Edition, Format, Results, listed, places

if TYPE_CHECKING:
    from powerphase.records.result import Result

FIGURES = ("archetypes", "voltages", "bus-safety", "safety-fidelity", "reliability")
"""The names in `report.figures`, which takes a while to load; a test holds the two together."""


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
        bool,
        typer.Option(
            "--recompute", help="Score forecasts again; exit 1 unless some hold and none is wrong."
        ),
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
    from powerphase.records.result import find_results
    from powerphase.report import leaderboard as table
    from powerphase.report import standings

    found, failures = find_results(places(results)), read_failures(places(results))
    if recompute:
        if statistics:
            raise typer.BadParameter("--recompute and --statistics are two questions; ask one")
        _recompute(found, forecasts, data, format)
        return
    _refuse_without("--recompute", forecasts=forecasts, data=data)
    boards = table.leaderboard(list(found.values()), paper, failures)
    noted = [failure for board in boards for failure in board.failures]
    for failure in failures:
        if failure not in noted:  # on a grid without any row
            problems.print(f"without a row: {failure.path}: {failure.sentence}")
    if not statistics:
        _refuse_without("--statistics", against=against, pairs=pairs, score=score)
        show_sheets(format, lambda: map(table.sheet, boards), lambda: table.as_csv(boards))
        return
    standings.check_other(boards, against)
    scores = tuple(map(standings.ordering_score, score or standings.TESTED))
    if pairs:
        every = (boards, scores)
        sheets, as_csv = standings.pairs_sheets, standings.pairs_as_csv
        show_sheets(format, lambda: sheets(*every), lambda: as_csv(*every))
    else:
        one = (boards, scores, against)
        show_sheets(format, lambda: standings.sheets(*one), lambda: standings.as_csv(*one))


def table(
    results: Results = None,
    score: Annotated[str, typer.Option(help="Which; `powerphase info ROW` names all.")] = "crps",
    paper: Annotated[bool, typer.Option(help="Show the paper's rows beside ours.")] = True,
    format: Annotated[str, typer.Option(help="table or markdown.")] = "table",
) -> None:
    """Show one score of all forecasters on all grids.

    Example: `powerphase table results --score twcrps`
    """
    from powerphase.records.result import read_results
    from powerphase.report.compact import compact
    from powerphase.report.leaderboard import leaderboard as boards_of

    boards = boards_of(read_results(places(results)), paper)
    show_sheets(format, lambda: compact(boards, score))


def compare(
    model: Annotated[str, typer.Argument(help="A model of the paper, or all of them.")],
    results: Results = None,
    edition: Edition = None,
    format: Annotated[str, typer.Option(help="table or markdown.")] = "table",
) -> None:
    """Lay a model beside the paper's numbers for it, grid by grid, and its ablation where scored.

    Example: `powerphase compare powerforge results --format markdown`

    All models in one table, and how far the two orders agree: `powerphase compare all`
    """
    from powerphase.records.result import read_results
    from powerphase.report.comparison import agreement, overview, sheets
    from powerphase.report.comparison import compare as comparison_of

    rows = read_results(places(results))
    if model == "all":
        show_sheets(format, lambda: [part(rows, edition) for part in (overview, agreement)])
    else:
        show_sheets(format, lambda: sheets(comparison_of(rows, model, edition)))


def safety(
    results: Results = None,
    grid: Annotated[str | None, typer.Option(help="Look at one grid, bus by bus.")] = None,
    edition: Edition = None,
    format: Format = "table",
) -> None:
    """Do fidelity and safety order forecasters alike? And which buses are hard, and for whom?

    Example: `powerphase safety results --grid polish2383`
    """
    from powerphase.records.result import find_results
    from powerphase.report import safety as report

    found = report.safety(find_results(places(results)), edition, grid)
    show_sheets(format, lambda: report.sheets(found), lambda: report.as_csv(found))


def figure(
    name: Annotated[str, typer.Argument(help=", ".join(FIGURES))],
    grid: Annotated[str | None, typer.Option(help="By default polish2383.")] = None,
    models: Annotated[str | None, typer.Option(help="Names with commas between them.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of rows, where a model has several.")] = None,
    bus: Annotated[int | None, typer.Option(help="Its number, for voltages.")] = None,
    score: Annotated[str | None, typer.Option(help="Of voltages, for safety-fidelity.")] = None,
    signals: Annotated[
        str | None, typer.Option(help="synthetic, opsd, or a file, for archetypes.")
    ] = None,
    edition: Edition = None,
    results: Annotated[Path, typer.Option(help="A tree of results.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="The folder for the files.")] = Path("figures"),
    format: Annotated[str, typer.Option(help="With commas between them.")] = "pdf,svg,png",
) -> None:
    """Draw a figure of the paper from the rows that are there, as PDF, SVG and PNG.

    Example: `powerphase figure voltages --grid polish2383 --models powerforge,factorforge`
    """
    from powerphase.report.figures import FigureOptions, draw_figure, write_figure

    named = listed(models) if models else None
    drawn = draw_figure(
        name, FigureOptions((results,), edition, grid, named, seed, bus, score, signals)
    )
    files = write_figure(drawn, out, listed(format) or [format])  # an empty one is refused
    for note in drawn.notes:
        console.print(note, soft_wrap=True)
    console.print(f"written to {', '.join(map(str, files))}", soft_wrap=True)


def report(
    results: Results = None,
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
    certificates = {store: verified(store) for store in stores if verify}
    with progress("boards", MofNCompleteColumn()) as on_progress:
        site = build_site(
            places(results),
            out,
            data=stores,
            forecasts=forecasts or [],
            variables=listed(variables) or [variables],  # an empty one is refused
            certificates=certificates,
            on_progress=on_progress,
        )
    size = f"{len(site.sizes)} files, {site.bytes / 1e6:.1f} MB"
    console.print(f"{size}; open {site.index.resolve()}", soft_wrap=True)


def _recompute(
    rows: "dict[Path, Result]", forecasts: Path | None, data: Path | None, format: str
) -> None:
    """Score what is there again, and say of every row what became of it."""
    from powerphase.evaluation.recheck import confirmed, nothing_checked, recheck

    if forecasts is None or data is None:
        raise typer.BadParameter("--recompute needs --forecasts and --data")
    checks = []
    with progress("rows", MofNCompleteColumn()) as report:
        for check in recheck(rows, forecasts, data):
            checks.append(check)
            report(len(checks), len(rows))
    show_checks(checks, format)
    if nothing_checked(checks):
        problems.print(
            f"NOTHING WAS CHECKED: none of {len(checks)} rows could be, with the forecasts under "
            f"{forecasts} and the data sets under {data}; each row tells why"
        )
    if not confirmed(checks):
        raise typer.Exit(1)


def _refuse_without(needed: str, **options: Any) -> None:
    """Options that mean nothing without another one."""
    given = [f"--{name}" for name, value in options.items() if value]
    if given:
        raise typer.BadParameter(f"{', '.join(given)} needs {needed}")
