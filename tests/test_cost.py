"""The cost of a row and the commit of the code."""

import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock, patch

import pytest

from powerphase import cost


def test_a_stopwatch_counts_only_its_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([10.0, 12.0, 50.0, 51.0])
    monkeypatch.setattr(cost, "perf_counter", lambda: next(clock))
    watch = cost.Stopwatch()
    for _ in range(2):
        with watch.running():
            pass
    assert watch.seconds == 3.0


PEAKS = """
import torch
from powerphase.cost import peak_memory_gib, reset_peak_memory

cpu = torch.device("cpu")
block = torch.ones(2**26)  # 256 MiB
del block
print(peak_memory_gib(cpu))
reset_peak_memory()
print(peak_memory_gib(cpu))
block = torch.ones(2**26)
print(peak_memory_gib(cpu))
"""
"""In a process of its own: a command may have changed how this one returns memory."""


def test_peak_memory_is_measured_since_the_reset() -> None:
    done = subprocess.run([sys.executable, "-c", PEAKS], capture_output=True, text=True, check=True)
    if "None" in done.stdout:
        pytest.skip("this system does not report memory")
    before, after, again = map(float, done.stdout.split())
    assert after < before - 0.2
    assert again > after + 0.2


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
