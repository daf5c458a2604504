"""The letters of axes and the order of channels, the same everywhere.

B windows · M scenarios · H forecast steps · T context steps · C channels (4N) · N buses ·
K features · S simulated steps. Channels are interleaved [P, Q, V, θ] per bus, in the case file's
bus order.
"""

VARIABLES = ("P", "Q", "V", "theta")
KINDS = len(VARIABLES)
"""Channels of one bus."""

UNITS = {"P": "MW", "Q": "MVAr", "V": "p.u.", "theta": "rad"}

P, Q, V, THETA = range(4)
"""Offset of each variable within a bus's four channels; `state[:, V::4]` is every voltage."""

STEP_S = 900
"""Seconds between two simulated steps; `resolution` has those of other records."""

STEPS_PER_DAY = 96
"""Simulated steps of a day."""

WEIGHT_TOLERANCE = 1e-5
"""The largest deviation from 1 of a sum of float32 weights, in memory and in files."""
