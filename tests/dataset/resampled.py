"""Data sets with another step than the generated ones: their states are averaged or repeated."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from powerphase.clock import GERMANY, Calendar
from powerphase.dataset import Block, Store, open_store, open_writer, sha256_of, static_files

OF_TIME = ("time", "signals", "state", "provenance", "backoff", "iterations", "mismatch")


def resample(store: Store, out: Path, step_s: int, calendar: Calendar = GERMANY) -> Store:
    """The data set in steps of so many seconds."""
    time = np.arange(store.time[0], store.time[-1] + np.timedelta64(900, "s"), step_s)
    old = store.manifest
    states = change_step(np.asarray(store.state[:]), step_s)
    arrays = {file.rpartition("/c/")[0] for file in old.static_sha256}
    names = arrays - {"", *OF_TIME}
    static = {name: (np.asarray(store.array(name)[...]), "as it was") for name in sorted(names)}
    static["time"] = (time.astype("datetime64[s]").astype(np.int64), "start")
    static["signals"] = (change_step(store.signals_mw, step_s), "signals")
    files = static_files(len(time), old.n_buses, {}, static)
    manifest = replace(
        old,
        n_steps=len(time),
        step_s=step_s,
        calendar=calendar,
        static_sha256={name: sha256_of(content) for name, content in files.items()},
        blocks={},
    )
    with open_writer(out, manifest, files) as writer:
        for number in range(manifest.n_blocks):
            part = states[manifest.steps(number)]
            zeros = np.zeros(len(part))
            writer.write(
                number,
                Block(
                    part,
                    zeros.astype(np.uint8),
                    zeros.astype(np.float32),
                    zeros.astype(np.uint8),
                    zeros.astype(np.float32),
                ),
            )
    return open_store(out)


def change_step(values: np.ndarray, step_s: int) -> np.ndarray:
    """Values of quarter-hours in steps of so many seconds: means of several, or repeated."""
    if step_s < 900:
        return np.repeat(values, 900 // step_s, axis=0)
    return values.reshape(-1, step_s // 900, values.shape[1]).mean(1).astype(values.dtype)
