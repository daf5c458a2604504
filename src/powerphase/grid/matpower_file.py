"""Reads the text of a MATPOWER case file: literal data only, and nothing is guessed.

A case file is a MATLAB function. Most hold nothing but `mpc.field = value;` lines, but some go on
to compute: distribution cases convert their units after the matrices. A reader that skips those
lines returns wrong data, so this one refuses every statement that is not a literal.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float

from powerphase.errors import CaseError

MATRICES = ("bus", "gen", "branch", "dcline")
"""The fields that become numbers; costs, names and fuels do not matter to a power flow."""

_BLOCK_COMMENT = re.compile(r"^[ \t]*%\{[ \t]*$.*?^[ \t]*%\}[ \t]*$", re.MULTILINE | re.DOTALL)
_QUOTED_OR_COMMENT = re.compile(r"('(?:[^'\n]|'')*')|%[^\n]*|\.\.\.[^\n]*\n")
_FUNCTION = re.compile(r"function\s+mpc\s*=\s*\w+[ \t]*;?")
_FIELD = re.compile(r"mpc\.(\w+)\s*=\s*")
_LITERAL = re.compile(r"\[[^\]]*\]|\{(?:'(?:[^'\n]|'')*'|[^'}])*\}|'(?:[^'\n]|'')*'|[^\s;,\[{']+")
_SEPARATOR = re.compile(r"[\s;,]*")
_END = re.compile(r"(?:end|return)\b")


def read_matpower_file(path: Path) -> dict[str, float | Float[np.ndarray, "rows columns"]]:
    """`baseMVA` and the numeric matrices of the case file at `path`, as they stand there."""
    text = _without_comments(_text(path))
    case: dict[str, float | Float[np.ndarray, "rows columns"]] = {}
    for line, field, literal in _assignments(path, text):
        if field == "baseMVA":
            case[field] = _number(literal, path, line)
        elif field in MATRICES:
            case[field] = _matrix(literal, path, line, field)
    missing = [name for name in ("baseMVA", "bus", "gen", "branch") if name not in case]
    if missing:
        raise CaseError(
            f"{path}: no mpc.{', mpc.'.join(missing)}; a MATPOWER case of version 2 was expected"
        )
    return case


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise CaseError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if not text.strip():
        raise CaseError(f"{path}: the file is empty; a MATPOWER case (.m) was expected")
    return text


def _without_comments(text: str) -> str:
    """The text without comments and continuations; line numbers stay what they were."""

    def blank(match: re.Match[str]) -> str:
        return match[1] if match.lastindex else "\n" * match[0].count("\n")

    text = _BLOCK_COMMENT.sub(blank, text.replace("\r\n", "\n"))
    return _QUOTED_OR_COMMENT.sub(blank, text)


def _assignments(path: Path, text: str) -> Iterator[tuple[int, str, str]]:
    """Line, field and literal of each `mpc.field = literal`; anything else is refused."""
    position = _skip(text, 0)
    if head := _FUNCTION.match(text, position):
        position = _skip(text, head.end())
    while position < len(text):
        line = text.count("\n", 0, position) + 1
        field = _FIELD.match(text, position)
        literal = _LITERAL.match(text, field.end()) if field else None
        if field is None or literal is None:
            if _END.match(text, position):
                return
            raise _refusal(path, line, text[position:].splitlines()[0].strip())
        yield line, field[1], literal[0]
        position = _skip(text, literal.end())


def _skip(text: str, position: int) -> int:
    match = _SEPARATOR.match(text, position)
    return match.end() if match else position


def _refusal(path: Path, line: int, snippet: str) -> CaseError:
    if _FIELD.match(snippet):
        return CaseError(f"{path}:{line}: {snippet[:60]!r} never ends; is the file cut?")
    return CaseError(
        f"{path}:{line}: {snippet[:60]!r} is MATLAB code, not data; only literal "
        "mpc.field = value statements are read, so save the case with MATPOWER's savecase first"
    )


def _number(token: str, path: Path, line: int) -> float:
    try:
        return float(token)
    except ValueError:
        raise CaseError(
            f"{path}:{line}: {token[:40]!r} is not a number; write out its value"
        ) from None


def _matrix(literal: str, path: Path, line: int, field: str) -> Float[np.ndarray, "rows columns"]:
    if not literal.startswith("["):
        raise CaseError(f"{path}:{line}: mpc.{field} is {literal[:40]!r}; a matrix was expected")
    rows: list[list[float]] = []
    for offset, text in enumerate(literal[1:-1].split("\n")):
        for row in text.split(";"):
            tokens = row.replace(",", " ").split()
            if not tokens:
                continue
            rows.append([_number(token, path, line + offset) for token in tokens])
            if len(tokens) != len(rows[0]):
                raise CaseError(
                    f"{path}:{line + offset}: a row of mpc.{field} has {len(tokens)} columns, "
                    f"its first row has {len(rows[0])}; make the matrix rectangular"
                )
    return np.array(rows, dtype=np.float64).reshape(len(rows), -1 if rows else 0)
