"""Commands that read rows: leaderboard, table, compare, safety, figure and report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import MofNCompleteColumn

from powerphase.cli.data import verify_store
from powerphase.cli.display import console, problems, progress, show_checks, show_sheets
from powerphase.cli.options import Edition, Format, Results, result_paths, split_list
from powerphase.errors import UnknownName
from powerphase.records.scores import GROUPS

if TYPE_CHECKING:
    from powerphase.records.result import Result

FIGURES = (
    *("archetypes", "voltages", "bus-safety", "safety-fidelity", "reliability"),
    *("lines", "curves"),
)
"""The names in `report.figures`, which is slow to load; a test checks that they agree."""


def leaderboard(
    results: Results = None,
    format: Format = "table",
    grid: Annotated[str | None, typer.Option(help="Show one grid.")] = None,
    group: Annotated[
        str | None,
        typer.Option(
            help=f"Show all scores of a group: {', '.join(GROUPS)}.", show_default="the usual"
        ),
    ] = None,
    sort: Annotated[
        str | None,
        typer.Option(
            help="Score that orders the table, or rank.",
            show_default="crps, or the first of the group",
        ),
    ] = None,
    paper: Annotated[bool, typer.Option(help="Also show the paper's numbers.")] = True,
    statistics: Annotated[
        bool,
        typer.Option("--statistics", help="Show skill, and which differences are more than noise."),
    ] = False,
    against: Annotated[
        str | None,
        typer.Option(help="With --statistics: model to compare against.", show_default="the best"),
    ] = None,
    pairs: Annotated[
        bool, typer.Option("--pairs", help="With --statistics: compare every pair of models.")
    ] = False,
    score: Annotated[
        list[str] | None, typer.Option(help="With --statistics: only this score; can be repeated.")
    ] = None,
    recompute: Annotated[
        bool,
        typer.Option(
            "--recompute",
            help="Score forecast files again; exit with 0 if rows were confirmed and none differs.",
        ),
    ] = False,
    forecasts: Annotated[
        Path | None, typer.Option(help="With --recompute: folder of forecast files.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="With --recompute: folder of data sets.")
    ] = None,
) -> None:
    """Show the scores of all forecasters, grid by grid, in order of CRPS.

    With --group, show other scores, such as those of lines. With --statistics, show which
    differences are more than noise. With --recompute, score the available forecast files again and
    report which rows still match.

    Example: `powerphase leaderboard results --format markdown`
    """
    from powerphase.records.result import find_results
    from powerphase.records.row_key import read_failures
    from powerphase.report import boards as board_tables
    from powerphase.report import standing_tables
    from powerphase.report.entries import ordering_score, orders_forecasts

    rows, failures = find_results(result_paths(results)), read_failures(result_paths(results))
    if grid is not None:
        grids = {row.grid for row in rows.values()} | {failure.grid for failure in failures}
        if grid not in grids:
            raise UnknownName.among("row on grid", grid, grids)
        rows = {path: row for path, row in rows.items() if row.grid == grid}
        failures = [failure for failure in failures if failure.grid == grid]
    if sort is not None and (recompute or statistics):
        raise typer.BadParameter("--sort cannot be combined with --statistics or --recompute")
    if recompute:
        if statistics or group:
            raise typer.BadParameter("--recompute cannot be combined with --statistics or --group")
        _recompute(rows, forecasts, data, format)
        return
    _require("--recompute", forecasts=forecasts, data=data)
    chosen = board_tables.scores_of(group) if group else ()
    first = chosen[0] if chosen else "crps"
    boards = board_tables.leaderboard(list(rows.values()), paper, failures, sort or first)
    noted = [failure for board in boards for failure in board.failures]
    for failure in failures:
        if failure not in noted:  # on a grid without any row
            problems.print(f"no row: {failure.path}: {failure.sentence}")
    if not statistics:
        _require("--statistics", against=against, pairs=pairs, score=score)
        show_sheets(
            format,
            lambda: (board_tables.board_sheet(board, group) for board in boards),
            lambda: board_tables.boards_as_csv(boards),
        )
        return
    standing_tables.check_other(boards, against)
    tested = tuple(filter(orders_forecasts, chosen)) or standing_tables.TESTED
    scores = tuple(map(ordering_score, score)) if score else tested
    if pairs:
        show_sheets(
            format,
            lambda: standing_tables.pairs_sheets(boards, scores),
            lambda: standing_tables.pairs_as_csv(boards, scores),
        )
    else:
        show_sheets(
            format,
            lambda: standing_tables.standings_sheets(boards, scores, against),
            lambda: standing_tables.standings_as_csv(boards, scores, against),
        )


def table(
    results: Results = None,
    score: Annotated[
        str, typer.Option(help="The score to show; `powerphase info ROW` lists all.")
    ] = "crps",
    paper: Annotated[bool, typer.Option(help="Also show the paper's numbers.")] = True,
    format: Annotated[str, typer.Option(help="table or markdown.")] = "table",
) -> None:
    """Show one score of every forecaster on every grid.

    Example: `powerphase table results --score twcrps`
    """
    from powerphase.records.result import read_results
    from powerphase.report.boards import leaderboard as make_boards
    from powerphase.report.compact_tables import compact_sheets

    boards = make_boards(read_results(result_paths(results)), paper)
    show_sheets(format, lambda: compact_sheets(boards, score))


def compare(
    model: Annotated[str, typer.Argument(help="A model of the paper, or all.")],
    results: Results = None,
    edition: Edition = None,
    format: Annotated[str, typer.Option(help="table or markdown.")] = "table",
) -> None:
    """Compare a model, and its ablation if scored, with the paper's numbers, grid by grid.

    Example: `powerphase compare powerforge results --format markdown`

    All models in one table, and how far the two rankings agree: `powerphase compare all`
    """
    from powerphase.records.result import read_results
    from powerphase.report.comparison import compare as compare_with_paper
    from powerphase.report.comparison import comparison_sheets, overview_sheets

    rows = read_results(result_paths(results))
    if model == "all":
        show_sheets(format, lambda: overview_sheets(rows, edition))
    else:
        show_sheets(format, lambda: comparison_sheets(compare_with_paper(rows, model, edition)))


def safety(
    results: Results = None,
    grid: Annotated[str | None, typer.Option(help="Show one grid, bus by bus.")] = None,
    edition: Edition = None,
    format: Format = "table",
) -> None:
    """Show whether fidelity and safety rank forecasters alike, and which buses are hard.

    Example: `powerphase safety results --grid polish2383`
    """
    from powerphase.records.result import find_results
    from powerphase.report import safety_tables

    grids = safety_tables.safety(find_results(result_paths(results)), edition, grid)
    show_sheets(
        format,
        lambda: safety_tables.safety_sheets(grids),
        lambda: safety_tables.safety_as_csv(grids),
    )


def figure(
    name: Annotated[str, typer.Argument(help=f"One of {', '.join(FIGURES)}.")],
    grid: Annotated[
        str | None, typer.Option(help="Grid to draw.", show_default="polish2383")
    ] = None,
    models: Annotated[str | None, typer.Option(help="Models to draw, separated by commas.")] = None,
    seed: Annotated[
        int | None, typer.Option(help="Seed of the rows, for models with several.")
    ] = None,
    bus: Annotated[int | None, typer.Option(help="For voltages: bus number.")] = None,
    score: Annotated[
        str | None, typer.Option(help="For safety-fidelity: score on the safety axis.")
    ] = None,
    signals: Annotated[
        str | None, typer.Option(help="For archetypes: synthetic, opsd, or a file.")
    ] = None,
    edition: Edition = None,
    results: Annotated[Path, typer.Option(help="Folder of results.")] = Path("results"),
    out: Annotated[Path, typer.Option(help="Folder for the files.")] = Path("figures"),
    format: Annotated[str, typer.Option(help="File formats, separated by commas.")] = "pdf,svg,png",
) -> None:
    """Draw a figure of the paper from existing rows, as PDF, SVG and PNG.

    Example: `powerphase figure voltages --grid polish2383 --models powerforge,factorforge`
    """
    from powerphase.report.figures import FigureOptions, draw_figure, write_figure

    named = split_list(models) if models else None
    drawn = draw_figure(
        name, FigureOptions((results,), edition, grid, named, seed, bus, score, signals)
    )
    files = write_figure(drawn, out, split_list(format) or [format])  # an empty list raises
    for note in drawn.notes:
        console.print(note, soft_wrap=True)
    console.print(f"written to {', '.join(map(str, files))}", soft_wrap=True)


def report(
    results: Results = None,
    out: Annotated[Path, typer.Option(help="Folder for the site.")] = Path("site"),
    data: Annotated[
        list[str] | None, typer.Option(help="A data set of the rows; can be repeated.")
    ] = None,
    forecasts: Annotated[
        list[Path] | None,
        typer.Option(help="A forecast file, to show every bus; can be repeated."),
    ] = None,
    variables: Annotated[
        str,
        typer.Option(help="Variables of forecast files to show: some of P,Q,V,theta."),
    ] = "V",
    verify: Annotated[
        bool, typer.Option("--verify", help="Verify the data sets and show their certificates.")
    ] = False,
) -> None:
    """Write a site with scores, forecasts, safety, grid and data, which needs no server.

    Example: `powerphase report results --data data/activsg500 --out site`
    """
    from powerphase.report.site.build import build_site

    stores = data or []
    certificates = {store: verify_store(store) for store in stores if verify}
    with progress("boards", MofNCompleteColumn()) as on_progress:
        site = build_site(
            result_paths(results),
            out,
            data=stores,
            forecasts=forecasts or [],
            variables=split_list(variables) or [variables],  # an empty list raises
            certificates=certificates,
            on_progress=on_progress,
        )
    size = f"{len(site.sizes)} files, {site.bytes / 1e6:.1f} MB"
    console.print(f"{size}; open {site.index.resolve()}", soft_wrap=True)


def _recompute(
    rows: "dict[Path, Result]", forecasts: Path | None, data: Path | None, format: str
) -> None:
    """Score the available forecast files again, and show the outcome of every row."""
    from powerphase.evaluation.recheck import is_confirmed, nothing_checked, recheck_rows

    if forecasts is None or data is None:
        raise typer.BadParameter("--recompute needs --forecasts and --data")
    checks = []
    with progress("rows", MofNCompleteColumn()) as report:
        for check in recheck_rows(rows, forecasts, data):
            checks.append(check)
            report(len(checks), len(rows))
    show_checks(checks, format)
    if nothing_checked(checks):
        problems.print(
            f"NOTHING WAS CHECKED: no forecast in {forecasts} with a data set in {data} belongs to "
            f"any of the {len(checks)} rows; the table gives the reason for each"
        )
    if not is_confirmed(checks):
        raise typer.Exit(1)


def _require(needed: str, **options: Any) -> None:
    """Raise if any of these options is given without the one that it needs."""
    names = [f"--{name}" for name, value in options.items() if value]
    if names:
        raise typer.BadParameter(f"{', '.join(names)} needs {needed}")
