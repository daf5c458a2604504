"""A table as text: for a terminal, with the columns that fit, and as Markdown."""

import csv
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from io import StringIO
from typing import Any

from rich import box
from rich.console import Group, JustifyMethod
from rich.constrain import Constrain
from rich.table import Table
from rich.text import Text

from powerphase.records.scores import score_format

FULLER = "Widen the terminal or choose another format for more columns."
MISSING = "–"
READABLE = 80
"""The text around a table may take this many columns, however narrow the table is."""

IN_NAMES = re.compile(r"(?<= )|(?=\+)|(?<=[a-z]{2}-)|(?<=[a-z])(?=\d{3})")
"""Where a name may be wrapped: polish|2383, transformer-|tempflow|+short."""
IN_NUMBERS = re.compile(r"(?<= )(?!±)")
"""Where a number may be wrapped: after the ± of its deviation."""

Cell = tuple[str, bool]
"""The text of a cell, and whether it is emphasised."""


class Note(str):
    """A note that explains columns; it is shown only together with one of them."""

    __slots__ = ("columns",)
    columns: tuple[str, ...]

    def __new__(cls, text: str, columns: tuple[str, ...]) -> "Note":
        """The text, with the titles of the columns that it explains."""
        note = super().__new__(cls, text)
        note.columns = columns
        return note


@dataclass(frozen=True)
class Sheet:
    """A table of texts."""

    title: str
    header: tuple[str, ...]
    groups: tuple[tuple[tuple[Cell, ...], ...], ...]
    """Lines of cells; a terminal separates the groups."""
    above: str
    """The text above the table."""
    below: tuple[str, ...] = ()
    """Notes below the table."""
    names: int = 1
    """This many columns from the left hold names rather than numbers."""
    dispensable: tuple[str, ...] = ()
    """The columns that a narrow terminal omits, in this order."""

    def without(self, *columns: str) -> "Sheet":
        """The sheet without some columns and the notes on them alone."""
        shown = [k for k, title in enumerate(self.header) if title not in columns]
        return replace(
            self,
            header=tuple(self.header[k] for k in shown),
            groups=tuple(
                tuple(tuple(line[k] for k in shown) for line in group) for group in self.groups
            ),
            below=tuple(self._notes_for(shown)),
            names=sum(k < self.names for k in shown),
            dispensable=tuple(title for title in self.dispensable if title not in columns),
        )

    def as_table(self, width: int) -> Group:
        """The sheet for a terminal of that width."""
        shown = self._columns_for(width)
        widths = self._widths(shown, width)
        notes = [self.above, *self._notes_for(shown)] + [FULLER] * (len(shown) < len(self.header))
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
        for k in shown:
            side: JustifyMethod = "left" if k < self.names else "right"
            head = _wrap(_pieces(self.header[k], True), widths.get(k))
            table.add_column(head, justify=side, overflow="fold", width=widths.get(k))
        for group in self.groups:
            for line in group:
                table.add_row(*(self._cell_text(k, line[k], widths.get(k)) for k in shown))
            table.add_section()
        # Text as narrow as a narrow table would be unreadable.
        text_width = max(READABLE, _table_width(widths.values())) if widths else width
        title, caption = Text(self.title, "table.title"), Text(" ".join(notes), "table.caption")
        return Group(title, table, Constrain(caption, min(text_width, width)))

    def as_markdown(self) -> str:
        """The sheet as Markdown: a heading, the table and its notes."""
        lines = [
            [f"**{text}**" if emphasised else text for text, emphasised in line]
            for group in self.groups
            for line in group
        ]
        alignment = [":--" if k < self.names else "--:" for k in range(len(self.header))]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in (self.header, alignment, *lines))
        return "\n\n".join([f"### {self.title}", self.above, table, *self.below]) + "\n"

    def _columns_for(self, width: int) -> list[int]:
        """The columns that fit into the width."""
        shown = list(range(len(self.header)))
        for name in self.dispensable:
            if _table_width([max(map(len, self._texts(k))) for k in shown]) > width:
                shown.remove(self.header.index(name))
        return shown

    def _notes_for(self, shown: Sequence[int]) -> list[str]:
        """The notes on what is shown."""
        titles = {self.header[k] for k in shown}
        return [
            note
            for note in self.below
            if not isinstance(note, Note) or not titles.isdisjoint(note.columns)
        ]

    def _cell_text(self, column: int, cell: Cell, width: int | None) -> Text:
        text, emphasised = cell
        return Text(_wrap(_pieces(text, column < self.names), width), "bold" if emphasised else "")

    def _widths(self, shown: Sequence[int], width: int) -> dict[int, int]:
        """Column widths at which no word is broken; empty if there are none."""
        widths = {k: max(map(len, self._texts(k))) for k in shown}
        least = {k: max(map(len, self._unbroken(k))) for k in shown}
        while _table_width(widths.values()) > width:
            loosest = max(shown, key=lambda k: widths[k] - least[k])
            if widths[loosest] == least[loosest]:
                return {}
            widths[loosest] -= 1
        return widths

    def _texts(self, column: int) -> list[str]:
        lines = [line for group in self.groups for line in group]
        return [self.header[column], *(line[column][0] for line in lines)]

    def _unbroken(self, column: int) -> list[str]:
        """The pieces of a column that are never wrapped."""
        head, *texts = self._texts(column)
        named = column < self.names
        pieces = _pieces(head, True) + [piece for text in texts for piece in _pieces(text, named)]
        return [piece.rstrip() for piece in pieces]


def _pieces(text: str, is_name: bool) -> list[str]:
    return (IN_NAMES if is_name else IN_NUMBERS).split(text)


def _wrap(pieces: Sequence[str], width: int | None) -> str:
    """The pieces in lines of at most that width, if there is one."""
    lines = [""]
    for piece in pieces:
        if width and lines[-1] and len(lines[-1] + piece.rstrip()) > width:
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines)


def _table_width(widths: Collection[int]) -> int:
    """The width of a table with columns of these widths."""
    return sum(widths) + 2 * len(widths) + 1


def as_csv(lines: Iterable[Sequence[Any]]) -> str:
    """The lines, of which the first is the header, as CSV."""
    text = StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    return text.getvalue()


def number(mean: float | None, std: float | None = None, decimals: int | None = None) -> str:
    """The mean with four significant digits or the given decimals, ± its deviation if known."""
    if mean is None:
        return MISSING
    if decimals is None and mean == 0:
        return "0"
    style = score_format(mean) if decimals is None else f".{decimals}f"
    if std is None:
        return f"{mean:{style}}"
    deviation = f"{std:{style}}"
    # A row of zeros says no more than one; the paper's numbers stay as printed.
    return f"{mean:{style}} ± {deviation if decimals is not None or float(deviation) else '0'}"
