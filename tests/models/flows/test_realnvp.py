"""The flow against the plain one with masks: values, gradients, statistics, inverses."""

import pytest
import torch
from torch import Tensor, nn

from powerphase.models.flows.coupling import _moved_block
from powerphase.models.flows.normalisation import Affine, FlowNorm, Moments
from powerphase.models.flows.realnvp import RealNVP
from powerphase.models.recurrent.inputs import Given
from tests.models.flows.plain import PlainFlow

CONDITION, HIDDEN = 5, 6
SIZES = pytest.mark.parametrize("n_channels", [2, 3, 8])


def flow_of(n_channels: int, couplings: int = 3, train: bool = False) -> RealNVP:
    """One whose every number has been moved from where it begins."""
    torch.manual_seed(2)
    flow = RealNVP(CONDITION, n_channels, couplings, HIDDEN).double().train(train)
    with torch.no_grad():
        for name, tensor in [*flow.named_parameters(), *flow.named_buffers()]:
            moved = tensor + 0.3 * torch.randn_like(tensor)
            tensor.copy_(moved.abs() + 0.2 if name.endswith(("variance", "width")) else moved)
    return flow


def rows_of(n_channels: int) -> tuple[Tensor, Tensor]:
    torch.manual_seed(4)
    known = torch.randn(3, 4, CONDITION, dtype=torch.float64, requires_grad=True)
    return known, 2 * torch.randn(3, 4, n_channels, dtype=torch.float64) + 1


def judged(flow: RealNVP, known: Tensor, values: Tensor, at_once: int = 99) -> Tensor:
    return flow.negative_log_likelihood(known, Given((values,)), at_once)


@SIZES
@pytest.mark.parametrize("couplings", [1, 2, 3])
@pytest.mark.parametrize("at_once", [1, 2, 99])
@pytest.mark.parametrize("train", [False, True])
def test_values_and_gradients_are_those_of_the_plain_flow(
    n_channels: int, couplings: int, at_once: int, train: bool
) -> None:
    flow, (known, values) = flow_of(n_channels, couplings, train), rows_of(n_channels)
    plain, given = PlainFlow(flow), known.detach().clone().requires_grad_()
    found = judged(flow, known, values, at_once)
    expected = plain.negative_log_likelihood(values, given)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=0)
    found.backward()
    expected.backward()
    torch.testing.assert_close(known.grad, given.grad, rtol=1e-9, atol=1e-11)
    for ours, theirs in zip(flow.couplings, plain.couplings, strict=True):
        wanted = theirs.gradients()
        assert wanted.keys() == dict(ours.named_parameters()).keys()
        for name, one in ours.named_parameters():
            torch.testing.assert_close(one.grad, wanted[name], rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("at_once", [3, 99])
def test_single_precision_is_the_plain_flow_s_too(at_once: int) -> None:
    flow, (known, values) = flow_of(11, train=True).float(), rows_of(11)
    plain, given = PlainFlow(flow), known.detach().float().requires_grad_()
    mine, values = given.detach().clone().requires_grad_(), values.float()
    found, expected = (
        judged(flow, mine, values, at_once),
        plain.negative_log_likelihood(values, given),
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    found.backward()
    expected.backward()
    torch.testing.assert_close(mine.grad, given.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("at_once", [2, 99])
def test_running_statistics_are_updated_once_by_a_batch_and_only_in_training(at_once: int) -> None:
    flow, (known, values) = flow_of(5, train=True), rows_of(5)
    plain = PlainFlow(flow)
    for _ in range(2):
        judged(flow, known, values, at_once).backward()
        plain(values, known)
    for ours, theirs in zip(flow.couplings, plain.couplings, strict=True):
        for name in ("mean", "variance"):
            wanted = getattr(theirs, name).detach()
            for norm, here in ((ours.norm_moving, theirs.moving), (ours.norm_still, theirs.still)):
                torch.testing.assert_close(getattr(norm, name), wanted[here])
    before = {name: tensor.clone() for name, tensor in flow.named_buffers()}
    judged(flow.eval(), known, values, at_once).backward()
    assert all(torch.equal(tensor, before[name]) for name, tensor in flow.named_buffers())
    assert before.keys() <= flow.state_dict().keys()


@SIZES
def test_what_is_drawn_is_what_the_flow_turns_into_its_noise_and_back(n_channels: int) -> None:
    flow, (known, values) = flow_of(n_channels), rows_of(n_channels)
    plain = PlainFlow(flow)
    with torch.no_grad():
        noise = plain(values, known)[0]
        torch.testing.assert_close(flow.draw(known, noise), values)
        torch.testing.assert_close(plain(flow.draw(known, values), known)[0], values)


@pytest.mark.parametrize("n_channels", [2, 5])
def test_the_likelihood_has_the_determinant_of_the_inverse_s_jacobian(n_channels: int) -> None:
    flow, (known, values) = flow_of(n_channels), rows_of(n_channels)
    known, values = known[:1, :1].detach(), values[:1, :1]

    def noise(row: Tensor) -> Tensor:
        return PlainFlow(flow)(row[None, None], known)[0].flatten()

    normal = noise(values.flatten()).detach()
    jacobian = torch.autograd.functional.jacobian(
        lambda row: flow.draw(known, row[None, None]).flatten(), normal
    )
    law = torch.distributions.Normal(torch.zeros_like(normal), 1)
    expected = -law.log_prob(normal).sum() + torch.linalg.slogdet(jacobian).logabsdet
    torch.testing.assert_close(judged(flow, known, values), expected)


def test_a_likelihood_is_one_of_a_law_that_its_draws_have() -> None:
    """Its mean over draws is the law's entropy, which the noise and the determinants have too."""
    flow, (known, _) = flow_of(4), rows_of(4)
    known = known[:1, :1].detach().expand(100, 200, -1)
    noise = torch.randn(100, 200, 4, dtype=torch.float64)
    with torch.no_grad():
        drawn = flow.draw(known, noise)
        found = judged(flow, known, drawn)
        determinant = PlainFlow(flow)(drawn, known)[1].sum(-1).mean()
    entropy = 4 * 0.5 * (1 + torch.log(torch.tensor(2 * torch.pi)))
    assert float(found) == pytest.approx(float(entropy - determinant), abs=0.05)


def test_both_networks_begin_alike_and_as_layers_of_all_inputs_do() -> None:
    coupling = RealNVP(10, 400, 1, 50).couplings[0]
    for name in ("known", "still"):
        one, other = getattr(coupling, name).chunk(2, dim=1)
        assert torch.equal(one, other)
        assert 0.98 / 410**0.5 < one.abs().max() <= 1 / 410**0.5
    assert torch.equal(*coupling.last_weight)
    assert torch.equal(coupling.scale[1].weight, coupling.shift[1].weight)
    assert 0.98 / 50**0.5 < coupling.last_weight.abs().max() <= 1 / 50**0.5
    kinds = [type(part) for part in (*coupling.scale, *coupling.shift) if not list(part.children())]
    assert kinds.count(nn.Tanh) == kinds.count(nn.ReLU) == 3


@pytest.mark.parametrize("train", [False, True])
def test_channels_that_do_not_move_stay_finite(train: bool) -> None:
    torch.manual_seed(0)
    flow = RealNVP(CONDITION, 6, 3, HIDDEN).train(train)
    known = torch.randn(3, 4, CONDITION)
    values = torch.randn(3, 4, 6)
    values[..., 0], values[..., 1], values[..., 2] = 0.0, 1.0, 3e9
    for _ in range(60 if train else 1):
        loss = judged(flow, known, values)
        flow.zero_grad()
        loss.backward()
    assert loss.isfinite()
    assert all(one.grad.isfinite().all() for one in flow.parameters())
    drawn = flow.eval().draw(known, torch.randn(3, 4, 6))
    assert drawn.isfinite().all()
    if train:
        assert (drawn[..., 1] - 1).abs().max() < 0.1


def test_log_scales_in_half_precision_are_summed_with_all_digits() -> None:
    values, (log_scale, shift) = torch.randn(30, 40, 3), torch.rand(2, 30, 40, 3).bfloat16()
    found = _moved_block(values, (log_scale, shift), keep=True)
    torch.testing.assert_close(found.log_determinant, log_scale.float().sum() / 1200)
    assert found.values is not None
    assert found.values.dtype == torch.float32


def test_maps_one_after_the_other_are_one_map_with_its_moments() -> None:
    values = torch.randn(4, 5, 3, dtype=torch.float64)
    first, second = (Affine(*torch.randn(3, 3, dtype=torch.float64)) for _ in range(2))
    torch.testing.assert_close(first.then(second)(values), second(first(values)))
    found, expected = first.moments(Moments.of(values)), Moments.of(first(values))
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)


def test_moments_of_some_rows_and_others_are_those_of_all() -> None:
    values = torch.randn(6, 5, 3, dtype=torch.float64) * 1e-2 + torch.arange(6)[:, None, None]
    found = Moments.pooled([Moments.of(part) for part in values.split(2)])
    torch.testing.assert_close(found, Moments.of(values))


def test_standardised_channels_have_one_size_with_their_noise() -> None:
    values = 1 + torch.tensor([0.0, 1e-3, 3.0]) * torch.randn(200, 50, 3)
    flow = RealNVP(CONDITION, 3, 1, HIDDEN)
    flow.standardise(Moments.of(values), noise=1e-3)
    made = (Given((values,)).blurred(1e-3).made() - flow.centre) / flow.width
    torch.testing.assert_close(made.std(dim=(0, 1)), torch.ones(3), rtol=0.02, atol=0)
    assert made.mean(dim=(0, 1)).abs().max() < 0.05
    assert float(flow.width[0]) == pytest.approx(1e-3)


def test_a_normalised_batch_has_no_mean_and_unit_variance() -> None:
    values, norm = 3 * torch.randn(4, 50, 3, dtype=torch.float64) + 7, FlowNorm(3).double()
    affine, determinant = norm(Moments.of(values), 200)
    found = affine(values).flatten(0, 1)
    torch.testing.assert_close(found.mean(0), torch.zeros(3, dtype=torch.float64))
    torch.testing.assert_close(found.var(0), torch.ones(3, dtype=torch.float64), rtol=1e-5, atol=0)
    expected = -(values.flatten(0, 1).var(0) + 1e-5).log().sum() / 2
    torch.testing.assert_close(determinant, expected)
