"""What commands show: facts on standard output, progress and problems on standard error."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import log
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table
from typer import echo

from powerphase.errors import UnknownName
from powerphase.records.row_key import full_name

if TYPE_CHECKING:
    from powerphase.dataset.certificate import Certificate
    from powerphase.dataset.store import Store
    from powerphase.evaluation.recheck import Check
    from powerphase.models.framework.run import Header, RunFolder
    from powerphase.models.framework.training import Progress as TrainingProgress
    from powerphase.records.forecast_file import ForecastFile
    from powerphase.records.result import Result
    from powerphase.records.row_key import Failure
    from powerphase.report.sheet import Cell, Sheet

NAMED = 5
"""Series that failed are named up to this number; a row has all of them."""

IS_FOLLOWER = "TORCHELASTIC_RUN_ID" in os.environ and os.environ.get("RANK", "0") != "0"
"""Whether torchrun started this process next to one of rank zero, which prints."""

console = Console(highlight=False, markup=False, emoji=False, quiet=IS_FOLLOWER)
problems = Console(stderr=True, highlight=False, markup=False, emoji=False, soft_wrap=True)


def show_store(store: "Store") -> None:
    """Show the contents of a data set."""
    from powerphase.dataset.facts import store_facts

    _show(f"data set {store.path}", store_facts(store))


def show_sheets(
    format: str,
    sheets: Callable[[], Iterable["Sheet"]],
    as_csv: Callable[[], str] | None = None,
    as_json: Callable[[], str] | None = None,
) -> None:
    """Show tables in the given format; the other formats are not computed."""
    texts = {name: make for name, make in (("csv", as_csv), ("json", as_json)) if make}
    if format not in (known := ("table", "markdown", *texts)):
        raise UnknownName.among("format", format, known)
    if format in texts:
        echo(texts[format](), nl=False)
    elif format == "markdown":
        echo("\n".join(sheet.as_markdown() for sheet in sheets()), nl=False)
    else:
        for position, sheet in enumerate(sheets()):
            if position:
                console.print()
            console.print(sheet.as_table(console.width))


def show_checks(checks: "Sequence[Check]", format: str) -> None:
    """Show the outcome of rows that were scored again."""
    from powerphase.evaluation.recheck import DIGITS
    from powerphase.report.sheet import Sheet, as_csv

    def checks_as_csv() -> str:
        lines: list[tuple[Any, ...]] = [("row", "outcome", "why", "number", "old", "new")]
        for check in checks:
            start = (str(check.row.path), check.outcome, check.reason)
            lines += [(*start, d.name, d.old, d.new) for d in check.differences]
            lines += [start] * (not check.differences)
        return as_csv(lines)

    counts = Counter(check.outcome for check in checks)
    sheet = Sheet(
        title="rows scored again",
        header=("row", "outcome", "details"),
        groups=(tuple(_check_line(check) for check in checks),),
        above=f"{counts['matches']} match to {DIGITS} digits, {counts['differs']} differ, "
        f"{counts['refused']} are refused, {counts['unchecked']} could not be checked.",
        names=3,
    )
    show_sheets(format, lambda: [sheet], checks_as_csv)


def _check_line(check: "Check") -> "tuple[Cell, ...]":
    """A row, its outcome, and the first number that differs or why it was not checked."""
    details = check.reason
    if check.differences:
        first, *rest = check.differences
        details = f"{first.name} is {first.old!r} in the row and {first.new!r} when scored again"
        details += f"; {len(rest)} more differ" if rest else ""
    is_wrong = check.outcome in ("differs", "refused")
    return (str(check.row.path), False), (check.outcome, is_wrong), (details, False)


def show_forecast(file: "ForecastFile") -> None:
    """Show what a forecast is for, and what it cost."""
    h = file.header
    table = _facts(f"forecast {file.path}")
    table.add_row("model", _model(h.model, h.variant, h.seed))
    table.add_row("task", f"{h.task}, version {h.task_version}")
    table.add_row("data", f"{h.grid} {h.edition}, {h.n_channels:,} channels, {h.fingerprint}")
    table.add_row("windows", f"{len(h.windows)}, from {h.windows[0]} to {h.windows[-1]}")
    table.add_row(
        "scenarios", f"{h.scenarios} of {h.horizon} steps, from {h.context} steps of context"
    )
    _add_cost(table, file.cost)
    _add_failures(table, file.cost.get("failed"))
    console.print(table)


def show_result(row: "Result") -> None:
    """Show all scores of a row, with the question that each answers."""
    from powerphase.records.scores import SCORES
    from powerphase.report.sheet import number

    table = _facts(f"{_model(row.model, row.variant, row.seed)} on {row.grid} {row.edition}")
    table.add_row("task", f"{row.task}, version {row.task_version}, {len(row.windows)} windows")
    for name in sorted(row.scores, key=list(SCORES).index):  # in a file they are sorted by name
        shown = number(row.scores[name])
        table.add_row(SCORES[name].title, f"{shown:<10}  {SCORES[name].question}")
    _add_cost(table, row.cost)
    _add_failures(table, row.failed)
    console.print(table)


def show_failure(failure: "Failure") -> None:
    """Show why a cell of a bench has no row."""
    facts = [
        ("reason", failure.sentence),
        ("last lines", "\n".join(failure.last_lines)),
        ("when", f"{failure.date}, after {failure.seconds:.0f} s on {failure.hardware}"),
    ]
    title = f"failed: {failure.key.stem} on {failure.grid} {failure.edition}"
    _show(title, [fact for fact in facts if fact[1]])


def _add_cost(table: Table, cost: Mapping[str, Any]) -> None:
    units = {"train_s": "s to fit", "predict_s": "s to predict", "score_s": "s to score"}
    shown = [f"{cost[k]:.1f} {unit}" for k, unit in units.items() if cost.get(k) is not None]
    if cost.get("peak_memory_gib") is not None:
        shown.append(f"peak memory {cost['peak_memory_gib']:.1f} GiB")
    table.add_row("cost", f"{', '.join(shown)} on {cost['hardware']}")


def _add_failures(table: Table, failed: Mapping[str, Any] | None) -> None:
    """Say which series a model could not forecast, what they have instead, and why the first."""
    if failed is None:
        return
    windows = failed["series"].values()
    reasons = {name: reason for window in windows for name, reason in (window or {}).items()}
    unknown = sum(window is None for window in windows)
    if reasons:
        names = sorted(reasons)
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        shown = ", ".join(names[:NAMED]) + more
        table.add_row("failed", f"{len(names)} series, which have {failed['instead']}: {shown}")
        table.add_row("reason", f"of {names[0]}: {reasons[names[0]]}")
    if unknown:
        table.add_row("failed", f"unknown in {unknown} windows, forecast before an interruption")


def _model(model: str, variant: str | None, seed: int) -> str:
    name = full_name(model, variant)
    return f"{name}, seed {seed}" if seed else name


def show_run(run: "RunFolder") -> None:
    """Show a training: its state, parameters by part, configuration and validation curve."""
    from powerphase.models.framework.config_reader import restore_config
    from powerphase.models.framework.saved import check_outcome
    from powerphase.registry import model_class

    h, curve = run.header, run.curve()
    table = _facts(f"training {run.path}")
    kind = model_class(h.model)
    check_outcome(h, kind, str(run.path))
    variant = restore_config(kind.config_type, h.config).variant(h.domain.grid)
    table.add_row("model", _model(h.model, variant, h.seed))
    data = [f"{name} {str(value)[:12]}" for name, value in h.data.items() if name != "grid"]
    table.add_row("data", f"{h.domain.grid}, {h.domain.n_buses:,} buses; {', '.join(data)}")
    table.add_row("state", _state(h, curve))
    if run.weights_file.exists():
        table.add_row("parameters", _parameters(kind.fitted_tensors(run)))
    table.add_row("configuration", ", ".join(_flat(h.config)))
    if curve:
        name = next(name for name in curve[0] if name.startswith("validation_"))
        scores = [line[name] for line in curve]
        best = min(curve, key=lambda line: line[name])
        text = f"from {scores[0]:.5f} to {best[name]:.5f} after epoch {best['epoch']}"
        table.add_row(_criterion(name), f"{text}, learning rate {curve[-1]['learning_rate']:.1e}")
        table.add_row("", draw_curve(scores, 60))
    if h.outcome is not None:
        if "ets" in h.outcome:
            table.add_row("channels", _smoothing(h.outcome["ets"]))
        _add_cost(table, h.outcome)
    console.print(table)
    if h.outcome is not None and "factors" in h.outcome:
        _show_factors(h.outcome["factors"])


def _criterion(name: str) -> str:
    """The readable name of the validation score that a training minimises."""
    return {"validation_crps": "validation CRPS"}.get(name, name.replace("_", " "))


def _state(header: "Header", curve: Sequence[Mapping[str, Any]]) -> str:
    """Whether the training is finished, and after how many epochs if it has any."""
    if "training" not in header.config:
        return "UNFINISHED" if header.outcome is None else "finished"
    epochs = header.config["training"]["epochs"]
    if header.outcome is not None:
        return f"finished, {epochs} epochs"
    return f"UNFINISHED, {curve[-1]['epoch'] if curve else 0} of {epochs} epochs"


def _smoothing(facts: Mapping[str, Any]) -> str:
    """The smoothing parameters that ETS fitted, over all channels."""
    median = [
        f"{name} {'–' if value is None else format(value, '.3f')}"
        for name, value in facts["median"].items()
    ]
    bounds = [f"{name} {facts[f'{name}_at_bound']:,}" for name in facts["median"]]
    constant = f"{facts['constant']:,} constant, {facts['tiny']:,} nearly so"
    return f"{constant}; medians: {', '.join(median)}; at a bound: {', '.join(bounds)}"


def _show_factors(facts: Mapping[str, Any]) -> None:
    """Show what each factor follows and explains, and its share in the forecast error.

    Correlations are with the national signals over the training record.
    """
    if not facts["each"]:
        console.print("no factors: nothing in the record varies")
        return
    signals = list(facts["each"][0].get("follows", {}))
    table = Table("factor", "of variance", "persistence", "error", *signals, box=None)
    for number, fact in enumerate(facts["each"], start=1):
        numbers = (f"{fact['share']:.2%}", f"{fact['persistence']:.3f}", f"{fact['error']:.2f}")
        follows = (f"{fact['follows'][name]:+.2f}" for name in signals)
        table.add_row(str(number), *numbers, *follows)
    console.print(table)
    shares = [
        f"{name} {'–' if share is None else format(share, '.0%')}"
        for name, share in facts["shares"].items()
    ]
    console.print(
        "persistence: correlation with the previous step; error: of the forecast, in standard "
        f"deviations of the factor; {', '.join(signals) or 'signals'}: correlation"
    )
    console.print(
        f"share of the factors in the forecast error (the rest is noise): {', '.join(shares)}"
    )


def _parameters(tensors: Mapping[str, Any]) -> str:
    """The number of parameters, in total and in each part, largest first."""
    sizes: dict[str, int] = {}
    for name, tensor in tensors.items():
        *parts, last = name.split(".")
        part = ".".join(parts[: 2 if "bridge" in parts else 1]) or last
        sizes[part] = sizes.get(part, 0) + tensor.numel()
    ordered = sorted(sizes.items(), key=lambda item: (-item[1], item[0]))
    shown = ", ".join(f"{part} {size:,}" for part, size in ordered)
    return f"{sum(sizes.values()):,}: {shown}"


def _flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Every field by its dotted name."""
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name} {value}"


def draw_curve(values: Sequence[float], width: int) -> str:
    """A curve in one line of text, on a logarithmic scale if all values are positive.

    A loss that is the negative logarithm of a density may have any sign.
    """
    every = max(1, -(-len(values) // width))
    points = [min(values[k : k + every]) for k in range(0, len(values), every)]
    if min(points) > 0:
        points = [log(point) for point in points]
    low, span = min(points), (max(points) - min(points)) or 1.0
    return "".join(" ▁▂▃▄▅▆▇█"[1 + round(7 * (point - low) / span)] for point in points)


def show_certificate(certificate: "Certificate") -> None:
    """Show the certificate of a data set."""
    from powerphase.dataset.facts import certificate_facts

    _show("certificate", certificate_facts(certificate))


def _show(title: str, facts: Sequence[tuple[str, str]]) -> None:
    table = _facts(title)
    for label, text in facts:
        table.add_row(label, text)
    console.print(table)


def _facts(title: str) -> Table:
    table = Table(title=title, show_header=False, title_justify="left", box=None)
    table.add_column(style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    return table


@contextmanager
def progress(label: str, amount: ProgressColumn) -> Iterator[Callable[[int, int], None]]:
    """Show a progress bar on standard error; yields a function of (done, total)."""
    with _bar(amount) as bar:
        task = bar.add_task(
            label, total=None, visible=False
        )  # hidden until there is progress, so that an early error stands alone
        yield lambda done, total: bar.update(task, completed=done, total=total, visible=True)


@contextmanager
def training_progress(label: str) -> Iterator[Callable[["TrainingProgress"], None]]:
    """Show the progress of a training, with the last epoch's loss and validation score."""
    with _bar(MofNCompleteColumn()) as bar:
        task = bar.add_task(f"{label} steps", total=None, visible=False)

        def report(now: "TrainingProgress") -> None:
            text = f"{label} steps"
            if now.loss is not None:
                score = f"{_criterion(f'validation_{now.criterion}')} {now.validation:.5f}"
                text = f"{label}: loss {now.loss:.5f}, {score}"
            bar.update(task, completed=now.step, total=now.steps, description=text, visible=True)

        yield report


def _bar(amount: ProgressColumn) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), amount)
    times = (TimeElapsedColumn(), TimeRemainingColumn())
    return Progress(*columns, *times, console=problems, disable=IS_FOLLOWER)
