"""No model can look past the origin of a window, whatever public path it takes."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from powerphase.dataset import Store
from powerphase.errors import PowerphaseError
from powerphase.evaluation import forecast
from powerphase.issued import Issued
from powerphase.scenarios import Batches, Context, Scenarios, Training, Windows
from powerphase.task import Task

STEP = np.timedelta64(900, "s")


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days, known="made", windows=2)


def beyond(train: Training) -> int:
    """The number of the first step that a model must not read."""
    return len(train.time)


FROM_TRAINING: dict[str, Callable[[Training], Any]] = {
    "the step after the record": lambda t: t.read(slice(beyond(t), beyond(t) + 1)),
    "a slice over its end": lambda t: t.read(slice(-1, beyond(t) + 96)),
    "by its record": lambda t: t.record.read(slice(0, 10**9)),
    "what is observed": lambda t: Windows(t.record, np.array([beyond(t)]), 1, 1).observed(0),
    "what its record observed": lambda t: t.record.read_observed(slice(0, beyond(t) + 1)),
    "the context of a window over its end": lambda t: Windows(
        t.record, np.array([beyond(t) - 1]), 1, 2
    ).context(0),
    "a window at its end": lambda t: Windows(t.record, np.array([beyond(t) - 1]), 1, 2).target(0),
    "a batch longer than it": lambda t: Batches(t.record, beyond(t), 1, 1, 0),
    "forecasts for a later origin": lambda t: t.record.known_at(np.array([beyond(t) + 1]), 1, 96),
    "the test by the validation's record": lambda t: t.validation.record.read(
        slice(len(t.validation.record), len(t.validation.record) + 1)
    ),
    "the target of a test window": lambda t: Windows(
        t.validation.record, np.array([len(t.validation.record)]), 1, 96
    ).target(0),
    "forecasts during the test": lambda t: t.validation.record.known_at(
        np.array([len(t.validation.record) + 96]), 1, 96
    ),
}


def later_issue(context: Context) -> Context:
    """The context with a forecast that was issued a second after the origin."""
    assert context.known is not None
    issued = context.known.issued.copy()
    issued[:, 0] = context.future_time[:, :1] + np.timedelta64(1, "s")
    return replace(context, known=replace(context.known, issued=issued))


FROM_CONTEXT: dict[str, Callable[[Context], Any]] = {
    "a later issue": later_issue,
    "forecasts for fewer steps": lambda c: replace(c, time=c.time[:, 1:]),
    "forecasts of another window": lambda c: replace(c, time=c.time - 96 * STEP),
}


class Peeking:
    """Takes one path past the origin when it is fitted or when it forecasts."""

    name = "peeking"

    def __init__(
        self,
        fit: Callable[[Training], Any] | None = None,
        predict: Callable[[Context], Any] | None = None,
    ) -> None:
        self.look = fit, predict

    def fit(self, train: Training) -> None:
        if self.look[0]:
            self.look[0](train)

    def predict(self, context: Context) -> Scenarios:
        if self.look[1]:
            self.look[1](context)
        return Scenarios.equal(context.past[:, None, -context.horizon :])


@pytest.mark.parametrize("path", FROM_TRAINING)
def test_a_training_ends_before_validation_and_test(task: Task, path: str) -> None:
    with pytest.raises(PowerphaseError):
        forecast(Peeking(fit=FROM_TRAINING[path]), task, device="cpu")


@pytest.mark.parametrize("path", FROM_CONTEXT)
def test_a_context_ends_at_its_origin(task: Task, path: str) -> None:
    live = forecast(Peeking(predict=FROM_CONTEXT[path]), task, device="cpu")
    with pytest.raises(PowerphaseError):
        next(live.pieces(()))


def test_a_model_that_does_not_look_past_the_origin_gets_no_error(task: Task) -> None:
    assert len(list(forecast(Peeking(), task, device="cpu").pieces(()))) == 2


def test_the_memory_behind_a_context_has_no_later_values(task: Task) -> None:
    context = task.test.context(0)
    assert context.known is not None
    for tensor in (context.past, context.known.values):
        assert tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()
    assert context.known.issued.base is None or context.known.issued.base.size == (
        context.known.issued.size
    )


def changed_after(forecasts: Issued, origin: np.datetime64) -> Issued:
    """Other values wherever a forecast was issued after the origin."""
    return Issued(
        [
            replace(each, values=np.where(each.issued > origin, 1 - each.values, each.values))
            for each in forecasts.series
        ]
    )


@pytest.mark.parametrize("which", ["test", "validation"])
def test_what_is_issued_later_changes_no_context(task: Task, sixty_days: Store, which: str) -> None:
    assert task.protocol.known is not None
    table = task.protocol.known.forecasts(sixty_days, task.protocol.horizon)
    for number in range(2):
        windows = task.test if which == "test" else task.training.validation
        context = windows.context(number)
        origin = context.future_time[0, 0]
        other = Task(sixty_days, known=changed_after(table, origin), windows=2)
        others = other.test if which == "test" else other.training.validation
        again = others.context(number)
        assert context.known is not None
        assert again.known is not None
        assert torch.equal(again.known.values, context.known.values)
        np.testing.assert_array_equal(again.known.issued, context.known.issued)
        earlier = Task(sixty_days, known=changed_after(table, origin - STEP), windows=2)
        changed = (earlier.test if which == "test" else earlier.training.validation).context(number)
        assert changed.known is not None
        assert not torch.equal(changed.known.future, context.known.future)
