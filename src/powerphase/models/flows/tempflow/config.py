"""What can be chosen about TempFlow; the defaults are the reference's, less its quirks."""

from dataclasses import dataclass

from powerphase.models.flows.config import FlowConfig
from powerphase.models.recurrent.config import RecurrentConfig


@dataclass(frozen=True)
class TempFlowConfig(FlowConfig, RecurrentConfig):
    """The front end, and the flow on it."""
