"""What must happen before powerphase and Triton are loaded.

Without a GPU, kernels are tested in Triton's interpreter. Torch knows of GPUs too, but processes
that tests start, and kill in time, must not wait for it.
"""

import os
import sys
from pathlib import Path

from tests import shapes

if shapes.PACKAGE not in sys.modules:  # processes that tests start load it first
    shapes.install()
if not Path("/dev/nvidiactl").exists():
    os.environ["TRITON_INTERPRET"] = "1"
