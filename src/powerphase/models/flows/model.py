"""What ties networks with a flow to training and prediction."""

from typing import ClassVar

from powerphase.models.flows.network import FlowNetwork
from powerphase.models.framework.device import choose_device
from powerphase.models.framework.kernels.backend import uses_triton
from powerphase.models.recurrent.model import RecurrentModel


class FlowModel(RecurrentModel):
    """What forecasters with a flow share: they have kernels, and a form without them."""

    takes_backend = True
    network_type: ClassVar[type[FlowNetwork]]

    @property
    def is_fast(self) -> bool:
        """Whether Triton's kernels will do it."""
        return uses_triton(self.backend, choose_device(self.device))
