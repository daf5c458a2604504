"""A model of single series, as all adapters present the models of their libraries."""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from importlib.metadata import version
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float32, Shaped

from powerphase.adapters.answers import Answer, middles
from powerphase.errors import ConfigError, ForecastError
from powerphase.models.framework.base import kebab
from powerphase.resolution import MINUTE_S, step_of
from powerphase.scenarios import Training

LEVELS = tuple(float(level) for level in middles(16))
"""The quantiles that a library is asked for: sixteen of equal weight."""

READ_CHANNELS = 256


class SeriesModel(ABC):
    """A model that forecasts series one by one, or many of them at a time.

    `answer` must depend only on its arguments, the fitted state, and the global random numbers of
    Python, NumPy and torch, which are seeded before each call.
    """

    name: str
    config: dict[str, Any]
    """What identifies the model's results, as JSON can hold it."""
    is_random: bool = False
    """Whether answers depend on random numbers."""
    block: int = 1
    """The number of series that it is called with at a time."""

    def fit(self, record: "SeriesRecord") -> None:  # noqa: B027
        """Learn from the training record; most models of single series only see contexts."""

    @abstractmethod
    def answer(
        self,
        past: Float32[np.ndarray, "X T"],
        time: Shaped[np.ndarray, " steps"],
        horizon: int,
    ) -> Answer:
        """Forecast some series from their past.

        Args:
            past: the series of the context, one in each row.
            time: the start of every step of context and horizon, `datetime64[s]`, UTC.
            horizon: the number of steps to forecast.
        """


class SeriesRecord:
    """The series that a model may be fitted on: channels or factors of the training record.

    Args:
        train: the training record, whose channels are read in blocks.
        factors: the series of factors, if it is these that are forecast.
    """

    def __init__(self, train: Training, factors: Float32[np.ndarray, "S K"] | None = None) -> None:
        self._train, self._factors = train, factors
        self.time = train.time
        self.context = train.validation.context_steps
        self.horizon = train.validation.horizon

    def __len__(self) -> int:
        """The number of series."""
        n_channels = self._train.layout.n_channels
        return n_channels if self._factors is None else self._factors.shape[1]

    def __iter__(self) -> Iterator[tuple[int, Float32[np.ndarray, " S"]]]:
        """The number of each series that varies, and its values; every iteration reads all."""
        for first in range(0, len(self), READ_CHANNELS):
            channels = slice(first, min(first + READ_CHANNELS, len(self)))
            if self._factors is None:
                values = self._train.read(channels=channels).numpy()
            else:
                values = self._factors[:, channels]
            for column, series in enumerate(values.T):
                if np.ptp(series) > 0:
                    yield first + column, np.ascontiguousarray(series)


class LibraryModel(SeriesModel):
    """A series model made from an object of a library.

    Args:
        source: the object, of which rows state the class, and
        arguments: the options.
        levels: the quantiles that it is asked for.
    """

    library: ClassVar[str]
    """The distribution, by which it is installed."""

    def __init__(
        self,
        source: Any,
        arguments: Mapping[str, Any],
        levels: Sequence[float] | None = LEVELS,
    ) -> None:
        self.source = source
        self.levels = None if levels is None else check_levels(levels)
        kind = type(source).__name__
        self.name = f"{self.library}-{kebab(kind)}"
        self.config = {
            "library": self.library,
            "library_version": version(self.library),
            "model": kind,
            "arguments": plain_arguments(arguments),
            "levels": None if self.levels is None else list(self.levels),
        }


def plain_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as JSON can hold them; an object is named by its class."""
    return {name: _plain(value) for name, value in sorted(arguments.items())}


def _plain(value: Any) -> Any:
    match value:
        case float() if not np.isfinite(value):
            return str(value)
        case None | bool() | int() | float() | str():
            return value
        case np.generic():
            return _plain(value.item())
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return {str(key): _plain(item) for key, item in value.items()}
        case type():
            return value.__name__
    return getattr(value, "__name__", type(value).__name__)


def require(module: str, distribution: str) -> Any:
    """The module of a library; raises `ConfigError` that says how to install it."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{module} cannot be imported: no module {error.name!r}; run `pip install "
            f"{distribution}`"
        ) from error


def is_made_by(value: object, package: str) -> bool:
    """Whether a class of the value is from that package, so that a subclass counts too."""
    return any(kind.__module__.split(".")[0] == package for kind in type(value).__mro__)


def check_levels(levels: Sequence[float]) -> tuple[float, ...]:
    """The levels; raises unless they ascend between 0 and 1."""
    known = tuple(float(level) for level in levels)
    if not known or not all(low < high for low, high in pairwise((0.0, *known, 1.0))):
        raise ConfigError(f"levels must ascend between 0 and 1, found {list(levels)}")
    return known


def frequency_of(time: Shaped[np.ndarray, " S"]) -> str:
    """The step of a record as pandas writes it, such as `15min`."""
    return f"{step_of(time) // MINUTE_S}min"


def check_frequency(frequency: Any, time: Shaped[np.ndarray, " S"]) -> None:
    """Raise unless it is that of the data."""
    import pandas as pd

    try:
        step = pd.Timedelta(pd.tseries.frequencies.to_offset(frequency))
    except (TypeError, ValueError):
        step = None
    if step != pd.Timedelta(frequency_of(time)):
        raise ConfigError(
            f"it has the frequency {frequency!r}, and the data have {frequency_of(time)!r}"
        )


def check_no_covariates(name: str, wanted: Mapping[str, bool]) -> None:
    """Raise if a model wants inputs that no task has."""
    names = [option for option, is_wanted in wanted.items() if is_wanted]
    if names:
        raise ConfigError(
            f"{name} needs covariates ({', '.join(names)}), and a model only sees past values and "
            "times; leave them out"
        )


def time_index(time: Shaped[np.ndarray, " S"]) -> Any:
    """The steps as pandas has them, with their frequency."""
    import pandas as pd

    return pd.date_range(time[0], periods=len(time), freq=frequency_of(time))


def check_times(index: Any, expected: Any) -> None:
    """Raise unless a forecast is for these steps."""
    if len(index) != len(expected) or (index != expected).any():
        raise ForecastError(
            f"it forecast {len(index)} steps from {index[0]} to {index[-1]}; expected "
            f"{len(expected)} from {expected[0]} to {expected[-1]}"
        )
