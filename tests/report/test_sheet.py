"""Tables as text: readable at any width, with the text around them."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from powerphase.report import Sheet

NARROW = Sheet(
    title="a title that is longer than the table below it",
    header=("model", "1"),
    groups=(((("ets", False), ("0.1", True)),),),
    above="This text above the table is wider than the table itself. " * 3,
)


def lines_of(sheet: Sheet, width: int) -> list[str]:
    """The lines on a terminal of that width, without empty ones."""
    text = StringIO()
    Console(file=text, width=width).print(sheet.as_table(width))
    return [line for line in text.getvalue().splitlines() if line.strip()]


@pytest.mark.parametrize(("width", "widest"), [(60, 60), (80, 80), (200, 80)])
def test_text_around_a_narrow_table_has_a_readable_width(width: int, widest: int) -> None:
    title, *_, first, _last = lines_of(NARROW, width)[:6]
    assert title.strip() == NARROW.title
    assert widest - 15 < len(first.rstrip()) <= widest


def test_the_sign_of_a_deviation_stays_on_the_line_of_its_mean() -> None:
    line = (("climatology (reference)", False), ("0.003345 ± 0.000031", False))
    sheet = replace(NARROW, header=("model", "mean"), groups=((line,),))
    for width in range(26, 50):
        (line_with_sign,) = [shown for shown in lines_of(sheet, width) if "±" in shown]
        assert "0.003345 ±" in line_with_sign


def test_names_break_only_where_they_may() -> None:
    """At a +, after a hyphen, and before the number of a grid; never inside numbers."""
    names = ("transformer-tempflow+short", "timegrad+subsampled-short", "last-7-days (reference)")
    lines = tuple(((name, False), ("3.500e-05", False)) for name in names)
    sheet = replace(NARROW, header=("model", "polish2383"), groups=(lines,), title="all", above="")
    runs: list[tuple[str, ...]] = [("transformer-", "tempflow", "+short")]
    runs += [("timegrad", "+subsampled-", "short")]
    runs += [("last-", "7-days"), ("(reference)",), ("polish", "2383"), ("model",), ("3.500e-05",)]
    allowed = {"".join(r[i:j]) for r in runs for j in range(len(r) + 1) for i in range(j)}
    for width in range(26, 60):
        _title, *shown = lines_of(sheet, width)
        words = {word for line in shown for word in line.split() if not word.startswith("─")}
        assert words <= allowed, width
