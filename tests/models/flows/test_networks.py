"""TempFlow and Transformer-TempFlow: loss by the masked flow, paths, and learned correlations."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.errors import ConfigError, ForecastError
from powerphase.models.flows import (
    FlowNetwork,
    TempFlow,
    TempFlowConfig,
    TransformerTempFlow,
    TransformerTempFlowConfig,
)
from powerphase.models.framework import PathNoise, apply_variants, window_generators
from powerphase.models.recurrent import Window
from powerphase.scenarios import Context
from tests.models.flows.plain import MaskedFlow
from tests.models.flows.toys import correlation_of, score_of, train_toy, true_correlation
from tests.models.recurrent.toys import CONTEXT, HORIZON, LAGS, tiny, training_of, windows_of

each_flow = pytest.mark.parametrize("kind", [TempFlow, TransformerTempFlow])


def network_of(kind: Any, block: int | None = None, **changes: Any) -> FlowNetwork:
    torch.manual_seed(1)
    config = tiny(kind.config_type, **{"condition": 7, "hidden": 9, "paths": 5, **changes})
    network: FlowNetwork = kind.network_type(config, 8, CONTEXT, HORIZON, block)
    return network.double().eval()


def values_of_loss(kind: Any, past: Tensor, target: Tensor, scale: Tensor) -> Tensor:
    """TempFlow's loss covers context and horizon, Transformer-TempFlow's only the horizon."""
    both = torch.cat([past, target], dim=1)[:, max(LAGS) :]
    return (both if kind is TempFlow else target) / scale[:, None]


@each_flow
@pytest.mark.parametrize("block", [None, 3])
def test_the_loss_and_its_gradients_are_those_of_the_masked_flow(
    kind: Any, block: int | None
) -> None:
    """In training, with noise, and with normalisation by the batch."""
    network = network_of(kind, block, dropout=0.0, noise=0.1).train()
    past, target, clock, scale = network.inputs(*windows_of())
    condition = network.encoder(Window(past, target, scale), clock)
    torch.manual_seed(3)
    values = values_of_loss(kind, past, target, scale)
    values = values + 0.1 * torch.randn_like(values)
    expected = MaskedFlow(network.flow).negative_log_likelihood(values, condition)
    torch.manual_seed(3)
    loss, parts = network(*windows_of())
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(parts["per channel"], expected.detach() / 8)
    trained = [weight for weight in network.encoder.parameters() if weight.requires_grad]
    torch.testing.assert_close(
        torch.autograd.grad(loss, trained),
        torch.autograd.grad(expected, trained),
        rtol=1e-8,
        atol=1e-11,
    )


@each_flow
@torch.no_grad()
def test_paths_are_the_inverse_flow_of_noise_given_the_earlier_steps(kind: Any) -> None:
    """With a path as the target, the encoder's outputs are those that the path was drawn from."""
    network, (context, _) = network_of(kind), windows_of()
    paths, scale = network.scenarios(context, 1).values, network.encode(context).scale
    path_noise = PathNoise(window_generators(1, context.time, paths.device), 5)
    noise = torch.stack([path_noise.normal(8, paths) for _ in range(HORIZON)], dim=2)
    for number, target in enumerate(paths.unbind(1)):
        inputs = network.inputs(context, target)
        condition = network.encoder(Window(*inputs[:2], scale), inputs[2])[:, -HORIZON:]
        actual, _ = MaskedFlow(network.flow)(target / scale[:, None], condition)
        torch.testing.assert_close(actual, noise[:, number])


@pytest.mark.parametrize(
    ("kind", "options"), [(TempFlow, {}), (TransformerTempFlow, {"horizon": 12, "layers": 1})]
)
def test_training_finds_positive_and_negative_correlations(
    kind: Any, options: dict[str, Any]
) -> None:
    model, untrained, train = train_toy(kind, **options)
    correlation = correlation_of(model.predict(train.validation.context(0)))
    np.testing.assert_allclose(correlation, true_correlation(), atol=0.35)  # 0.8 or -0.8
    score = score_of(model, train)
    assert score < 0.3  # 0.19 for the true process, 0.44 for its climatology
    assert score < score_of(untrained, train) / 3


def test_diverging_paths_raise_and_are_not_clamped() -> None:
    network, (context, _) = network_of(TempFlow), windows_of(1)
    first: Any = network.flow.couplings[0]
    first.norm_moving.mean[1] = 1e308
    with pytest.raises(ForecastError, match=r"window 0, step 0: .*tempflow"):
        network.scenarios(Context(1e3 * context.past, context.time, context.layout), 1)


def test_an_untrained_network_forecasts_finite_values() -> None:
    assert network_of(TempFlow).scenarios(windows_of()[0], 1).values.isfinite().all()


def test_the_reference_variant_of_tempflow_has_the_quirks_of_its_inputs() -> None:
    reference = apply_variants(TempFlowConfig(), ["reference"], TempFlowConfig.VARIANTS)
    scale = (reference.zero_scale, reference.least_scale, reference.minute_period)
    assert scale == ("batch", 1e-10, 46)
    assert reference.noise == 0.0 < TempFlowConfig().noise
    assert reference.variant("ieee14") == "reference"
    assert TempFlowConfig(couplings=5).variant("ieee14") == "custom"


def test_the_reference_variant_of_transformer_tempflow_has_all_quirks() -> None:
    config = TransformerTempFlowConfig()
    reference = apply_variants(config, ["reference"], config.VARIANTS)
    quirks = (reference.decoding, reference.zero_scale, reference.minute_period)
    assert quirks == ("length-one", "batch", 46)
    assert reference.noise == 0.0 < config.noise
    single = apply_variants(config, ["length-one"], config.VARIANTS)
    assert (single.decoding, single.zero_scale) == ("length-one", "floor")
    assert single.variant("ieee14") == "length-one"


def count_parameters(module: torch.nn.Module) -> int:
    return sum(weight.numel() for weight in module.parameters())


@each_flow
def test_parameter_count_equals_the_used_parameters_of_the_reference(kind: Any) -> None:
    """Masks make half of the reference's weights to and from channels ineffective."""
    model = kind(kind.config_type(lags=(1, 2, 3, 4, 5)))
    model.configure(training_of(np.ones((60, 8))))
    model.network = model._initial_network()
    if kind is TempFlow:
        encoder = count_parameters(torch.nn.LSTM(5 * 8 + 6, 40, 2)) + 41 * 100
    else:
        transformer = torch.nn.Transformer(32, 8, 3, 3, 128, batch_first=True)
        encoder = count_parameters(transformer) + 2 * 32 * (5 * 8 + 7) + 33 * 100
    network = (100 + 4 + 1) * 100 + 2 * 101 * 100 + 101 * 4
    assert model.n_parameters == encoder + 3 * (2 * network + 2 * 8)


def test_invalid_configurations_raise() -> None:
    with pytest.raises(ConfigError, match=r"cells .*condition .*couplings"):
        TempFlowConfig(cells=0, condition=0, couplings=0)
    with pytest.raises(ConfigError, match=r"hidden .*noise .*paths"):
        TempFlowConfig(hidden=0, noise=-1e-3, paths=0)
