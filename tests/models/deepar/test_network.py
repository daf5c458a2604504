"""DeepAR: the loss against PyTorch's distribution, sampling, and a covariance it must learn."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import LowRankMultivariateNormal

from powerphase.errors import ConfigError, ForecastError
from powerphase.models.deepar import DeepAR, DeepARConfig, DeepARNetwork
from powerphase.models.framework import apply_variants
from powerphase.models.recurrent import Window
from powerphase.scenarios import Context
from tests.models.recurrent.toys import CONTEXT, HORIZON, LAGS, tiny, training_of, windows_of

REACH = max(LAGS)


def network_of(**changes: Any) -> DeepARNetwork:
    torch.manual_seed(1)
    config = tiny(DeepARConfig, **changes)
    return DeepARNetwork(config, 8, CONTEXT, HORIZON).double().eval()


def plain_losses(network: DeepARNetwork) -> Tensor:
    """Minus the log-likelihood of each window, mean over its steps, by PyTorch's distribution."""
    past, target, clock, scale = network.inputs(*windows_of())
    hidden = network.encoder(Window(past, target, scale), clock)
    values = torch.cat([past, target], dim=1)[:, REACH:] / scale[:, None]
    mean, (factor,), diagonal = network.head(hidden)
    losses: Tensor = -LowRankMultivariateNormal(mean, factor[..., None], diagonal).log_prob(values)
    return losses.mean(1)


def test_the_loss_covers_context_and_horizon_and_averages_over_windows() -> None:
    network = network_of()
    loss, parts = network(*windows_of())
    torch.testing.assert_close(loss, plain_losses(network).mean())
    torch.testing.assert_close(parts["per channel"], loss.detach() / 8)


def test_the_reference_loss_uses_only_the_first_window() -> None:
    network, first = network_of(), network_of(reduction="first")
    context, target = windows_of()
    loss = first(context, target).loss
    torch.testing.assert_close(loss, plain_losses(network)[0])
    target[1:], context.past[1:] = torch.nan, torch.nan
    torch.testing.assert_close(first(context, target).loss, loss)


def test_samples_have_the_mean_and_covariance_of_the_head() -> None:
    network, (context, _) = network_of(rank=2, paths=20_000), windows_of(1)
    with torch.no_grad():
        seen = network.encode(context)
        hidden = network.encoder.run(seen.ahead[:, :1], seen.state)[0][:, 0]
        gaussian = network.head(hidden)
        drawn = network.scenarios(context, seed=3).values[0, :, 0] / seen.scale
    factors = torch.stack(gaussian.factors, dim=-1)[0]
    covariance = factors @ factors.T + torch.diag(gaussian.diagonal[0])
    torch.testing.assert_close(drawn.mean(0), gaussian.mean[0], rtol=0, atol=0.05)
    torch.testing.assert_close(drawn.T.cov(), covariance, rtol=0, atol=0.08)


def test_training_recovers_a_known_covariance() -> None:
    """Two groups of channels, each with common noise, around levels of very different size."""
    generator = np.random.default_rng(5)
    shared = np.repeat(generator.normal(size=(1500, 2)), 4, axis=1)
    level = np.array([1.0, 2, 0.01, 1, 3, 1, 1, 0.5])
    planted = 0.3 * shared + 0.1 * generator.normal(size=(1500, 8))
    budget = {"batches_per_epoch": 40, "batch_size": 16, "learning_rate": 0.02, "patience": 1}
    config = tiny(DeepARConfig, epochs=6, training=budget, rank=2, paths=300, dropout=0.0)
    model: Any = DeepAR(config, device="cpu")
    train = training_of(level * (1 + planted))
    model.fit(train)
    values = model.predict(train.validation.context(0)).values[0] / torch.from_numpy(level)
    deviation = (values - values.mean(0)).flatten(0, 1)
    covariance = (deviation.T @ deviation / len(deviation)).numpy()
    groups = np.kron(np.eye(2), np.ones((4, 4)))
    expected = 0.09 * groups + 0.01 * np.eye(8)
    np.testing.assert_allclose(covariance, expected, atol=0.03)
    np.testing.assert_allclose(values.mean((0, 1)), 1, atol=0.1)


def test_diverging_paths_raise_and_are_not_clamped() -> None:
    network, (context, _) = network_of(), windows_of(1)
    with torch.no_grad():
        network.head.bias[0, 3] = 1e308
    with pytest.raises(ForecastError, match=r"window 0, step 0: .*deepar"):
        network.scenarios(Context(1e3 * context.past, context.time, context.layout), 1)


def test_the_reference_variant_has_all_quirks_and_first_window_one() -> None:
    variants = DeepARConfig.VARIANTS
    reference = apply_variants(DeepARConfig(), ["reference"], variants)
    assert (reference.reduction, reference.zero_scale, reference.least_scale) == (
        "first",
        "batch",
        1e-10,
    )
    assert apply_variants(DeepARConfig(), ["first-window"], variants).zero_scale == "floor"


def test_parameter_count_equals_the_reference() -> None:
    model, train = DeepAR(DeepARConfig(lags=(1, 2, 3, 4, 5))), training_of(np.ones((60, 8)))
    model.configure(train)
    model.network = model._initial_network()
    lstm = torch.nn.LSTM(5 * 8 + 6, 40, 2)
    assert model.n_parameters == sum(p.numel() for p in lstm.parameters()) + 3 * 41 * 8


def test_invalid_configurations_raise() -> None:
    with pytest.raises(ConfigError, match=r"rank .*least_variance .*paths"):
        DeepARConfig(rank=-1, least_variance=0.0, paths=0)
