from .elements import BusPower as BusPower
from .elements import Elements as Elements
from .exporting import export as export
from .formats import FORMATS as FORMATS
