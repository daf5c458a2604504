"""Libraries of pretrained models, each behind the same few lines."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float32

from powerphase.adapters.series import require
from powerphase.adapters.weights import Weights, find_weights
from powerphase.errors import ConfigError


class Backend(ABC):
    """A pretrained network of one library.

    Args:
        weights: what it is loaded from.
        device: cpu or cuda.
    """

    library: ClassVar[str]
    """The distribution, by which it is installed."""
    default: ClassVar[str | None]
    """The hub's name of the weights that are used if none are given."""

    def __init__(self, weights: Weights, device: str) -> None:
        self.weights, self.device = weights, device

    @classmethod
    def find(cls, source: str | Path | None, revision: str | None) -> Weights:
        """The weights, downloaded if they are not here."""
        assert cls.default is not None, "a backend without a default has bundled weights"
        return find_weights(cls.default if source is None else source, revision)

    @property
    @abstractmethod
    def levels(self) -> tuple[float, ...]:
        """The quantile levels that the network was trained for."""

    @abstractmethod
    def quantiles(
        self, past: Float32[np.ndarray, "X T"], horizon: int, levels: Sequence[float]
    ) -> Float32[np.ndarray, "X H M"]:
        """The quantiles of each series at the levels."""

    def _own(
        self, every: Float32[np.ndarray, "X H levels"], levels: Sequence[float]
    ) -> Float32[np.ndarray, "X H M"]:
        """Those of the network's own quantiles that are asked for."""
        missing = sorted(set(levels) - set(self.levels))
        if missing:
            raise ConfigError(
                f"the network has quantiles of the levels {list(self.levels)}, not of {missing}"
            )
        return np.asarray(every, np.float32)[..., [self.levels.index(level) for level in levels]]


class Fracast(Backend):
    """Fracast-0, a small convolutional network whose weights are in its package."""

    library = "fracast"
    default = None

    def __init__(self, weights: Weights, device: str) -> None:
        super().__init__(weights, device)
        fracast = require("fracast", self.library)
        self.model = fracast.FracastModel.from_pretrained(
            weights.folder, weights="fp32", device=device
        )

    @classmethod
    def find(cls, source: str | Path | None, revision: str | None) -> Weights:
        """The weights in the package, unless others are given."""
        if source is not None:
            return find_weights(source, revision)
        if revision is not None:
            raise ConfigError(f"the weights in the package have no revision {revision!r}")
        package = require("fracast", cls.library)
        return Weights(Path(package.__file__).parent / "weights", cls.library, None)

    @property
    def levels(self) -> tuple[float, ...]:
        """The deciles."""
        return tuple(self.model.quantiles)

    def quantiles(
        self, past: Float32[np.ndarray, "X T"], horizon: int, levels: Sequence[float]
    ) -> Float32[np.ndarray, "X H M"]:
        """Forecasts of 48 steps; later ones continue from the medians."""
        return self._own(self.model.forecast_batch(past, horizon=horizon), levels)


class Chronos(Backend):
    """Chronos-2 and Chronos-Bolt of Amazon; other levels are interpolated by the library."""

    library = "chronos-forecasting"
    default = "amazon/chronos-2"

    def __init__(self, weights: Weights, device: str) -> None:
        super().__init__(weights, device)
        chronos = require("chronos", self.library)
        self.pipeline = chronos.BaseChronosPipeline.from_pretrained(
            str(weights.folder), device_map=device, dtype="float32"
        )

    @property
    def levels(self) -> tuple[float, ...]:
        """The levels of the checkpoint."""
        return tuple(self.pipeline.quantiles)

    def quantiles(
        self, past: Float32[np.ndarray, "X T"], horizon: int, levels: Sequence[float]
    ) -> Float32[np.ndarray, "X H M"]:
        """Each series by itself: Chronos-2 does not learn across them here."""
        context = [torch.from_numpy(series) for series in past]
        answer, _ = self.pipeline.predict_quantiles(
            context, prediction_length=horizon, quantile_levels=list(levels)
        )
        parts = [part.reshape(horizon, len(levels)).float().cpu().numpy() for part in answer]
        return np.stack(parts)


class ChronosBolt(Chronos):
    """The same with the weights of Chronos-Bolt."""

    default = "amazon/chronos-bolt-base"


class TimesFM(Backend):
    """TimesFM 3 of Google."""

    library = "timesfm"
    default = "google/timesfm-3.0-pytorch"

    def __init__(self, weights: Weights, device: str) -> None:
        super().__init__(weights, device)
        timesfm = require("timesfm3", self.library)
        self.model = timesfm.TimesFM3Forecaster.from_pretrained(
            str(weights.folder), device=device, local_files_only=True
        )

    @property
    def levels(self) -> tuple[float, ...]:
        """The levels of the checkpoint."""
        return tuple(self.model.config.quantiles)

    def quantiles(
        self, past: Float32[np.ndarray, "X T"], horizon: int, levels: Sequence[float]
    ) -> Float32[np.ndarray, "X H M"]:
        """Each series by itself, with normalised inputs."""
        answers = self.model.predict_batch(
            list(past), horizon, return_quantiles=True, sort_quantiles=False, use_znorm=True
        )
        return self._own(np.stack([answer.quantiles for answer in answers]), levels)


class TiRex(Backend):
    """TiRex of NXAI, a recurrent network."""

    library = "tirex-ts"
    default = "NX-AI/TiRex"

    def __init__(self, weights: Weights, device: str) -> None:
        super().__init__(weights, device)
        tirex = require("tirex.models.tirex", self.library)
        with redirect_stdout(sys.stderr):  # it prints where it loads from
            self.model = tirex.TiRexZero.from_pretrained(
                str(weights.folder / "model.ckpt"), backend="torch", device=device
            )

    @property
    def levels(self) -> tuple[float, ...]:
        """The levels of the checkpoint."""
        return tuple(self.model.config.quantiles)

    def quantiles(
        self, past: Float32[np.ndarray, "X T"], horizon: int, levels: Sequence[float]
    ) -> Float32[np.ndarray, "X H M"]:
        """Each series by itself."""
        answer, _ = self.model.forecast(
            torch.from_numpy(past),
            prediction_length=horizon,
            batch_size=len(past),
            output_type="numpy",
        )
        return self._own(answer, levels)


BACKENDS: Mapping[str, type[Backend]] = MappingProxyType(
    {
        "fracast": Fracast,
        "chronos-2": Chronos,
        "chronos-bolt": ChronosBolt,
        "timesfm": TimesFM,
        "tirex": TiRex,
    }
)
"""The pretrained models that are known, by the names of their rows."""
