"""Estimates of a training's memory: what a captured step adds, and what TimeGrad keeps."""

from typing import Any
from weakref import ReferenceType, ref

import pytest
import torch
from torch import Tensor

from powerphase.models import TACTiS, TimeGradConfig
from powerphase.models.framework import gib, peak_numbers
from powerphase.models.framework import neural as neural_module
from powerphase.models.timegrad import ROW_TENSORS, TimeGradNetwork
from powerphase.models.timeprism import TimePrism, TimePrismConfig
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


def test_a_capture_adds_validation_or_warm_up_copies() -> None:
    """Both never exist at once, and steps that are not captured keep no memory."""
    assert peak_numbers(100.0, 30.0, 5, captured=True) == 130
    assert peak_numbers(100.0, 30.0, 50, captured=True) == 100 + 3 * 50
    assert peak_numbers(100.0, 30.0, 50, captured=False) == 100
    assert peak_numbers(10.0, 30.0, 50, captured=False) == 30


@pytest.mark.parametrize("name", NAMES)
def test_every_network_counts_the_warm_up_copies(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of weights and both of Adam's numbers, as in a continued training."""
    train, model = training_of(waves()), model_of(name)
    result: list[float] = []
    for captured in (False, True):
        monkeypatch.setattr(neural_module, "is_captured", lambda *_, to=captured: to)
        result.append(model.memory_gib(train))
    parameters = sum(weight.numel() for weight in model.meta_network(train).parameters())
    assert result[1] - result[0] >= gib(3.0 * parameters) * (1 - 1e-9)


def test_timegrad_s_estimate_covers_what_it_keeps_for_the_backward_pass() -> None:
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
    kept = {tensor.data_ptr(): tensor for tensor in (each() for each in seen) if tensor is not None}
    for tensor in (*inputs, *network.parameters()):
        kept.pop(tensor.data_ptr(), None)
    rows = n_windows * (CONTEXT + HORIZON - network.encoder.reach)
    wide = [
        tensor.shape[1] for tensor in kept.values() if tensor.shape[0] == rows and tensor.ndim == 2
    ]
    widths = [width / n_channels for width in wide if width > network.config.condition]
    assert sorted(widths) == [0.5, 1, 1]
    assert sum(widths) + 2 <= ROW_TENSORS
    assert loss.requires_grad
