"""What the README shows works as shown."""

import re
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from powerphase import cli
from powerphase.records.result import read_result, read_results
from powerphase.records.scores import SCORES
from powerphase.report.leaderboard import leaderboard
from tests.page_of_results import PART, written

README = (Path(__file__).parents[1] / "README.md").read_text()


def test_the_python_examples_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(examples) == 2
    monkeypatch.chdir(tmp_path)
    exec(compile("\n".join(examples), "README.md", "exec"), {})
    printed = capsys.readouterr().out
    assert "obeys the AC equations: True" in printed
    assert "last-7-days on ieee118 (synthetic), powerphase-day-ahead" in printed
    assert re.search(r"CRPS 0\.\d{4}, Brier 0\.\d{4}", printed)
    row = "data/results/powerphase-day-ahead/synthetic/ieee118/yesterday-0.json"
    assert (tmp_path / row).exists()


def test_the_example_of_a_model_of_your_own_runs_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[1] / "docs" / "task.md").read_text()
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    assert len(example.split("store = ")[0].strip().splitlines()) <= 40
    monkeypatch.chdir(tmp_path)
    exec(compile(example, "task.md", "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    assert "kind-of-day on ieee118 (synthetic), powerphase-day-ahead" in printed
    assert "P of the first bus at noon [MW]: [" in printed
    assert list((tmp_path / "data/results").rglob("kind-of-day-0.npz"))


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


def test_the_table_of_scores_is_that_of_the_package() -> None:
    for score in SCORES.values():
        proper, in_paper = ("yes" if claim else "–" for claim in (score.proper, score.in_paper))
        row = f"| {score.title} | {score.question} | {score.unit} | {proper} | {in_paper} |"
        assert row in README


def test_the_table_of_the_rows_is_what_its_command_writes() -> None:
    assert [part["command"].split()[0] for part in PART.finditer(README)] == ["table"]
    assert written(README) == README, "write it anew with `make results`"


def test_what_is_said_of_powerforge_s_fan_is_so() -> None:
    """Here and on its own page: how narrow it is, and what it gains without its penalties."""
    root = Path(__file__).parents[1]
    boards = [b for b in leaderboard(read_results([root / "results"])) if b.edition == "opsd-r"]
    by_grid = {b.grid: {entry.name: entry.mean for entry in b.entries} for b in boards}
    covered = [100 * found["powerforge"]["coverage_80"] for found in by_grid.values()]
    seed_42 = root / "results" / "powerphase-day-ahead" / "opsd-r" / "pegase1354"
    full = read_result(seed_42 / "powerforge-42.json").scores
    free = read_result(seed_42 / "powerforge+no-quantile-regularisation-42.json").scores
    fall = f"{100 * (1 - free['crps'] / full['crps']):.1f} %"
    page = " ".join((root / "docs" / "powerforge.md").read_text(encoding="utf-8").split())
    assert f"hold {min(covered):.0f} to {max(covered):.0f} % of what happens" in page
    assert f"it is {100 * free['coverage_80']:.0f} %, and CRPS is {fall} lower" in page
    words = " ".join(README.split())
    assert f"CRPS falls by {fall}" in words
    crps = [by_grid["polish3120"][model]["crps"] for model in ("powerforge", "climatology")]
    assert f"on Polish 3120 by {100 * (crps[0] / crps[1] - 1):.1f} % only" in words


def test_powerforge_has_the_seeds_that_are_said() -> None:
    root = Path(__file__).parents[1]
    boards = [b for b in leaderboard(read_results([root / "results"])) if b.edition == "opsd-r"]
    rows = [e for b in boards for e in (*b.entries, *b.paper) if e.name == "powerforge"]
    assert [len(entry.seeds) for entry in rows] == 12 * [3]
    assert "PowerForge is the mean of three seeds, ours as the paper's." in " ".join(README.split())
