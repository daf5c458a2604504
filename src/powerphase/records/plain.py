"""What rows and forecast files both must hold: plain JSON, and the starts of windows."""

import json
from datetime import datetime
from itertools import pairwise
from typing import Any

WINDOW_FORMAT = "%Y-%m-%dT%H:%M"
"""How the start of a window is written, UTC."""


def is_plain(found: Any) -> bool:
    """Whether it is a dictionary that comes back from JSON as it was."""
    try:
        return isinstance(found, dict) and json.loads(json.dumps(found, allow_nan=False)) == found
    except (TypeError, ValueError):
        return False


def are_window_starts(found: Any) -> bool:
    """Whether it is a list of UTC starts such as `2016-07-01T00:00`, each after the one before."""
    try:
        starts = [datetime.strptime(start, WINDOW_FORMAT) for start in found]
    except (TypeError, ValueError):
        return False
    as_written = [start.strftime(WINDOW_FORMAT) for start in starts]
    return bool(starts) and found == as_written and all(a < b for a, b in pairwise(starts))
