"""Invalid scenarios raise an error with their location; nothing is dropped or fixed."""

from collections.abc import Callable

import jaxtyping
import pytest
import torch
from torch import Tensor

from powerphase.errors import ForecastError
from powerphase.metrics import Scorer
from powerphase.scenarios import Scenarios
from tests.metrics.examples import assert_same, example, layout, of_window, score

NOT_FINITE = [torch.nan, torch.inf, -torch.inf]

Location = tuple[int | None, int | None, int | None]


def valid_tensors() -> tuple[Tensor, Tensor]:
    """Values and weights of two windows, four scenarios, three steps and twelve channels."""
    scenarios = example(n_scenarios=4).scenarios
    return scenarios.values, scenarios.weights


def error_of(action: Callable[[], object]) -> ForecastError:
    """The error that the action raises."""
    with pytest.raises(ForecastError) as caught:
        action()
    return caught.value


def location(action: Callable[[], object]) -> Location:
    """Window, step and channel of the error that the action raises."""
    error = error_of(action)
    return error.window, error.step, error.channel


@pytest.mark.parametrize("number", NOT_FINITE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_value_that_is_not_finite_raises(number: float, dtype: torch.dtype) -> None:
    values, weights = (tensor.to(dtype) for tensor in valid_tensors())
    values[1, 3, 2, 5] = number
    error = error_of(lambda: Scenarios(values, weights))
    assert (error.window, error.step, error.channel) == (1, 2, 5)
    assert str(error).startswith("window 1, step 2, channel 5: ")
    assert "scenario 3" in error.problem
    assert str(number) in error.problem


def test_the_error_names_the_first_of_several_bad_values() -> None:
    values, weights = valid_tensors()
    values[1, 0, 0, 0] = torch.inf
    values[0, 2, 1, 7:] = torch.nan
    values[0, 2, 2] = -torch.inf
    assert location(lambda: Scenarios(values, weights)) == (0, 1, 7)


def test_an_earlier_step_comes_before_an_earlier_scenario() -> None:
    values, weights = valid_tensors()
    values[0, 0, 2, 3] = torch.nan
    values[0, 3, 1, 9] = torch.nan
    assert location(lambda: Scenarios(values, weights)) == (0, 1, 9)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_raises(dtype: torch.dtype) -> None:
    values, weights = valid_tensors()
    with pytest.raises(ForecastError, match=str(dtype)):
        Scenarios(values.to(dtype), weights)


def test_a_target_that_is_not_finite_raises() -> None:
    case = example(n_windows=1)
    case.target[0, 2, 5] = torch.nan
    scorer = Scorer(layout(case.target.shape[-1] // 4), case.target.shape[1], 1)
    assert location(lambda: scorer.add(0, case.scenarios, case.target)) == (0, 2, 5)


def test_values_of_equal_weight_are_checked_too() -> None:
    values, _ = valid_tensors()
    values[0, 1, 2, 3] = torch.nan
    assert location(lambda: Scenarios.equal(values)) == (0, 2, 3)


@pytest.mark.parametrize(
    ("shape", "weights_shape", "wrong"),
    [
        ((2, 4, 3), (2, 4, 3), (2, 4, 3)),
        ((1, 2, 4, 3, 5), (2, 4, 5), (1, 2, 4, 3, 5)),
        ((2, 0, 3, 5), (2, 0, 5), (2, 0, 3, 5)),
        ((2, 4, 0, 5), (2, 4, 5), (2, 4, 0, 5)),
        ((2, 4, 3, 5), (2, 4, 3), (2, 4, 3)),
        ((2, 4, 3, 5), (2, 4), (2, 4)),
    ],
)
def test_wrong_shapes_raise(
    shape: tuple[int, ...],
    weights_shape: tuple[int, ...],
    wrong: tuple[int, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # The test run checks shapes at every call; without that, only this error protects a user.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    error = error_of(lambda: Scenarios(torch.zeros(shape), torch.full(weights_shape, 0.25)))
    assert str(wrong) in error.problem


@pytest.mark.parametrize(
    ("weight", "fact"),
    [(-0.25, "-0.25"), (torch.nan, "nan"), (torch.inf, "inf"), (0.5, "1.25"), (0.0, "0.75")],
)
def test_invalid_weights_raise(weight: float, fact: str) -> None:
    values, weights = valid_tensors()
    weights[:] = 0.25
    weights[1, 2, 6] = weight
    error = error_of(lambda: Scenarios(values, weights))
    assert (error.window, error.step, error.channel) == (1, None, 6)
    assert fact in error.problem


def test_weights_may_be_off_by_rounding_but_not_by_more() -> None:
    values, weights = valid_tensors()
    Scenarios(values, weights * (1 + 5e-6))
    error = error_of(lambda: Scenarios(values, weights * (1 + 2e-5)))
    assert (error.window, error.channel) == (0, 0)
    assert "1.00002" in error.problem


def add(scorer: Scorer, window: int, channels: slice = slice(None), n_scenarios: int = 4) -> None:
    """Add one of two windows, or some channels of it."""
    case = example(n_scenarios=n_scenarios)
    part = of_window(case.scenarios, window).of_channels(channels)
    scorer.add(window, part, case.target[window : window + 1, :, channels], channels)


def test_adding_a_window_twice_raises() -> None:
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    add(scorer, 1)
    assert location(lambda: add(scorer, 1)) == (1, None, None)
    assert location(lambda: add(scorer, 1, slice(0, 5))) == (1, None, None)


def test_adding_a_channel_twice_raises() -> None:
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    add(scorer, 0, slice(5, 9))
    assert location(lambda: add(scorer, 0, slice(3, 7))) == (0, None, 5)
    assert location(lambda: add(scorer, 0, slice(8, 12))) == (0, None, 8)


def test_the_error_names_a_missing_window() -> None:
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    assert location(scorer.result) == (0, None, None)
    add(scorer, 0)
    assert location(scorer.result) == (1, None, None)


def test_the_error_names_a_missing_channel() -> None:
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    add(scorer, 0)
    add(scorer, 1, slice(0, 5))
    add(scorer, 1, slice(7, 12))
    assert location(scorer.result) == (1, None, 5)


@pytest.mark.parametrize("window", [-1, 2, 100])
def test_a_window_out_of_range_raises(window: int) -> None:
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    case = example(n_windows=1)
    assert location(lambda: scorer.add(window, case.scenarios, case.target)) == (window, None, None)


def test_a_different_number_of_scenarios_raises() -> None:
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    add(scorer, 0, slice(0, 5))
    assert location(lambda: add(scorer, 0, slice(5, 12), n_scenarios=3)) == (0, None, 5)
    error = error_of(lambda: add(scorer, 1, slice(0, 12), n_scenarios=3))
    assert (error.window, error.channel) == (1, 0)
    assert "3 scenarios" in error.problem


WRONG: dict[str, tuple[Callable[[], tuple[Scenarios, Tensor, slice]], tuple[int, ...]]] = {
    "two windows at once": (
        lambda: (example().scenarios, example().target[:1], slice(None)),
        (2, 3, 12),
    ),
    "too many steps": (
        lambda: (example(n_windows=1, horizon=4).scenarios, example().target[:1], slice(None)),
        (1, 4, 12),
    ),
    "too few channels": (
        lambda: (example(n_windows=1, n_buses=2).scenarios, example().target[:1], slice(None)),
        (1, 3, 8),
    ),
    "a target of other channels": (
        lambda: (example(n_windows=1).scenarios, example().target[:1, :, 2:], slice(None)),
        (1, 3, 10),
    ),
    "channels beyond the last": (
        lambda: (example(n_windows=1).scenarios, example().target[:1], slice(4, 16)),
        (1, 3, 8),
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_scenarios_and_target_of_different_shapes_raise(what: str) -> None:
    arguments, shape = WRONG[what]
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    error = error_of(lambda: scorer.add(1, *arguments()))
    assert error.window == 1
    assert str(shape) in error.problem


def test_a_rejected_piece_changes_no_score() -> None:
    case = example(n_scenarios=4)
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    add(scorer, 0, slice(0, 5))
    for channels, n_scenarios in [(slice(4, 12), 4), (slice(5, 12), 7)]:
        with pytest.raises(ForecastError):
            add(scorer, 0, channels, n_scenarios)
    add(scorer, 0, slice(5, 12))
    add(scorer, 1)
    assert_same(scorer.result(), score(case.scenarios, case.target), rtol=1e-12)


def test_an_error_can_be_shifted_to_the_windows_and_channels_of_the_caller() -> None:
    error = ForecastError("is odd", window=0, step=3, channel=2)
    assert str(error) == "window 0, step 3, channel 2: is odd"
    shifted = error.with_offset(window=7, channel=100)
    assert (shifted.window, shifted.step, shifted.channel) == (7, 3, 102)
    assert str(shifted) == "window 7, step 3, channel 102: is odd"
    assert str(error.with_offset(window=7)) == "window 7, step 3, channel 2: is odd"
    batch = ForecastError("is odd", window=2, channel=0).with_offset(window=10, channel=4)
    assert str(batch) == "window 12, channel 4: is odd"


def test_shifting_an_error_adds_no_step_or_channel() -> None:
    assert str(ForecastError("is odd")) == "is odd"
    assert str(ForecastError("is odd").with_offset(window=3, channel=8)) == "window 3: is odd"


def test_a_location_of_zeros_is_named() -> None:
    values = torch.full((1, 1, 1, 1), torch.nan)
    assert location(lambda: Scenarios.equal(values)) == (0, 0, 0)
