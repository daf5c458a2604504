"""Paired tests: SciPy as the oracle, laws, and planted differences."""

from itertools import combinations, pairwise
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from powerphase.errors import UnknownName
from powerphase.report import (
    LEVEL,
    N_FLIPS,
    Board,
    Contrast,
    against,
    best,
    holm,
    leaderboard,
    least_p,
    pairs,
    sign_flip_p,
)
from tests.report.planted import days, planted

often = settings(deadline=None, derandomize=True)
p_values = st.lists(st.floats(0, 1), max_size=30)
NOISE = np.random.default_rng(7).normal(size=10)


def board(*rows_of_crps: tuple[str, np.ndarray | float], **changes: Any) -> Board:
    """One entry for each name, with these scores by window."""
    rows = []
    for name, values in rows_of_crps:
        crps = np.broadcast_to(values, 10).tolist()
        rows.append(planted(name, crps=crps, **changes))
    return leaderboard(rows)[0]


@pytest.mark.parametrize("n", [2, 5, 10])
@pytest.mark.parametrize("shift", [0.0, 0.4, 2.0])
def test_p_matches_the_exact_permutation_test_of_scipy(n: int, shift: float) -> None:
    for draw in range(5):
        sample = np.random.default_rng([draw, n]).normal(shift, size=n)
        every: Any = np.inf  # the stubs accept only integers
        expected = stats.permutation_test(
            (sample,), np.mean, permutation_type="samples", n_resamples=every
        )
        assert sign_flip_p(sample) == pytest.approx(expected.pvalue, abs=1e-12)


def test_p_of_ranks_matches_the_exact_test_of_wilcoxon() -> None:
    # Wilcoxon's statistic is the sum of signed ranks, so both tests agree on ranks.
    for draw in range(10):
        sample = np.random.default_rng(draw).normal(0.3, size=10)
        ranks = np.sign(sample) * stats.rankdata(np.abs(sample))
        assert sign_flip_p(ranks) == pytest.approx(
            stats.wilcoxon(sample, method="exact").pvalue, abs=1e-12
        )


def test_random_flips_approximate_the_exact_p() -> None:
    # 21 differences are too many for the exact test; one is 0, so the exact p is that of 20.
    sample = np.random.default_rng(3).normal(0.4, size=20)
    exact, drawn = sign_flip_p(sample), sign_flip_p(np.append(sample, 0.0))
    assert 0.01 < exact < 0.5
    assert drawn == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / N_FLIPS))
    assert drawn == sign_flip_p(np.append(sample, 0.0))


def test_equal_forecasts_have_p_1_and_the_number_of_windows_limits_p() -> None:
    assert sign_flip_p(np.zeros(10)) == 1
    assert sign_flip_p(np.arange(1.0, 11)) == least_p(days(10)) == 2 / 1024
    assert sign_flip_p(np.ones(30)) == least_p(days(30)) == 1 / (1 + N_FLIPS)
    assert least_p(days(1)) == sign_flip_p(np.ones(1)) == 1


def test_the_rate_of_false_positives_is_the_level() -> None:
    draw = np.random.default_rng(0)
    p = [sign_flip_p(draw.standard_t(3, size=8)) for _ in range(1000)]
    below = np.mean(np.array(p) <= LEVEL)
    # With 8 windows, the level can be 0.046875; within 3 deviations of it.
    assert below == pytest.approx(0.046875, abs=3 * np.sqrt(0.05 * 0.95 / 1000))


@often
@given(st.lists(st.floats(-10, 10), min_size=1, max_size=8), st.floats(0.1, 10), st.randoms())
def test_p_is_invariant_to_order_sign_and_unit(
    differences: list[float], unit: float, random: Random
) -> None:
    p = sign_flip_p(np.array(differences))
    shuffled = list(differences)
    random.shuffle(shuffled)
    assert sign_flip_p(-unit * np.array(shuffled)) == pytest.approx(p)


def test_a_planted_difference_is_found_and_noise_is_not() -> None:
    base = 1 + 0.1 * NOISE
    noise = 0.02 * np.random.default_rng(1).normal(size=10)
    scored = board(("ets", base), ("deepar", base + 0.1 + noise), ("timemcl", base + noise + 1e-3))
    verdicts = {c.name: c.verdict for c in against(scored.entries, scored.windows, "crps")}
    assert verdicts.pop("deepar") == "worse"
    assert list(verdicts.values()) == ["noise"]


def test_an_entry_can_be_better_than_a_chosen_one() -> None:
    scored = board(("ets", 0.1 + 0.01 * NOISE), ("deepar", 0.2), ("oracle", 0.05))
    (contrast,) = against(scored.entries, scored.windows, "crps", "deepar")
    assert (contrast.name, contrast.other, contrast.verdict) == ("ets", "deepar", "better")
    assert contrast.difference == pytest.approx(-0.1 + 0.01 * NOISE.mean())
    oracle = against(scored.entries, scored.windows, "crps", "oracle")
    assert {c.name: c.verdict for c in oracle} == {"ets": "worse", "deepar": "worse"}


def test_the_best_is_the_lowest_ranked_entry() -> None:
    rows = [planted("ets", crps=0.2), planted("deepar", crps=0.3), planted("oracle", crps=0.1)]
    rows.append(planted("ets", variant="stale", crps=0.05))
    entries = leaderboard(rows)[0].entries
    lowest = best(entries, "crps")
    assert lowest is not None
    assert lowest.name == "ets"


def test_every_pair_occurs_once() -> None:
    names = ["ets", "deepar", "timemcl", "timegrad"]
    scored = board(*((name, 0.1 * k + 0.01 * NOISE**k) for k, name in enumerate(names, start=1)))
    contrasts = pairs(scored.entries, scored.windows, "crps")
    assert {frozenset((c.name, c.other)) for c in contrasts} == {
        frozenset(pair) for pair in combinations(names, 2)
    }
    assert len(contrasts) == 6


def test_a_pair_has_one_verdict_whichever_entry_is_in_the_middle() -> None:
    draw = np.random.default_rng(3)
    names = ["ets", "deepar", "timemcl", "timegrad", "climatology"]
    scored = board(*((n, 1 + 0.05 * k + 0.05 * draw.normal(size=10)) for k, n in enumerate(names)))
    together = pairs(scored.entries, scored.windows, "crps")
    assert len({c.verdict for c in together}) > 1
    mirrored = {"better": "worse", "worse": "better", "noise": "noise"}
    expected: dict[tuple[str, str], tuple[float, str]]
    expected = {(c.name, c.other): (c.adjusted, c.verdict) for c in together}
    expected |= {(c.other, c.name): (c.adjusted, mirrored[c.verdict]) for c in together}
    for other in [None, *names]:
        for c in against(scored.entries, scored.windows, "crps", other):
            assert (c.adjusted, c.verdict) == expected[c.name, c.other]


def test_a_pair_is_corrected_with_the_comparisons_of_its_better_entry() -> None:
    draw = np.random.default_rng(1)
    names = ["ets", "deepar", "timemcl", "timegrad"]
    scored = board(*((n, 1 + 0.03 * k + 0.05 * draw.normal(size=10)) for k, n in enumerate(names)))
    means = {entry.name: entry.mean["crps"] or 0.0 for entry in scored.entries}
    together = pairs(scored.entries, scored.windows, "crps")
    for c in together:
        better, other = sorted((c.name, c.other), key=lambda name: means[name])
        family = {({d.name, d.other} - {better}).pop(): d.p for d in together
                  if better in (d.name, d.other)}  # fmt: skip
        assert len(family) == 3
        assert c.adjusted == dict(zip(family, holm(list(family.values())), strict=True))[other]


@often
@given(p_values)
def test_holm_keeps_the_order_and_is_at_most_bonferroni(values: list[float]) -> None:
    adjusted = holm(values)
    for p, after in zip(values, adjusted, strict=True):
        assert p <= after <= min(1.0, len(values) * p)
    ordered = sorted(zip(values, adjusted, strict=True))
    assert all(low[1] <= high[1] for low, high in pairwise(ordered))


def test_holm_worked_by_hand() -> None:
    # 4 · 0.005, 3 · 0.01, 2 · 0.03, and 0.04 raised to the value before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_holm_matches_statsmodels() -> None:
    from statsmodels.stats.multitest import multipletests

    values = np.random.default_rng(1).uniform(size=12) ** 3
    assert holm(values.tolist()) == pytest.approx(multipletests(values, method="holm")[1])


def test_seeds_are_averaged_by_window() -> None:
    low, high = 0.1 + 0.001 * NOISE, 0.2 + 0.001 * NOISE[::-1]
    rows = [planted("ets", crps=low.tolist(), seed=1)]
    rows += [planted("deepar", crps=(high + k).tolist(), seed=k) for k in (1, 2, 3)]
    entries = {entry.name: entry for entry in leaderboard(rows)[0].entries}
    (contrast,) = against(tuple(entries.values()), days(10), "crps")
    means = {name: entry.mean["crps"] or 0.0 for name, entry in entries.items()}
    assert contrast.difference == pytest.approx(means["deepar"] - means["ets"])
    assert contrast.p == pytest.approx(sign_flip_p(high + 2 - low))


def test_a_difference_is_expressed_in_pooled_deviations_of_seeds() -> None:
    rows = [planted("ets", crps=v, seed=k) for k, v in enumerate((0.1, 0.2))]
    rows += [planted("deepar", crps=v, seed=k) for k, v in enumerate((1.1, 1.2, 1.3))]
    board = leaderboard(rows)[0]
    (contrast,) = against(board.entries, board.windows, "crps")
    pooled = np.sqrt((np.var([1, 2], ddof=1) + 2 * np.var([1, 2, 3], ddof=1)) / 3) / 10
    assert contrast.seeds == pytest.approx((1.2 - 0.15) / pooled)


def test_a_difference_within_two_deviations_of_seeds_is_noise() -> None:
    near = Contrast("ets", "deepar", "crps", -1.0, 0.002, 0.01, -1.9)
    far = Contrast("ets", "deepar", "crps", -1.0, 0.002, 0.01, -2.1)
    unknown = Contrast("ets", "deepar", "crps", -1.0, 0.002, 0.01, None)
    assert (near.verdict, far.verdict, unknown.verdict) == ("noise", "better", "better")


def test_days_of_one_week_are_not_independent() -> None:
    daily = days(28, apart=1)
    differences = np.repeat(NOISE[:4], 7)
    rows = [planted("ets", windows=daily, crps=(1 + differences).tolist())]
    rows += [planted("deepar", windows=daily, crps=1.0)]
    board = leaderboard(rows)[0]
    (contrast,) = against(board.entries, board.windows, "crps")
    assert contrast.p == pytest.approx(sign_flip_p(NOISE[:4]))
    assert least_p(daily) == 2 / 2**4


def test_entries_without_the_score_are_left_out() -> None:
    rows = [planted("ets"), planted("deepar"), planted("timemcl")]
    rows[2].scores["fair_crps"] = rows[2].by_window["fair_crps"] = None
    scored = leaderboard(rows)[0]
    names = {c.name for c in pairs(scored.entries, scored.windows, "fair_crps")}
    assert names <= {"ets", "deepar"}
    assert against(scored.entries, scored.windows, "fair_crps", "timemcl") == ()
    assert against(scored.entries, scored.windows, "crps", "unknown") == ()


def test_a_score_that_does_not_order_forecasts_raises() -> None:
    scored = board(("ets", 0.1), ("deepar", 0.2))
    with pytest.raises(UnknownName, match="necv"):
        pairs(scored.entries, scored.windows, "necv")
