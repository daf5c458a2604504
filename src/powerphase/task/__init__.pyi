from .protocol import PAPER_TASK as PAPER_TASK
from .protocol import PROTOCOL_VERSION as PROTOCOL_VERSION
from .protocol import Protocol as Protocol
from .protocol import Splits as Splits
from .protocol import WindowCount as WindowCount
from .protocol import band_of as band_of
from .windows import Task as Task
from .windows import layout_of as layout_of
