"""Pretrained models as forecasters: nothing is fitted, each series is forecast from its context."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float32, Shaped

from powerphase.adapters.answers import Answer
from powerphase.adapters.backends import BACKENDS, Backend
from powerphase.adapters.forecaster import SeriesForecaster
from powerphase.adapters.series import SeriesModel, SeriesRecord, check_levels
from powerphase.errors import ConfigError, UnknownName
from powerphase.models.framework.device import choose_device

SEEN = ("opsd", "opsd-r")
"""Editions whose signals are public records, which any large collection of series may contain.
Those of `synthetic` are drawn by powerphase and are in none."""


class PretrainedModel(SeriesModel):
    """The network of a backend as a series model; it is loaded when it is first needed.

    Its quantiles are sorted where they cross: each output of such a network is trained by itself.
    """

    def __init__(
        self,
        name: str,
        kind: type[Backend],
        weights: str | Path | None,
        revision: str | None,
        levels: Sequence[float] | None,
        chunk: int,
        device: str,
    ) -> None:
        self.name, self.block, self.device = name, chunk, device
        self.levels = None if levels is None else check_levels(levels)
        library_version = kind.library_version()  # first: weights may be a long download
        self._kind, self._weights = kind, kind.find(weights, revision)
        self._network: Backend | None = None
        self.config: dict[str, Any] = {
            "library": kind.library,
            "library_version": library_version,
            "weights": self._weights.facts(),
            "levels": None if self.levels is None else list(self.levels),
            "pretraining": {"may_have_seen": list(SEEN)},
        }

    def fit(self, record: SeriesRecord) -> None:
        """Load the network; nothing is learned from the record."""
        self._load()

    def answer(
        self,
        past: Float32[np.ndarray, "X T"],
        time: Shaped[np.ndarray, " steps"],
        horizon: int,
    ) -> Answer:
        """The network's quantiles, in order."""
        network = self._load()
        levels = self.levels or network.levels
        values = network.quantiles(past, horizon, levels)
        if values.shape != (len(past), horizon, len(levels)):
            raise ConfigError(
                f"it answered an array of shape {values.shape}; expected {len(past)} series, "
                f"{horizon} steps and {len(levels)} levels"
            )
        ascending = np.moveaxis(np.sort(values), 2, 0)
        return dict(zip(levels, ascending, strict=True))

    def _load(self) -> Backend:
        if self._network is None:
            self._network = self._kind(self._weights, str(choose_device(self.device)))
        return self._network

    def __getstate__(self) -> dict[str, Any]:
        """The model without its network, which another process loads again."""
        return {**vars(self), "_network": None}


class ZeroShot(SeriesForecaster):
    """A pretrained model, used as it is.

    Over channels, quantiles become scenarios with the weight of bins; over factors, joint
    scenarios. Rows state the hash and revision of the weights, and are marked on editions whose
    signals the model may have seen.

    Args:
        backend: a name in `BACKENDS`, such as `fracast` or `chronos-2`.
        weights: a folder, or a name on the Hugging Face hub; None for the backend's usual ones,
            which those of fracast bring along.
        revision: the branch, tag or commit on the hub.
        levels: of the quantiles; None for those that the network was trained for.
        chunk: the number of series that the network forecasts at a time.
        device: cpu, cuda, or auto for a GPU if there is one.
        options: see `SeriesForecaster`.
    """

    def __init__(
        self,
        backend: str,
        weights: str | Path | None = None,
        *,
        revision: str | None = None,
        levels: Sequence[float] | None = None,
        chunk: int = 256,
        device: str = "auto",
        **options: Any,
    ) -> None:
        if backend not in BACKENDS:
            raise UnknownName.among("pretrained model", backend, BACKENDS)
        if chunk < 1:
            raise ConfigError(f"chunk must be 1 or more, found {chunk}")
        arguments = (weights, revision, levels, chunk, device)
        super().__init__(PretrainedModel(backend, BACKENDS[backend], *arguments), **options)
