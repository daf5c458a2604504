"""Read the text of a MATPOWER case file: literal data only, without guessing.

A case file is a MATLAB function. Most contain only `mpc.field = value;` lines, but some also
compute: distribution cases convert their units after the matrices. Skipping those lines would give
wrong data, so this reader rejects every statement that is not a literal.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float

from powerphase.errors import CaseError
from powerphase.files import read_regular_file

MAX_BYTES = 2**27
"""Six times the size of the largest case of the `matpower` package, with 82,000 buses."""

MATRICES = ("bus", "gen", "branch", "dcline")
"""The fields that are parsed; a power flow does not need costs, names and fuels."""

# Possessive: without it, a file cut inside a list of names takes ages to reject.
_STRING = r"'(?:[^'\n]|'')*+'|\"(?:[^\"\n]|\"\")*+\""
# A block comment that never closes hides the rest of the file, as in MATLAB.
_BLOCK_COMMENT = re.compile(
    r"^[ \t]*%\{[ \t]*$.*?(?:^[ \t]*%\}[ \t]*$|\Z)", re.MULTILINE | re.DOTALL
)
_STRING_OR_COMMENT = re.compile(rf"(?P<string>{_STRING})|%[^\n]*|(?P<continuation>\.{{3}}[^\n]*\n)")
_FUNCTION = re.compile(r"function\s+mpc\s*=\s*\w+[ \t]*;?")
_FIELD = re.compile(r"mpc\.(\w+)\s*=\s*")
_LITERAL = re.compile(rf"\[[^\]]*\]|\{{(?:{_STRING}|[^'\"}}])*+\}}|{_STRING}|[^\s;,\[{{'\"]+")
_NUMBER = re.compile(
    r"[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?|inf|nan)", re.ASCII | re.IGNORECASE
)
_SEPARATOR = re.compile(r"[\s;,]*", re.ASCII)
_GAP = re.compile(r"[\s,]+", re.ASCII)
"""What separates the numbers of a row. MATLAB knows no other space than ASCII's."""
_END = re.compile(r"(?:end|return)\b")

_CONTINUED = "\f"
"""Replaces a continuation: white space that ends a line of the file but not the matrix row."""


def read_matpower_file(path: Path) -> dict[str, float | Float[np.ndarray, "rows columns"]]:
    """`baseMVA` and the numeric matrices of the case file at `path`, unchanged."""
    text = _strip_comments(_read_text(path))
    case: dict[str, float | Float[np.ndarray, "rows columns"]] = {}
    for line, field, literal in _assignments(path, text):
        if field == "baseMVA":
            (case[field],) = _parse_numbers([literal], path, line, field)
        elif field in MATRICES:
            case[field] = _parse_matrix(literal, path, line, field)
    missing = [name for name in ("baseMVA", "bus", "gen", "branch") if name not in case]
    if missing:
        raise CaseError(
            f"{path}: mpc.{', mpc.'.join(missing)} missing; expected a MATPOWER case of version 2"
        )
    return case


def _read_text(path: Path) -> str:
    try:
        text = read_regular_file(path, MAX_BYTES).decode(errors="replace")
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise CaseError(f"{path}: cannot be read ({error.strerror}); check the path") from error
    if not text.strip():
        raise CaseError(f"{path}: the file is empty; expected a MATPOWER case (.m)")
    return text


def _strip_comments(text: str) -> str:
    """The text without comments and continuations; line numbers are unchanged."""

    def blank(match: re.Match[str]) -> str:
        return match["string"] or (_CONTINUED if match["continuation"] else "")

    text = _BLOCK_COMMENT.sub(lambda match: "\n" * match[0].count("\n"), text)
    return _STRING_OR_COMMENT.sub(blank, text)


def _assignments(path: Path, text: str) -> Iterator[tuple[int, str, str]]:
    """Line, field and literal of each `mpc.field = literal`; raise at anything else."""
    position, counted, line = _skip_separators(text, 0), 0, 1
    if head := _FUNCTION.match(text, position):
        position = _skip_separators(text, head.end())
    while position < len(text):
        line, counted = line + _count_lines(text[counted:position]), position
        field = _FIELD.match(text, position)
        literal = _LITERAL.match(text, field.end()) if field else None
        if field is None or literal is None:
            if _END.match(text, position):
                return
            raise _statement_error(path, line, text[position:].splitlines()[0].strip())
        yield line, field[1], literal[0]
        position = _skip_separators(text, literal.end())


def _count_lines(text: str) -> int:
    """Number of line ends of the file within the text."""
    return text.count("\n") + text.count(_CONTINUED)


def _skip_separators(text: str, position: int) -> int:
    match = _SEPARATOR.match(text, position)
    return match.end() if match else position


def _statement_error(path: Path, line: int, snippet: str) -> CaseError:
    if _FIELD.match(snippet):
        return CaseError(f"{path}:{line}: {snippet[:60]!r} is not closed; is the file truncated?")
    return CaseError(
        f"{path}:{line}: {snippet[:60]!r} is MATLAB code, not data; the reader accepts "
        "only literal mpc.field = value statements, so save the case with MATPOWER's savecase first"
    )


def _parse_numbers(tokens: list[str], path: Path, line: int, field: str) -> list[float]:
    for column, token in enumerate(tokens, 1):
        # float() alone would also accept 1_000 and digits of other scripts.
        if not _NUMBER.fullmatch(token):
            raise CaseError(
                f"{path}:{line}: {token[:40]!r} in column {column} of mpc.{field} is not a number; "
                "write out its value"
            )
    return [float(token) for token in tokens]


def _parse_matrix(
    literal: str, path: Path, line: int, field: str
) -> Float[np.ndarray, "rows columns"]:
    if not literal.startswith("["):
        raise CaseError(f"{path}:{line}: mpc.{field} is {literal[:40]!r}; expected a matrix")
    rows: list[list[float]] = []
    for text in literal[1:-1].split("\n"):
        for row in text.split(";"):
            tokens = [token for token in _GAP.split(row) if token]
            if not tokens:
                continue
            rows.append(_parse_numbers(tokens, path, line, field))
            if len(tokens) != len(rows[0]):
                raise CaseError(
                    f"{path}:{line}: a row of mpc.{field} has {len(tokens)} columns, "
                    f"the first has {len(rows[0])}; make the matrix rectangular"
                )
        line += 1 + _count_lines(text)
    return np.array(rows, dtype=np.float64).reshape(len(rows), -1 if rows else 0)
