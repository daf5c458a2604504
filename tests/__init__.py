"""Without a GPU, kernels are tested in Triton's interpreter; it is told before Triton is loaded.

Torch knows of GPUs too, but processes that tests start, and kill in time, must not wait for it.
"""

import os
from pathlib import Path

if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
