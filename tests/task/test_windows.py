"""A task on a data set: what models can read, and what they cannot."""

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch

from powerphase import Task
from powerphase.axes import P, Q
from powerphase.dataset import Store
from powerphase.errors import TaskError


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days)


def test_scales_are_the_largest_values_of_the_training_split(task: Task) -> None:
    states = np.asarray(task.store.state[: task.splits.train_stop])
    assert task.layout.p_scale_mw == abs(states[:, P::4]).max()
    assert task.layout.q_scale_mvar == abs(states[:, Q::4]).max()


def test_scales_do_not_depend_on_test_steps(task: Task) -> None:
    with patch.object(Store, "largest_power", return_value=[1.0, 1.0]) as largest_power:
        assert Task(task.store).layout.p_scale_mw == 1.0
    largest_power.assert_called_once_with(slice(0, 45 * 96))


def test_windows_are_the_normalised_record(task: Task) -> None:
    origin = int(task.test.origins[3])
    states = np.asarray(task.store.state[origin - 672 : origin + 96])
    expected = torch.from_numpy(states / task.layout.scale)
    context = task.test.context(3)
    assert torch.equal(torch.cat([context.past, task.test.target(3)], dim=1)[0], expected)
    assert (context.time[0] == task.store.time[origin - 672 : origin + 96]).all()
    assert context.horizon == 96
    assert (context.future_time[0] == task.store.time[origin : origin + 96]).all()


def test_voltages_and_angles_are_not_scaled(task: Task) -> None:
    assert set(task.layout.scale[2::4]) == set(task.layout.scale[3::4]) == {1.0}


def test_training_cannot_be_read_into_validation_or_test(task: Task) -> None:
    training = task.training
    assert len(training.record) == 35 * 96
    assert training.read().shape == (35 * 96, 56)
    with pytest.raises(TaskError, match="3360"):
        training.read(slice(0, 35 * 96 + 1))
    assert list(training.validation.origins) == list(range(35 * 96, 45 * 96, 96))


def test_validation_cannot_be_read_into_the_test(task: Task) -> None:
    validation = task.training.validation
    assert validation.target(9).shape == (1, 96, 56)
    assert len(validation.record) == 45 * 96
    with pytest.raises(TaskError, match="4320"):
        validation.record.read(slice(0, 45 * 96 + 1))


def test_a_block_of_the_training_record_can_be_read(task: Task) -> None:
    whole = task.training.read()
    assert torch.equal(task.training.read(slice(100, 300), slice(5, 18)), whole[100:300, 5:18])


def test_random_batches_are_windows_of_the_training_record(task: Task) -> None:
    context, target = task.training.batches(size=4, seed=3)[0]
    whole, steps_of = task.training.read(), {t: k for k, t in enumerate(task.training.time)}
    for b in range(4):
        first = steps_of[context.time[b, 0]]
        seen = torch.cat([context.past[b], target[b]])
        assert torch.equal(seen, whole[first : first + 768])


def test_layout_describes_the_grid(task: Task) -> None:
    layout, grid = task.layout, task.store.grid
    assert (layout.n_buses, layout.n_channels) == (14, 56)
    assert layout.circuit.ends.shape == (20, 2)
    assert set(layout.circuit.ends.ravel()) == set(range(14))
    assert list(layout.bus_id) == list(grid.bus_id)
    assert layout.name_of(4 * 3 + 2) == "V of bus 4"
    assert list(layout.channel_type[:5]) == [0, 1, 2, 3, 0]


def test_a_task_opens_its_store_by_path(task: Task) -> None:
    assert Task(Path(task.store.path)).layout.p_scale_mw == task.layout.p_scale_mw
