"""What a training takes: copies of weights and a pool of its own where a step is captured."""

from typing import Any
from weakref import ReferenceType, ref

import pytest
import torch
from torch import Tensor

from powerphase.models.framework import neural as neural_module
from powerphase.models.framework.neural import gib, peak_numbers
from powerphase.models.tactis.model import TACTiS
from powerphase.models.timegrad import ROW_TENSORS, TimeGradConfig, TimeGradNetwork
from powerphase.models.timeprism.config import TimePrismConfig
from powerphase.models.timeprism.model import TimePrism
from powerphase.registry import model_class
from tests.models.recurrent.toys import (
    CONTEXT,
    HORIZON,
    budget,
    tiny,
    training_of,
    waves,
    windows_of,
)
from tests.models.tactis.toys import tiny as tiny_tactis

NAMES = [
    *("deepar", "tempflow", "timegrad", "timemcl", "transformer-tempflow"),
    *("tactis-2", "timeprism"),
]


def model_of(name: str) -> Any:
    kind: Any = model_class(name)
    if kind is TACTiS:
        return kind(tiny_tactis())
    if kind is TimePrism:
        return kind(TimePrismConfig(training=budget()))
    return kind(tiny(kind.config_type))


def test_a_recording_adds_what_validation_takes_or_the_copies_of_a_rehearsal() -> None:
    """They are not there at the same time; and unrecorded steps leave their memory to others."""
    assert peak_numbers(100.0, 30.0, 5, captured=True) == 130
    assert peak_numbers(100.0, 30.0, 50, captured=True) == 100 + 3 * 50
    assert peak_numbers(100.0, 30.0, 50, captured=False) == 100
    assert peak_numbers(10.0, 30.0, 50, captured=False) == 30


@pytest.mark.parametrize("name", NAMES)
def test_every_network_counts_the_copies_of_a_rehearsal(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and both of Adam's numbers, as a training that goes on has them."""
    train, model, found = training_of(waves()), model_of(name), []
    for captured in (False, True):
        monkeypatch.setattr(neural_module, "is_captured", lambda *_, to=captured: to)
        found.append(model.memory_gib(train))
    parameters = sum(one.numel() for one in model.meta_network(train).parameters())
    assert found[1] - found[0] >= gib(3.0 * parameters) * (1 - 1e-9)


def test_what_timegrad_keeps_for_the_backward_pass_is_in_its_estimate() -> None:
    """Conditioner, slopes along it, and its hidden layer, half as wide; z is made block by block.

    The backward pass makes two more tensors of that size before it lets go of any.
    """
    n_windows, n_channels, config = 8, 400, tiny(TimeGradConfig)
    network = TimeGradNetwork(config, n_channels, CONTEXT, HORIZON, channel_block=100)
    seen: list[ReferenceType[Tensor]] = []

    def see(tensor: Tensor) -> Tensor:
        seen.append(ref(tensor))  # pieces forget theirs before the step has its loss
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(see, lambda tensor: tensor):
        inputs = network.inputs(*windows_of(n_windows, n_channels, torch.float32))
        loss = network.losses(*inputs).loss
    kept = {one.data_ptr(): one for one in (each() for each in seen) if one is not None}
    for given in (*inputs, *network.parameters()):
        kept.pop(given.data_ptr(), None)
    rows = n_windows * (CONTEXT + HORIZON - network.encoder.reach)
    wide = [one.shape[1] for one in kept.values() if one.shape[0] == rows and one.ndim == 2]
    widths = [width / n_channels for width in wide if width > network.config.condition]
    assert sorted(widths) == [0.5, 1, 1]
    assert sum(widths) + 2 <= ROW_TENSORS
    assert loss.requires_grad
