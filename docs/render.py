"""Render the pages that state numbers: `make pages`, or `python docs/render.py`.

A page such as `docs/results.md` is written from its template `docs/templates/results.md.j2`, and
`README.md` from `docs/templates/README.md.j2`. Edit the template, then render; a test checks that
every page equals what its template renders to. With `--check` nothing is written, and the command
fails if a page is outdated. A template can use

- `{{ command("table results --format markdown") }}`: what a `powerphase` command prints;
- `{{ details("Title", text) }}`: text that readers unfold;
- every public name of `docs/facts.py` and the modules next to it, such as `fair_table.py`:
  `{{ number("crps", "polish2383", "ets") | digits(4) }}`;
- `span` and `join_numbers` for several numbers: `{{ ratios("crps", "ets", "oracle") | span(2) }}`
  gives "1.20 to 1.90"; for shares `percent` and `percents`: `{{ 0.123 | percent }}` gives "12 %".

To turn a page into a template, move it to `docs/templates`, put expressions in the place of its
numbers, and add nothing else: all templates are found by their names.
"""

import os
import sys
from collections.abc import Iterable
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from typer.testing import CliRunner

from powerphase import cli

ROOT = Path(__file__).parents[1]
TEMPLATES = ROOT / "docs" / "templates"
NOTICE = "<!-- Rendered from docs/templates/{template}: edit that, then run `make pages`. -->"
sys.path.insert(0, str(ROOT))

from docs import (  # noqa: E402 the root of the repository is no package
    dispatch,
    facts,
    fair_table,
    measurements,
    own_record,
    past_days,
    replication,
    solved,
    value_of_forecast,
)

MODULES = (
    dispatch,
    measurements,
    facts,
    fair_table,
    own_record,
    past_days,
    replication,
    solved,
    value_of_forecast,
)


def pages() -> dict[Path, str]:
    """Every page that has a template, and the name of the template."""
    names = sorted(file.name for file in TEMPLATES.glob("*.md.j2"))
    return {_page(name.removesuffix(".j2")): name for name in names}


def render(template: str) -> str:
    """The text of a page."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        comment_start_string="{##",
        comment_end_string="##}",
        autoescape=False,
    )
    for module in MODULES:
        names = [name for name in vars(module) if not name.startswith("_")]
        environment.globals.update({name: getattr(module, name) for name in names})
    environment.globals.update(command=command, details=details)
    environment.filters.update(
        digits=digits, span=span, join_numbers=join_numbers, percent=percent, percents=percents
    )
    notice = NOTICE.format(template=template)
    return f"{notice}\n\n{environment.get_template(template).render()}"


def command(arguments: str) -> str:
    """What `powerphase` prints with these arguments in the root of the repository."""
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        run = CliRunner().invoke(cli.app, arguments.split())
    finally:
        os.chdir(before)
    if run.exit_code:
        raise RuntimeError(f"powerphase {arguments}: {run.output or run.exception}")
    return run.stdout.strip()


def details(title: str, text: str) -> str:
    """A part that readers unfold, on GitHub and on the documentation site."""
    return f'<details markdown="1"><summary>{title}</summary>\n\n{text.strip()}\n\n</details>'


def digits(value: float, decimals: int = 2) -> str:
    """A number with so many decimals."""
    return f"{value:.{decimals}f}".replace("-", "−")


def span(values: Iterable[float], decimals: int = 2) -> str:
    """The lowest and the highest of some numbers."""
    low, high = ((digits(part, decimals)) for part in _ends(values))
    return low if low == high else f"{low} to {high}"


def join_numbers(values: Iterable[float], decimals: int = 4) -> str:
    """Some numbers one after the other."""
    *most, last = (digits(value, decimals) for value in values)
    return f"{', '.join(most)} and {last}" if most else last


def percent(share: float, decimals: int = 0) -> str:
    """A share in percent."""
    return f"{digits(100 * share, decimals)} %"


def percents(shares: Iterable[float], decimals: int = 0) -> str:
    """The lowest and the highest of some shares, in percent."""
    return f"{span([100 * share for share in shares], decimals)} %"


def _ends(values: Iterable[float]) -> tuple[float, float]:
    known = list(values)
    return min(known), max(known)


def _page(name: str) -> Path:
    return ROOT / name if name == "README.md" else ROOT / "docs" / name


def main() -> None:
    """Write all pages, or with --check only compare them."""
    for page, template in pages().items():
        text = render(template)
        if "--check" not in sys.argv[1:]:
            page.write_text(text, encoding="utf-8")
        elif page.read_text(encoding="utf-8") != text:
            sys.exit(f"{page.relative_to(ROOT)} is outdated; run `make pages`")


if __name__ == "__main__":
    main()
