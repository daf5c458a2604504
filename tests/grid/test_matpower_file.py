"""The reader of case files: what it accepts, bit for bit, and what it rejects."""

import math
import re
from contextlib import suppress
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from matpowercaseframes import CaseFrames

from powerphase.errors import CaseError
from powerphase.grid import CATALOG, case_folder, read_grid, read_matpower_file

CASE = """function mpc = tiny
mpc.version = '2';
mpc.baseMVA = 100;
mpc.bus = [
	1	3	0	0	0	0	1	1	0	220	1	1.1	0.9;
	2	1	50	20	0	0	1	1	0	220	1	1.1	0.9;
];
mpc.gen = [
	1	50	0	99	-99	1.02	100	1	200	0;
];
mpc.branch = [
	1	2	0.01	0.1	0.02	250	250	250	0	0	1;
];
"""
PAPER_CASES = [entry.case for entry in CATALOG.values() if entry.in_paper]
SMALL_CASES = ["case5", "case9", "case14", "case30pwl", "case39", "case118", "case_ACTIVSg200"]


def write(folder: Path, text: str) -> Path:
    path = folder / "grid.m"
    path.write_text(text, encoding="utf-8")
    return path


def error_message(folder: Path, text: str) -> str:
    path = write(folder, text)
    with pytest.raises(CaseError) as caught:
        read_grid(path)
    message = str(caught.value)
    assert message.startswith(str(path))
    return message.removeprefix(str(path))


@pytest.mark.parametrize("case", PAPER_CASES + SMALL_CASES)
def test_data_equal_those_of_an_independent_parser(case: str) -> None:
    path = case_folder() / f"{case}.m"
    ours, theirs = read_matpower_file(path), CaseFrames(str(path))
    assert ours["baseMVA"] == theirs.baseMVA
    for field in ("bus", "gen", "branch"):
        np.testing.assert_array_equal(ours[field], getattr(theirs, field).to_numpy(float))


def test_every_case_of_the_package_that_contains_code_raises() -> None:
    computes = re.compile(r"^[^%\n]*(= *idx_bus|mpc\.\w+\(.*=|[\d)]/\w)", re.MULTILINE)
    rejected = []
    for path in sorted(case_folder().glob("case*.m")):
        if path.stat().st_size < 2e6 and computes.search(path.read_text(errors="replace")):
            with pytest.raises(CaseError, match=rf"{path.name}:\d+: "):
                read_matpower_file(path)
            rejected.append(path.stem)
    assert len(rejected) >= 25
    assert {"case33bw", "case141", "case533mt_hi"} <= set(rejected)


def test_an_independent_parser_misreads_such_a_case() -> None:
    """The reason for this reader: kW read as MW. If this fails, the parser has been fixed."""
    theirs = CaseFrames(str(case_folder() / "case10ba.m"))
    assert theirs.bus.PD.sum() > 10_000


def test_a_missing_file_raises(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=r"nowhere\.m"):
        read_matpower_file(tmp_path / "nowhere.m")


def test_a_folder_raises(tmp_path: Path) -> None:
    with pytest.raises(CaseError, match=tmp_path.name):
        read_matpower_file(tmp_path)


@pytest.mark.parametrize("text", ["", " \n\t\n"])
def test_an_empty_file_raises(tmp_path: Path, text: str) -> None:
    assert "empty" in error_message(tmp_path, text)


@pytest.mark.parametrize(
    "statement",
    [
        "mpc.bus(:, 3) = mpc.bus(:, 3) / 1e3;",
        "Vbase = 12.66;",
        "for k = 1:3",
        "mpc = scale_load(2, mpc);",
        "* 2",
        "mpc.reserves.zones = [1 1];",
    ],
)
def test_code_after_the_matrices_raises_with_its_line(tmp_path: Path, statement: str) -> None:
    line = CASE.count("\n") + 1
    message = error_message(tmp_path, f"{CASE}{statement}\n")
    assert message.startswith(f":{line}: {statement!r}")


@pytest.mark.parametrize("tail", ["'", " * 2", "(:, 1:13)", ".^2"])
def test_a_matrix_inside_an_expression_raises(tmp_path: Path, tail: str) -> None:
    message = error_message(tmp_path, CASE.replace("0.9;\n];", f"0.9;\n]{tail};"))
    assert message.startswith(":7: ")


@pytest.mark.parametrize(
    "value",
    [
        "135/sqrt(3)",
        "1_000",
        "1\xa0000",
        "50\xa0",
        "5\u2009",
        "٣",
        "1e",
        "0x10",
        "pi",
        "2-1",
        "1i",
        "-",
        "Vbase",
        "'2'",
    ],
)
def test_an_element_that_is_not_a_plain_number_raises(tmp_path: Path, value: str) -> None:
    message = error_message(tmp_path, CASE.replace("\t50\t20", f"\t{value}\t20"))
    assert message.startswith(f":6: {value!r}")


@pytest.mark.parametrize("value", ["1e2/2", "'100'", "[100]", "sbase"])
def test_a_base_power_that_is_not_a_plain_number_raises(tmp_path: Path, value: str) -> None:
    message = error_message(tmp_path, CASE.replace("= 100", f"= {value}"))
    assert message.startswith(f":3: {value!r}")


def test_a_ragged_row_raises_with_its_line_and_size(tmp_path: Path) -> None:
    message = error_message(tmp_path, CASE.replace("50\t20\t", "50\t"))
    assert message.startswith(":6: ")
    assert "mpc.bus has 12 columns" in message


def test_the_line_of_an_error_counts_comments_and_continued_lines(tmp_path: Path) -> None:
    text = CASE.replace("mpc.version", "%{\n]\n%}\nmpc.version").replace("3\t0", "3 ...\n\t0")
    message = error_message(tmp_path, text.replace("50\t20", "50\toops"))
    assert message.startswith(":10: 'oops'")


@pytest.mark.parametrize("field", ["baseMVA", "bus", "gen", "branch"])
def test_a_missing_field_raises(tmp_path: Path, field: str) -> None:
    message = error_message(tmp_path, CASE.replace(f"mpc.{field} ", "mpc.other "))
    assert f"mpc.{field} missing" in message


@pytest.mark.parametrize(
    ("field", "empty"), [("bus", "[]"), ("gen", "[ % none\n]"), ("branch", "[;;]")]
)
def test_an_empty_matrix_raises(tmp_path: Path, field: str, empty: str) -> None:
    text = re.sub(rf"mpc\.{field} = \[.*?\]", f"mpc.{field} = {empty}", CASE, flags=re.DOTALL)
    assert f"mpc.{field} has no rows" in error_message(tmp_path, text)


def test_a_field_that_is_not_a_matrix_raises(tmp_path: Path) -> None:
    text = re.sub(r"mpc\.bus = \[.*?\]", "mpc.bus = other_bus", CASE, flags=re.DOTALL)
    assert ":4: mpc.bus is 'other_bus'" in error_message(tmp_path, text)


def test_a_matrix_with_too_few_columns_raises(tmp_path: Path) -> None:
    message = error_message(tmp_path, CASE.replace("\t0\t1;", ";"))
    assert "mpc.branch has 9 columns" in message


def test_a_case_of_version_1_raises(tmp_path: Path) -> None:
    text = CASE.replace("function mpc", "function [baseMVA, bus, gen, branch]")
    assert ":1: 'function [baseMVA" in error_message(tmp_path, text)


def test_dc_lines_in_service_raise() -> None:
    with pytest.raises(CaseError, match=r"case_RTS_GMLC\.m: .*DC lines"):
        read_grid(case_folder() / "case_RTS_GMLC.m")


@pytest.mark.parametrize("lines", ["[]", "[1 2 0 10 9 0 0 1 1]"])
def test_dc_lines_out_of_service_do_not_matter(tmp_path: Path, lines: str) -> None:
    plain = read_grid(write(tmp_path, CASE))
    assert read_grid(write(tmp_path, f"{CASE}mpc.dcline = {lines};")).sha256 == plain.sha256


@pytest.mark.parametrize("last_word", ["end", "return;"])
def test_nothing_is_read_after_the_end_of_the_function(tmp_path: Path, last_word: str) -> None:
    plain = read_grid(write(tmp_path, CASE))
    text = f"{CASE}{last_word}\nmpc.baseMVA = 1;\nfunction f()\n"
    assert read_grid(write(tmp_path, text)).sha256 == plain.sha256


@pytest.mark.parametrize(
    "hidden", ["%{\nHERE\n%}\n", "%{\nHERE\n", "% HERE\n", "mpc.x = 'HERE';\n"]
)
def test_a_commented_or_quoted_statement_has_no_effect(tmp_path: Path, hidden: str) -> None:
    text = CASE + hidden.replace("HERE", "mpc.baseMVA = 1;")
    assert read_matpower_file(write(tmp_path, text))["baseMVA"] == 100


@pytest.mark.parametrize("quote", ["'", '"'])
def test_a_percent_sign_in_a_string_starts_no_comment(tmp_path: Path, quote: str) -> None:
    text = f"{CASE}mpc.note = {quote}50 % of it{quote}; mpc.baseMVA = 50;"
    assert read_matpower_file(write(tmp_path, text))["baseMVA"] == 50


def test_a_row_may_continue_on_the_next_line(tmp_path: Path) -> None:
    text = CASE.replace("\t250\t", " ... rates, in MVA ];\n\t250\t")
    assert read_grid(write(tmp_path, text)).sha256 == read_grid(write(tmp_path, CASE)).sha256


def test_windows_line_endings_do_not_matter(tmp_path: Path) -> None:
    plain = read_grid(write(tmp_path, CASE)).sha256
    path = tmp_path / "windows.m"
    path.write_bytes(CASE.replace("\n", "\r\n").encode())
    assert read_grid(path).sha256 == plain


def test_an_unclosed_list_of_quotes_raises_without_backtracking(tmp_path: Path) -> None:
    """Two quotes are an empty string or part of one: backtracking would take exponential time."""
    quotes = "''" * 5_000
    assert "mpc.names" in error_message(tmp_path, f"{CASE}mpc.names = {{{quotes}")


@pytest.mark.parametrize(("case", "stride"), [("case14", 29), ("case_ACTIVSg200", 2003)])
def test_a_truncated_file_raises_unless_its_data_are_complete(
    tmp_path: Path, case: str, stride: int
) -> None:
    text = (case_folder() / f"{case}.m").read_text()
    whole = read_grid(write(tmp_path, text)).sha256
    end_of_data = text.index("]", text.index("mpc.branch")) + 1
    assert read_grid(write(tmp_path, text[:end_of_data])).sha256 == whole
    for cut in range(0, len(text), stride):
        path = write(tmp_path, text[:cut])
        try:
            grid = read_grid(path)
        except CaseError:
            continue
        assert cut >= end_of_data
        assert grid.sha256 == whole


NUMBERS = st.one_of(
    st.integers(-(10**6), 10**6).map(float),
    st.floats(allow_nan=False),
    st.sampled_from([math.nan, math.inf, -math.inf, -0.0]),
)
NAMES = "{'A % no comment'; 'it''s ] } fine'; \"say \"\"%{\"\" ...\"}"
NOISE = [
    "\n",
    "% mpc.bus = [ 9 9 9 ];\n",
    "%{\nmpc.gen = [ 'x ];\n%}\n",
    f"mpc.bus_name = {NAMES};",
]


def matrices(width: int) -> st.SearchStrategy[list[list[float]]]:
    return st.lists(st.lists(NUMBERS, min_size=width, max_size=width), min_size=1, max_size=3)


def spell(value: float, random: Random) -> str:
    """One of the ways to write a number without changing its bits."""
    spellings = [repr(value), f"{value:.17g}", f"{value:+.17E}"]
    if math.isfinite(value) and value == math.floor(value):
        spellings.append(f"{value:.1f}".removesuffix("0"))
    return random.choice(spellings)


def lay_out(rows: list[list[float]], random: Random) -> str:
    """A matrix in one of MATLAB's many layouts."""
    between = [" ", "\t", ", ", " ,", " ...\n", "\t... it's 7 ];\n  "]
    after = [";\n", "\n", ";", " ; % it's ] no end\n", ";\n\n", "\n%{\n 1 2 3;\n%}\n"]
    text = random.choice(["[", "[\n", "[ % one row per bus\n"])
    for row in rows:
        text += spell(row[0], random)
        text += "".join(random.choice(between) + spell(value, random) for value in row[1:])
        text += random.choice(after)
    return f"{text}]"


@given(
    base_mva=NUMBERS,
    bus=matrices(13),
    gen=matrices(10),
    branch=matrices(4),
    random=st.randoms(use_true_random=False),
)
@settings(deadline=None, max_examples=100)
def test_data_in_any_layout_are_read_bit_for_bit(
    tmp_path_factory: pytest.TempPathFactory,
    base_mva: float,
    bus: list[list[float]],
    gen: list[list[float]],
    branch: list[list[float]],
    random: Random,
) -> None:
    expected = {"bus": bus, "gen": gen, "branch": branch}
    statements = [f"mpc.{name} = {lay_out(rows, random)}" for name, rows in expected.items()]
    statements.append(f"mpc.baseMVA={spell(base_mva, random)}")
    random.shuffle(statements)
    text = "function mpc = any\n"
    for statement in statements:
        text += random.choice(NOISE) + "\n" + statement + random.choice([";\n", "\n", ", % x\n"])
    data = read_matpower_file(write(tmp_path_factory.getbasetemp(), text))
    assert np.float64(data["baseMVA"]).tobytes() == np.float64(base_mva).tobytes()
    for name, rows in expected.items():
        assert np.asarray(data[name]).tobytes() == np.array(rows, dtype=np.float64).tobytes(), text


@st.composite
def damaged_cases(draw: st.DrawFn) -> str:
    """The tiny case with a few pieces cut out, doubled or replaced."""
    text = CASE
    scraps = st.one_of(
        st.sampled_from(["[", "]", "{", "}", "'", '"', "%", "%{\n", "...\n", ";", "\n", "mpc."]),
        st.sampled_from(["NaN", "1e999", "-1", "0", "1.5", "1e300", "4", "\t3\t", "end", "\0"]),
        st.text(max_size=5),
    )
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        stop = draw(st.integers(start, min(len(text), start + 12)))
        text = text[:start] + draw(scraps) + text[stop:]
    return text


@given(text=st.one_of(st.text(), damaged_cases()))
@example(text="mpc.bus = [[1]]")
@example(text="%{")
@example(text="...")
@example(text="mpc.gen = {{'a'}}")
@settings(deadline=None, max_examples=200)
def test_any_text_is_a_grid_or_a_case_error(
    tmp_path_factory: pytest.TempPathFactory, text: str
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.m"
    path.write_bytes(text.encode(errors="surrogatepass"))
    with suppress(CaseError):
        grid = read_grid(path)
        assert np.isfinite(grid.bus[:, :6]).all()
