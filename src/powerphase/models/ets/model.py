"""ETS as a forecaster: what ties it to training records, folders and windows."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from jaxtyping import Bool, Float, Float32, Float64
from torch import Tensor

from powerphase.cost import (
    Stopwatch,
    commit,
    free_memory_gib,
    hardware,
    peak_memory_gib,
    reset_peak_memory,
)
from powerphase.errors import CheckpointError, TrainingError
from powerphase.models.ets.config import ETSConfig
from powerphase.models.ets.fitting import fit, gains_of
from powerphase.models.ets.paths import departures, expected
from powerphase.models.ets.scans import SEASON, forward
from powerphase.models.ets.states import guess, settle
from powerphase.models.framework.device import choose_device, world_size
from powerphase.models.framework.run import RunFolder
from powerphase.models.framework.sampling import window_generators
from powerphase.models.framework.saved import SavedForecaster
from powerphase.models.framework.training import CheckpointStore
from powerphase.scenarios import Context, Layout, Scenarios, Training

OnBlock = Callable[[int, int], None]
"""Called with the number of channels that are fitted and of all."""

BLOCK = {"cpu": 256, "cuda": 65_536}
"""Channels that are fitted together: on a CPU what fills its vectors, on a GPU as many as fit."""

PER_VALUE = 24
"""Bytes that a fit holds for each value of a block: it, errors twice, and copies of a half."""

TURNS, TOLERANCE = 40, 1e-13
"""Of conjugate gradients over a context, at most, and the share of the error that may be left."""

FEWEST_SEASONS = 4
"""From which ETS can be learned."""

AT_ONCE = 1024
"""Channels that are forecast together, so that what is at work stays small."""

TINY = 1e-6
"""A standard deviation below which a channel hardly moves."""


@dataclass(frozen=True, eq=False)
class Smoothing:
    """What is fitted to every channel."""

    smoothing: Float64[Tensor, "3 C"]
    """α, β and γ; all 0 where a channel never moves."""
    deviation: Float64[Tensor, " C"]
    """Of the errors."""
    states: Float64[Tensor, "K C"]
    """At the end of the training record."""

    def of(self, channels: slice) -> "Smoothing":
        """Some channels alone."""
        return Smoothing(*(tensor[..., channels] for tensor in vars(self).values()))

    def to(self, device: torch.device) -> "Smoothing":
        """The same on another device."""
        return Smoothing(*(tensor.to(device) for tensor in vars(self).values()))


class ETS(SavedForecaster):
    """Smooths every channel by itself, and draws paths of Gaussian errors from where it stands.

    Args:
        config: all constants.
        seed: fixes the errors that are drawn.
        device: where it is fitted: cpu, cuda, or auto for a GPU where there is one.
        run: a folder for what is fitted.
        on_block: called as channels are fitted.
    """

    name: ClassVar[str] = "ets"
    config_type: ClassVar[Any] = ETSConfig
    takes_device: ClassVar[bool] = True
    counts: ClassVar[str] = "channels fitted"
    """What `on_block` is told the number of."""

    def __init__(
        self,
        config: ETSConfig | None = None,
        *,
        seed: int = 42,
        device: str = "auto",
        run: str | Path | None = None,
        on_block: OnBlock | None = None,
    ) -> None:
        super().__init__(config, seed, run)
        self.device, self.on_block = device, on_block
        self.learned: Smoothing | None = None

    @property
    def is_fitted(self) -> bool:
        """Whether there are parameters to forecast with."""
        return self.learned is not None

    @property
    def n_parameters(self) -> int | None:
        """Number of fitted numbers: three parameters and the first states of every channel."""
        if self.learned is None:
            return None
        return self.learned.smoothing.numel() + self.learned.states.numel()

    def memory_gib(self, train: Training) -> float:
        """About how much memory a fit takes on its device."""
        n_steps, n_channels = len(train.time), train.layout.n_channels
        block = min(self._block(n_steps), n_channels)
        return (PER_VALUE * n_steps * block + 8 * (self.config.season + 8) * n_channels) / 2**30

    def answer(self, context: Context) -> Scenarios:
        """The scenarios of these windows."""
        assert self.learned is not None, "`predict` asks only what is fitted"
        past = context.past
        n_windows, _, n_channels = past.shape
        size = (self.config.samples, context.horizon)
        learned = self.learned.to(past.device)
        values = past.new_empty((n_windows, *size, n_channels))
        generators = window_generators(self.seed, context.time, past.device)
        for window, generator in enumerate(generators):
            for first in range(0, n_channels, AT_ONCE):
                here = slice(first, first + AT_ONCE)
                part = learned.of(here)
                with torch.cuda.device_of(past):  # kernels run on the current device
                    states = self._states(part, past[window, :, here].contiguous())
                middle = expected(states, size[1]).to(past)
                values[window, ..., here] = middle + self._drawn(part, size, generator)
        return Scenarios.equal(values)

    def _states(self, learned: Smoothing, past: Float[Tensor, "T C"]) -> Float64[Tensor, "K C"]:
        """Where paths begin: at the end of the context, or always at that of the training."""
        if self.config.origin == "training-end":
            return learned.states
        gains = gains_of(learned.smoothing)
        errors = torch.empty_like(past, dtype=torch.float64)
        first = guess(past, self.config.season)
        settled = settle(past, gains, first, errors, TURNS, TOLERANCE)
        return forward(past, gains, settled.states).states

    def _drawn(
        self, learned: Smoothing, size: tuple[int, int], generator: torch.Generator
    ) -> Float32[Tensor, "M H C"]:
        """Departures of paths from what is expected."""
        shape = (*size, len(learned.deviation))
        errors = torch.randn(shape, generator=generator, device=generator.device)
        gains = gains_of(learned.smoothing)
        if self.config.trend_noise:
            gains[1] = learned.smoothing[1]
        return departures(errors * learned.deviation.float(), gains.float(), self.config.season)

    def _block(self, n_steps: int) -> int:
        """Channels that are fitted together."""
        device = choose_device(self.device)
        if device.type == "cpu":
            return BLOCK["cpu"]
        free = free_memory_gib(device) or 0.0
        return max(32, min(BLOCK["cuda"], int(0.8 * free * 2**30) // (PER_VALUE * n_steps)))

    def _prepare(self, train: Training) -> None:
        """Refuse what cannot work, before the record is read; forget older fits."""
        self.learned = self.outcome = None
        season, context = self.config.season, train.validation.context_steps
        if len(train.time) < FEWEST_SEASONS * season or context < season:
            raise TrainingError(
                f"ets with a season of {season} steps needs {FEWEST_SEASONS} of them to learn from "
                f"and one before each window, found {len(train.time)} and {context} steps; give it "
                "a shorter season or longer records"
            )
        if world_size() > 1:
            raise TrainingError("ets is fitted by one process; start it without torchrun")
        device = choose_device(self.device)
        needed, there = self.memory_gib(train), free_memory_gib(device)
        if there is not None and needed > there:
            raise TrainingError(
                f"fitting ets takes about {needed:.1f} GiB, and {device.type} has {there:.1f} GiB "
                "free; use another machine"
            )

    def _learn(self, train: Training, keeper: CheckpointStore) -> dict[str, Any]:
        watch, device = Stopwatch(), choose_device(self.device)
        reset_peak_memory()
        n_channels, block = train.layout.n_channels, self._block(len(train.time))
        parts, facts = [], []
        with watch.running(), torch.no_grad():
            for first in range(0, n_channels, block):
                here = slice(first, min(first + block, n_channels))
                record = train.read(channels=here).to(device)
                _check_finite(record, train.layout, first)
                parts.append(self._fitted(record).to(torch.device("cpu")))
                facts.append(record.std(0).cpu())
                if self.on_block is not None:
                    self.on_block(here.stop, n_channels)
            columns = zip(*(vars(part).values() for part in parts), strict=True)
            self.learned = Smoothing(*(torch.cat(column, dim=-1) for column in columns))
            keeper.keep_best(vars(self.learned), {})
        return {
            "steps": None,
            "train_s": watch.seconds,
            "peak_memory_gib": peak_memory_gib(device),
            "hardware": hardware(device),
            "torch": torch.__version__,
            "commit": commit(),
            "ets": _facts(self.learned, torch.cat(facts)),
        }

    def _fitted(self, record: Float32[Tensor, "S C"]) -> Smoothing:
        """What is fitted to these channels; a channel that never moves has no parameters."""
        season = self.config.season
        moves = record.amax(0) > record.amin(0)
        states = record.new_zeros((SEASON + season, len(moves)), dtype=torch.float64)
        states[0] = record[0]
        found = Smoothing(torch.zeros_like(states[:3]), torch.zeros_like(states[0]), states)
        if not moves.any():
            return found
        moving = record[:, moves].contiguous()
        best = fit(moving, season)
        found.smoothing[:, moves] = best.smoothing
        # As many numbers are fitted as a channel has parameters and states.
        found.deviation[moves] = (best.sse / (len(record) - (season + 5))).sqrt()
        found.states[:, moves] = forward(moving, best.gains, best.states).states
        return found

    def _take(self, folder: RunFolder) -> None:
        if folder.header.outcome is None:
            raise CheckpointError(f"{folder.path}: the fit was interrupted; fit it again")
        self.learned = Smoothing(**folder.best()[0])
        self.outcome = folder.header.outcome


def _check_finite(record: Float32[Tensor, "S C"], layout: Layout, first: int) -> None:
    broken: Bool[Tensor, " C"] = ~record.isfinite().all(0)
    if broken.any():
        channel = int(broken.nonzero()[0, 0])
        step = int((~record[:, channel].isfinite()).nonzero()[0, 0])
        raise TrainingError(
            f"{layout.name_of(first + channel)} is {record[step, channel].item()} in step {step} "
            "of the training record, and ets needs finite numbers; mend the data set"
        )


def _facts(learned: Smoothing, size: Float32[Tensor, " C"]) -> dict[str, Any]:
    """What was found: how many channels hardly move, and how many parameters are at a bound."""
    alpha, beta, gamma = learned.smoothing[:, learned.deviation > 0]
    edge = 1e-6
    return {
        "constant": int((learned.deviation == 0).sum()),
        "tiny": int(((size < TINY) & (learned.deviation > 0)).sum()),
        "alpha_at_bound": int(((alpha < edge) | (alpha > 1 - edge)).sum()),
        "beta_at_bound": int(((beta < edge) | (beta > 1 - edge)).sum()),
        "gamma_at_bound": int(((gamma < edge) | (gamma > 1 - alpha - edge)).sum()),
        "median": {
            name: float(part.median()) if len(part) else None
            for name, part in (("alpha", alpha), ("beta", beta), ("gamma", gamma))
        },
    }
