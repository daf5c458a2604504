"""What all estimates of a training's memory share, made before it is begun."""

NUMBER_BYTES, GIB = 4, 2**30

PER_PARAMETER = 4.0
"""A weight, its gradient, and two numbers of Adam's."""
WARM_UP_COPIES = 3.0
"""Copies during the warm-up steps: of a weight and, if a training continues, of Adam's two."""
VALIDATION = 3.0
"""Copies of the validation windows, while they are read."""
ALWAYS_GIB = 0.45


def gib(numbers: float) -> float:
    """What so many numbers take."""
    return NUMBER_BYTES * numbers / GIB


def peak_numbers(step: float, validation: float, parameters: int, captured: bool) -> float:
    """Numbers at the peak of a training, beside what is there all the time.

    Before a step is captured, warm-up steps are taken and undone, which needs copies of what they
    change. The captured step then keeps its memory to itself, and validation takes its own on top;
    the copies are gone by then. Without a capture nothing of a step is kept.

    Args:
        step: numbers of a step.
        validation: those of a batch of validation windows.
        parameters: of the network.
        captured: whether steps are, on a GPU.
    """
    if not captured:
        return max(step, validation)
    return step + max(validation, WARM_UP_COPIES * parameters)
