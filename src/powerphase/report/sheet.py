"""A table as text: for a terminal, with the columns that there is room for, and as Markdown."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import floor, log10

from rich import box
from rich.console import JustifyMethod
from rich.table import Table
from rich.text import Text

FULLER = "Widen the terminal or choose another format for more columns."
MISSING = "–"

Cell = tuple[str, bool]
"""What a cell says, and whether it stands out."""


@dataclass(frozen=True)
class Sheet:
    """A table that knows no more than its texts."""

    title: str
    header: tuple[str, ...]
    groups: tuple[tuple[tuple[Cell, ...], ...], ...]
    """Lines of cells; a terminal sets the groups apart."""
    above: str
    """What to know before the table is read."""
    below: tuple[str, ...] = ()
    """What to bear in mind about it."""
    names: int = 1
    """How many columns, the first ones, hold names rather than numbers."""
    dispensable: tuple[str, ...] = ()
    """The columns that a narrow terminal goes without, in this order."""

    def as_table(self, width: int) -> Table:
        """The sheet for a terminal of that width."""
        shown = self._shown(width)
        widths = self._widths(shown, width)
        notes = [self.above, *self.below] + [FULLER] * (len(shown) < len(self.header))
        table = Table(title=self.title, caption=" ".join(notes), box=box.SIMPLE_HEAD)
        table.caption_justify = "left"
        table.padding = (0, 1, 0, 0)
        for k in shown:
            side: JustifyMethod = "left" if k < self.names else "right"
            table.add_column(self.header[k], justify=side, overflow="fold", width=widths.get(k))
        for group in self.groups:
            for line in group:
                table.add_row(*(Text(line[k][0], "bold" if line[k][1] else "") for k in shown))
            table.add_section()
        return table

    def as_markdown(self) -> str:
        """The sheet as Markdown: a heading, the table and what there is to know."""
        lines = [
            [f"**{text}**" if stands_out else text for text, stands_out in line]
            for group in self.groups
            for line in group
        ]
        alignment = [":--" if k < self.names else "--:" for k in range(len(self.header))]
        table = "\n".join(f"| {' | '.join(cells)} |" for cells in (self.header, alignment, *lines))
        return "\n\n".join([f"### {self.title}", self.above, table, *self.below]) + "\n"

    def _shown(self, width: int) -> list[int]:
        """The columns that there is room for."""
        shown = list(range(len(self.header)))
        for name in self.dispensable:
            if _room([max(map(len, self._texts(k))) for k in shown]) > width:
                shown.remove(self.header.index(name))
        return shown

    def _widths(self, shown: Sequence[int], width: int) -> dict[int, int]:
        """Widths that break no word, where there are such; left alone, the widest would break."""
        widths = {k: max(map(len, self._texts(k))) for k in shown}
        least = {
            k: max(len(word) for text in self._texts(k) for word in text.split()) for k in shown
        }
        while _room(widths.values()) > width:
            loosest = max(shown, key=lambda k: widths[k] - least[k])
            if widths[loosest] == least[loosest]:
                return {}
            widths[loosest] -= 1
        return widths

    def _texts(self, column: int) -> list[str]:
        lines = [line for group in self.groups for line in group]
        return [self.header[column], *(line[column][0] for line in lines)]


def _room(widths: Collection[int]) -> int:
    """Columns of a terminal that a table of such columns takes."""
    return sum(widths) + 2 * len(widths) + 1


def number(mean: float | None, std: float | None = None, decimals: int | None = None) -> str:
    """The mean with four significant digits or so many decimals, ± its deviation if known."""
    if mean is None:
        return MISSING
    if decimals is not None:
        style = f".{decimals}f"
    elif mean == 0:
        return "0"
    elif 1e-5 <= abs(mean) < 1e5:
        style = f".{max(0, 3 - floor(log10(abs(mean))))}f"
    else:
        style = ".3e"
    return f"{mean:{style}}" if std is None else f"{mean:{style}} ± {std:{style}}"
