"""A process with positive and negative correlations of channels, and the score of its forecasts."""

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
    """Eight channels around a cycle, with common noise of either sign and independent noise."""
    generator = np.random.default_rng(5)
    wave = np.sin(2 * np.pi * np.arange(n_steps) / CYCLE)[:, None]
    common, independent = generator.normal(size=(n_steps, 1)), generator.normal(size=(n_steps, 8))
    return np.asarray(2 + wave + SHARED * SIGNS * common + OWN * independent)


def train_toy(kind: Any, horizon: int = HORIZON, **changes: Any) -> tuple[Any, Any, Training]:
    """A model trained on the process, an untrained one, and the training data."""
    budget = {"batches_per_epoch": 25, "batch_size": 32, "learning_rate": 1e-2, "patience": 1}
    sizes = {"condition": 16, "hidden": 24, "paths": 100, "dropout": 0.0, "lags": (1, 2, CYCLE)}
    config = tiny(kind.config_type, epochs=4, training=budget, **{**sizes, **changes})
    train = training_of(correlated(), context=24, horizon=horizon, n_validation=3)
    model, untrained = kind(config, device="cpu"), kind(config, device="cpu")
    model.fit(train)
    untrained.configure(train)
    untrained.network = untrained._initial_network()
    return model, untrained, train


def correlation_of(scenarios: Scenarios) -> np.ndarray:
    """Correlation between channels of the paths' deviations from their mean."""
    values = scenarios.values[0]
    return np.corrcoef((values - values.mean(0)).flatten(0, 1).numpy().T)


def true_correlation() -> np.ndarray:
    """Correlation between channels of the process itself."""
    covariance = SHARED**2 * np.outer(SIGNS, SIGNS) + OWN**2 * np.eye(8)
    return np.asarray(covariance / (SHARED**2 + OWN**2))


def score_of(model: Any, train: Training) -> float:
    """Mean CRPS on the validation windows."""
    windows = train.validation
    scores = [
        crps(Fan.of(model.predict(windows.context(k))), torch.as_tensor(windows.target(k))).mean()
        for k in range(len(windows))
    ]
    return float(torch.stack(scores).mean())
