"""Skill: worked by hand, its laws, and why there is none."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from powerphase.report import Skill, leaderboard, reach, skill, skills
from tests.report.planted import planted

often = settings(deadline=None, derandomize=True)
scores = st.floats(1e-6, 1e6)


def test_worked_by_hand() -> None:
    assert skill(0.002, 0.005).value == pytest.approx(0.6)
    assert reach(0.002, 0.005, 0.001).value == pytest.approx(0.75)
    assert skill(0.010, 0.005).value == pytest.approx(-1)


@often
@given(scores, scores, scores)
def test_the_reference_has_none_and_the_oracle_all_of_it(
    one: float, two: float, own: float
) -> None:
    oracle, reference = sorted((one, two))
    assert skill(reference, reference).value == 0
    assert skill(0.0, reference).value == 1
    if oracle < reference:
        assert reach(reference, reference, oracle).value == 0
        assert reach(oracle, reference, oracle).value == 1
        value, way = skill(own, reference).value, reach(own, reference, oracle).value
        assert value is not None
        assert way is not None
        assert (value > 0) == (way > 0) == (own < reference)


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


def test_nothing_can_be_a_share_of_nothing() -> None:
    assert skill(0.1, 0.0).value is None
    assert skill(0.0, 0.0).value is None


def test_a_board_is_laid_beside_its_own_references() -> None:
    values = {"ets": 0.2, "last-7-days": 0.4, "oracle": 0.1}
    entries = leaderboard([planted(model, crps=value) for model, value in values.items()])[
        0
    ].entries
    found = skills(entries, "crps")
    assert {name: own.skill.value for name, own in found.items()} == {
        "ets": pytest.approx(0.5),
        "last-7-days": 0,
        "oracle": pytest.approx(0.75),
    }
    assert found["ets"].reach.value == pytest.approx(2 / 3)
    assert skills(entries, "distortion")["ets"].skill == Skill(None, "Distortion is not proper")


def test_without_references_there_is_none() -> None:
    entries = leaderboard([planted("ets", crps=0.2)])[0].entries
    own = skills(entries, "crps")["ets"]
    assert own.skill == own.reach == Skill(None, "last-7-days has no score")
