"""The oracle: the generator's own noise, drawn anew."""

from pathlib import Path

import numpy as np
import pytest
import torch

from powerphase import Oracle, Scenarios, Store, Task, forecast, generate, score
from powerphase.errors import ForecastError, StoreError
from powerphase.evaluation import OracleConfig
from powerphase.grid import admittance_matrix, consumption_mva
from powerphase.models import LastSevenDays, LastWeek
from tests.dataset.exact import exact_signals


@pytest.fixture(scope="module")
def task(sixty_days: Store) -> Task:
    return Task(sixty_days)


@pytest.fixture(scope="module")
def drawn(task: Task) -> Scenarios:
    return Oracle(task.store, config=OracleConfig(samples=40)).predict(task.test.context(0))


def test_draws_differ_from_the_record_and_from_each_other(task: Task, drawn: Scenarios) -> None:
    first = drawn.values[0, 0]
    assert not torch.equal(first, drawn.values[0, 1])
    assert not torch.equal(first, task.test.target(0)[0])


def test_draws_are_solutions_of_the_power_flow(task: Task, drawn: Scenarios) -> None:
    state = drawn.values[0, 3].numpy() * task.layout.scale
    p, q, v, theta = (state[:, kind::4].astype(np.float64) for kind in range(4))
    grid = task.store.grid
    power_mva = consumption_mva(admittance_matrix(grid), grid.base_mva, v * np.exp(1j * theta))
    np.testing.assert_allclose(power_mva, p + 1j * q, atol=0.01)


def test_the_truth_is_one_more_draw(task: Task, drawn: Scenarios) -> None:
    """Rank of the truth among the draws: uniform, so its mean is in the middle."""
    values, target = drawn.values[0], task.test.target(0)[0]
    below = (values < target).double().mean(0)
    moves = values.std(0) > 1e-6
    assert below[moves].mean().item() == pytest.approx(0.5, abs=0.03)
    assert below[moves].std().item() == pytest.approx(np.sqrt(1 / 12), abs=0.05)


def test_a_seed_determines_the_draws(task: Task) -> None:
    context, few = task.test.context(1), OracleConfig(samples=2)
    draws = [Oracle(task.store, seed, few).predict(context).values for seed in (1, 1, 2)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_nothing_beats_the_oracle_on_proper_scores(task: Task) -> None:
    oracle = score(forecast(Oracle(task.store, config=OracleConfig(samples=40)), task), task)
    for model in (LastWeek(), LastSevenDays()):
        other = score(forecast(model, task), task)
        for name in ("crps", "energy"):
            best, worse = oracle.scores[name], other.scores[name]
            assert best is not None
            assert worse is not None
            assert best < worse


def test_a_record_cut_from_longer_signals_is_rejected(tmp_path: Path) -> None:
    store = generate("ieee14", tmp_path / "s", signals=exact_signals(40), end="2015-02-05")
    with pytest.raises(StoreError, match=str(tmp_path / "s")):
        Oracle(store)


def test_a_window_after_the_record_is_rejected(task: Task) -> None:
    oracle = Oracle(task.store)
    oracle.fit(task.training)
    with pytest.raises(ForecastError, match=str(task.store.time[-1])):
        oracle.predict(task.tomorrow)
