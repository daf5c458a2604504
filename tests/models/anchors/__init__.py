"""Shared by the tests of the anchors: a small grid with hidden signals."""

from functools import cache
from typing import Any

from powerphase.scenarios import Context, Training
from tests.models.factorforge import World, training_of, windows_of

DAY = 96
WORLD = World()


@cache
def training(n_days: int = 60, context: int = 2 * DAY, horizon: int = DAY) -> Training:
    """The first days of the small grid."""
    return training_of(WORLD.states(n_days, seed=1), context, horizon)


@cache
def windows(n_days: int = 12, context: int = 2 * DAY, horizon: int = DAY) -> Any:
    """Windows of another history of the grid, and their targets."""
    return windows_of(WORLD.states(n_days, seed=2), context, horizon)


def window_of(context: Context, number: int) -> Context:
    """One of the windows of a context."""
    part = slice(number, number + 1)
    return Context(context.past[part], context.time[part], context.layout)
