"""Names of scores and how they are written."""

from math import isclose

import pytest

from powerphase.errors import UnknownName
from powerphase.records.scores import SCORES, notation, score_named


@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_found_by_its_name_and_by_its_title_in_any_case(name: str) -> None:
    title = SCORES[name].title
    assert {score_named(text) for text in (name, name.upper(), title, title.lower())} == {name}


def test_a_score_is_found_among_those_that_are_suited() -> None:
    with pytest.raises(UnknownName, match="no score of mine 'CRPS'; did you mean twcrps"):
        score_named("CRPS", ["twcrps", "mse"], "score of mine")


@pytest.mark.parametrize("value", [-0.8831, 1.234e-7, 8.893e-5, 0.003321, 1.0, 99994.0, 2.5e9])
def test_four_digits_are_kept_of_any_size(value: float) -> None:
    assert isclose(float(f"{value:{notation(value)}}"), value, rel_tol=5e-4)
    assert f"{0.0:{notation(0.0)}}" == "0"
