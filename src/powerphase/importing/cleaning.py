"""Suspect values and gaps of a record: found, then filled by a rule that is stated.

A value is not suspect if the power balance of its bus confirms it: a generator that runs for one
step is a spike of P, but V and θ around it then imply the same P. A record that stopped satisfies
the balance too, so a value that repeats must also be at a bus at which something moves.

The rule uses no later value, so that a context knows nothing of its target, and a record that grows
keeps what it has. Only the first weeks of a record, which nothing precedes, are filled from later
ones.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from powerphase.axes import KINDS, V
from powerphase.dataset.certificate import AcCheck
from powerphase.errors import RecordError
from powerphase.importing.draft import POSSIBLE_PU, Draft

HOLD_S = 3600
"""A gap of up to an hour keeps the last value before it."""

WEEK_S = 7 * 86_400
"""In a longer gap, a value is that of the same time in the last week that has one."""

STUCK_S = 86_400
"""A sensor that shows one value for longer is stuck, if it changes otherwise."""

CHANGING = 0.9
"""The share of other steps in which the value of such a channel changes, at least."""

SPIKE = 20.0
"""A value is a spike if its deviation from its neighbours is so many times the usual one."""

USUAL = 0.99
"""The quantile of all deviations of a channel that counts as usual."""

LEAST_KNOWN = 0.5
"""A channel of which less is known is not filled."""

CHANNELS_AT_ONCE = 256
STEPS_AT_ONCE = 96

TITLES = {
    "impossible": f"voltages outside {POSSIBLE_PU[0]:g} to {POSSIBLE_PU[1]:g} p.u.",
    "stuck": "values of stuck sensors (one value for more than a day)",
    "spike": "single values far from their neighbours",
}


def remove_suspects(draft: Draft, past: Float[np.ndarray, "T N 4"] | None = None) -> list[str]:
    """Turn impossible voltages, stuck values and spikes into gaps; returns what was found.

    Args:
        draft: the record.
        past: the states before it, with which a sensor may already have been stuck.
    """
    found: dict[str, list[tuple[int, int]]] = {title: [] for title in TITLES.values()}
    volts = draft.values[..., V]
    impossible = (volts < POSSIBLE_PU[0]) | (volts > POSSIBLE_PU[1])
    for bus in np.flatnonzero(impossible.any(axis=0)):
        found[TITLES["impossible"]].append((int(bus) * KINDS + V, int(impossible[:, bus].sum())))
    volts[impossible] = np.nan
    flat, run = draft.values.reshape(draft.n_steps, -1), STUCK_S // draft.step_s
    before = np.zeros((0, flat.shape[1])) if past is None else past.reshape(len(past), -1)
    confirmed = confirmed_points(draft)
    trusted = {
        "stuck": np.repeat(confirmed & _moving(draft.values), KINDS, axis=1),
        "spike": np.repeat(confirmed, KINDS, axis=1),
    }
    for first in range(0, flat.shape[1], CHANNELS_AT_ONCE):
        channels = slice(first, first + CHANNELS_AT_ONCE)
        joined = np.concatenate([before[:, channels], flat[:, channels]])
        for name, suspect in (("stuck", _stuck(joined, run)), ("spike", _spikes(joined))):
            recent = suspect[len(before) :] & ~trusted[name][:, channels]
            flat[:, channels][recent] = np.nan
            for column in np.flatnonzero(recent.any(axis=0)):
                found[TITLES[name]].append((first + int(column), int(recent[:, column].sum())))
    return [_finding(draft, title, channels) for title, channels in found.items() if channels]


def confirmed_points(draft: Draft) -> Bool[np.ndarray, "S N"]:
    """Where all four values of a bus satisfy its power balance, as far as rounding allows."""
    confirmed = np.zeros(draft.values.shape[:2], dtype=bool)
    if draft.grid is None or not draft.given.all(axis=1).any():
        return confirmed
    check = AcCheck(draft.grid)
    for first in range(0, draft.n_steps, STEPS_AT_ONCE):
        steps = slice(first, first + STEPS_AT_ONCE)
        error, allowed = check.errors(draft.values[steps])
        confirmed[steps] = (error <= allowed).all(axis=2)  # False where something is missing
    return confirmed


def _moving(values: Float[np.ndarray, "S N 4"]) -> Bool[np.ndarray, "S N"]:
    """Where some value of a bus differs from the step before."""
    moving = np.zeros(values.shape[:2], dtype=bool)
    moving[1:] = (values[1:] != values[:-1]).any(axis=2)
    return moving


def _finding(draft: Draft, title: str, channels: list[tuple[int, int]]) -> str:
    """One line about some suspect values, with the channels that have most of them."""
    worst = sorted(channels, key=lambda pair: -pair[1])[:3]
    shown = ", ".join(f"{draft.channel(*divmod(c, KINDS))} ({n:,})" for c, n in worst)
    more = f" and {len(channels) - 3} more" if len(channels) > 3 else ""
    return f"{sum(n for _, n in channels):,} {title}: {shown}{more}"


def _stuck(values: Float[np.ndarray, "S C"], run: int) -> Bool[np.ndarray, "S C"]:
    """The repetitions in long runs of one value, of channels that change otherwise.

    Missing values do not end a run.
    """
    suspect = np.zeros(values.shape, dtype=bool)
    if len(values) <= run:
        return suspect
    missing = np.isnan(values)
    last = np.maximum.accumulate(np.where(missing, 0, np.arange(len(values))[:, None]), axis=0)
    held = np.take_along_axis(values, last, axis=0)
    same = held[1:] == held[:-1]
    total = np.concatenate([np.zeros((1, same.shape[1]), int), np.cumsum(same, axis=0)])
    candidates = np.flatnonzero((total[run:] - total[:-run] == run).any(axis=0))
    for column in candidates:
        edges = np.flatnonzero(np.diff(np.concatenate([[False], same[:, column], [False]])))
        runs = [(start, stop) for start, stop in edges.reshape(-1, 2) if stop - start >= run]
        inside = np.zeros(len(same), dtype=bool)
        for start, stop in runs:
            inside[start:stop] = True
        known = ~missing[1:, column] & ~missing[:-1, column] & ~inside
        if known.sum() >= run and np.mean(~same[known, column]) >= CHANGING:
            suspect[1:, column] = inside & ~missing[1:, column]
    return suspect


def _spikes(values: Float[np.ndarray, "S C"]) -> Bool[np.ndarray, "S C"]:
    """Single values that are far from both neighbours, which agree with theirs."""
    suspect = np.zeros(values.shape, dtype=bool)
    if len(values) < 5:
        return suspect
    size = np.zeros(values.shape)
    size[1:-1] = np.abs(values[1:-1] - (values[:-2] + values[2:]) / 2)
    ordered = np.sort(np.nan_to_num(size, nan=0.0), axis=0)
    usual = ordered[int(USUAL * (len(ordered) - 1))]
    largest = np.fmax(size[:-2], size[2:])  # a step of the level has two equal deviations
    # A millionth of the value is rounding, not a deviation.
    floor = SPIKE * np.maximum(usual, 1e-6 * np.nan_to_num(np.abs(values[1:-1])))
    suspect[1:-1] = (size[1:-1] > floor) & (size[1:-1] > 1.5 * largest) & (usual > 0)
    return suspect


def fill_gaps(
    draft: Draft,
    past: Float[np.ndarray, "T N 4"] | None = None,
    only: Bool[np.ndarray, "N 4"] | None = None,
) -> None:
    """Fill what is missing in the channels that are given, in place; raise where nothing helps.

    Args:
        draft: the record.
        past: the states before it, NaN where they were filled themselves.
        only: the channels to fill; by default those that are given.
    """
    n_past = 0 if past is None else len(past)
    values = draft.values if past is None else np.concatenate([past, draft.values])
    flat = values.reshape(len(values), -1)
    columns = np.flatnonzero((draft.given if only is None else only).ravel())
    columns = columns[np.isnan(flat[n_past:, columns]).any(axis=0)]
    for column in columns:
        series = flat[:, column]
        known = 1 - np.isnan(series[n_past:]).mean()
        if known < LEAST_KNOWN and n_past == 0:
            name = draft.channel(*divmod(int(column), KINDS))
            raise RecordError(
                f"{draft.source}: {name} is known in {known:.0%} of the steps; half of them or "
                "more are needed, so leave the channel out or give a shorter record"
            )
        filled = _filled(series, draft.step_s)
        missing = np.flatnonzero(np.isnan(filled[n_past:]))
        if missing.size:
            name, time = draft.channel(*divmod(int(column), KINDS)), draft.time[missing[0]]
            raise RecordError(
                f"{draft.source}: {name} at {time} cannot be filled: no week of the record has a "
                "value at that time of the week; give a longer record"
            )
        flat[:, column] = filled
    draft.values = values[n_past:]


def _filled(series: Float[np.ndarray, " S"], step_s: int) -> Float[np.ndarray, " S"]:
    """A series whose gaps are filled by the rule, NaN where it gives nothing."""
    filled, missing = series.copy(), np.isnan(series)
    place = np.arange(len(series))
    last = np.maximum.accumulate(np.where(missing, -1, place))
    following = np.minimum.accumulate(np.where(missing, len(series), place)[::-1])[::-1]
    short = missing & (last >= 0) & ((following - last - 1) * step_s <= HOLD_S)
    filled[short] = series[last[short]]
    open_places = np.flatnonzero(missing & ~short)
    week = WEEK_S // step_s
    for direction in (-1, 1):
        open_places = _copy_weeks(series, filled, open_places, direction * week)
    return filled


def _copy_weeks(
    series: Float[np.ndarray, " S"],
    filled: Float[np.ndarray, " S"],
    places: Int[np.ndarray, " G"],
    week: int,
) -> Int[np.ndarray, " R"]:
    """Fill places with the nearest known value so many weeks away; returns those still open."""
    weeks = 1
    while places.size and weeks * abs(week) < len(series):
        source = places + weeks * week
        inside = (source >= 0) & (source < len(series))
        values = np.full(len(places), np.nan)
        values[inside] = series[source[inside]]
        filled[places] = values
        places, weeks = places[np.isnan(values)], weeks + 1
    return places
