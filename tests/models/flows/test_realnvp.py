"""The flow against one with masks: values, gradients, statistics, inverses."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from powerphase.models.flows import Affine, FlowNorm, RealNVP, transform_block
from powerphase.models.recurrent import Moments, ScaledValues
from tests.models.flows.plain import MaskedFlow

CONDITION, HIDDEN = 5, 6
each_size = pytest.mark.parametrize("n_channels", [2, 3, 8])


def flow_of(n_channels: int, couplings: int = 3, train: bool = False) -> RealNVP:
    """A flow in which every parameter and buffer differs from its initial value."""
    torch.manual_seed(2)
    flow = RealNVP(CONDITION, n_channels, couplings, HIDDEN).double().train(train)
    with torch.no_grad():
        for name, tensor in [*flow.named_parameters(), *flow.named_buffers()]:
            changed = tensor + 0.3 * torch.randn_like(tensor)
            positive = name.endswith(("variance", "width"))
            tensor.copy_(changed.abs() + 0.2 if positive else changed)
    return flow


def rows_of(n_channels: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(4)
    condition = torch.randn(3, 4, CONDITION, dtype=torch.float64, requires_grad=True)
    return condition, 2 * torch.randn(3, 4, n_channels, dtype=torch.float64) + 1


def all_gradients_are_finite(flow: RealNVP) -> bool:
    gradients = [weight.grad for weight in flow.parameters()]
    return all(gradient is not None and bool(gradient.isfinite().all()) for gradient in gradients)


def loss_of(flow: RealNVP, condition: Tensor, values: Tensor, block_size: int = 99) -> Tensor:
    return flow.negative_log_likelihood(condition, ScaledValues((values,)), block_size)


@each_size
@pytest.mark.parametrize("couplings", [1, 2, 3])
@pytest.mark.parametrize("block_size", [1, 2, 99])
@pytest.mark.parametrize("train", [False, True])
def test_values_and_gradients_match_the_masked_flow(
    n_channels: int, couplings: int, block_size: int, train: bool
) -> None:
    flow, (condition, values) = flow_of(n_channels, couplings, train), rows_of(n_channels)
    masked, same_condition = MaskedFlow(flow), condition.detach().clone().requires_grad_()
    actual = loss_of(flow, condition, values, block_size)
    expected = masked.negative_log_likelihood(values, same_condition)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=0)
    actual.backward()
    expected.backward()
    torch.testing.assert_close(condition.grad, same_condition.grad, rtol=1e-9, atol=1e-11)
    for coupling, reference in zip(flow.couplings, masked.couplings, strict=True):
        gradients = {name: weight.grad for name, weight in coupling.named_parameters()}
        torch.testing.assert_close(gradients, reference.gradients(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("block_size", [3, 99])
def test_single_precision_matches_the_masked_flow(block_size: int) -> None:
    flow, (condition, values) = flow_of(11, train=True).float(), rows_of(11)
    first, second = (condition.detach().float().requires_grad_() for _ in range(2))
    actual = loss_of(flow, first, values.float(), block_size)
    expected = MaskedFlow(flow).negative_log_likelihood(values.float(), second)
    torch.testing.assert_close(actual, expected, rtol=1e-5, atol=1e-5)
    actual.backward()
    expected.backward()
    torch.testing.assert_close(first.grad, second.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("block_size", [2, 99])
def test_running_statistics_are_updated_once_per_batch_and_only_in_training(
    block_size: int,
) -> None:
    flow, (condition, values) = flow_of(5, train=True), rows_of(5)
    masked: Any = MaskedFlow(flow)
    couplings: Any = flow.couplings
    for _ in range(2):
        loss_of(flow, condition, values, block_size).backward()
        masked(values, condition)
    for ours, reference in zip(couplings, masked.couplings, strict=True):
        for name in ("mean", "variance"):
            expected = getattr(reference, name).detach()
            torch.testing.assert_close(getattr(ours.norm_moving, name), expected[reference.moving])
            torch.testing.assert_close(getattr(ours.norm_still, name), expected[reference.still])
    before = {name: tensor.clone() for name, tensor in flow.named_buffers()}
    loss_of(flow.eval(), condition, values, block_size).backward()
    assert all(torch.equal(tensor, before[name]) for name, tensor in flow.named_buffers())
    assert before.keys() <= flow.state_dict().keys()


@each_size
def test_inverse_undoes_the_flow(n_channels: int) -> None:
    flow, (condition, values) = flow_of(n_channels), rows_of(n_channels)
    masked = MaskedFlow(flow)
    with torch.no_grad():
        noise = masked(values, condition)[0]
        torch.testing.assert_close(flow.inverse(condition, noise), values)
        torch.testing.assert_close(masked(flow.inverse(condition, values), condition)[0], values)


@pytest.mark.parametrize("n_channels", [2, 5])
def test_the_likelihood_has_the_determinant_of_the_inverse_jacobian(n_channels: int) -> None:
    flow, (condition, values) = flow_of(n_channels), rows_of(n_channels)
    condition, values = condition[:1, :1].detach(), values[:1, :1]
    noise = MaskedFlow(flow)(values, condition)[0].flatten().detach()
    jacobian_of: Any = torch.autograd.functional.jacobian
    jacobian = jacobian_of(lambda row: flow.inverse(condition, row[None, None]).flatten(), noise)
    normal: Any = torch.distributions.Normal(torch.zeros_like(noise), 1)
    expected = -normal.log_prob(noise).sum() + torch.linalg.slogdet(jacobian).logabsdet
    torch.testing.assert_close(loss_of(flow, condition, values), expected)


def test_the_mean_likelihood_of_draws_is_the_entropy() -> None:
    """The entropy also follows from that of the noise and the determinants."""
    flow, (condition, _) = flow_of(4), rows_of(4)
    condition = condition[:1, :1].detach().expand(100, 200, -1)
    noise = torch.randn(100, 200, 4, dtype=torch.float64)
    with torch.no_grad():
        draws = flow.inverse(condition, noise)
        loss = loss_of(flow, condition, draws)
        determinant = MaskedFlow(flow)(draws, condition)[1].sum(-1).mean()
    entropy = 4 * 0.5 * (1 + torch.log(torch.tensor(2 * torch.pi)))
    assert float(loss) == pytest.approx(float(entropy - determinant), abs=0.05)


def test_both_networks_start_alike_and_as_layers_of_all_inputs() -> None:
    coupling: Any = RealNVP(10, 400, 1, 50).couplings[0]
    for name in ("known", "still"):
        scale_weight, shift_weight = getattr(coupling, name).chunk(2, dim=1)
        assert torch.equal(scale_weight, shift_weight)
        assert 0.98 / 410**0.5 < scale_weight.abs().max() <= 1 / 410**0.5
    assert torch.equal(*coupling.last_weight)
    assert torch.equal(coupling.scale[1].weight, coupling.shift[1].weight)
    assert 0.98 / 50**0.5 < coupling.last_weight.abs().max() <= 1 / 50**0.5
    kinds = [type(part) for part in (*coupling.scale, *coupling.shift) if not list(part.children())]
    assert kinds.count(nn.Tanh) == kinds.count(nn.ReLU) == 3


@pytest.mark.parametrize("train", [False, True])
def test_constant_channels_stay_finite(train: bool) -> None:
    torch.manual_seed(0)
    flow = RealNVP(CONDITION, 6, 3, HIDDEN).train(train)
    condition = torch.randn(3, 4, CONDITION)
    values = torch.randn(3, 4, 6)
    values[..., 0], values[..., 1], values[..., 2] = 0.0, 1.0, 3e9
    for _ in range(60 if train else 1):
        loss = loss_of(flow, condition, values)
        flow.zero_grad()
        loss.backward()
    assert loss.isfinite()
    assert all_gradients_are_finite(flow)
    draws = flow.eval().inverse(condition, torch.randn(3, 4, 6))
    assert draws.isfinite().all()
    if train:
        assert (draws[..., 1] - 1).abs().max() < 0.1


def test_half_precision_log_scales_are_summed_in_full_precision() -> None:
    values, (log_scale, shift) = torch.randn(30, 40, 3), torch.rand(2, 30, 40, 3).bfloat16()
    block = transform_block(values, log_scale, shift, keep=True)
    torch.testing.assert_close(block.log_determinant, log_scale.float().sum() / 1200)
    assert block.values is not None
    assert block.values.dtype == torch.float32


def test_composed_affine_maps_are_one_map_with_its_moments() -> None:
    values = torch.randn(4, 5, 3, dtype=torch.float64)
    first, second = (Affine(*torch.randn(3, 3, dtype=torch.float64)) for _ in range(2))
    torch.testing.assert_close(first.then(second)(values), second(first(values)))
    torch.testing.assert_close(first.moments(Moments.of(values)), Moments.of(first(values)))


def test_pooled_moments_are_those_of_all_rows() -> None:
    values = torch.randn(6, 5, 3, dtype=torch.float64) * 1e-2 + torch.arange(6)[:, None, None]
    pooled = Moments.pool([Moments.of(part) for part in values.split(2)])
    torch.testing.assert_close(pooled, Moments.of(values))


def test_standardised_channels_with_noise_have_unit_spread() -> None:
    values = 1 + torch.tensor([0.0, 1e-3, 3.0]) * torch.randn(200, 50, 3)
    flow = RealNVP(CONDITION, 3, 1, HIDDEN)
    flow.standardise(Moments.of(values), noise=1e-3)
    standardised = (ScaledValues((values,)).add_noise(1e-3).compute() - flow.centre) / flow.width
    torch.testing.assert_close(standardised.std(dim=(0, 1)), torch.ones(3), rtol=0.02, atol=0)
    assert standardised.mean(dim=(0, 1)).abs().max() < 0.05
    assert float(flow.width[0]) == pytest.approx(1e-3)


def test_a_normalised_batch_has_zero_mean_and_unit_variance() -> None:
    values, norm = 3 * torch.randn(4, 50, 3, dtype=torch.float64) + 7, FlowNorm(3).double()
    affine, determinant = norm(Moments.of(values), 200)
    rows = affine(values).flatten(0, 1)
    torch.testing.assert_close(rows.mean(0), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(rows.var(0), torch.ones(3, dtype=torch.float64), rtol=1e-5, atol=0)
    expected = -(values.flatten(0, 1).var(0) + 1e-5).log().sum() / 2
    torch.testing.assert_close(determinant, expected)
