"""How a model of single series is called: in blocks, with seeds, in processes, with failures.

A block that raises is called again series by series, so that one series does not lose the others.
"""

import pickle
import random
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from multiprocessing import get_context
from textwrap import shorten
from typing import Any

import numpy as np
import torch
from jaxtyping import Float32, Shaped

from powerphase.adapters.answers import Marginals, read_answer
from powerphase.adapters.series import SeriesModel
from powerphase.errors import ConfigError, PowerphaseError
from powerphase.seeds import stream


@dataclass(frozen=True, eq=False)
class Block:
    """Some series of one window, to be forecast together."""

    past: Float32[np.ndarray, "X T"]
    time: Shaped[np.ndarray, " steps"]
    horizon: int
    seed: int
    rearrange: bool = False
    """Whether quantiles that cross are sorted."""

    @classmethod
    def of(
        cls,
        past: Float32[np.ndarray, "X T"],
        time: Shaped[np.ndarray, " steps"],
        first: int,
        seed: int,
        rearrange: bool,
    ) -> "Block":
        """The block whose first series has this number: seeds depend on nothing else."""
        origin = time[past.shape[1]]
        seed = int(stream(seed, "series", str(origin), first).integers(2**31))
        return cls(past, time, len(time) - past.shape[1], seed, rearrange)

    def single(self, series: int) -> "Block":
        """The block of one series."""
        past = self.past[series : series + 1]
        return Block(past, self.time, self.horizon, self.seed + series, self.rearrange)


MAX_REASON = 200
"""Characters of a reason: rows hold those of all series that failed."""

Outcome = list[Marginals | str]
"""The distributions of each series of a block, or why there are none."""


def run_block(model: SeriesModel, block: Block) -> Outcome:
    """Forecast a block; a series that fails has its reason instead."""
    try:
        with seeded(block.seed, model.is_random):
            answer = model.answer(block.past, block.time, block.horizon)
        marginals = read_answer(answer, len(block.past), block.horizon)
    except Exception as error:  # foreign code may raise anything; it is reported with the series
        if len(block.past) > 1:
            singles = (block.single(series) for series in range(len(block.past)))
            return [run_block(model, single)[0] for single in singles]
        return [reason_of(error)]
    if block.rearrange:
        marginals = marginals.rearranged()
    return [
        Marginals(marginals.values[k : k + 1], marginals.levels) if fault is None else fault
        for k, fault in enumerate(marginals.faults())
    ]


def reason_of(error: Exception) -> str:
    """What went wrong in foreign code, in one line."""
    if isinstance(error, PowerphaseError) and str(error):
        return " ".join(str(error).split())
    return f"{type(error).__name__}: {shorten(str(error), MAX_REASON)}"


@contextmanager
def seeded(seed: int, is_random: bool = True) -> Iterator[None]:
    """Seed the global random numbers of Python, NumPy and torch, and restore them afterwards."""
    if not is_random:
        yield
        return
    python, legacy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        random.seed(seed)
        np.random.seed(seed)  # noqa: NPY002
        torch.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(legacy)  # noqa: NPY002


class Workers:
    """Runs blocks in this process, or in several that are started once.

    Args:
        model: is sent to each process, so it must be what pickle can hold.
        count: the number of processes.
    """

    def __init__(self, model: SeriesModel, count: int) -> None:
        self._model, self._pool = model, None
        if count > 1:
            check_pickles(model)
            self._pool = ProcessPoolExecutor(
                count, get_context("spawn"), initializer=_start_worker, initargs=(model,)
            )

    def run(self, blocks: Iterable[Block]) -> Iterator[Outcome]:
        """The outcome of each block, in order."""
        if self._pool is None:
            yield from map(run_block, repeat(self._model), blocks)
        else:
            yield from self._pool.map(_run_in_worker, blocks)


def check_pickles(model: SeriesModel) -> None:
    """Raise unless the model can be sent to another process."""
    try:
        pickle.dumps(model)
    except Exception as error:  # pickle raises many kinds, and so may the model's own methods
        raise ConfigError(
            f"{model.name} cannot be sent to other processes ({type(error).__name__}: {error}); "
            "define its functions and classes in a module, or use workers=1"
        ) from error


_worker_model: dict[str, Any] = {}


def _start_worker(model: SeriesModel) -> None:
    torch.set_num_threads(1)  # the processes share the cores
    _worker_model["model"] = model


def _run_in_worker(block: Block) -> Outcome:
    return run_block(_worker_model["model"], block)
