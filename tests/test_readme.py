"""The README and the pages of the documentation: links, tables and the citation."""

import re
from pathlib import Path

import pytest

import powerphase as pp
from powerphase.grid import CATALOG, PAPER_GRIDS, load_grid
from tests.pages import section

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = (*ROOT.glob("*.md"), *sorted(ROOT.glob("docs/*.md")))


def cells(text: str) -> list[list[str]]:
    """The lines of all tables in a text, without the rules below their headings."""
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [line.strip("| ").split(" | ") for line in lines]


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the documentation site derive them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files_and_headings(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target, heading in re.findall(r"\]\((?!http)([^)#]*)#?([^)]*)\)", text):
        file = page.parent / target if target else page
        assert file.exists(), f"{page.name}: {target}"
        assert not heading or heading in anchors(file), f"{page.name}: {target}#{heading}"


def test_the_readme_lists_every_page_once() -> None:
    linked = re.findall(r"\]\(docs/(\w+\.md)\)", section(README, "Documentation"))
    assert sorted(linked) == sorted(page.name for page in ROOT.glob("docs/*.md"))


def test_the_table_of_data_agrees_with_the_measurements() -> None:
    measurements = (ROOT / "docs" / "data_sets.md").read_text(encoding="utf-8")
    measured = {line[0]: line for line in cells(measurements)}
    table = {line[0]: line for line in cells(section(README, "Data"))}
    for name in PAPER_GRIDS:
        grid, (_, time, _, size, *others) = CATALOG[name], measured[name]
        n_buses = load_grid(name).n_buses
        numbers = [f"{n_buses:,}", f"{4 * n_buses:,}", time, size, *others[4:6]]
        assert table[grid.title] == [grid.title, *numbers, grid.licence]


def test_the_authors_of_the_data_are_named() -> None:
    for name in PAPER_GRIDS:
        (source,) = re.findall(r"(?:doi|arXiv):\S+", CATALOG[name].citation)
        assert source in README


def test_the_citation_is_of_this_version_and_of_the_paper() -> None:
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {pp.__version__}\n" in citation
    (title,) = re.findall(r"title   = \{(.*?)\}", README, re.DOTALL)
    assert " ".join(title.split()) in " ".join(citation.split())
    (number,) = re.findall(r"arXiv preprint (arXiv:[\d.]+)", README)
    assert f"value: {number}\n" in citation
    families = re.findall(r"family-names: (\w+)", citation)
    (authors,) = re.findall(r"author  = \{(.*)\}", README)
    assert [author.split(", ")[0] for author in authors.split(" and ")] == families


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_paths_in_the_guides_exist(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    paths = re.findall(r"`([\w./]+(?:/|\.pyi?|\.toml|\.yml|\.txt))`", text)
    roots = (ROOT, ROOT / "src" / "powerphase", ROOT / "tests")
    missing = [path for path in paths if not any((root / path).exists() for root in roots)]
    assert not missing
    assert len(paths) > 10


def test_the_architecture_page_names_every_package() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(\w+)`", section(text, "Packages")))
    modules = (ROOT / "src" / "powerphase").glob("*.py")
    packages = (path.parent for path in (ROOT / "src" / "powerphase").glob("*/__init__.py"))
    assert {path.stem for path in (*modules, *packages)} - {"__init__"} <= named


def test_the_changelog_begins_with_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (\S+)", changelog, re.MULTILINE)[0] == pp.__version__
