"""What `powerphase tomorrow` shows: the buses and the lines that may violate their limits."""

import csv
import json
from collections.abc import Callable, Iterator
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from powerphase.cli.display import problems, show_sheets
from powerphase.errors import ForecastError, TaskError, UnknownName
from powerphase.evaluation.coupling import RANKED, SCHAAKE
from powerphase.files import disk_errors, replace_file
from powerphase.records.row_key import full_name
from powerphase.report.sheet import MISSING, Cell, Sheet

if TYPE_CHECKING:
    from powerphase.evaluation.outlook import DayRisk, Outlook

FORMATS = ("table", "markdown", "csv", "json")
RISK_STATUS = 3
"""The exit status when a chance is above `--fail-above`; 1 is an error, 2 a wrong option."""

BUS_HEADER = (
    *("bus", "kV", "chance", "hours", "riskiest", "chance then"),
    *("below", "above", "80 % then [p.u.]"),
)
LINE_HEADER = (
    *("line", "MVA", "chance", "hours", "riskiest", "chance then", "loading then"),
    "worst (scenario)",
)

BUS_NOTE = (
    "chance: probability of leaving the band at any time of the day; hours: expected time outside; "
    "riskiest: the time (UTC) at which the bus is most likely outside, with the probability and "
    "the central 80 % at that time; below and above: the chance of leaving on that side at any "
    "time. Probabilities are the weights of {n} scenarios, so rarer events than the lightest "
    "scenario do not appear. {states}"
)
JOINT = "Each is one future of the whole grid{solved}."
SOLVED = ", whose power flow was solved"
UNKNOWN = (
    "{model} does not state whether each is one future of the whole grid (`joint_scenarios`); if "
    "not, chance is too low. Voltages are as forecast."
)
STATES = {True: JOINT, None: UNKNOWN}
"""What is said of scenarios by whether they are joint; marginal ones were coupled."""
COUPLED = "+{coupling}: the quantiles of every channel, in the rank order of {template}."
TEMPLATES = {RANKED: "joint draws", SCHAAKE: "past days"}
LINE_NOTE = (
    "A line is overloaded if its loading, |S| at the worse end as a share of the rating, is above "
    "100%, once the power flow of every scenario and step is solved. chance, hours and riskiest "
    "are as for buses; loading then: its expected value at the riskiest time; worst: the highest "
    "loading of the day, and the number of its scenario, from 0."
)


def show_outlook(
    make: "Callable[[], Outlook]", n_rows: int, format: str, fail_above: float | None = None
) -> bool:
    """Show what is most at risk as a table, or everything as CSV or JSON.

    The outlook is made after the options are checked. Returns whether the command should fail.
    """
    if format not in FORMATS:
        raise UnknownName.among("format", format, FORMATS)
    if fail_above is not None and not 0 <= fail_above <= 1:
        raise TaskError(f"--fail-above must be a probability from 0 to 1, got {fail_above:g}")
    outlook = make()
    texts = (lambda: as_csv(outlook), lambda: as_json(outlook))
    show_sheets(format, lambda: sheets(outlook, n_rows), *texts)
    return fail_above is not None and _warn(outlook, fail_above)


def write_outlook(outlook: "Outlook", file: Path) -> None:
    """Write all rows as JSON, whole or not at all."""
    with disk_errors(file, ForecastError):
        replace_file(file, as_json(outlook).encode())


def _warn(outlook: "Outlook", fail_above: float) -> bool:
    """Say on standard error whose chance is above the limit, or unknown; whether there is any."""
    risky = [row for row in outlook.rows if row["chance"] is None or row["chance"] > fail_above]
    if risky:
        names = ", ".join(f"{row['kind']} {row['name']}" for row in risky[:3])
        more = f" and {len(risky) - 3:,} more" if len(risky) > 3 else ""
        problems.print(
            f"powerphase: the chance of a violation is above {fail_above:g}, or unknown, at "
            f"{names}{more}"
        )
    return bool(risky)


def as_json(outlook: "Outlook") -> str:
    """All rows, and what they have in common."""
    lines = outlook.lines
    facts = {
        "model": _name(outlook),
        "grid": outlook.layout.grid,
        "day": _day(outlook),
        "limits": outlook.limits,
        "rating": outlook.rating,
        "scenarios": outlook.n_scenarios,
        "unsolved_scenarios": lines.n_unsolved,
        "backed_off_steps": lines.n_backed_off,
        "unrated_lines": outlook.n_unrated,
        "rows": outlook.rows,
    }
    return json.dumps(facts, indent=1, allow_nan=False) + "\n"


def as_csv(outlook: "Outlook") -> str:
    """All rows; what a row does not have is empty."""
    text = StringIO()
    writer = csv.DictWriter(text, list(outlook.rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(outlook.rows)
    return text.getvalue()


def sheets(outlook: "Outlook", n_rows: int) -> Iterator[Sheet]:
    """The buses, and the lines if any is rated, that may violate their limits."""
    yield _sheet(outlook, "bus", BUS_HEADER, ("kV", "80 % then [p.u.]"), n_rows)
    if len(outlook.lines.branch):
        yield _sheet(outlook, "line", LINE_HEADER, ("MVA",), n_rows)


def _sheet(
    outlook: "Outlook", kind: str, header: tuple[str, ...], dispensable: tuple[str, ...], n: int
) -> Sheet:
    """At most `n` buses or lines that may violate their limits, the most likely first."""
    risk: DayRisk = outlook.buses if kind == "bus" else outlook.lines
    rows = [row for row in outlook.rows if row["kind"] == kind]
    pairs = list(zip(rows, risk.always[risk.order], strict=True))
    always = [row["name"] for row, is_always in pairs if is_always]
    changing = [row for row, is_always in pairs if row["chance"] and not is_always]
    below = [*_notes(outlook, kind, bool(changing))]
    if always:
        state = "Outside" if kind == "bus" else "Overloaded"
        below.append(f"{state} all day in every scenario: {kind} {', '.join(always)}.")
    if len(changing) > n:
        below.append(f"Only the {n} most likely are shown; --format csv or json lists all.")
    cells = _bus_cells if kind == "bus" else _line_cells
    plural = "buses" if kind == "bus" else "lines"
    return Sheet(
        title=f"{outlook.layout.grid} on {_day(outlook)}, by {_name(outlook)}: {plural}",
        header=header,
        groups=(tuple(_cells(cells(row)) for row in changing[:n]),),
        above=_summary(outlook, kind, rows, len(changing), len(always)),
        below=tuple(below),
        dispensable=dispensable,
    )


def _notes(outlook: "Outlook", kind: str, is_risky: bool) -> Iterator[str]:
    """The explanations that the table needs."""
    lines = outlook.lines
    if is_risky:
        yield _explanation(outlook) if kind == "bus" else LINE_NOTE
    if not outlook.layout.circuit.n_branches:
        yield "The record was imported without a grid: overloads are unknown."
    elif not len(lines.branch):
        yield f"The grid's {outlook.n_unrated:,} lines have no rating: overloads are unknown."
    if kind == "bus":
        return
    if lines.n_unsolved:
        yield (
            f"{lines.n_unsolved} of {outlook.n_scenarios} scenarios are left out, because a step "
            "has no power flow."
        )
    if lines.n_backed_off:
        yield f"{lines.n_backed_off:,} steps have a power flow only with less power."


def _explanation(outlook: "Outlook") -> str:
    """What the columns of buses mean, and which scenarios they are read from."""
    solved = SOLVED if outlook.layout.circuit.n_branches else ""
    states = STATES[outlook.description.joint].format(model=_name(outlook), solved=solved)
    words = (outlook.description.variant or "").split("-")
    coupled = [
        COUPLED.format(coupling=word, template=TEMPLATES[word])
        for word in words
        if word in TEMPLATES
    ]
    return BUS_NOTE.format(n=outlook.n_scenarios, states=" ".join([states, *coupled]))


def _summary(
    outlook: "Outlook", kind: str, rows: list[dict[str, Any]], n_changing: int, n_always: int
) -> str:
    total = f"{len(rows):,} {'buses' if kind == 'bus' else 'rated lines'}"
    limit = _band(outlook) if kind == "bus" else f"rating {outlook.rating.upper()}"
    verb = "leave" if kind == "bus" else "exceed"
    if rows[0]["chance"] is None:
        return f"The loading of {total} is unknown: no scenario has a power flow in all steps."
    if n_changing + n_always == 0:
        calm = _sentence(f"No {kind} of {total} may {verb} {limit}")
        return f"{calm} {_nearest(kind, rows[0])}"
    state = "outside" if kind == "bus" else "overloaded"
    always = f"; {n_always:,} are {state} all day." if n_always else ""
    text = _sentence(f"{n_changing:,} of {total} may {verb} {limit}{always}")
    if kind == "line" and outlook.n_unrated:
        text += f" {outlook.n_unrated:,} more lines have no rating."
    return text


def _band(outlook: "Outlook") -> str:
    """The voltage limits in words."""
    limits = outlook.layout.limits
    if np.ptp(limits.v_min_pu) or np.ptp(limits.v_max_pu):
        return "their voltage limits in the case file"
    return f"{limits.v_min_pu[0]:g} to {limits.v_max_pu[0]:g} p.u."


def _sentence(text: str) -> str:
    """The text with a full stop, which p.u. may have brought."""
    return text if text.endswith(".") else f"{text}."


def _nearest(kind: str, row: dict[str, Any]) -> str:
    """What comes nearest to a limit, if none is violated."""
    time = row["riskiest_time_utc"].partition("T")[2]
    if kind == "line":
        return (
            f"Line {row['name']} comes nearest: its expected loading is "
            f"{row['loading_then']:.0%} at {time} UTC."
        )
    return (
        f"Bus {row['name']} comes nearest to a limit: its central 80 % lie from "
        f"{row['low_80_pu_then']:.3f} to {row['high_80_pu_then']:.3f} p.u. at {time} UTC."
    )


def _name(outlook: "Outlook") -> str:
    return full_name(outlook.description.model, outlook.description.variant)


def _day(outlook: "Outlook") -> str:
    return str(outlook.time[0].astype("datetime64[D]"))


def _cells(texts: tuple[str, ...]) -> tuple[Cell, ...]:
    return tuple((text, False) for text in texts)


def _bus_cells(row: dict[str, Any]) -> tuple[str, ...]:
    kv = f"{row['nominal_kv']:g}" if row["nominal_kv"] else MISSING
    interval = f"{row['low_80_pu_then']:.3f} to {row['high_80_pu_then']:.3f}"
    sides = (_share(row["chance_below"]), _share(row["chance_above"]))
    return (row["name"], kv, *_risk(row), *sides, interval)


def _line_cells(row: dict[str, Any]) -> tuple[str, ...]:
    worst = f"{row['worst_loading']:.0%} ({row['worst_scenario']})"
    loadings = (f"{row['loading_then']:.0%}", worst)
    return (row["name"], f"{row['rating_mva']:g}", *_risk(row), *loadings)


def _risk(row: dict[str, Any]) -> tuple[str, ...]:
    """The cells that buses and lines have in common."""
    time = row["riskiest_time_utc"].partition("T")[2]
    return (_share(row["chance"]), f"{row['hours']:.1f}", time, _share(row["chance_then"]))


def _share(chance: float) -> str:
    """The probability in whole percent; only 0 and 1 are shown as 0% and 100%."""
    if 0 < chance < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= chance < 1 else f"{chance:.0%}"
