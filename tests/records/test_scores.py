"""Names and formats of scores."""

from math import isclose

import pytest

from powerphase.errors import UnknownName
from powerphase.records import SCORES, find_score, score_format


@pytest.mark.parametrize("name", SCORES)
def test_a_score_is_found_by_its_name_or_title_in_any_case(name: str) -> None:
    title = SCORES[name].title
    assert {find_score(text) for text in (name, name.upper(), title, title.lower())} == {name}


def test_a_score_outside_the_allowed_names_raises_with_suggestions() -> None:
    with pytest.raises(UnknownName, match=r"CRPS.*twcrps"):
        find_score("CRPS", ["twcrps", "mse"], "score of voltages")


@pytest.mark.parametrize("value", [-0.8831, 1.234e-7, 8.893e-5, 0.003321, 1.0, 99994.0, 2.5e9])
def test_the_format_keeps_four_significant_digits(value: float) -> None:
    assert isclose(float(f"{value:{score_format(value)}}"), value, rel_tol=5e-4)
    assert f"{0.0:{score_format(0.0)}}" == "0"
