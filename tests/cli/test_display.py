"""What the terminal shows of a training."""

import pytest

from powerphase.cli.display import draw_curve


@pytest.mark.parametrize(
    ("values", "drawn"),
    [
        ([1000.0, 100.0, 1.0], "█▆▁"),
        ([20.0, 0.0, -50.0], "█▆▁"),
        ([-3.0, -3.0], "▁▁"),
    ],
)
def test_a_curve_is_drawn_whatever_the_sign_of_a_loss(values: list[float], drawn: str) -> None:
    """By logarithms where all are above 0."""
    assert draw_curve(values, 60) == drawn
