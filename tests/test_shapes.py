"""Annotated shapes are checked while tests run."""

import numpy as np
import pytest
from jaxtyping import TypeCheckError

from powerphase import clock, seeds


def test_a_function_whose_result_contradicts_its_annotation_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time = np.array(["2016-07-01T12:00"], dtype="datetime64[s]")
    assert clock.hour_of_day(time) == 14
    monkeypatch.setattr(clock, "local_time", lambda time, calendar: time[:, None])
    with pytest.raises(TypeCheckError):
        clock.hour_of_day(time)


def test_a_function_without_shapes_is_left_alone() -> None:
    assert hasattr(clock.hour_of_day, "__wrapped__")
    assert not hasattr(seeds.stream, "__wrapped__")
