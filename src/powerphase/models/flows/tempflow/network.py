"""The network: the recurrent encoder, and a flow for every step of context and horizon."""

from powerphase.models.flows.network import FlowNetwork
from powerphase.models.flows.tempflow.config import TempFlowConfig


class TempFlowNetwork(FlowNetwork):
    """TempFlow for one grid; `FlowNetwork` says what can be given."""

    name = "tempflow"
    config: TempFlowConfig
