"""The numbers of the page about exports: what a two-stage dispatch costs with which scenarios."""

from functools import cache
from typing import Any

from docs.measurements import measured

TITLES = {
    "climatology": "climatology+ranked-physical",
    "factorforge": "factorforge+ranked-physical",
    "actual": "perfect foresight",
}


@cache
def dispatch_bills(scenarios: str) -> list[dict[str, Any]]:
    """The bills of all days with these scenarios."""
    return [bill for bill in measured("dispatch")["bills"] if bill["scenarios"] == scenarios]


def dispatch_facts() -> dict[str, Any]:
    """Which grid, data and number of scenarios."""
    return {name: value for name, value in measured("dispatch").items() if name != "bills"}


def dispatch_days() -> list[str]:
    """The days."""
    return [str(bill["day"]) for bill in dispatch_bills("actual")]


def dispatch_mean(scenarios: str, part: str) -> float:
    """The mean of a part of the bills."""
    bills = dispatch_bills(scenarios)
    return float(sum(bill[part] for bill in bills) / len(bills))


def dispatch_regrets(scenarios: str) -> list[float]:
    """What each day cost more than with perfect foresight."""
    pairs = zip(dispatch_bills(scenarios), dispatch_bills("actual"), strict=True)
    return [float(bill["cost"] - best["cost"]) for bill, best in pairs]


def dispatch_regret(scenarios: str) -> float:
    """The mean regret."""
    return dispatch_mean(scenarios, "cost") - dispatch_mean("actual", "cost")


def dispatch_saving() -> float:
    """The share of the bill that FactorForge's scenarios save."""
    return 1 - dispatch_mean("factorforge", "cost") / dispatch_mean("climatology", "cost")


def dispatch_regret_share() -> float:
    """FactorForge's mean regret as a share of climatology's."""
    return dispatch_regret("factorforge") / dispatch_regret("climatology")


def dispatch_extra_mw() -> float:
    """How much more capacity is committed with FactorForge's scenarios."""
    return dispatch_mean("factorforge", "committed_mw") - dispatch_mean(
        "climatology", "committed_mw"
    )


def dispatch_better_days() -> int:
    """On how many days FactorForge's scenarios cost less than climatology's."""
    pairs = zip(dispatch_regrets("factorforge"), dispatch_regrets("climatology"), strict=True)
    return sum(ours < theirs for ours, theirs in pairs)


def dispatch_lines() -> list[str]:
    """The lines of the table of means."""
    parts = ("committed_mw", "fuel", "emergency_mwh")
    lines = []
    for name, title in TITLES.items():
        numbers = [dispatch_mean(name, "cost"), dispatch_regret(name)]
        numbers += [dispatch_mean(name, part) for part in parts]
        cells = [f"{number:,.0f}" for number in numbers[:-1]] + [f"{numbers[-1]:,.1f}"]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


def dispatch_day_lines() -> list[str]:
    """The lines of the table of days."""
    lines = []
    for number, day in enumerate(dispatch_days()):
        cells = [day]
        for name in ("climatology", "factorforge"):
            emergency = dispatch_bills(name)[number]["emergency_mwh"]
            cells += [f"{dispatch_regrets(name)[number]:,.0f}", f"{emergency:,.1f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return lines
