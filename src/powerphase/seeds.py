"""Random streams addressed by label, so that no result depends on the order of calls.

A stream is fixed by its root seed and its labels. Two workers that ask for the same labels get the
same numbers in any order, and any part of a record can be generated on its own.
"""

import hashlib
from operator import index

import numpy as np


def stream(root: int, *labels: str | int) -> np.random.Generator:
    """The random generator of these labels under the seed `root`."""
    digest = hashlib.blake2b(repr((index(root), *labels)).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.Philox(key=np.frombuffer(digest, dtype="<u8")))
