import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from powerphase import cli
from powerphase.models.framework import RunFolder


def outcome_of(folder: Path) -> dict[str, Any]:
    """The outcome of a finished training."""
    outcome = RunFolder.open(folder).header.outcome
    assert outcome is not None
    return outcome


class Failed(NamedTuple):
    """What a command that failed printed."""

    output: str
    problem: str


Fails = Callable[..., Failed]


@pytest.fixture
def fails(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Fails:
    """Runs a command that must fail with exit code 1 and one sentence on standard error."""

    def run_failing(*arguments: object) -> Failed:
        monkeypatch.setattr(sys, "argv", ["powerphase", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stop:
            cli.main()
        output, errors = capsys.readouterr()
        assert stop.value.code == 1
        assert "Traceback" not in errors
        assert "this is a bug" not in errors
        *_, problem = errors.strip().splitlines()
        assert problem.startswith("powerphase: ")
        assert errors.count("powerphase: ") == 1
        return Failed(output, problem)

    return run_failing
