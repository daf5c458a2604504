"""Temporary folders for the Ray clusters of tests."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def ray_folder() -> Iterator[None]:
    """Let Ray write to a temporary folder, so that it does not disturb other clusters.

    The path is short because Ray puts its sockets there. The `temp_dir` of a cluster is not enough:
    a process that joins it writes the address to Ray's default folder, which a new machine lacks.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv("RAY_TMPDIR", folder)
        yield
