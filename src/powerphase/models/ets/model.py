"""ETS as a forecaster: options, fitting to a training record, saving, loading and predicting."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Bool, Float, Float32, Float64
from torch import Tensor

from powerphase.axes import KINDS
from powerphase.cost import (
    Stopwatch,
    commit,
    free_memory_gib,
    hardware,
    peak_memory_gib,
    reset_peak_memory,
)
from powerphase.errors import CheckpointError, ConfigError, TrainingError
from powerphase.models.ets.fitting import (
    expected_path,
    fit,
    fit_states,
    gains_of,
    initial_states,
    path_deviations,
)
from powerphase.models.ets.scans import SEASON, forward
from powerphase.models.framework.checkpoint import check_axes
from powerphase.models.framework.configuration import Variants, variant_of
from powerphase.models.framework.device import choose_device, world_size
from powerphase.models.framework.ops import window_generators
from powerphase.models.framework.run import RunFolder
from powerphase.models.framework.saved import SavedForecaster
from powerphase.models.framework.training import CheckpointStore
from powerphase.resolution import rescale_steps
from powerphase.scenarios import Context, Layout, Scenarios, Training
from powerphase.schema import Schema, integer, nullable, number

ORIGINS = ("context", "training-end")


@dataclass(frozen=True)
class ETSConfig:
    """The season, where forecasts start, and their noise."""

    season: int = 96
    """Length of the season in quarter-hours, whatever the step of the record is."""
    origin: Literal["context", "training-end"] = "context"
    """Whether paths start at the end of the context or at the end of the training record."""
    trend_noise: bool = False
    """Whether errors change the trend of paths by β instead of αβ, which the fit uses."""
    samples: int = 100

    VARIANTS: ClassVar[Variants] = MappingProxyType(
        {
            "reference": {"season": 24, "origin": "training-end", "trend_noise": True},
            "season-24": {"season": 24},
            "stale": {"origin": "training-end"},
            "trend-noise": {"trend_noise": True},
        }
    )

    def __post_init__(self) -> None:
        if self.season < 2:
            raise ConfigError(f"season must be 2 or more, found {self.season}")
        if self.samples < 1:
            raise ConfigError(f"samples must be 1 or more, found {self.samples}")
        if self.origin not in ORIGINS:
            raise ConfigError(f"origin must be one of {ORIGINS}, found {self.origin!r}")

    def season_steps(self, step_s: int) -> int:
        """Length of the season in steps of so many seconds."""
        return rescale_steps(self.season, step_s)

    def for_grid(self, grid: str) -> "ETSConfig":
        """This configuration: no option depends on the grid."""
        return self

    def variant(self, grid: str) -> str | None:
        """The name of the options that are not the default."""
        return variant_of(self, ETSConfig(), self.VARIANTS)


OnBlock = Callable[[int, int], None]
"""Called with the number of fitted channels and the number of all channels."""

BLOCK = {"cpu": 256, "cuda": 65_536}
"""Channels that are fitted together: on a CPU enough for its vectors, on a GPU as many as fit."""

PER_VALUE = 24
"""Bytes of a fit per value of a block: the value, errors twice, and copies of a half."""

ITERATIONS, TOLERANCE = 40, 1e-13
"""Maximum iterations of conjugate gradients over a context, and their relative tolerance."""

MIN_SEASONS = 4
"""The least number of seasons in a training record."""

FORECAST_BLOCK = 1024
"""Channels that are forecast together, which bounds the memory."""

TINY = 1e-6
"""A channel with a smaller standard deviation counts as nearly constant."""


@dataclass(frozen=True, eq=False)
class Smoothing:
    """The fitted state: parameters, errors and final states of every channel."""

    smoothing: Float64[Tensor, "3 C"]
    """α, β and γ; all 0 for a constant channel."""
    deviation: Float64[Tensor, " C"]
    """The standard deviation of the errors."""
    states: Float64[Tensor, "K C"]
    """States at the end of the training record."""

    def of(self, channels: slice) -> "Smoothing":
        """The fitted state of some channels."""
        return Smoothing(*(tensor[..., channels] for tensor in vars(self).values()))

    def to(self, device: torch.device) -> "Smoothing":
        """A copy on another device."""
        return Smoothing(*(tensor.to(device) for tensor in vars(self).values()))


AXES = {"smoothing": "3 C", "deviation": "C", "states": "K C"}
"""The axes of the tensors of a `Smoothing` in a file."""

COUNTS = ("constant", "tiny", "alpha_at_bound", "beta_at_bound", "gamma_at_bound")


class ETS(SavedForecaster):
    """Smooths every channel by itself and draws paths with Gaussian errors.

    Args:
        config: all options.
        seed: fixes the random errors.
        device: the device of the fit: cpu, cuda, or auto for a GPU if there is one.
        run: a folder for the fitted state.
        on_block: called with the progress of the fit.
    """

    name: ClassVar[str] = "ets"
    config_type: ClassVar[Any] = ETSConfig
    joint_scenarios = False  # channels draw their errors independently
    takes_device: ClassVar[bool] = True
    outcome_schema: ClassVar[Mapping[str, Schema]] = {
        "ets": {
            **dict.fromkeys(COUNTS, integer(0)),
            "median": dict.fromkeys(("alpha", "beta", "gamma"), nullable(number())),
        }
    }
    counts: ClassVar[str] = "channels fitted"
    """What `on_block` counts."""

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
        self.fitted: Smoothing | None = None

    @property
    def is_fitted(self) -> bool:
        """Whether the model can forecast."""
        return self.fitted is not None

    @property
    def n_parameters(self) -> int | None:
        """Number of fitted values: three parameters and the initial states of every channel."""
        if self.fitted is None:
            return None
        return self.fitted.smoothing.numel() + self.fitted.states.numel()

    def memory_gib(self, train: Training) -> float:
        """The approximate memory of a fit on its device."""
        n_steps, n_channels = len(train.time), train.layout.n_channels
        block = min(self._block(n_steps), n_channels)
        season = self.config.season_steps(train.step_s)
        return (PER_VALUE * n_steps * block + 8 * (season + 8) * n_channels) / 2**30

    def _predict(self, context: Context) -> Scenarios:
        """The scenarios of these windows."""
        assert self.fitted is not None, "`predict` checks that the model is fitted"
        past = context.past
        n_windows, _, n_channels = past.shape
        size = (self.config.samples, context.horizon)
        fitted, season = self.fitted.to(past.device), self.config.season_steps(context.step_s)
        values = past.new_empty((n_windows, *size, n_channels))
        generators = window_generators(self.seed, context.time, past.device)
        for window, generator in enumerate(generators):
            for first in range(0, n_channels, FORECAST_BLOCK):
                channels = slice(first, first + FORECAST_BLOCK)
                part = fitted.of(channels)
                with torch.cuda.device_of(past):  # kernels run on the current device
                    states = self._states(part, past[window, :, channels].contiguous(), season)
                expected = expected_path(states, size[1]).to(past)
                deviations = self._draw_deviations(part, size, season, generator)
                values[window, ..., channels] = expected + deviations
        return Scenarios.equal(values)

    def _states(
        self, fitted: Smoothing, past: Float[Tensor, "T C"], season: int
    ) -> Float64[Tensor, "K C"]:
        """The states from which paths start: after the context, or after the training record."""
        if self.config.origin == "training-end":
            return fitted.states
        gains = gains_of(fitted.smoothing)
        errors = torch.empty_like(past, dtype=torch.float64)
        first = initial_states(past, season)
        best = fit_states(past, gains, first, errors, ITERATIONS, TOLERANCE)
        return forward(past, gains, best.states).states

    def _draw_deviations(
        self, fitted: Smoothing, size: tuple[int, int], season: int, generator: torch.Generator
    ) -> Float32[Tensor, "M H C"]:
        """Random deviations of paths from the expected path."""
        shape = (*size, len(fitted.deviation))
        errors = torch.randn(shape, generator=generator, device=generator.device)
        gains = gains_of(fitted.smoothing)
        if self.config.trend_noise:
            gains[1] = fitted.smoothing[1]
        scaled = errors * fitted.deviation.float()
        return path_deviations(scaled, gains.float(), season)

    def _block(self, n_steps: int) -> int:
        """Channels that are fitted together."""
        device = choose_device(self.device)
        if device.type == "cpu":
            return BLOCK["cpu"]
        free = free_memory_gib(device) or 0.0
        return max(32, min(BLOCK["cuda"], int(0.8 * free * 2**30) // (PER_VALUE * n_steps)))

    def _check(self, train: Training) -> None:
        """Raise if the fit cannot work, before the record is read; discard earlier fits."""
        self.fitted = self.outcome = None
        season = self.config.season_steps(train.step_s)
        context = train.validation.context_steps
        if season < 2:
            raise TrainingError(
                f"ets with a season of {self.config.season} quarter-hours has {season} steps of "
                f"{train.step_s // 60} minutes in it; use a longer season"
            )
        if len(train.time) < MIN_SEASONS * season or context < season:
            raise TrainingError(
                f"ets with a season of {season} steps needs {MIN_SEASONS} seasons in the training "
                f"record and one in the context, found {len(train.time)} and {context} steps; use "
                "a shorter season or longer records"
            )
        if world_size() > 1:
            raise TrainingError("ets is fitted by one process; start it without torchrun")
        device = choose_device(self.device)
        needed, free = self.memory_gib(train), free_memory_gib(device)
        if free is not None and needed > free:
            raise TrainingError(
                f"fitting ets needs about {needed:.1f} GiB, but {device.type} has {free:.1f} GiB "
                "free; use another machine"
            )

    def _fit(self, train: Training, checkpoints: CheckpointStore) -> dict[str, Any]:
        watch, device = Stopwatch(), choose_device(self.device)
        reset_peak_memory()
        n_channels, block = train.layout.n_channels, self._block(len(train.time))
        season = self.config.season_steps(train.step_s)
        parts, deviations = [], []
        with watch.running(), torch.no_grad():
            for first in range(0, n_channels, block):
                channels = slice(first, min(first + block, n_channels))
                record = train.read(channels=channels).to(device)
                _check_finite(record, train.layout, first)
                parts.append(self._fit_block(record, season).to(torch.device("cpu")))
                deviations.append(record.std(0).cpu())
                if self.on_block is not None:
                    self.on_block(channels.stop, n_channels)
            columns = zip(*(vars(part).values() for part in parts), strict=True)
            self.fitted = Smoothing(*(torch.cat(column, dim=-1) for column in columns))
            checkpoints.save_best(vars(self.fitted), {})
        return {
            "steps": None,
            "train_s": watch.seconds,
            "peak_memory_gib": peak_memory_gib(device),
            "hardware": hardware(device),
            "torch": torch.__version__,
            "commit": commit(),
            "ets": _facts(self.fitted, torch.cat(deviations)),
        }

    def _fit_block(self, record: Float32[Tensor, "S C"], season: int) -> Smoothing:
        """Fit these channels; the parameters of a constant channel are 0."""
        moves = record.amax(0) > record.amin(0)
        states = record.new_zeros((SEASON + season, len(moves)), dtype=torch.float64)
        states[0] = record[0]
        fitted = Smoothing(torch.zeros_like(states[:3]), torch.zeros_like(states[0]), states)
        if not moves.any():
            return fitted
        moving = record[:, moves].contiguous()
        best = fit(moving, season)
        fitted.smoothing[:, moves] = best.smoothing
        # Degrees of freedom: the parameters and states of a channel are fitted.
        fitted.deviation[moves] = (best.sse / (len(record) - (season + 5))).sqrt()
        fitted.states[:, moves] = forward(moving, best.gains, best.states).states
        return fitted

    def _load_state(self, folder: RunFolder) -> None:
        if folder.header.outcome is None:
            raise CheckpointError(f"{folder.path}: the fit was interrupted; fit it again")
        tensors, _ = folder.best()
        domain = folder.header.domain
        season = self.config.season_steps(domain.step_s)
        sizes = {"C": KINDS * domain.n_buses, "K": SEASON + season}
        check_axes(tensors, AXES, sizes, str(folder.weights_file))
        self.fitted = Smoothing(**tensors)
        self.outcome = folder.header.outcome


def _check_finite(record: Float32[Tensor, "S C"], layout: Layout, first: int) -> None:
    broken: Bool[Tensor, " C"] = ~record.isfinite().all(0)
    if broken.any():
        channel = int(broken.nonzero()[0, 0])
        step = int((~record[:, channel].isfinite()).nonzero()[0, 0])
        raise TrainingError(
            f"{layout.name_of(first + channel)} is {record[step, channel].item()} in step {step} "
            "of the training record, but ets needs finite numbers; check the data set"
        )


def _facts(fitted: Smoothing, size: Float32[Tensor, " C"]) -> dict[str, Any]:
    """The numbers of constant channels and of parameters at a bound, and median parameters."""
    alpha, beta, gamma = fitted.smoothing[:, fitted.deviation > 0]
    edge = 1e-6
    return {
        "constant": int((fitted.deviation == 0).sum()),
        "tiny": int(((size < TINY) & (fitted.deviation > 0)).sum()),
        "alpha_at_bound": int(((alpha < edge) | (alpha > 1 - edge)).sum()),
        "beta_at_bound": int(((beta < edge) | (beta > 1 - edge)).sum()),
        "gamma_at_bound": int(((gamma < edge) | (gamma > 1 - alpha - edge)).sum()),
        "median": {
            name: float(part.median()) if len(part) else None
            for name, part in (("alpha", alpha), ("beta", beta), ("gamma", gamma))
        },
    }
