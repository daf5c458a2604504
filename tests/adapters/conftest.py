"""A small task, and its context."""

import sys
from pathlib import Path

import pytest

from powerphase import Context, Store, Task

# After all others, so that only what is missing elsewhere comes from here.
sys.path.append(str(Path(__file__).parents[2] / ".unpinned"))


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, windows=2)


@pytest.fixture(scope="module")
def context(task: Task) -> Context:
    return task.test.context(0)
