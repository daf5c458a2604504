"""DeepAR as a forecaster."""

from powerphase.models.deepar.config import DeepARConfig
from powerphase.models.deepar.network import DeepARNetwork
from powerphase.models.recurrent.model import RecurrentModel


class DeepAR(RecurrentModel):
    """The reference's DeepAR, a vector LSTM; `Trained` says what can be given."""

    name = "deepar"
    config_type = DeepARConfig
    network_type = DeepARNetwork
    head_tensors = 10.0
