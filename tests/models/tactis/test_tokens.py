"""Tokens: normalised by their own context, drawn into bags without favour, told what they are."""

from itertools import combinations
from math import sqrt

import torch

from powerphase.models.tactis.config import TactisConfig
from powerphase.models.tactis.encoder import Tokens, draw_bags, scale_of

CPU = torch.device("cpu")


def test_a_context_has_mean_zero_and_unbiased_deviation_one_after_it() -> None:
    past = 3 + 5 * torch.randn(4, 50, 6, dtype=torch.float64)
    found = scale_of(past, 1e-4).normalised(past)
    torch.testing.assert_close(found.mean(2), torch.zeros(4, 6).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(found.std(2), torch.ones(4, 6).double())


def test_a_constant_channel_is_divided_by_the_floor() -> None:
    past = torch.full((1, 50, 2), 1.05)
    past[..., 1] += 1e-6 * torch.randn(50)
    scale = scale_of(past, 1e-4)
    assert (scale.deviation == 1e-4).all()
    assert scale.normalised(past + 0.3).abs().max() < 3.1e3


def test_every_set_of_channels_is_as_likely_as_any_other() -> None:
    torch.manual_seed(0)
    bags = draw_bags(30_000, 6, 3, CPU).sort(1).values
    assert (bags.diff(dim=1) > 0).all()
    sets = torch.tensor(list(combinations(range(6), 3)))
    shares = (bags[:, None] == sets).all(2).float().mean(0)
    assert (shares - 1 / 20).abs().max() < 5 * sqrt(0.05 * 0.95 / 30_000)


def test_a_bag_holds_all_channels_where_there_are_no_more() -> None:
    assert draw_bags(5, 3, 8, CPU).sort(1).values.tolist() == 5 * [[0, 1, 2]]


def test_a_token_is_told_its_value_its_series_whether_it_is_known_and_when_it_is() -> None:
    torch.manual_seed(0)
    tokens, past = Tokens(TactisConfig(), 9, 4, 2), torch.randn(1, 3, 4)
    series = torch.tensor([[7, 0, 2]])
    found, (first, second) = tokens(past, series), (tokens.first, tokens.second)
    for channel, step in ((0, 0), (1, 3), (2, 4), (2, 5)):
        known = step < 4
        value = past[0, channel, step : step + 1] if known else torch.zeros(1)
        whose = tokens.series.weight[series[0, channel]]
        told = torch.cat([value, whose, torch.tensor([float(known)])])
        speed = [10_000 ** (-k / 16) for k in range(0, 16, 2)]
        wave = torch.tensor([w for s in speed for w in (torch.tensor(step * s).sin(),
                                                        torch.tensor(step * s).cos())])  # fmt: skip
        expected = 4 * second(first(told).relu()).relu() + wave
        torch.testing.assert_close(found[0, channel, step], expected, atol=1e-5, rtol=1e-5)
