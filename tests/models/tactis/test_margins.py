"""Marginals: densities are derivatives of distributions, and quantiles invert them."""

import pytest
import torch
from torch import Tensor

from powerphase.models.tactis import Margins, TactisConfig
from powerphase.models.tactis import margins as margins_module

TAIL = 1e-6


def margins_of(dtype: torch.dtype = torch.float64) -> Margins:
    torch.manual_seed(0)
    return Margins(TactisConfig()).to(dtype)


def encodings(gain: float, n: int = 40, dtype: torch.dtype = torch.float64) -> Tensor:
    """Random encodings; a large gain gives marginals with steep steps and long flat parts."""
    return gain * torch.randn(n, 16, generator=torch.Generator().manual_seed(2), dtype=dtype)


def levels(n: int, dtype: torch.dtype) -> Tensor:
    """Both ends, and levels between them."""
    inner = torch.rand(n, 30, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    ends = torch.tensor([TAIL, 0.5, 1 - TAIL], dtype=torch.float64).expand(n, -1)
    return torch.cat([ends, TAIL + (1 - 2 * TAIL) * inner], dim=1).to(dtype)


@pytest.mark.parametrize("gain", [1.0, 10.0])
def test_the_density_is_the_derivative_of_the_distribution(gain: float) -> None:
    margin = margins_of()(encodings(gain))
    x = torch.linspace(-3, 3, 40, dtype=torch.float64, requires_grad=True)
    derivative = torch.autograd.grad(margin.distribution(x).sum(), x, create_graph=True)[0]
    torch.testing.assert_close(margin.log_density(x).exp(), derivative, rtol=1e-8, atol=1e-12)


def test_a_flow_composes_mixtures_of_logistic_functions() -> None:
    margins, x = margins_of(), torch.linspace(-2, 2, 40, dtype=torch.float64)
    raw = margins.network(encodings(1.0))
    value = x
    for layer in raw.split(24, dim=1):
        slope, shift, weight = layer.split(8, dim=1)
        slope = torch.nn.functional.softplus(slope) + 1e-6
        value = (weight.softmax(1) * torch.sigmoid(slope * value[:, None] + shift)).sum(1)
        value = torch.log(value) - torch.log(1 - value)
    torch.testing.assert_close(margins(encodings(1.0)).distribution(x), torch.sigmoid(value))


@pytest.mark.parametrize("gain", [1.0, 10.0, 30.0])
def test_marginals_increase_everywhere_from_zero_to_one(gain: float) -> None:
    margin = margins_of()(encodings(gain)).unsqueeze()
    x = torch.linspace(-40, 40, 2001, dtype=torch.float64).expand(40, -1)
    logit, log_derivative = margin.logit(x)
    assert (logit.diff(dim=1) > 0).all()
    assert log_derivative.isfinite().all()
    far = margin.distribution(1e10 * torch.tensor([-1.0, 1.0]).double().expand(40, -1))
    torch.testing.assert_close(far, torch.tensor([0.0, 1.0]).double().expand(40, -1))


@pytest.mark.parametrize("gain", [1.0, 10.0, 30.0])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-11)])
def test_quantiles_invert_the_distribution(
    gain: float, dtype: torch.dtype, tolerance: float
) -> None:
    margins, u = margins_of(dtype), levels(40, dtype)
    encoded = encodings(gain, dtype=dtype)
    x = margins.quantiles(encoded, u)
    levels_of_x = margins(encoded).unsqueeze().distribution(x)
    torch.testing.assert_close(levels_of_x, u, atol=tolerance, rtol=0)


def test_a_quantile_does_not_depend_on_others_in_the_same_search(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    margins, u, encoded = margins_of(), levels(4, torch.float64), encodings(10.0, 4)
    whole = margins.quantiles(encoded, u)
    reversed_ = margins.quantiles(encoded, u.flip(1)).flip(1)
    torch.testing.assert_close(reversed_, whole, rtol=1e-12, atol=1e-12)
    monkeypatch.setattr(margins_module, "INVERSION_NUMBERS", 1)
    torch.testing.assert_close(margins.quantiles(encoded, u), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("size", [1e4, 1e8, 1e12])
def test_far_away_values_have_finite_densities_and_gradients(size: float) -> None:
    margins = margins_of(torch.float32)
    x = size * torch.tensor([-1.0, 1.0]).repeat(20)
    log_density = margins(encodings(3.0, dtype=torch.float32)).log_density(x)
    assert log_density.isfinite().all()
    log_density.sum().backward()
    gradients = [parameter.grad for parameter in margins.parameters()]
    assert all(grad is not None and grad.isfinite().all() for grad in gradients)


def target(x: Tensor) -> Tensor:
    """The distribution function of a mixture of an exponential and a narrow normal."""
    skewed = 1 - torch.exp(-(x + 1.5).clamp(min=0))
    return 0.7 * skewed + 0.3 * torch.distributions.Normal(4.0, 0.3).cdf(x)


def test_training_fits_a_skewed_bimodal_marginal() -> None:
    margins = margins_of(torch.float32)
    generator = torch.Generator().manual_seed(4)
    n = 1000
    skewed = -1.5 - torch.rand(n, generator=generator).log()
    bump = 4 + 0.3 * torch.randn(n, generator=generator)
    x = torch.where(torch.rand(n, generator=generator) < 0.7, skewed, bump)
    encoded = torch.ones(1, 16)
    optimiser = torch.optim.Adam(margins.parameters(), 1e-2)
    for _ in range(200):
        loss = -margins(encoded).unsqueeze().log_density(x[None]).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    grid = torch.linspace(-3, 7, 200)
    fitted = margins(encoded).unsqueeze().distribution(grid[None])[0]
    assert (fitted - target(grid)).abs().max() < 0.05
    drawn = margins.quantiles(encoded, torch.rand(1, 2000, generator=generator))[0]
    share = (drawn[:, None] <= grid).float().mean(0)
    assert (share - target(grid)).abs().max() < 0.08
