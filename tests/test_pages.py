"""Pages that state numbers are what their templates render to."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_page_is_what_its_template_renders_to() -> None:
    """In a process of its own: with all types checked, rendering takes eight times as long."""
    check = [sys.executable, "docs/render.py", "--check"]
    done = subprocess.run(check, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
