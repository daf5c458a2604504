"""What is known of the future: forecasts of load, sun and wind that had been issued by the origin.

A context has them for its past and its horizon. A model that does not read them is not affected.
"""

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Float64, Shaped
from torch import Tensor

from powerphase.errors import TaskError
from powerphase.issued import Issued


@dataclass(frozen=True, eq=False)
class Known:
    """Forecasts of K quantities for every step of B windows, or of a record.

    A step of the horizon has the newest forecast that had been issued by the origin. An earlier
    step has what was known a day ahead: the newest that had been issued by the latest time a whole
    number of days before the origin.
    """

    names: tuple[str, ...]
    """Such as `load`, `solar` and `wind`; a data set may have only some of them."""
    units: tuple[str, ...]
    """The unit of each, such as `MW`."""
    values: Float[Tensor, "*B S K"]
    """NaN where nothing had been issued: never in the horizon of a window to forecast, but maybe in
    its past, in a record, and in the batches and validation windows of a training."""
    issued: Shaped[np.ndarray, "*B S K"]
    """When each value was issued, `datetime64[s]`, UTC; NaT where nothing had been issued."""
    horizon: int
    """How many of the steps are the horizon; they are the last ones. None of a record's are."""

    @property
    def past(self) -> Float[Tensor, "*B T K"]:
        """The values of the steps before the origin, as they had been issued a day ahead."""
        return self.values[..., : self._n_past, :]

    @property
    def future(self) -> Float[Tensor, "*B H K"]:
        """The values of the horizon."""
        return self.values[..., self._n_past :, :]

    def column(self, name: str) -> int | None:
        """The position of a quantity in the last axis; None if there are no forecasts of it."""
        return self.names.index(name) if name in self.names else None

    def of_windows(self, part: slice) -> "Known":
        """What is known in some of the windows."""
        return Known(self.names, self.units, self.values[part], self.issued[part], self.horizon)

    def to(self, device: torch.device | str) -> "Known":
        """A copy on another device."""
        return Known(self.names, self.units, self.values.to(device), self.issued, self.horizon)

    @property
    def _n_past(self) -> int:
        return self.values.shape[-2] - self.horizon


def known_at(
    forecasts: Issued,
    origin: Shaped[np.ndarray, "*B"],
    time: Shaped[np.ndarray, "*B S"],
    horizon: int,
) -> Known:
    """What is known at the origins of windows, of which each has these steps."""
    values, issued = forecasts.seen_from(origin, time)
    return Known(forecasts.names, forecasts.units, torch.from_numpy(values), issued, horizon)


def mean_and_size(
    values: Float[Tensor, "S K"],
) -> tuple[Float64[Tensor, " K"], Float64[Tensor, " K"]]:
    """Mean and standard deviation of each quantity where it is known; 1 for one that is constant.

    Of a quantity that is nowhere known they are 0 and 1.
    """
    double = values.double()
    mean = double.nanmean(0).nan_to_num()
    size = (double - mean).square().nanmean(0).nan_to_num().sqrt()
    return mean, torch.where(size > 0, size, 1.0)


def join_known(parts: list[Known | None]) -> Known | None:
    """The same of several windows, which all have it or not."""
    known = [part for part in parts if part is not None]
    if not known:
        return None
    values = torch.cat([part.values for part in known])
    issued = np.concatenate([part.issued for part in known])
    return Known(known[0].names, known[0].units, values, issued, known[0].horizon)


def check_known(known: Known, time: Shaped[np.ndarray, "B S"], n_past: int) -> None:
    """Raise if something was issued after the origin of its window, or is for other steps."""
    if known.issued.shape[:-1] != time.shape:
        raise TaskError(
            f"forecasts for {known.issued.shape[:-1]} windows and steps in a context of "
            f"{time.shape}; give what is known of every step"
        )
    if known.horizon != time.shape[1] - n_past or known.horizon < 1:
        raise TaskError(
            f"forecasts with a horizon of {known.horizon} steps in a context with one of "
            f"{time.shape[1] - n_past}; give forecasts from the origin on"
        )
    late = known.issued > time[:, n_past, None, None]
    if late.any():
        window, step, column = (int(k) for k in np.argwhere(late)[0])
        raise TaskError(
            f"the forecast of {known.names[column]} for {time[window, step]}Z was issued at "
            f"{known.issued[window, step, column]}Z, after the origin {time[window, n_past]}Z of "
            "its window; a context has only what had been issued by then"
        )


def check_complete(known: Known, time: Shaped[np.ndarray, "B S"], forecasts: Issued) -> None:
    """Raise if some step of a horizon has no forecast that had been issued by the origin."""
    missing = known.future.isnan()
    if missing.any():
        window, step, column = (int(k) for k in missing.nonzero()[0])
        n_past = time.shape[1] - known.horizon
        origin, valid = time[window, n_past], time[window, n_past + step]
        raise TaskError(
            f"forecasts of {known.names[column]} for the window from {origin}Z on: "
            f"{forecasts.series[column].why_missing(valid, origin)}; give forecasts of its whole "
            "horizon, or choose another horizon or origin"
        )
