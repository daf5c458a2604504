"""The states of a data set as labelled arrays and tables: xarray, and pandas wide or long."""

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Float, Int, Shaped

from powerphase.axes import UNITS, VARIABLES
from powerphase.dataset.manifest import Manifest
from powerphase.errors import StoreError

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

ZONE = "time_zone"
"""The attribute of tables and time axes that names the zone of times without an offset."""

TimeRange = slice | str | np.datetime64 | None
"""A slice of step numbers or of UTC times, a day as text, or all."""
Buses = int | Iterable[int] | None
Names = str | Iterable[str] | None


class Tables:
    """What a reader of states needs to give them as labelled arrays and tables.

    Times are UTC, without an offset; the attribute `time_zone` says so. P and Q are net consumption
    [MW] and [MVAr], V [p.u.], θ [rad].
    """

    manifest: Manifest

    @property
    @abstractmethod
    def bus_id(self) -> Int[np.ndarray, " N"]:
        """The numbers of the buses."""

    @abstractmethod
    def select_times(self, time: TimeRange) -> Shaped[np.ndarray, " S"]:
        """Start of the chosen steps."""

    @abstractmethod
    def read(
        self, time: TimeRange = None, bus: Buses = None, variable: Names = None
    ) -> Float[np.ndarray, "..."]:
        """States of the chosen steps, buses and variables."""

    def to_xarray(
        self, time: TimeRange = None, bus: Buses = None, variable: Names = None
    ) -> "xr.DataArray":
        """The chosen states with the coordinates time, bus and variable, all in memory.

        The arguments are those of `read`. It needs xarray.
        """
        try:
            import xarray as xr
        except ImportError as error:
            raise StoreError(
                "to_xarray needs the package xarray; install it with "
                "`pip install 'powerphase[xarray]'`, or use to_pandas"
            ) from error
        buses, names = self._chosen(bus, variable)
        states = xr.DataArray(
            self.read(time, buses, names),
            dims=("time", "bus", "variable"),
            coords={
                "time": self.select_times(time).astype("datetime64[ns]"),
                "bus": buses,
                "variable": names,
                "unit": ("variable", [UNITS[name] for name in names]),
            },
            name="state",
            attrs={
                name: getattr(self.manifest, name) for name in ("grid", "edition", "fingerprint")
            },
        )
        states["bus"].attrs["meaning"] = "bus number in the case file"
        states["time"].attrs[ZONE] = "UTC"
        return states

    def to_pandas(
        self, bus: Buses = None, time: TimeRange = None, variable: Names = None
    ) -> "pd.DataFrame":
        """The chosen states as a table with a row for each step.

        One bus has a column for each variable, several have one for each bus and variable.
        """
        import pandas as pd  # takes a second to load

        buses, names = self._chosen(bus, variable)
        values = self.read(time, buses, names)
        columns = pd.Index(names, name="variable")
        if not isinstance(bus, int | np.integer):
            columns = pd.MultiIndex.from_product([buses, names], names=["bus", "variable"])
        index = pd.DatetimeIndex(self.select_times(time), name="time")
        table = pd.DataFrame(values.reshape(len(values), len(columns)), index, columns)
        table.attrs[ZONE] = "UTC"
        return table

    def to_long(
        self, time: TimeRange = None, bus: Buses = None, variable: Names = None
    ) -> "pd.DataFrame":
        """The chosen states as a table with a row for each value: time, bus, variable, value."""
        import pandas as pd

        buses, names = self._chosen(bus, variable)
        values, times = self.read(time, buses, names), self.select_times(time)
        n_steps, n_buses, n_names = values.shape
        table = pd.DataFrame(
            {
                "time": np.repeat(times, n_buses * n_names),
                "bus": np.tile(np.repeat(buses, n_names), n_steps),
                "variable": pd.Categorical(np.tile(names, n_steps * n_buses), VARIABLES),
                "value": values.ravel(),
            }
        )
        table.attrs[ZONE] = "UTC"
        return table

    def _chosen(self, bus: Buses, variable: Names) -> tuple[list[int], list[str]]:
        """The numbers of the buses and the names of the variables, all where None is given."""
        if bus is None:
            buses = self.bus_id.tolist()
        else:
            buses = [bus] if isinstance(bus, int | np.integer) else list(bus)
        names = [variable] if isinstance(variable, str) else list(variable or VARIABLES)
        return [int(number) for number in buses], names
