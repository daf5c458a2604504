"""Skill: examples by hand, its laws, and reasons for missing skill."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerphase.report import leaderboard, reach, skill, skills
from tests.report.planted import planted

often = settings(deadline=None, derandomize=True)
scores = st.floats(1e-6, 1e6)


def test_examples_worked_by_hand() -> None:
    assert skill(0.002, 0.005).value == pytest.approx(0.6)
    assert reach(0.002, 0.005, 0.001).value == pytest.approx(0.75)
    assert skill(0.010, 0.005).value == pytest.approx(-1)


@often
@given(scores, scores, scores)
def test_the_reference_has_skill_0_and_the_oracle_reach_1(
    first: float, second: float, score: float
) -> None:
    oracle, reference = sorted((first, second))
    assert skill(reference, reference).value == 0
    assert skill(0.0, reference).value == 1
    if oracle < reference:
        assert reach(reference, reference, oracle).value == 0
        assert reach(oracle, reference, oracle).value == 1
        value, share = skill(score, reference).value, reach(score, reference, oracle).value
        assert value is not None
        assert share is not None
        assert (value > 0) == (share > 0) == (score < reference)


@pytest.mark.parametrize(
    "values",
    [
        (0.1, 0.0, 0.0),
        (0.1, 0.2, 0.2),
        (0.1, 0.2, 0.3),
        (0.1, 0.2, None),
        (0.1, None, 0.1),
        (None, 0.2, 0.1),
    ],
)
def test_missing_skill_has_a_reason(
    values: tuple[float | None, float | None, float | None],
) -> None:
    missing = reach(*values)
    assert missing.value is None
    assert missing.why_not


def test_a_reference_score_of_zero_gives_no_skill() -> None:
    assert skill(0.1, 0.0).value is None
    assert skill(0.0, 0.0).value is None


def test_entries_are_compared_with_the_references_of_their_board() -> None:
    values = {"ets": 0.2, "last-7-days": 0.4, "oracle": 0.1}
    entries = leaderboard([planted(model, crps=value) for model, value in values.items()])[
        0
    ].entries
    by_name = skills(entries, "crps")
    assert {name: entry.skill.value for name, entry in by_name.items()} == {
        "ets": pytest.approx(0.5),
        "last-7-days": 0,
        "oracle": pytest.approx(0.75),
    }
    assert by_name["ets"].reach.value == pytest.approx(2 / 3)
    improper = skills(entries, "distortion")["ets"].skill
    assert improper.value is None
    assert "Distortion" in str(improper.why_not)


def test_without_references_skill_is_missing() -> None:
    entries = leaderboard([planted("ets", crps=0.2)])[0].entries
    ets = skills(entries, "crps")["ets"]
    assert ets.skill == ets.reach
    assert ets.skill.value is None
    assert "last-7-days" in str(ets.skill.why_not)
