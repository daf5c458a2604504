"""A grid as a graph for neural networks: buses as nodes, branches with admittance as edges."""

import importlib
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from powerphase.circuit import Circuit, Limits
from powerphase.errors import MissingLibrary

NODE_FEATURES = ("is_load", "is_generator", "is_slack", "nominal_kv", "shunt_g_pu", "shunt_b_pu")
"""The columns of `x`: the kind of the bus, its nominal voltage, and its shunt."""

EDGE_FEATURES = ("own_g_pu", "own_b_pu", "other_g_pu", "other_b_pu", "rating_mva")
"""The columns of `edge_attr`: the entries of the branch's admittance matrix in the row of the
edge's source (on the diagonal, and at its target), and the rating, which may be infinite."""


def pyg_data(
    circuit: Circuit,
    limits: Limits,
    bus_id: Int[np.ndarray, " N"],
    bus_type: Int[np.ndarray, " N"],
    nominal_kv: Float[np.ndarray, " N"],
) -> Any:
    """The grid as `torch_geometric.data.Data`; see `Layout.to_pyg`."""
    torch, data = import_module("torch", "to_pyg"), import_module("torch_geometric.data", "to_pyg")
    kinds = bus_type[:, None] == np.array([1, 2, 3])
    shunt = circuit.shunt_pu[:, None]
    nodes = np.hstack([kinds, nominal_kv[:, None], shunt.real, shunt.imag])
    start, end = circuit.ends.T
    from_from, from_to, to_from, to_to = circuit.admittance_pu
    rating = limits.rating_mva

    def edge(diagonal: np.ndarray, other: np.ndarray) -> np.ndarray:
        return np.stack([diagonal.real, diagonal.imag, other.real, other.imag, rating], axis=1)

    # Both directions of a branch, which differ where a transformer shifts or scales the voltage.
    edges = np.concatenate([edge(from_from, from_to), edge(to_to, to_from)])
    index = np.stack([np.concatenate([start, end]), np.concatenate([end, start])])
    return data.Data(
        x=torch.from_numpy(nodes).float(),
        edge_index=torch.from_numpy(index).long(),
        edge_attr=torch.from_numpy(edges).float(),
        bus_id=torch.from_numpy(np.asarray(bus_id)).long(),
        branch=torch.arange(len(start)).repeat(2),
        base_mva=float(circuit.base_mva),
    )


def import_module(name: str, needed_by: str) -> Any:
    """An optional library; raise with what to install if it is not there."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise MissingLibrary(
            f"{needed_by} needs {package}, which cannot be imported ({error}); run "
            f"`pip install {package.replace('_', '-')}`"
        ) from error
