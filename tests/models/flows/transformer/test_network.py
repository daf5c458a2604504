"""Transformer-TempFlow: its loss is of the horizon, its paths are the flow's, what it learns."""

from typing import Any

import numpy as np
import pytest
import torch

from powerphase.models.flows.transformer.config import TransformerTempFlowConfig
from powerphase.models.flows.transformer.model import TransformerTempFlow
from powerphase.models.flows.transformer.network import TransformerTempFlowNetwork
from powerphase.models.framework.sampling import PathNoise, window_generators
from powerphase.models.framework.variants import with_variants
from powerphase.models.recurrent.inputs import Window
from tests.models.flows.plain import PlainFlow
from tests.models.flows.toys import correlation_of, learned, planted_correlation, score_of
from tests.models.recurrent.toys import CONTEXT, HORIZON, tiny, training_of, windows_of


def network_of(block: int | None = None, **changes: Any) -> TransformerTempFlowNetwork:
    torch.manual_seed(1)
    small = {"condition": 7, "hidden": 9, "paths": 5, **changes}
    config = tiny(TransformerTempFlowConfig, **small)
    return TransformerTempFlowNetwork(config, 8, CONTEXT, HORIZON, block).double().eval()


@pytest.mark.parametrize("block", [None, 3])
def test_the_loss_is_the_plain_flow_s_of_the_horizon(block: int | None) -> None:
    """In training, with noise, and a batch that is normalised by itself; values and gradients."""
    network = network_of(block, dropout=0.0, noise=0.1).train()
    past, target, clock, scale = network.inputs(*windows_of())
    known = network.encoder(Window(past, target, scale), clock)
    torch.manual_seed(3)
    values = target / scale[:, None] + 0.1 * torch.randn_like(target)
    expected = PlainFlow(network.flow).negative_log_likelihood(values, known)
    torch.manual_seed(3)
    found = network(*windows_of()).loss
    torch.testing.assert_close(found, expected)
    trained = list(network.encoder.parameters())
    pairs = zip(*(torch.autograd.grad(one, trained) for one in (found, expected)), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-11)


@torch.no_grad()
def test_paths_are_what_the_flow_makes_of_noise_after_what_came_before() -> None:
    network, (context, _) = network_of(), windows_of()
    found, scale = network.scenarios(context, 1).values, network.see(context).scale
    noise = PathNoise(window_generators(1, context.time, found.device), 5)
    drawn = torch.stack([noise.normal(8, found) for _ in range(HORIZON)], dim=2)
    for path in range(5):
        target = found[:, path]
        inputs = network.inputs(context, target)
        known = network.encoder(Window(*inputs[:2], scale), inputs[2])
        normal, _ = PlainFlow(network.flow)(target / scale[:, None], known)
        torch.testing.assert_close(normal, drawn[:, path])


def test_channels_that_move_together_or_oppositely_are_found() -> None:
    model, fresh, train = learned(TransformerTempFlow, horizon=12, layers=1)
    found = correlation_of(model.predict(train.validation.context(0)))
    np.testing.assert_allclose(found, planted_correlation(), atol=0.35)  # 0.8 or -0.8
    score = score_of(model, train)
    assert score < 0.3  # 0.19 for whoever knows the process, 0.44 for its climatology
    assert score < score_of(fresh, train) / 3


def test_the_reference_has_all_quirks_and_length_one_alone_its_decoding() -> None:
    variants = TransformerTempFlowConfig.VARIANTS
    reference = with_variants(TransformerTempFlowConfig(), ["reference"], variants)
    assert (reference.decoding, reference.zero_scale, reference.minute_period) == (
        "length-one", "batch", 46,
    )  # fmt: skip
    assert reference.noise == 0.0 < TransformerTempFlowConfig().noise
    alone = with_variants(TransformerTempFlowConfig(), ["length-one"], variants)
    assert (alone.decoding, alone.zero_scale) == ("length-one", "floor")
    assert alone.variant("ieee14") == "length-one"


def test_parameters_are_as_many_as_the_reference_s_that_are_used() -> None:
    config = TransformerTempFlowConfig(lags=(1, 2, 3, 4, 5))
    model, train = TransformerTempFlow(config), training_of(np.ones((60, 8)))
    model.settle(train)
    model.network = model._fresh_network()
    transformer = torch.nn.Transformer(32, 8, 3, 3, 128, batch_first=True)
    front = sum(p.numel() for p in transformer.parameters()) + 2 * 32 * (5 * 8 + 7) + 33 * 100
    network = (100 + 4 + 1) * 100 + 2 * 101 * 100 + 101 * 4
    assert model.n_parameters == front + 3 * (2 * network + 2 * 8)
