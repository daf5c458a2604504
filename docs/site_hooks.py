"""Hooks of the documentation site: pages from outside `docs/`, and the public names of the package.

A link works in the repository and on the site alike: pages link to files by relative paths, and
`on_page_markdown` rewrites those that lead to pages which the site takes from elsewhere.
"""

import ast
import posixpath
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES: Mapping[str, str] = MappingProxyType(
    {
        "README.md": "index.md",
        "CHANGELOG.md": "changelog.md",
        "CONTRIBUTING.md": "contributing.md",
        "benchmarks/measured/README.md": "measured.md",
    }
)
"""Pages that lie outside `docs/`, and their names on the site."""
PUBLIC = ("powerphase", "powerphase.models", "powerphase.adapters")
LINK = re.compile(r"\[([^]]*)\]\((?!https?:|#)([^)#\s]*)(#[^)]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from outside `docs/`."""
    for source, name in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links to where their targets are on the site; list the public names on their page."""
    name = page.file.src_uri
    if name == "api.md":
        markdown += "".join(f"\n## {package}\n\n{_directives(package)}" for package in PUBLIC)
    sources = {page: source for source, page in PAGES.items()}
    folder = posixpath.dirname(sources.get(name, f"docs/{name}"))
    return LINK.sub(lambda link: _site_link(link, folder, files), markdown)


def _site_link(link: re.Match[str], folder: str, files: Files) -> str:
    """The link as the site needs it; only the text where the site does not have the target."""
    text, target, anchor = link[1], link[2], link[3] or ""
    path = posixpath.normpath(posixpath.join(folder, target))
    page = PAGES.get(path, path.removeprefix("docs/"))
    if files.get_file_from_path(page):
        return f"[{text}]({page}{anchor})"
    return text if (ROOT / path).exists() else link[0]


def _directives(package: str) -> str:
    """A directive of mkdocstrings for each public name of a package."""
    return "".join(f"::: {package}.{name}\n\n" for name in sorted(public_names(package)))


def public_names(package: str) -> list[str]:
    """The names that a package exports, without its subpackages."""
    stub = ROOT / "src" / Path(*package.split(".")) / "__init__.pyi"
    imports = [
        node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom)
    ]
    return [alias.asname or alias.name for node in imports if node.module for alias in node.names]
