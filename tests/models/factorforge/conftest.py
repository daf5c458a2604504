"""The fitted state of the `model` that a module of tests defines."""

import pytest

from powerphase.models.factorforge import FactorForge, FittedFactorForge


@pytest.fixture(scope="module")
def state(model: FactorForge) -> FittedFactorForge:
    assert model.fitted is not None
    return model.fitted
