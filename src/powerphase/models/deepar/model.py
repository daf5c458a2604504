"""DeepAR as a forecaster."""

from powerphase.models.deepar.config import DeepARConfig
from powerphase.models.deepar.network import DeepARNetwork
from powerphase.models.recurrent.model import RecurrentModel


class DeepAR(RecurrentModel):
    """The reference's DeepAR, a vector LSTM; `Trained` says what can be given."""

    name = "deepar"
    config_type = DeepARConfig
    network_type = DeepARNetwork

    @property
    def head_tensors(self) -> float:
        """Some for the Gaussian, and some for each factor."""
        return 7.0 + 3.0 * self.config.rank
