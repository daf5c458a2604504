"""The network: the Transformer, and a flow for every step of the horizon."""

from jaxtyping import Float
from torch import Tensor

from powerphase.models.flow.network import FlowNetwork
from powerphase.models.recurrent.inputs import Window
from powerphase.models.transformertempflow.config import TransformerTempFlowConfig
from powerphase.models.transformertempflow.encoder import Transformer


class TransformerTempFlowNetwork(FlowNetwork):
    """Transformer-TempFlow for one grid; `RecurrentNetwork` says what can be given."""

    name = "transformer-tempflow"
    encoder_type = Transformer
    config: TransformerTempFlowConfig

    def judged_steps(self, window: Window, channels: slice) -> Float[Tensor, "B H C"]:
        """The z of the target."""
        assert window.target is not None
        return window.target[..., channels] / window.scale[:, None, channels]
