"""Pages that state numbers are what their templates render to."""

from pathlib import Path

import pytest

from docs.render import pages, render


@pytest.mark.parametrize(("page", "template"), pages().items(), ids=lambda part: Path(part).name)
def test_a_page_is_what_its_template_renders_to(page: Path, template: str) -> None:
    assert page.read_text(encoding="utf-8") == render(template), "run `make pages`"
