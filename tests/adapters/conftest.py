"""A small task, and its context."""

import pytest

from powerphase import Context, Store, Task


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, windows=2)


@pytest.fixture(scope="module")
def context(task: Task) -> Context:
    return task.test.context(0)
