"""What `powerphase tomorrow` shows: the buses that may leave the voltage band."""

import csv
from collections.abc import Callable
from io import StringIO
from typing import TYPE_CHECKING, Any

import numpy as np

from powerphase.cli.display import show_sheets
from powerphase.records.row_key import full_name
from powerphase.report.sheet import MISSING, Cell, Sheet

if TYPE_CHECKING:
    from powerphase.evaluation.outlook import Outlook

HEADER = ("bus", "kV", "chance", "hours", "riskiest", "chance then", "side", "80 % then [p.u.]")
COLUMNS = (
    *("bus", "nominal_kv", "chance", "hours_outside"),
    *("riskiest_time_utc", "chance_then", "side_then", "low_80_pu", "high_80_pu", "joint"),
)

EXPLANATION = (
    "chance: probability of leaving the band at any time of the day; hours: expected time outside; "
    "riskiest: the time (UTC) at which the bus is most likely outside, with the probability, the "
    "side and the central 80 % at that time. Probabilities are the weights of {n} scenarios, "
    "so rarer events than the lightest scenario do not appear."
)
MARGINAL = (
    "{model} forecasts every step by itself, not whole days: the chance of leaving the band at any "
    "time is at least (≥) that of the worst step, and may be much higher. factorforge forecasts "
    "whole days."
)
UNKNOWN = (
    "{model} does not state whether each of its scenarios is one future of the whole grid "
    "(`joint_scenarios`); if not, chance is too low."
)
NOTES = {True: (), False: (MARGINAL,), None: (UNKNOWN,)}
"""What to say about chance, by whether the scenarios are joint."""


def show_outlook(make: "Callable[[], Outlook]", n_buses: int, format: str) -> None:
    """Show the buses most at risk as a table, or all of them as CSV.

    The outlook is made after the format is checked.
    """
    show_sheets(format, lambda: [sheet(make(), n_buses)], lambda: as_csv(make()))


def sheet(outlook: "Outlook", n_buses: int) -> Sheet:
    """At most `n_buses` buses that may leave the band, the most likely first."""
    changing = [int(k) for k in outlook.order if outlook.ever[k] > 0 and not outlook.always[k]]
    outside = [str(number) for number in outlook.layout.bus_id[outlook.always]]
    name = full_name(outlook.description.model, outlook.description.variant)
    texts = (EXPLANATION, *NOTES[outlook.description.joint])
    below = [text.format(n=outlook.n_scenarios, model=name) for text in texts if changing]
    if outside:
        below.append(f"Outside all day in every scenario: bus {', '.join(outside)}.")
    if len(changing) > n_buses:
        below.append(f"Only the {n_buses} most likely are shown; --format csv lists all.")
    day = f"{_minute(outlook.time[0]):.10}"
    return Sheet(
        title=f"{outlook.layout.grid} on {day}, by {name}",
        header=HEADER,
        groups=(tuple(_line(outlook, bus) for bus in changing[:n_buses]),),
        above=_summary(outlook, len(changing), len(outside)),
        below=tuple(below),
        dispensable=("kV", "80 % then [p.u.]"),
    )


def _summary(outlook: "Outlook", n_changing: int, n_outside: int) -> str:
    low, high = outlook.band_pu
    band, n_buses = f"{low:g} to {high:g} p.u.", f"{outlook.layout.n_buses:,} buses"
    if n_changing + n_outside == 0:
        return f"No bus of {n_buses} leaves {band} in any scenario. {_nearest(outlook)}"
    always = f"; {n_outside:,} are outside all day." if n_outside else ""
    return f"{n_changing:,} of {n_buses} may leave {band}{always}"  # p.u. ends with a full stop


def _nearest(outlook: "Outlook") -> str:
    """The bus with the smallest margin, if all stay within the band."""
    number, *_, time, _, _, low, high, _ = _facts(outlook, int(outlook.order[0]))
    return (
        f"Bus {number} comes nearest to a limit: its central 80 % lie from {low:.3f} to "
        f"{high:.3f} p.u. at {time.partition('T')[2]} UTC."
    )


def _minute(time: np.datetime64) -> str:
    return str(time.astype("datetime64[m]"))


def as_csv(outlook: "Outlook") -> str:
    """Every bus, the most likely to leave the band first."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_facts(outlook, int(bus)) for bus in outlook.order)
    return text.getvalue()


def _line(outlook: "Outlook", bus: int) -> tuple[Cell, ...]:
    number, kv, chance, hours, time, then, side, low, high, joint = _facts(outlook, bus)
    least = "≥ " if joint == "no" and chance < 1 else ""
    texts = (
        *(str(number), f"{kv:g}" if kv else MISSING, least + _share(chance), f"{hours:.1f}"),
        *(time.partition("T")[2], _share(then), side, f"{low:.3f} to {high:.3f}"),
    )
    return tuple((text, False) for text in texts)


def _share(chance: float) -> str:
    """The probability in whole percent; only 0 and 1 are shown as 0% and 100%."""
    if 0 < chance < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= chance < 1 else f"{chance:.0%}"


def _facts(outlook: "Outlook", bus: int) -> tuple[Any, ...]:
    """The values of one bus, in the order of the columns."""
    step = outlook.riskiest_step[bus]
    below, above = float(outlook.below[step, bus]), float(outlook.above[step, bus])
    side = "" if below + above == 0 else "below" if below >= above else "above"
    interval = (round(float(part[step, bus]), 5) for part in (outlook.low, outlook.high))
    return (
        int(outlook.layout.bus_id[bus]),
        float(outlook.layout.nominal_kv[bus]),
        round(float(outlook.ever[bus]), 5),
        round(float(outlook.hours[bus]), 3),
        _minute(outlook.time[step]),
        round(below + above, 5),
        side,
        *interval,
        {True: "yes", False: "no", None: "unknown"}[outlook.description.joint],
    )
