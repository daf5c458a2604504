"""How far two orders agree: Spearman's ρ and Kendall's τ, with ties."""

import numpy as np
from jaxtyping import Float, Real


def average_ranks(values: Real[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
    """The place of each value, 1 for the lowest; values that tie share the mean of their places."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    return (np.cumsum(counts) - (counts - 1) / 2)[which.reshape(-1)]


def spearman(a: Real[np.ndarray, " N"], b: Real[np.ndarray, " N"]) -> float | None:
    """Correlation of the ranks of a and b; none where one of them is the same everywhere."""
    ranks = [average_ranks(values) for values in (a, b)]
    centred = [own - own.mean() if len(own) else own for own in ranks]
    size = np.sqrt(np.square(centred[0]).sum() * np.square(centred[1]).sum())
    return float(np.clip((centred[0] * centred[1]).sum() / size, -1, 1)) if size else None


def kendall(a: Real[np.ndarray, " N"], b: Real[np.ndarray, " N"]) -> float | None:
    """τ-b: pairs in the same order less those in the opposite one, of pairs that do not tie.

    None where a or b is the same everywhere. Looks at every pair, so it is for few values.
    """
    signs = [np.sign(np.subtract.outer(values, values)) for values in (a, b)]
    size = np.sqrt(np.abs(signs[0]).sum() * np.abs(signs[1]).sum())
    return float((signs[0] * signs[1]).sum() / size) if size else None
