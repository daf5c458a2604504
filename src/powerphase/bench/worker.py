"""The process of one job: `python -m powerphase.bench.worker`.

The job arrives as a line of JSON on standard input; messages leave as lines of JSON on standard
output. Whatever a model prints goes to standard error, and reading input raises EOFError. When
standard input closes, the parent process is gone: this one then ends with all that it started.
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
    """Do the job, and report its outcome."""
    parent = os.dup(0)
    with Path(os.devnull).open() as nothing:
        os.dup2(nothing.fileno(), 0)  # a model that asks for input must fail instead of waiting
    messages = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    sys.stdout = sys.stderr  # unbuffered: a failure is reported with the last lines printed

    def send(message: dict[str, Any]) -> None:
        messages.write(json.dumps(message) + "\n")
        messages.flush()

    line = _read_line(parent)
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    try:
        # Imported here because it takes seconds, in which the parent may end.
        from powerphase.bench.job import Job, run_job

        send({"done": run_job(Job.from_json(line), send)})
    except PowerphaseError as error:
        send({"failed": {"kind": type(error).__name__, "sentence": as_line(str(error))}})
        sys.exit(1)
    except Exception as error:
        kind, location = type(error).__name__, user_code_location(error)
        # Before the message, upon which the parent reads what was printed and kills this process.
        traceback.print_exc()
        sentence = f"{kind}: {error}" + (f" (in {location})" if location else "")
        send({"failed": {"kind": kind, "sentence": as_line(sentence)}})
        sys.exit(1)


def as_line(text: str) -> str:
    """The text in one line, with escapes for what UTF-8 cannot encode, such as bytes of a path."""
    return " ".join(text.split()).encode(errors="backslashreplace").decode()


def _read_line(parent: int) -> bytes:
    """The first line of input, read unbuffered because a thread waits for the end of the input."""
    line = b""
    while not line.endswith(b"\n"):
        byte = os.read(parent, 1)
        if not byte:
            sys.exit("powerphase.bench.worker reads a job as JSON; use `powerphase bench`")
        line += byte
    return line


def _end_with(parent: int) -> None:
    while os.read(parent, 1):
        pass
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


if __name__ == "__main__":
    main()
