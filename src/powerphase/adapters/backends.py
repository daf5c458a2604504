"""Libraries of pretrained models, each behind the same few lines."""

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Float32

from powerphase.adapters.series import require
from powerphase.adapters.weights import Weights, find_weights
from powerphase.errors import ConfigError

DECILES = tuple(level / 10 for level in range(1, 10))


class Backend(ABC):
    """A pretrained network of one library.

    Args:
        weights: what it is loaded from.
        device: cpu or cuda.
    """

    library: ClassVar[str]
    """The distribution, by whose name it is installed."""
    requirement: ClassVar[str | None] = None
    """What pip installs, if that is more than the distribution."""
    default: ClassVar[str | None]
    """The hub's name of the weights that are used if none are given."""

    def __init__(self, weights: Weights, device: str) -> None:
        self.weights, self.device = weights, device

    @classmethod
    def find(cls, source: str | Path | None, revision: str | None) -> Weights:
        """The weights, downloaded if they are not here."""
        assert cls.default is not None, "a backend without a default has bundled weights"
        return find_weights(cls.default if source is None else source, revision)

    @classmethod
    def library_version(cls) -> str:
        """The version of its library; raises `ConfigError` if that is not installed."""
        try:
            return version(cls.library)
        except PackageNotFoundError as error:
            needed = cls.requirement or cls.library
            raise ConfigError(
                f"{cls.library} is not installed; run `pip install {needed}`"
            ) from error

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


class Toto(Backend):
    """Toto of Datadog, which draws its samples step after step."""

    library = "toto-ts"
    requirement = "--no-deps toto-ts rotary-embedding-torch"
    default = "Datadog/Toto-Open-Base-1.0"
    levels = DECILES
    n_samples = 128
    """Of each series; the library recommends at least so many."""

    def __init__(self, weights: Weights, device: str) -> None:
        super().__init__(weights, device)
        network = require("toto.model.toto", self.requirement).Toto.load_from_checkpoint(
            str(weights.folder), map_location=device
        )
        inference = require("toto.inference.forecaster", self.requirement)
        self.forecaster = inference.TotoForecaster(network.model)

    def quantiles(
        self, past: Float32[np.ndarray, "X T"], horizon: int, levels: Sequence[float]
    ) -> Float32[np.ndarray, "X H M"]:
        """Those of samples; every series has the same random numbers, whatever its chunk."""
        levels_of_series = []
        for series in past:
            with torch.random.fork_rng():
                torch.manual_seed(0)
                forecast = self.forecaster.forecast(
                    self._inputs(series), horizon, self.n_samples, self.n_samples
                )
            samples = forecast.samples[0, 0].cpu().numpy()
            levels_of_series.append(np.quantile(samples, levels, axis=-1).T)
        return np.stack(levels_of_series).astype(np.float32)

    def _inputs(self, series: Float32[np.ndarray, " T"]) -> object:
        """The series as the library takes it: a group of one, whose times are not used."""
        data = require("toto.data.util.dataset", self.requirement)
        values = torch.from_numpy(series)[None].to(self.device)
        zeros = torch.zeros_like(values, dtype=torch.int)
        return data.MaskedTimeseries(values, zeros == 0, zeros, zeros, zeros[:, 0])


class Moirai(Backend):
    """Moirai 2 of Salesforce."""

    library = "uni2ts"
    requirement = "--no-deps uni2ts"
    default = "Salesforce/moirai-2.0-R-small"

    def __init__(self, weights: Weights, device: str) -> None:
        super().__init__(weights, device)
        self.library_module = require("uni2ts.model.moirai2", self.requirement)
        with redirect_stdout(sys.stderr):  # it prints where it loads from
            network = self.library_module.Moirai2Module.from_pretrained(str(weights.folder))
        self.network = network.to(device)

    @property
    def levels(self) -> tuple[float, ...]:
        """The levels of the checkpoint."""
        return tuple(self.network.quantile_levels)

    def quantiles(
        self, past: Float32[np.ndarray, "X T"], horizon: int, levels: Sequence[float]
    ) -> Float32[np.ndarray, "X H M"]:
        """Each series by itself."""
        forecaster = self.library_module.Moirai2Forecast(
            prediction_length=horizon,
            target_dim=1,
            feat_dynamic_real_dim=0,
            past_feat_dynamic_real_dim=0,
            context_length=past.shape[1],
            module=self.network,
        )
        return self._own(forecaster.predict(list(past)).swapaxes(1, 2), levels)


BACKENDS: Mapping[str, type[Backend]] = MappingProxyType(
    {
        "fracast": Fracast,
        "chronos-2": Chronos,
        "chronos-bolt": ChronosBolt,
        "timesfm": TimesFM,
        "tirex": TiRex,
        "toto": Toto,
        "moirai-2": Moirai,
    }
)
"""The pretrained models that are known, by the names of their rows."""
