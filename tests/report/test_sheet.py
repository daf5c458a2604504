"""A table as text: it and what is around it can be read however narrow it is."""

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from powerphase.report import Sheet

NARROW = Sheet(
    title="a title that is longer than the table below it",
    header=("model", "1"),
    groups=(((("ets", False), ("0.1", True)),),),
    above="What to know before the table is read is a sentence of its own. " * 3,
)


def lines_of(sheet: Sheet, width: int) -> list[str]:
    """What a terminal of that width shows, less empty lines."""
    text = StringIO()
    Console(file=text, width=width).print(sheet.as_table(width))
    return [line for line in text.getvalue().splitlines() if line.strip()]


@pytest.mark.parametrize(("width", "widest"), [(60, 60), (80, 80), (200, 80)])
def test_text_around_a_narrow_table_is_as_wide_as_can_be_read(width: int, widest: int) -> None:
    title, *_, first, _last = lines_of(NARROW, width)[:6]
    assert title.strip() == NARROW.title
    assert widest - 15 < len(first.rstrip()) <= widest


def test_a_deviation_s_sign_stands_beside_its_mean() -> None:
    line = (("climatology (reference)", False), ("0.003345 ± 0.000031", False))
    sheet = replace(NARROW, header=("model", "mean"), groups=((line,),))
    for width in range(26, 50):
        (signed,) = [shown for shown in lines_of(sheet, width) if "±" in shown]
        assert "0.003345 ±" in signed


def test_no_word_breaks_where_names_can_go_on_in_the_next_line() -> None:
    """At a +, after a hyphen, and before the number of a grid; the numbers themselves never."""
    names = ("transformer-tempflow+short", "timegrad+subsampled-short", "last-7-days (reference)")
    lines = tuple(((name, False), ("3.500e-05", False)) for name in names)
    sheet = replace(NARROW, header=("model", "polish2383"), groups=(lines,), title="all", above="")
    runs: list[tuple[str, ...]] = [
        ("transformer-", "tempflow", "+short"),
        ("timegrad", "+subsampled-", "short"),
    ]
    runs += [("last-", "7-days"), ("(reference)",), ("polish", "2383"), ("model",), ("3.500e-05",)]
    whole = {"".join(r[i:j]) for r in runs for j in range(len(r) + 1) for i in range(j)}
    for width in range(26, 60):
        _title, *shown = lines_of(sheet, width)
        words = {word for line in shown for word in line.split() if not word.startswith("─")}
        assert words <= whole, width
