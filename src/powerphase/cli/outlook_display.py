"""What the command shows of the day after a record: the buses that may leave their band."""

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

HEADER = ("bus", "kV", "chance", "hours", "riskiest", "then", "side", "80 % then [p.u.]")
COLUMNS = (
    *("bus", "nominal_kv", "chance", "hours_outside"),
    *("riskiest_time_utc", "chance_then", "side_then", "low_80_pu", "high_80_pu"),
)

READING = (
    "Chance is that of leaving the band at any time, hours what it is expected to be outside; then "
    "come the time at which this is likeliest (UTC), how likely it is then, on which side, and "
    "where the central 80 % lie. Chances are weights of scenarios, of which there are {n}: nothing "
    "rarer than the lightest can be seen."
)


def show_outlook(ask: "Callable[[], Outlook]", n_buses: int, format: str) -> None:
    """The likeliest buses as a table, or all of them as CSV; nothing is asked for in vain."""
    show_sheets(format, lambda: [sheet(ask(), n_buses)], lambda: as_csv(ask()))


def sheet(outlook: "Outlook", n_buses: int) -> Sheet:
    """The buses that may leave the band, so many of them at most, the likeliest first."""
    changing = [int(k) for k in outlook.order if outlook.ever[k] > 0 and not outlook.always[k]]
    outside = [str(number) for number in outlook.layout.bus_id[outlook.always]]
    below = [READING.format(n=outlook.n_scenarios)] if changing else []
    if outside:
        below.append(f"Outside all day in every scenario: bus {', '.join(outside)}.")
    if len(changing) > n_buses:
        below.append(f"The likeliest {n_buses} are shown; csv has all.")
    day, made_by = f"{_minute(outlook.time[0]):.10}", outlook.description
    name = full_name(made_by.model, made_by.variant)
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
        return f"None of {n_buses} leaves {band} in any scenario. {_nearest(outlook)}"
    always = f" {n_outside:,} are outside all day." if n_outside else ""
    return f"{n_changing:,} of {n_buses} may leave {band}{always}"


def _nearest(outlook: "Outlook") -> str:
    """Of buses that all stay within the band, the one with the least room."""
    number, *_, time, _, _, low, high = _facts(outlook, int(outlook.order[0]))
    return (
        f"Nearest to a limit is bus {number}, whose central 80 % lie from {low:.3f} to "
        f"{high:.3f} p.u. at {time.partition('T')[2]} UTC."
    )


def _minute(time: np.datetime64) -> str:
    return str(time.astype("datetime64[m]"))


def as_csv(outlook: "Outlook") -> str:
    """Every bus, the likeliest first."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows(_facts(outlook, int(bus)) for bus in outlook.order)
    return text.getvalue()


def _line(outlook: "Outlook", bus: int) -> tuple[Cell, ...]:
    number, kv, chance, hours, time, then, side, low, high = _facts(outlook, bus)
    texts = (
        *(str(number), f"{kv:g}" if kv else MISSING, _share(chance), f"{hours:.1f}"),
        *(time.partition("T")[2], _share(then), side, f"{low:.3f} to {high:.3f}"),
    )
    return tuple((text, False) for text in texts)


def _share(chance: float) -> str:
    """In whole percent; what is neither impossible nor certain does not look so."""
    if 0 < chance < 0.005:
        return "<1%"
    return ">99%" if 0.995 <= chance < 1 else f"{chance:.0%}"


def _facts(outlook: "Outlook", bus: int) -> tuple[Any, ...]:
    """One bus, in the order of the columns."""
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
    )
