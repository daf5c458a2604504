"""A process whose channels move together or oppositely, and how well it is forecast."""

from typing import Any

import numpy as np
import torch

from powerphase.metrics import Fan, crps
from powerphase.scenarios import Scenarios, Training
from tests.models.recurrent.toys import HORIZON, tiny, training_of

SIGNS = np.array([1.0, 1, -1, 1, -1, -1, 1, -1])
SHARED, OWN = 0.3, 0.15
CYCLE = 12


def correlated(n_steps: int = 1500) -> np.ndarray:
    """Eight channels around a cycle, with noise in common of either sign and some of their own."""
    generator = np.random.default_rng(5)
    wave = np.sin(2 * np.pi * np.arange(n_steps) / CYCLE)[:, None]
    shared, own = generator.normal(size=(n_steps, 1)), generator.normal(size=(n_steps, 8))
    return np.asarray(2 + wave + SHARED * SIGNS * shared + OWN * own)


def learned(kind: Any, horizon: int = HORIZON, **changes: Any) -> tuple[Any, Any, Training]:
    """A model that was trained on it, and one that was not."""
    budget = {"batches_per_epoch": 25, "batch_size": 32, "learning_rate": 1e-2, "patience": 1}
    sizes = {"condition": 16, "hidden": 24, "paths": 100, "dropout": 0.0, "lags": (1, 2, CYCLE)}
    config = tiny(kind.config_type, epochs=4, training=budget, **{**sizes, **changes})
    train = training_of(correlated(), context=24, horizon=horizon, n_validation=3)
    model, fresh = kind(config, device="cpu"), kind(config, device="cpu")
    model.fit(train)
    fresh.settle(train)
    fresh.network = fresh._fresh_network()
    return model, fresh, train


def correlation_of(found: Scenarios) -> np.ndarray:
    """Between channels, of what paths have beside their mean."""
    values = found.values[0]
    return np.corrcoef((values - values.mean(0)).flatten(0, 1).numpy().T)


def planted_correlation() -> np.ndarray:
    """What it would be for paths of the process itself."""
    covariance = SHARED**2 * np.outer(SIGNS, SIGNS) + OWN**2 * np.eye(8)
    return np.asarray(covariance / (SHARED**2 + OWN**2))


def score_of(model: Any, train: Training) -> float:
    """Mean CRPS on the validation windows."""
    windows = train.validation
    found = [
        crps(Fan.of(model.predict(windows.context(k))), torch.as_tensor(windows.target(k))).mean()
        for k in range(len(windows))
    ]
    return float(torch.stack(found).mean())
