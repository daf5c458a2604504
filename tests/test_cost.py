"""The cost of a row and the commit of the code."""

import subprocess
from pathlib import Path
from unittest.mock import Mock, patch

import pytest
import torch

from powerphase import cost


def test_a_stopwatch_counts_only_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0, 50.0, 51.0])
    monkeypatch.setattr(cost, "perf_counter", lambda: next(clock))
    watch = cost.Stopwatch()
    for _ in range(2):
        with watch.running():
            pass
    assert watch.seconds == 3.0


def test_peak_memory_is_measured_since_the_reset() -> None:
    cpu = torch.device("cpu")
    block = torch.ones(2**26)  # 256 MiB
    del block
    before = cost.peak_memory_gib(cpu)
    cost.reset_peak_memory()
    after = cost.peak_memory_gib(cpu)
    if before is None or after is None:
        pytest.skip("this system does not report memory")
    assert after < before - 0.2
    again = torch.ones(2**26)
    assert (cost.peak_memory_gib(cpu) or 0) > after + 0.2
    del again


def test_the_commit_is_that_of_the_working_tree() -> None:
    root = Path(cost.__file__).parents[2]
    if not (root / ".git").exists():
        pytest.skip("not a checkout")
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=True
    )
    commit = cost.commit()
    assert commit is not None
    assert commit.rstrip("+") == head.stdout.strip()


def test_an_installed_package_has_the_commit_that_pip_recorded() -> None:
    recorded = Mock(read_text=lambda name: '{"vcs_info": {"commit_id": "abc", "vcs": "git"}}')
    nothing = Mock(read_text=lambda name: None)
    with patch.object(cost, "_git", return_value=None):
        with patch.object(cost, "distribution", return_value=recorded):
            assert cost.commit() == "abc"
        with patch.object(cost, "distribution", return_value=nothing):
            assert cost.commit() is None
