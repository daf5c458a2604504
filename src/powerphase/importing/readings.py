"""What a source says, in common units: a value of each variable, time and bus, or nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Float, Shaped

from powerphase.axes import VARIABLES
from powerphase.errors import RecordError


@dataclass(frozen=True, eq=False)
class Readings:
    """The values of a source in MW, MVAr, p.u. or kV, and rad; powers are net consumption."""

    source: str
    """Its file or kind, for messages."""
    time: Shaped[np.ndarray, " S"]
    """Start of each step, UTC, ascending; steps may be missing."""
    buses: tuple[str, ...]
    """The source's names."""
    values: Mapping[str, Float[np.ndarray, "S N"]]
    """By variable; NaN where the source says nothing. A variable may be absent."""
    in_kv: bool = False
    """Whether voltages are in kV."""
    notes: tuple[str, ...] = field(default=())
    """What was found while reading."""

    def __post_init__(self) -> None:
        if not self.values:
            raise RecordError(
                f"{self.source}: has none of {', '.join(VARIABLES)}; name the columns in a mapping "
                "file"
            )
        if not len(self.time) or not self.buses:
            raise RecordError(f"{self.source}: has no rows or no buses")
        if len(set(self.buses)) < len(self.buses):
            name = next(name for name in self.buses if self.buses.count(name) > 1)
            raise RecordError(f"{self.source}: bus {name!r} occurs twice; give each bus once")
        for variable, values in self.values.items():
            infinite = np.argwhere(np.isinf(values))
            if len(infinite):
                step, bus = infinite[0]
                raise RecordError(
                    f"{self.source}: {variable} of bus {self.buses[bus]} at {self.time[step]} is "
                    "infinite; leave missing values empty"
                )

    def with_note(self, note: str) -> "Readings":
        """The same with one more note."""
        return replace(self, notes=(*self.notes, note))

    def place(self, step: int, bus: int) -> str:
        """The name of a point, for messages."""
        return f"bus {self.buses[bus]} at {self.time[step]}"
