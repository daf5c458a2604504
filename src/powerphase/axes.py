"""The axis letters and the order of the channels: one meaning everywhere, in this order.

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
"""Seconds between two simulated steps."""

STEPS_PER_DAY = 96

WEIGHT_TOLERANCE = 1e-5
"""How far float32 weights of scenarios may sum from 1, in memory and in files."""
