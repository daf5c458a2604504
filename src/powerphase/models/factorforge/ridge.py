"""Ridge regression with standardised inputs, many at once."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from jaxtyping import Float64
from torch import Tensor

CONSTANT = 1e-9
"""An input that moves less teaches nothing, and has no weight."""


def ridge(
    x: Float64[np.ndarray, "*B n F"],
    y: Float64[np.ndarray, "*B n K"],
    strengths: Float64[np.ndarray, " A"],
    penalty: Float64[np.ndarray, " F"] | None = None,
) -> Float64[np.ndarray, "A *B F+1 K"]:
    """Weights for each strength: that of the constant first, then one for each input.

    A strength is per sample and for inputs of unit variance; the constant is not penalised.

    Args:
        x: inputs of n samples.
        y: what they are to explain.
        strengths: of the penalty.
        penalty: by how much to multiply it for each input.
    """
    heavy = torch.ones(x.shape[-1]).double() if penalty is None else torch.from_numpy(penalty)
    with _one_thread():
        return _ridge(torch.from_numpy(x), torch.from_numpy(y), heavy, strengths).numpy()


def _ridge(
    x: Float64[Tensor, "*B n F"],
    y: Float64[Tensor, "*B n K"],
    penalty: Float64[Tensor, " F"],
    strengths: Float64[np.ndarray, " A"],
) -> Float64[Tensor, "A *B F+1 K"]:
    middle, level = x.mean(-2, keepdim=True), y.mean(-2, keepdim=True)
    size = x.std(-2, keepdim=True, correction=0)
    # A penalty that differs is a scale that differs.
    scale = torch.where(size > CONSTANT, 1 / size.clamp(min=CONSTANT), 0.0) / penalty.sqrt()
    scaled = (x - middle) * scale
    value, vector = torch.linalg.eigh(scaled.mT @ scaled / x.shape[-2])
    along = vector.mT @ (scaled.mT @ (y - level)) / x.shape[-2]
    found = []
    for strength in strengths:
        slope = scale.mT * (vector @ (along / (value[..., None] + float(strength))))
        found.append(torch.cat([level - middle @ slope, slope], dim=-2))
    return torch.stack(found)


@contextmanager
def _one_thread() -> Iterator[None]:
    """Many small products gain nothing from several threads, which wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def applied(
    weights: Float64[np.ndarray, "... inputs K"], x: Float64[np.ndarray, "... n F"]
) -> Float64[np.ndarray, "... n K"]:
    """What the weights make of the inputs."""
    return weights[..., :1, :] + x @ weights[..., 1:, :]
