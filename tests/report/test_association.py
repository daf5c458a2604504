"""Agreement of orders: SciPy as the oracle, with and without ties."""

import numpy as np
import pytest
from scipy import stats

from powerphase.report import average_ranks, kendall, spearman


@pytest.mark.parametrize("distinct", [3, 10, 1000])
@pytest.mark.parametrize("n", [2, 5, 30])
def test_ranks_and_correlations_match_scipy(n: int, distinct: int) -> None:
    for draw in range(5):
        a, b = np.random.default_rng([draw, n]).integers(0, distinct, size=(2, n)).astype(float)
        assert average_ranks(a) == pytest.approx(stats.rankdata(a))
        if np.ptp(a) and np.ptp(b):
            assert spearman(a, b) == pytest.approx(stats.spearmanr(a, b).statistic, abs=1e-12)
            assert kendall(a, b) == pytest.approx(stats.kendalltau(a, b).statistic, abs=1e-12)


def test_equal_and_opposite_orders_have_correlation_1_and_minus_1() -> None:
    a = np.array([0.3, 0.1, 0.2])
    assert (spearman(a, 10 * a), kendall(a, 10 * a)) == (1, 1)
    assert (spearman(a, -a), kendall(a, -a)) == (-1, -1)


def test_constant_values_have_no_correlation() -> None:
    a, same = np.arange(4.0), np.zeros(4)
    assert spearman(a, same) is kendall(a, same) is spearman(same, a) is kendall(same, a) is None
    assert spearman(a[:0], a[:0]) is kendall(a[:1], a[:1]) is None
