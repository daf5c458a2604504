"""What the README says is so, and it leads everywhere; its commands have a file of their own."""

import re
from functools import cache
from pathlib import Path

import pytest

import powerphase
from powerphase.grid import CATALOG, PAPER_GRIDS, load_grid
from powerphase.records.result import read_result, read_results
from powerphase.records.scores import SCORES
from powerphase.report.leaderboard import Board, leaderboard
from powerphase.synthesis import OPSD_DOI
from tests.page_of_results import PART, written
from tests.pages import section

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WORDS = " ".join(README.split())
PAGES = (ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")))


def docs(page: str) -> str:
    return (ROOT / "docs" / page).read_text(encoding="utf-8")


def cells(text: str) -> list[list[str]]:
    """The lines of its tables, without their rules."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines]


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}


@cache
def boards() -> dict[str, Board]:
    found = leaderboard(read_results([ROOT / "results" / "powerphase-day-ahead"]))
    return {board.grid: board for board in found if board.edition == "opsd-r"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, head in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", page.read_text()):
        there = page.parent / target if target else page
        assert there.exists(), f"{page.name}: {target}"
        assert not head or head in anchors(there), f"{page.name}: {target}#{head}"


def test_every_page_is_linked_once_in_the_map() -> None:
    linked = re.findall(r"\]\(docs/(\w+\.md)\)", section(README, "All pages"))
    assert sorted(linked) == [page.name for page in PAGES[1:]], "give each page a line there"


def test_the_table_of_scores_is_that_of_the_package() -> None:
    lines = cells(section(README, "Which score answers which question"))[1:]
    known = {
        score.title: [score.question, score.title, score.unit, "yes" if score.proper else "–"]
        for score in SCORES.values()
    }
    assert len(lines) == 7
    for line in lines:
        assert line == known[line[1]]
    assert len(SCORES) == 14  # as the page says in words
    assert "all fourteen" in WORDS


def test_the_table_of_the_rows_is_what_its_command_writes() -> None:
    assert [part["command"].split()[0] for part in PART.finditer(README)] == ["table"]
    assert written(README) == README, "write it anew with `make results`"


def test_the_table_of_the_data_is_that_of_the_measurements() -> None:
    found = {line[0]: line for line in cells(section(README, "The data"))}
    measured = {line[0]: line for line in cells(docs("data_sets.md"))}
    for name in PAPER_GRIDS:
        entry, (_, time, _, size, *rest) = CATALOG[name], measured[name]
        n_buses = load_grid(name).n_buses
        sizes = [f"{n_buses:,}", f"{4 * n_buses:,}", time, size, *rest[4:6]]
        assert found[entry.title] == [entry.title, *sizes, entry.licence]
    lines = [measured[name] for name in PAPER_GRIDS]
    made, verified = (round(sum(float(line[k]) for line in lines) / 60) for k in (1, 11))
    assert f"All six grids take {made} minutes on two cores, and {verified} more" in WORDS
    assert f"lists these and {len(CATALOG) - len(PAPER_GRIDS)} more" in WORDS


def test_who_made_the_data_is_named() -> None:
    for name in PAPER_GRIDS:
        (source,) = re.findall(r"(?:doi|arXiv):\S+", CATALOG[name].citation)
        assert source in README
    assert f"doi:{OPSD_DOI}" in README


def test_the_times_are_those_of_the_pages() -> None:
    """Those of PowerForge on the GPU are held by test_benchmarks_powerforge.py."""
    speed = docs("speed.md")
    ratios = [int(ratio) for ratio in re.findall(r"\| (\d+)x \| \d\.\d% \|", speed)]
    assert len(ratios) == len(PAPER_GRIDS)
    assert f"{min(ratios)} to {max(ratios)} times as fast as a loop over pandapower" in WORDS
    (scored,) = re.findall(r"^\| 16, equal weights \| (.*? s) \|", speed, re.MULTILINE)
    assert f"16 scenarios | 2 cores | {scored} |" in WORDS


def test_what_is_said_of_powerforge_s_fan_is_so() -> None:
    """Here, on its own page and on that of the results: how narrow, and what it costs."""
    means = {g: {entry.name: entry.mean for entry in b.entries} for g, b in boards().items()}
    covered = [100 * found["powerforge"]["coverage_80"] for found in means.values()]
    seed_42 = ROOT / "results" / "powerphase-day-ahead" / "opsd-r" / "pegase1354"
    full = read_result(seed_42 / "powerforge-42.json").scores
    free = read_result(seed_42 / "powerforge+no-quantile-regularisation-42.json").scores
    fall = f"{100 * (1 - free['crps'] / full['crps']):.1f} %"
    page = " ".join(docs("powerforge.md").split())
    assert f"hold {min(covered):.0f} to {max(covered):.0f} % of what happens" in page
    assert f"it is {100 * free['coverage_80']:.0f} %, and CRPS is {fall} lower" in page
    assert f"CRPS falls by {fall}" in WORDS
    crps = [means["polish3120"][model]["crps"] for model in ("powerforge", "climatology")]
    words = f"on Polish 3120 by {100 * (crps[0] / crps[1] - 1):.1f} %, less than the seeds differ"
    assert words in " ".join(docs("results.md").split())


def test_powerforge_s_crps_is_as_near_to_the_paper_s_as_is_said() -> None:
    assert "two standard deviations of the paper's or below them on all six grids" in WORDS
    table = docs("results.md").split("### powerforge beside the paper")[1].split("\n###")[0]
    verdicts = [line[-1] for line in cells(table) if line[1] == "CRPS"]
    assert len(verdicts) == len(PAPER_GRIDS)
    assert not [verdict for verdict in verdicts if "worse" in verdict]


def test_models_have_the_seeds_that_are_said() -> None:
    found = [e for b in boards().values() for e in (*b.entries, *b.paper)]
    rows = [entry for entry in found if entry.name == "powerforge"]
    assert [len(entry.seeds) for entry in rows] == 12 * [3]
    others = {len(e.seeds) for b in boards().values() for e in b.entries if e not in rows}
    assert others == {1, 3}
    words = "mean of three seeds, ours as the paper's; the others have one or three."
    assert f"PowerForge is the {words}" in WORDS


def test_the_citation_is_of_this_version_and_of_the_paper() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {powerphase.__version__}\n" in citation
    (title,) = re.findall(r"title   = \{(.*?)\}", README, re.DOTALL)
    assert " ".join(title.split()) in " ".join(citation.split())
    (number,) = re.findall(r"arXiv preprint (arXiv:[\d.]+)", README)
    assert f"value: {number}\n" in citation
    families = re.findall(r"family-names: (\w+)", citation)
    (authors,) = re.findall(r"author  = \{(.*)\}", README)
    assert [author.split(", ")[0] for author in authors.split(" and ")] == families
    assert f"of {families[0]}, {families[1]} and {families[2]}" in WORDS
