"""The page on a model of one's own goes from nothing to rows, as written."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from powerphase import cli
from powerphase.records import read_results
from tests.bench.in_process import run_jobs_in_process

PAGE = (Path(__file__).parents[1] / "docs" / "own_model.md").read_text()


def test_the_page_s_commands_produce_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (commands,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    assert len(code.splitlines()) <= 40
    (tmp_path / "mymodel.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))  # so that it is undone
    monkeypatch.delitem(sys.modules, "mymodel", raising=False)  # that of another test
    monkeypatch.setenv("COLUMNS", "200")
    run_jobs_in_process(monkeypatch)
    shown = [_run(command) for command in commands.strip().splitlines()]
    assert "neighbours, seed 42 on ieee14 synthetic" in shown[1].stdout
    assert "all cells are done" in shown[2].stdout
    rows = read_results([tmp_path / "results"])
    assert [row.path.stem for row in rows] == ["last-week-0", "neighbours-22", "neighbours-42"]
    assert rows[1].scores != rows[2].scores  # the seed counts
    assert "neighbours" in shown[3].stdout


def _run(command: str) -> Result:
    name, *arguments = shlex.split(command)
    assert name == "powerphase"
    done = CliRunner().invoke(cli.app, arguments)
    assert done.exit_code == 0, done.output
    return done
