"""A window's series, forecast one block after another: the form of answers, failures, and time."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from jaxtyping import Bool, Float32, Int, Shaped

from powerphase.adapters.answers import Marginals, recent_days
from powerphase.adapters.running import Block, Workers, run_block
from powerphase.adapters.series import SeriesModel
from powerphase.errors import ForecastError
from powerphase.resolution import step_of, steps_per_day

PROBED = 3
"""Series that are tried before all others, to learn the form of the answers and their time."""


@dataclass(frozen=True)
class Failure:
    """A series that a model could not forecast."""

    window: str
    """The start of the window, UTC."""
    series: str
    """The name of the channel or factor."""
    reason: str


@dataclass(frozen=True)
class Estimate:
    """What a forecast will take, from a short timing."""

    series: int
    """The number of series that vary, for each of which the model is called."""
    series_s: float
    """Seconds for each series."""
    workers: int

    @property
    def seconds(self) -> float:
        """Seconds for one window."""
        return self.series * self.series_s / self.workers

    def __str__(self) -> str:
        minutes = self.seconds / 60
        time = f"{minutes:.1f} min" if minutes >= 1 else f"{self.seconds:.2g} s"
        return (
            f"about {time} for each window: {self.series:,} series vary, "
            f"{1000 * self.series_s:.3g} ms each, {self.workers} at a time"
        )


class SeriesRunner:
    """Calls a fitted model with all series of a window that vary.

    Args:
        model: the model, in the state that is forecast with.
        seed: fixes random answers.
        workers: the number of processes.
        rearrange: whether quantiles that cross are sorted.
    """

    def __init__(self, model: SeriesModel, seed: int, workers: int, rearrange: bool) -> None:
        self.model, self.seed, self.rearrange = model, seed, rearrange
        self._n_workers, self._workers = workers, Workers(model, workers)
        self._form: Marginals | None = None

    def forecast(
        self,
        past: Float32[np.ndarray, "X T"],
        time: Shaped[np.ndarray, " steps"],
        names: Sequence[str],
        first: int = 0,
    ) -> tuple[Marginals, list[Failure]]:
        """The distributions of these series of a window, and those that failed.

        A constant series stays as it is. One that fails has the distribution of the same time of
        day on the last days.

        Args:
            past: the series of the context.
            time: the start of every step of context and horizon.
            names: of the series, for failures.
            first: the number of the first series, which fixes its random numbers.
        """
        varying, n_past = np.flatnonzero(varies(past)), past.shape[1]
        per_day = steps_per_day(step_of(time))
        form = self._form_of_answers(past[varying], time)
        values = np.empty((len(past), *form.values.shape[1:]), np.float32)
        values[:] = past[:, -1, None, None]
        failures = []
        for number, result in self._results(past, time, varying, first):
            if isinstance(result, Marginals):
                result = _same_form(result, form)
            if isinstance(result, str):
                window = str(time[n_past].astype("datetime64[m]"))
                failures.append(Failure(window, names[number], result))
                result = recent_days(past[number : number + 1], len(time) - n_past, per_day, form)
            values[number] = result.values[0]
        return Marginals(values, form.levels), failures

    def estimate(
        self, past: Float32[np.ndarray, "X T"], time: Shaped[np.ndarray, " steps"]
    ) -> Estimate:
        """The time that these series will take, from a block of them or a few single ones."""
        varying = past[varies(past)]
        self._form_of_answers(varying, time)  # the first call also loads the library
        n_timed = max(self.model.block, PROBED)
        sample = varying[_spread(len(varying), n_timed)]
        start = perf_counter()
        for k in range(0, len(sample), self.model.block):
            run_block(self.model, self._block(sample[k : k + self.model.block], time, k))
        each = (perf_counter() - start) / max(len(sample), 1)
        return Estimate(len(varying), each, self._n_workers)

    def _results(
        self,
        past: Float32[np.ndarray, "X T"],
        time: Shaped[np.ndarray, " steps"],
        numbers: Int[np.ndarray, " V"],
        first: int,
    ) -> Iterator[tuple[int, Marginals | str]]:
        """The numbered series one by one, each with its distributions or why there are none."""
        size = self.model.block
        parts = [numbers[k : k + size] for k in range(0, len(numbers), size)]
        blocks = [self._block(past[part], time, first + int(part[0])) for part in parts]
        for part, outcome in zip(parts, self._workers.run(blocks), strict=True):
            yield from zip(part.tolist(), outcome, strict=True)

    def _form_of_answers(
        self, past: Float32[np.ndarray, "X T"], time: Shaped[np.ndarray, " steps"]
    ) -> Marginals:
        """An answer of the model, from the first of a few series that works."""
        if self._form is not None:
            return self._form
        if not len(past):  # nothing to forecast: any form will do
            return Marginals(np.zeros((1, 1, len(time) - past.shape[1]), np.float32), None)
        reasons = []
        for number in _spread(len(past), PROBED):
            block = self._block(past[number : number + 1], time, int(number))
            (result,) = run_block(self.model, block)
            if isinstance(result, Marginals):
                self._form = result
                return result
            reasons.append(result)
        raise ForecastError(f"{self.model.name} fails on every series that was tried: {reasons[0]}")

    def _block(
        self, past: Float32[np.ndarray, "X T"], time: Shaped[np.ndarray, " steps"], first: int
    ) -> Block:
        return Block.of(past, time, first, self.seed, self.rearrange)


def varies(past: Float32[np.ndarray, "X T"]) -> Bool[np.ndarray, " X"]:
    """Whether each series changes within the context."""
    return np.ptp(past, axis=1) > 0


def _same_form(result: Marginals, form: Marginals) -> Marginals | str:
    """The result, or what distinguishes it from the answers to other series."""
    if result.levels != form.levels:
        return f"quantiles of the levels {result.levels}, but of {form.levels} for other series"
    n_values, expected = result.values.shape[1], form.values.shape[1]
    return result if n_values == expected else f"{n_values} samples, but {expected} for others"


def _spread(count: int, wanted: int) -> Int[np.ndarray, " X"]:
    """Up to so many numbers below `count`, evenly spread."""
    return np.linspace(0, count - 1, min(wanted, count)).astype(int)
