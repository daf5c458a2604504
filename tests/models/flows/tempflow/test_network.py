"""TempFlow: its loss by the plain flow, its paths against teacher forcing, what it learns."""

from typing import Any

import numpy as np
import pytest
import torch

from powerphase.errors import ConfigError, ForecastError
from powerphase.models.flows.tempflow.config import TempFlowConfig
from powerphase.models.flows.tempflow.model import TempFlow
from powerphase.models.flows.tempflow.network import TempFlowNetwork
from powerphase.models.framework.sampling import PathNoise, window_generators
from powerphase.models.framework.variants import with_variants
from powerphase.models.recurrent.inputs import Window
from powerphase.scenarios import Context
from tests.models.flows.plain import PlainFlow
from tests.models.flows.toys import correlation_of, learned, planted_correlation, score_of
from tests.models.recurrent.toys import CONTEXT, HORIZON, LAGS, tiny, training_of, windows_of


def network_of(block: int | None = None, **changes: Any) -> TempFlowNetwork:
    torch.manual_seed(1)
    config = tiny(TempFlowConfig, **{"condition": 7, "hidden": 9, "paths": 5, **changes})
    return TempFlowNetwork(config, 8, CONTEXT, HORIZON, block).double().eval()


@pytest.mark.parametrize("block", [None, 3])
def test_the_loss_is_the_plain_flow_s_of_context_and_horizon(block: int | None) -> None:
    """In training, with noise, and a batch that is normalised by itself; values and gradients."""
    network = network_of(block, dropout=0.0, noise=0.1).train()
    past, target, clock, scale = network.inputs(*windows_of())
    known = network.encoder(Window(past, target, scale), clock)
    values = torch.cat([past, target], dim=1)[:, max(LAGS) :] / scale[:, None]
    torch.manual_seed(3)
    values = values + 0.1 * torch.randn_like(values)
    expected = PlainFlow(network.flow).negative_log_likelihood(values, known)
    torch.manual_seed(3)
    found = network(*windows_of())
    torch.testing.assert_close(found.loss, expected)
    torch.testing.assert_close(found.parts["per channel"], expected.detach() / 8)
    trained = [one for one in network.encoder.parameters() if one.requires_grad]
    pairs = zip(*(torch.autograd.grad(one, trained) for one in (found.loss, expected)), strict=True)
    for one, other in pairs:
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)


@torch.no_grad()
def test_paths_are_what_the_flow_makes_of_noise_after_what_came_before() -> None:
    """Told of a path as if it had happened, the encoder knows what it knew while drawing it."""
    network, (context, _) = network_of(), windows_of()
    found, scale = network.scenarios(context, 1).values, network.see(context).scale
    generators = window_generators(1, context.time, found.device)
    noise = PathNoise(generators, 5)
    drawn = torch.stack([noise.normal(8, found) for _ in range(HORIZON)], dim=2)
    for path in range(5):
        target = found[:, path]
        inputs = network.inputs(context, target)
        known = network.encoder(Window(*inputs[:2], scale), inputs[2])[:, -HORIZON:]
        normal, _ = PlainFlow(network.flow)(target / scale[:, None], known)
        torch.testing.assert_close(normal, drawn[:, path])


def test_channels_that_move_together_or_oppositely_are_found() -> None:
    model, fresh, train = learned(TempFlow)
    found = correlation_of(model.predict(train.validation.context(0)))
    np.testing.assert_allclose(found, planted_correlation(), atol=0.35)  # 0.8 or -0.8
    score = score_of(model, train)
    assert score < 0.3  # 0.19 for whoever knows the process, 0.44 for its climatology
    assert score < score_of(fresh, train) / 3


def test_draws_that_blow_up_are_refused_and_not_clamped() -> None:
    network, (context, _) = network_of(), windows_of(1)
    network.flow.couplings[0].norm_moving.mean[1] = 1e308
    with pytest.raises(ForecastError, match="window 0, step 0: paths of tempflow grew beyond"):
        network.scenarios(Context(1e3 * context.past, context.time, context.layout), 1)


def test_a_network_that_was_never_trained_forecasts_finite_numbers() -> None:
    found = network_of().scenarios(windows_of()[0], 1)
    assert found.values.isfinite().all()


def test_the_reference_has_the_quirks_of_its_inputs() -> None:
    reference = with_variants(TempFlowConfig(), ["reference"], TempFlowConfig.VARIANTS)
    assert (reference.zero_scale, reference.least_scale, reference.minute_period) == (
        "batch", 1e-10, 46,
    )  # fmt: skip
    assert reference.noise == 0.0 < TempFlowConfig().noise
    assert reference.variant("ieee14") == "reference"
    assert TempFlowConfig(couplings=5).variant("ieee14") == "custom"


def test_parameters_are_as_many_as_the_reference_s_that_are_used() -> None:
    """Of all it has, masks leave half of what goes in and out of channels without effect."""
    model, train = TempFlow(TempFlowConfig(lags=(1, 2, 3, 4, 5))), training_of(np.ones((60, 8)))
    model.settle(train)
    model.network = model._fresh_network()
    lstm = torch.nn.LSTM(5 * 8 + 6, 40, 2)
    network = (100 + 4 + 1) * 100 + 2 * 101 * 100 + 101 * 4
    flow = 3 * (2 * network + 2 * 8)
    assert model.n_parameters == sum(p.numel() for p in lstm.parameters()) + 41 * 100 + flow


def test_odd_configurations_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"cells must .*; condition must .*; couplings must be 1"):
        TempFlowConfig(cells=0, condition=0, couplings=0)
    with pytest.raises(ConfigError, match=r"hidden must .*; noise must be 0 .*; paths must be 1"):
        TempFlowConfig(hidden=0, noise=-1e-3, paths=0)
