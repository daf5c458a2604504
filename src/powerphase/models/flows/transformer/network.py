"""The network: the Transformer, and a flow for every step of the horizon."""

from powerphase.models.flows.network import FlowNetwork
from powerphase.models.flows.transformer.config import TransformerTempFlowConfig
from powerphase.models.flows.transformer.encoder import Transformer
from powerphase.models.recurrent.inputs import Given, Window


class TransformerTempFlowNetwork(FlowNetwork):
    """Transformer-TempFlow for one grid; `FlowNetwork` says what can be given."""

    name = "transformer-tempflow"
    encoder_type = Transformer
    config: TransformerTempFlowConfig

    def judged_values(self, window: Window) -> Given:
        """The z of the target."""
        assert window.target is not None
        return Given((window.target,), window.scale)
