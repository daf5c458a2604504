"""Three heads as one linear map."""

import pytest
import torch

from powerphase.models.timeprism.loss import split
from powerphase.models.timeprism.network import averaged_back
from tests.models.timeprism import CONTEXT, HORIZON, network_of, small
from tests.models.timeprism.straightforward import average


@pytest.mark.parametrize("steps", [1, 3, 7])
def test_weights_of_a_moving_average_act_on_the_series_itself(steps: int) -> None:
    generator = torch.Generator().manual_seed(1)
    series, weight = torch.randn(2, 5, 10, generator=generator, dtype=torch.float64)
    around = torch.arange(-(steps // 2), steps // 2 + 1)
    averaged = torch.stack([series[:, (t + around).clamp(0, 9)].mean(1) for t in range(10)], dim=1)
    torch.testing.assert_close(average(series, steps), averaged)
    torch.testing.assert_close(averaged_back(weight, steps) @ series.T, weight @ averaged.T)


def test_folded_heads_make_the_same_hypotheses_and_have_the_same_gradients() -> None:
    network = network_of(small())
    heads, config = network.heads, network.config
    z = torch.randn(11, CONTEXT, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    weight, bias = heads.folded()
    trend, season, logit = split(z @ weight.T + bias, config, HORIZON)
    found = (trend.unsqueeze(2) + season.unsqueeze(1)).flatten(1, 2), logit
    mean = average(z, config.average_steps)
    plain = heads.trend(mean).unflatten(1, (2, -1)), heads.season(z - mean).unflatten(1, (3, -1))
    wanted = (plain[0].unsqueeze(2) + plain[1].unsqueeze(1)).flatten(1, 2), heads.logit(z)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)
    slopes = [
        torch.autograd.grad(sum(part.cos().sum() for part in parts), heads.parameters())
        for parts in (found, wanted)
    ]
    for one, other in zip(*slopes, strict=True):
        torch.testing.assert_close(one, other)


def test_what_seasons_have_in_common_is_the_trends() -> None:
    network = network_of(small())
    weight, bias = network.heads.folded()
    season = torch.cat([weight, bias[:, None]], 1)[2 * HORIZON : 5 * HORIZON].unflatten(0, (3, -1))
    assert season.mean(0).abs().max() < 1e-15
    assert season.abs().max() > 0.1
