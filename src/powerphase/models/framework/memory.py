"""What all estimates of a training's memory share, made before it is begun."""

NUMBER_BYTES, GIB = 4, 2**30

PER_PARAMETER = 4.0
"""A weight, its gradient, and two numbers of Adam's."""
REHEARSED = 3.0
"""Copies while steps are rehearsed: of a weight, and where a training goes on, of Adam's two."""
VALIDATION = 3.0
"""Copies of the validation windows, while they are read."""
ALWAYS_GIB = 0.45


def gib(numbers: float) -> float:
    """What so many numbers take."""
    return NUMBER_BYTES * numbers / GIB


def peak_numbers(step: float, validation: float, parameters: int, recorded: bool) -> float:
    """Numbers at the peak of a training, beside what is there all the time.

    Before a step is recorded, some are rehearsed and undone, with copies of what they change. Then
    the recorded one keeps all that it works on to itself, and validation takes as much as it needs
    besides. The copies are gone by then. Without a recording nothing of a step is kept.

    Args:
        step: numbers of a step.
        validation: those of a batch of validation windows.
        parameters: of the network.
        recorded: whether steps are, on a GPU.
    """
    if not recorded:
        return max(step, validation)
    return step + max(validation, REHEARSED * parameters)
