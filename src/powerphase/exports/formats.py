"""The formats of exports: what each is, what writes it, and which libraries that takes."""

from collections.abc import Mapping
from typing import NamedTuple


class Format(NamedTuple):
    """A format: what it is for, the function that writes it, and the libraries that it needs."""

    title: str
    writer: str
    """Module within `powerphase.exports`, and function: `tables:write_long`."""
    needs: tuple[str, ...] = ()


FORMATS: Mapping[str, Format] = {
    "parquet": Format("one table, a row for each bus and step", "parquet:write_long", ("pyarrow",)),
    "parquet-wide": Format(
        "one table, a row for each step of the grid", "parquet:write_wide", ("pyarrow",)
    ),
    "netcdf": Format("arrays by window, scenario, step and bus", "netcdf:write", ("h5netcdf",)),
    "pypsa": Format("stochastic networks of PyPSA", "pypsa_network:write", ("h5netcdf", "xarray")),
    "pandapower": Format("tables for time series of pandapower", "pandapower_tables:write"),
    "grid2op": Format("arrays for chronics of Grid2Op", "grid2op_arrays:write"),
    "prescient": Format("RTS-GMLC tables for Prescient and Egret", "rts_gmlc_tables:write"),
}
"""All formats by name."""
