"""What the README shows works as shown."""

import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from powerphase import cli

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_example_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "of the day's voltages leave the band" in printed
    assert "obeys the AC equations: True" in printed


def test_every_command_of_the_readme_exists() -> None:
    shell = "\n".join(re.findall(r"```sh\n(.*?)```", README, re.DOTALL))
    commands = re.findall(r"^powerphase (\w+)", shell, re.MULTILINE)
    assert len(commands) >= 6
    for command in commands:
        assert CliRunner().invoke(cli.app, [command, "--help"]).exit_code == 0


def test_every_make_target_of_the_readme_exists() -> None:
    root = Path(__file__).parents[1]
    for target in re.findall(r"^make (\w+)", README, re.MULTILINE):
        plan = ["make", "--dry-run", target]
        assert subprocess.run(plan, cwd=root, capture_output=True, check=False).returncode == 0


def test_links_lead_somewhere() -> None:
    root = Path(__file__).parents[1]
    pages = [root / "README.md", *root.glob("docs/*.md")]
    for page in pages:
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
