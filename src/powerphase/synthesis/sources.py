"""Where signals come from, by name: made by code, downloaded, or read from a file."""

import re
from pathlib import Path

from powerphase.errors import SignalError
from powerphase.synthesis.opsd import load_opsd
from powerphase.synthesis.signals import Signals, read_signals
from powerphase.synthesis.synthetic import synthetic_signals

NAMED = ("synthetic", "opsd")


def load_signals(source: str | Path, edition: str | None = None) -> Signals:
    """The signals called `synthetic` or `opsd`, or those in the file at that path.

    `edition` names a file's signals in results; the named sources have names of their own.
    """
    if edition is not None and (source in NAMED or edition in NAMED):
        raise SignalError(
            f"edition {edition!r} cannot be given here: 'synthetic' and 'opsd' name themselves, "
            "and no file may take their names"
        )
    if edition is not None and not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", edition):
        raise SignalError(f"edition {edition!r} is no name; use lower case, digits and hyphens")
    if source == "synthetic":
        return synthetic_signals()
    if source == "opsd":
        return load_opsd()
    return read_signals(Path(source), edition)
