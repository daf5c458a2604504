"""TimeMCL as a forecaster."""

from powerphase.models.recurrent.model import RecurrentModel
from powerphase.models.timemcl.config import TimeMCLConfig
from powerphase.models.timemcl.network import TimeMCLNetwork


class TimeMCL(RecurrentModel):
    """The reference's TimeMCL; `Trained` says what can be given."""

    name = "timemcl"
    config_type = TimeMCLConfig
    network_type = TimeMCLNetwork

    @property
    def head_tensors(self) -> float:
        """Errors, their slopes and what is in between."""
        return 3.0

    @property
    def copies(self) -> int:
        """As many values of each channel as there are hypotheses."""
        found: int = self.config.hypotheses
        return found
