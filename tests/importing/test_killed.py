"""A killed import leaves no record, a killed append the old one, and the next import works."""

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from powerphase.dataset import Store, StoreWriter, open_store, verify
from powerphase.importing import import_states, storing
from tests.warm import FORKSERVER


def _die_after(counted: Callable[..., Any], left: list[int]) -> Callable[..., Any]:
    """The function, after whose last call that is left the process kills itself."""

    def call(*arguments: Any) -> None:
        counted(*arguments)
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    return call


def _import(file: Path, out: Path, append: bool, calls: int) -> None:
    left = [calls]
    StoreWriter.write = _die_after(StoreWriter.write, left)  # type: ignore[method-assign]
    exchange = _die_after(storing.exchange_folders, left)  # type: ignore[attr-defined]
    storing.exchange_folders = exchange  # type: ignore[attr-defined]
    import_states(file, out, grid="ieee14", append=append)


# Two blocks are written, and an append exchanges the folders.
@pytest.mark.parametrize(
    ("append", "calls"), [(False, 1), (False, 2), (True, 1), (True, 2), (True, 3)]
)
def test_after_a_kill_a_reader_sees_the_old_record_or_the_new(
    append: bool, calls: int, original: Store, table: pd.DataFrame, tmp_path: Path
) -> None:
    file, out, n_before = tmp_path / "states.csv", tmp_path / "data" / "mine", 9 * 96
    if append:
        import_states(table[: n_before * 14], out, grid="ieee14")
    table.to_csv(file, index=False)
    child = FORKSERVER.Process(target=_import, args=(file, out, append, calls))
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
    assert out.exists() == append
    if append:
        assert open_store(out).manifest.n_steps == (len(original.time) if calls == 3 else n_before)
        assert verify(out).valid
    store = import_states(file, out, grid="ieee14", append=append)
    np.testing.assert_array_equal(store.read(), original.read())
    assert verify(out).valid
    assert [path.name for path in out.parent.iterdir()] == ["mine"]
