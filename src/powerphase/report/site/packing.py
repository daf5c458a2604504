"""What a page reads: script files that hold JSON, and in it arrays as compressed bytes.

A page that was opened from a file may load scripts, but may not fetch. So every piece of data is a
script that hands a value to `powerphase.put`, loaded when a page first asks for it. An array is its
bytes, regrouped by significance, deflated and in base64, all of which a browser undoes natively.
"""

import base64
import json
import zlib
from typing import Any

import numpy as np
from jaxtyping import Shaped

TYPES = ("u1", "u2", "u4", "i4", "f2", "f4")
"""What a page can read, always little-endian."""


def packed(array: Shaped[np.ndarray, "..."]) -> dict[str, Any]:
    """The array as JSON; the page gets back exactly these numbers."""
    kind = array.dtype.str[1:]
    if kind not in TYPES:
        raise TypeError(f"an array of {array.dtype} cannot be packed; give one of {TYPES}")
    content = np.ascontiguousarray(array, dtype=f"<{kind}")
    by_significance = content.view(np.uint8).reshape(-1, content.itemsize).T.tobytes()
    data = base64.b64encode(zlib.compress(by_significance, 6)).decode()
    return {"type": kind, "shape": list(array.shape), "data": data}


def script(key: str, value: Any) -> bytes:
    """The script file that hands the value to the page under that key."""
    # Escaped, so that no text of a result file could end the script or begin another.
    body = json.dumps([key, plain(value)], separators=(",", ":"), allow_nan=False)
    return f"powerphase.put(...{body.replace('<', chr(92) + 'u003c')});\n".encode()


def plain(value: Any) -> Any:
    """The value with null in the place of what is no number, as JSON has it."""
    if isinstance(value, np.ndarray):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {key: plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not np.isfinite(value) else value
