"""Where the Ray clusters of tests live."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def ray_folder() -> Iterator[None]:
    """A folder for all that Ray writes meanwhile, so that no other cluster here is disturbed.

    Its path is short, since Ray's sockets live in it. A cluster's own `temp_dir` would not do: who
    joins one notes its address in Ray's usual folder, which nobody has made on a fresh machine.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder,
        pytest.MonkeyPatch.context() as environment,
    ):
        environment.setenv("RAY_TMPDIR", folder)
        yield
