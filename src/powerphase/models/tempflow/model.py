"""TempFlow as a forecaster."""

from powerphase.models.recurrent.model import RecurrentModel
from powerphase.models.tempflow.config import TempFlowConfig
from powerphase.models.tempflow.network import TempFlowNetwork


class TempFlow(RecurrentModel):
    """The reference's TempFlow; `Trained` says what can be given."""

    name = "tempflow"
    config_type = TempFlowConfig
    network_type = TempFlowNetwork
    head_tensors = 10.0
