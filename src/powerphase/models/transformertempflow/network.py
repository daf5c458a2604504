"""The network: the Transformer, and a flow for every step of the horizon."""

from jaxtyping import Float
from torch import Tensor

from powerphase.models.flow.network import FlowNetwork
from powerphase.models.recurrent.inputs import Window, scales
from powerphase.models.recurrent.rollout import Seen
from powerphase.models.transformertempflow.config import TransformerTempFlowConfig
from powerphase.models.transformertempflow.encoder import Transformer
from powerphase.scenarios import Context


class TransformerTempFlowNetwork(FlowNetwork):
    """Transformer-TempFlow for one grid; `RecurrentNetwork` says what can be given."""

    name = "transformer-tempflow"
    encoder_type = Transformer
    config: TransformerTempFlowConfig

    def see(self, context: Context) -> Seen:
        """What is known of these windows when their forecast begins."""
        window = Window(context.past, None, scales(context.past, self.config, in_batch=False))
        found: Seen = self.encoder.see(window, self._clock(context))
        return found

    def judged_steps(self, window: Window, channels: slice) -> Float[Tensor, "B H C"]:
        """Z of the target."""
        assert window.target is not None
        return window.target[..., channels] / window.scale[:, None, channels]
