"""One cell of a bench in a process of its own: `python -m powerphase.bench.worker`.

A job comes in as a line of JSON on standard input; what happens goes out as lines of JSON on
standard output. Whatever a model prints goes to standard error, and nobody answers what it asks.
When standard input ends, whoever asked is gone, and the process ends with all that it started.
"""

import json
import os
import signal
import sys
import threading
import traceback
from pathlib import Path
from typing import Any

from powerphase.errors import PowerphaseError, user_code_location


def main() -> None:
    """Do the job, and say how it went."""
    asker = os.dup(0)
    with Path(os.devnull).open() as nobody:
        os.dup2(nobody.fileno(), 0)  # a model that asks for input is to fail, and not to wait
    lines = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr  # which keeps nothing back: what was printed last is told of a failure

    def talk(message: dict[str, Any]) -> None:
        lines.write(json.dumps(message) + "\n")
        lines.flush()

    job: dict[str, Any] = json.loads(_line(asker))
    threading.Thread(target=_end_with, args=(asker,), daemon=True).start()
    try:
        # Only now, since it takes seconds, in which whoever asked may have gone.
        from powerphase.bench.making import do

        talk({"done": do(job, talk)})
    except PowerphaseError as error:
        talk({"failed": {"kind": type(error).__name__, "sentence": _as_line(str(error))}})
        sys.exit(1)
    except Exception as error:
        kind, place = type(error).__name__, user_code_location(error)
        # Before it is told, for whoever hears of it takes what was said and ends this process.
        traceback.print_exc()
        sentence = f"{kind}: {error}" + (f" (in {place})" if place else "")
        talk({"failed": {"kind": kind, "sentence": _as_line(sentence)}})
        sys.exit(1)


def _as_line(text: str) -> str:
    """The text in one line, without what no file can hold, such as bytes of a file's name."""
    return " ".join(text.split()).encode(errors="backslashreplace").decode()


def _line(asker: int) -> bytes:
    """The first line that is asked; read by hand, for the asker's end is waited for elsewhere."""
    line = b""
    while not line.endswith(b"\n"):
        part = os.read(asker, 1)
        if not part:
            sys.exit("powerphase.bench.worker reads a job as JSON; use `powerphase bench`")
        line += part
    return line


def _end_with(asker: int) -> None:
    while os.read(asker, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
