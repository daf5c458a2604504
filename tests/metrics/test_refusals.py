"""What cannot be scored is refused, with the place where it lies; nothing is dropped or mended."""

import re
from collections.abc import Callable

import jaxtyping
import pytest
import torch
from torch import Tensor

from powerphase.errors import ForecastError
from powerphase.metrics.streaming import Scorer
from powerphase.scenarios import Scenarios
from tests.metrics.examples import assert_same, example, layout, of_window, score

NOTHING = "the forecast has no scenarios here"
AXES = "give them four axes, none of them empty: windows, scenarios, steps, channels"
NEEDED = "2 windows x 4 scenarios x 5 channels are needed, as the values have"
DIVIDE = "divide them by their sum"
BAD_NUMBERS = [torch.nan, torch.inf, -torch.inf]


def sound() -> tuple[Tensor, Tensor]:
    """Values and weights of two windows, four scenarios, three steps and twelve channels."""
    scenarios = example(n_scenarios=4).scenarios
    return scenarios.values, scenarios.weights


def exactly(text: str) -> str:
    return f"^{re.escape(text)}$"


@pytest.mark.parametrize("number", BAD_NUMBERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_value_that_is_no_number_is_refused(number: float, dtype: torch.dtype) -> None:
    values, weights = (tensor.to(dtype) for tensor in sound())
    values[1, 3, 2, 5] = number
    wanted = f"window 1, step 2, channel 5: scenario 3 is {number}; every value must be a finite"
    with pytest.raises(ForecastError, match=exactly(f"{wanted} number")) as caught:
        Scenarios(values, weights)
    error = caught.value
    assert (error.window, error.step, error.channel) == (1, 2, 5)


def test_the_first_of_several_bad_values_is_named() -> None:
    values, weights = sound()
    values[1, 0, 0, 0] = torch.inf
    values[0, 2, 1, 7:] = torch.nan
    values[0, 2, 2] = -torch.inf
    with pytest.raises(ForecastError, match=r"^window 0, step 1, channel 7: scenario 2 is nan"):
        Scenarios(values, weights)


def test_an_earlier_step_comes_before_an_earlier_scenario() -> None:
    values, weights = sound()
    values[0, 0, 2, 3] = torch.nan
    values[0, 3, 1, 9] = torch.nan
    with pytest.raises(ForecastError, match=r"^window 0, step 1, channel 9: scenario 3 is nan"):
        Scenarios(values, weights)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_numbers_too_coarse_to_score_are_refused(dtype: torch.dtype) -> None:
    values, weights = sound()
    with pytest.raises(ForecastError, match="make them float32 or float64"):
        Scenarios(values.to(dtype), weights)


def test_a_target_that_is_no_number_is_refused() -> None:
    made = example(n_windows=1)
    made.target[0, 2, 5] = torch.nan
    scorer = Scorer(layout(made.target.shape[-1] // 4), made.target.shape[1], 1)
    with pytest.raises(ForecastError, match=r"^window 0, step 2, channel 5: what happened is no"):
        scorer.add(0, made.scenarios, made.target)


def test_values_of_equal_weight_are_checked_too() -> None:
    values, _ = sound()
    values[0, 1, 2, 3] = torch.nan
    with pytest.raises(ForecastError, match=r"^window 0, step 2, channel 3: scenario 1 is nan"):
        Scenarios.equal(values)


@pytest.mark.parametrize(
    ("shape", "of_weights", "text"),
    [
        ((2, 4, 3), (2, 4, 3), "scenarios have the shape (2, 4, 3); " + AXES),
        ((1, 2, 4, 3, 5), (2, 4, 5), "scenarios have the shape (1, 2, 4, 3, 5); " + AXES),
        ((2, 0, 3, 5), (2, 0, 5), "scenarios have the shape (2, 0, 3, 5); " + AXES),
        ((2, 4, 0, 5), (2, 4, 5), "scenarios have the shape (2, 4, 0, 5); " + AXES),
        (
            (2, 4, 3, 5),
            (2, 4, 3),
            "weights have the shape (2, 4, 3); " + NEEDED,
        ),
        (
            (2, 4, 3, 5),
            (2, 4),
            "weights have the shape (2, 4); " + NEEDED,
        ),
    ],
)
def test_wrong_shapes_are_refused(
    shape: tuple[int, ...], of_weights: tuple[int, ...], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tests check shapes at every call; a user's forecaster meets the refusal alone.
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(ForecastError, match=exactly(text)):
        Scenarios(torch.zeros(shape), torch.full(of_weights, 0.25))


@pytest.mark.parametrize(
    ("weight", "text"),
    [
        (-0.25, "window 1, channel 6: scenario 2 has the weight -0.25; weights must be 0 or more"),
        (
            torch.nan,
            "window 1, channel 6: scenario 2 has the weight nan; weights must be 0 or more",
        ),
        (
            torch.inf,
            "window 1, channel 6: the scenarios' weights sum to inf and not to 1; " + DIVIDE,
        ),
        (0.5, "window 1, channel 6: the scenarios' weights sum to 1.25 and not to 1; " + DIVIDE),
        (0.0, "window 1, channel 6: the scenarios' weights sum to 0.75 and not to 1; " + DIVIDE),
    ],
)
def test_weights_that_are_none_are_refused(weight: float, text: str) -> None:
    values, weights = sound()
    weights[:] = 0.25
    weights[1, 2, 6] = weight
    with pytest.raises(ForecastError, match=exactly(text)) as caught:
        Scenarios(values, weights)
    assert (caught.value.window, caught.value.step, caught.value.channel) == (1, None, 6)


def test_weights_may_be_off_by_rounding_but_not_by_more() -> None:
    values, weights = sound()
    Scenarios(values, weights * (1 + 5e-6))
    with pytest.raises(ForecastError, match=r"^window 0, channel 0: .* sum to 1\.00002 and not"):
        Scenarios(values, weights * (1 + 2e-5))


def add(scorer: Scorer, window: int, channels: slice = slice(None), n_scenarios: int = 4) -> None:
    """Give the scorer one of two windows, or some channels of it."""
    made = example(n_scenarios=n_scenarios)
    part = of_window(made.scenarios, window).of_channels(channels)
    scorer.add(window, part, made.target[window : window + 1, :, channels], channels)


def test_a_window_that_comes_twice_is_refused() -> None:
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    add(scorer, 1)
    with pytest.raises(ForecastError, match=exactly("window 1: was forecast already")):
        add(scorer, 1)
    with pytest.raises(ForecastError, match=exactly("window 1: was forecast already")):
        add(scorer, 1, slice(0, 5))


def test_a_channel_that_comes_twice_is_refused() -> None:
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    add(scorer, 0, slice(5, 9))
    with pytest.raises(ForecastError, match=exactly("window 0, channel 5: was forecast already")):
        add(scorer, 0, slice(3, 7))
    with pytest.raises(ForecastError, match=exactly("window 0, channel 8: was forecast already")):
        add(scorer, 0, slice(8, 12))


def test_a_missing_window_is_named() -> None:
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    with pytest.raises(ForecastError, match=exactly(f"window 0: {NOTHING}")):
        scorer.result()
    add(scorer, 0)
    with pytest.raises(ForecastError, match=exactly(f"window 1: {NOTHING}")):
        scorer.result()


def test_a_missing_channel_is_named() -> None:
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    add(scorer, 0)
    add(scorer, 1, slice(0, 5))
    add(scorer, 1, slice(7, 12))
    with pytest.raises(ForecastError, match=exactly(f"window 1, channel 5: {NOTHING}")):
        scorer.result()


@pytest.mark.parametrize("window", [-1, 2, 100])
def test_a_window_out_of_range_is_refused(window: int) -> None:
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    made = example(n_windows=1)
    with pytest.raises(ForecastError, match=exactly(f"window {window}: there are 2 windows")):
        scorer.add(window, made.scenarios, made.target)


def test_another_number_of_scenarios_is_refused() -> None:
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    add(scorer, 0, slice(0, 5))
    wanted = "3 scenarios where others have 4; give the same number everywhere"
    with pytest.raises(ForecastError, match=exactly(f"window 0, channel 5: {wanted}")):
        add(scorer, 0, slice(5, 12), n_scenarios=3)
    with pytest.raises(ForecastError, match=exactly(f"window 1, channel 0: {wanted}")):
        add(scorer, 1, slice(0, 12), n_scenarios=3)


WRONG: dict[str, tuple[Callable[[], tuple[Scenarios, Tensor, slice]], str]] = {
    "two windows at once": (
        lambda: (example().scenarios, example().target[:1], slice(None)),
        "scenarios of (2, 3, 12) and a target of (1, 3, 12) windows, steps and channels",
    ),
    "too many steps": (
        lambda: (example(n_windows=1, horizon=4).scenarios, example().target[:1], slice(None)),
        "scenarios of (1, 4, 12) and a target of (1, 3, 12) windows, steps and channels",
    ),
    "too few channels": (
        lambda: (example(n_windows=1, n_buses=2).scenarios, example().target[:1], slice(None)),
        "scenarios of (1, 3, 8) and a target of (1, 3, 12) windows, steps and channels",
    ),
    "a target of other channels": (
        lambda: (example(n_windows=1).scenarios, example().target[:1, :, 2:], slice(None)),
        "scenarios of (1, 3, 12) and a target of (1, 3, 10) windows, steps and channels",
    ),
    "channels beyond the last": (
        lambda: (example(n_windows=1).scenarios, example().target[:1], slice(4, 16)),
        "scenarios of (1, 3, 12) and a target of (1, 3, 12) windows, steps and channels, "
        "where (1, 3, 8) are asked for",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_scenarios_of_another_shape_than_the_target_are_refused(what: str) -> None:
    make, text = WRONG[what]
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    with pytest.raises(ForecastError, match=f"^window 1: {re.escape(text)}"):
        scorer.add(1, *make())


def test_a_refused_piece_leaves_no_trace() -> None:
    made = example(n_scenarios=4)
    scorer = Scorer(layout(), horizon=3, n_windows=2)
    add(scorer, 0, slice(0, 5))
    for channels, n_scenarios in [(slice(4, 12), 4), (slice(5, 12), 7)]:
        with pytest.raises(ForecastError):
            add(scorer, 0, channels, n_scenarios)
    add(scorer, 0, slice(5, 12))
    add(scorer, 1)
    assert_same(scorer.result(), score(made.scenarios, made.target), rtol=1e-12)


def test_an_error_is_placed_by_who_knows_more() -> None:
    error = ForecastError("is odd", window=0, step=3, channel=2)
    assert str(error) == "window 0, step 3, channel 2: is odd"
    placed = error.placed(window=7, channel=100)
    assert (placed.window, placed.step, placed.channel) == (7, 3, 102)
    assert str(placed) == "window 7, step 3, channel 102: is odd"
    assert str(error.placed(window=7)) == "window 7, step 3, channel 2: is odd"
    batch = ForecastError("is odd", window=2, channel=0).placed(window=10, channel=4)
    assert str(batch) == "window 12, channel 4: is odd"


def test_placing_an_error_invents_no_step_or_channel() -> None:
    assert str(ForecastError("is odd")) == "is odd"
    assert str(ForecastError("is odd").placed(window=3, channel=8)) == "window 3: is odd"


def test_numbers_of_a_place_are_named_even_if_zero() -> None:
    values = torch.full((1, 1, 1, 1), torch.nan)
    with pytest.raises(ForecastError, match=r"^window 0, step 0, channel 0: scenario 0 is nan"):
        Scenarios.equal(values)
