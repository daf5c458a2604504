"""The baselines on a GPU: captured steps, interrupted trainings, forecasts, and memory."""

import gc
import sys
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from powerphase.models.framework import (
    Progress,
    Stepper,
    TrainingConfig,
    is_captured,
    make_optimiser,
    seed_torch,
)
from powerphase.registry import model_class
from powerphase.scenarios import Scenarios, Training
from tests.models.recurrent.toys import SMALL, budget, training_of
from tests.models.toys import curve_of, same_weights

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


GPU = torch.device("cuda")
CONTEXT, HORIZON = 300, 24
"""So many steps that attention has several blocks of keys, which could be added in any order."""
SIZES: dict[str, dict[str, Any]] = {
    "tactis-2": {"width": 8, "margin_hidden": 12, "paths": 7, "validation_bags": 3},
    "timeprism": {},
}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "deepar": ("deepar", {}),
    "timemcl": ("timemcl", {}),
    "timeprism": ("timeprism", {}),
    "tempflow": ("tempflow", {}),
    "transformer-tempflow": ("transformer-tempflow", {}),
    "timegrad": ("timegrad", {}),
    "timegrad-subsampled": ("timegrad", {"rows": 300}),
    "tactis-2": ("tactis-2", {}),
    "tactis-2-copula": ("tactis-2", {"copula": True, "margin_epochs": 1}),
}
each = pytest.mark.parametrize("case", CASES)


@pytest.fixture(autouse=True)
def alone_on_the_gpu() -> None:
    """Free what earlier tests have left on the GPU."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()


def waves(n_steps: int = 700, n_channels: int = 12) -> np.ndarray:
    step, channel = np.arange(n_steps)[:, None], np.arange(n_channels)
    noise = np.random.default_rng(0).normal(0, 0.1, (n_steps, n_channels))
    return np.asarray(1.5 + np.sin(step / (4 + channel % 20)) + noise)


def training(n_channels: int = 12, n_steps: int = 700) -> Training:
    return training_of(waves(n_steps, n_channels), CONTEXT, HORIZON)


def config_of(case: str, **changes: Any) -> Any:
    name, sizes_of_case = CASES[case]
    kind = model_class(name).config_type
    small = {key: value for key, value in SMALL.items() if key in kind.__dataclass_fields__}
    sizes = {**SIZES.get(name, small), **sizes_of_case}
    return kind(**sizes, training=budget(**{"epochs": 3, **changes}))


def model_of(case: str, device: str = "cuda", **options: Any) -> Any:
    return model_class(CASES[case][0])(config_of(case), device=device, **options)


def predict_on(model: Any, train: Training, device: torch.device) -> Scenarios:
    """The scenarios of one window, with all channels, on the CPU."""
    context = next(iter(train.validation.load(1, device)))[0]
    result = model.predict(context)
    parts = [result] if isinstance(result, Scenarios) else [part for _, part in result]
    return Scenarios(
        torch.cat([part.values.cpu() for part in parts], dim=3),
        torch.cat([part.weights.cpu() for part in parts], dim=2),
    )


def losses(network: Any, train: Training, config: TrainingConfig, capture: bool) -> Tensor:
    """The losses of some steps, with other batches and noise in each."""
    network = deepcopy(network).to(GPU).train()
    batches = train.batches(config.batch_size or 1, 42, GPU)
    stepper = Stepper(network, make_optimiser(network, config, GPU), config, GPU, capture)
    result = []
    for number in range(6):
        seed_torch(GPU, 42, "step", number)
        result.append(stepper(*batches[number])["loss"].double().cpu())
    return torch.stack(result)


@each
def test_captured_steps_have_the_losses_of_uncaptured_ones(case: str) -> None:
    """To 10⁻⁴ of them after six steps, in float32: the order of sums may differ, and Adam adds.

    TACTiS-2 draws its bags before a step, and so draws the same in both.
    """
    train, model = training(), model_of(case)
    model.configure(train)
    network = model._initial_network()
    assert is_captured(network, GPU, 1)

    config = TrainingConfig(batch_size=4, precision="float32")
    before = torch.get_float32_matmul_precision()
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        torch.set_float32_matmul_precision("highest")
        try:
            result, expected = (
                losses(network, train, config, capture) for capture in (True, False)
            )
        finally:
            torch.set_float32_matmul_precision(before)
    sys.stdout.write(f"{case}: {result.tolist()} captured, {expected.tolist()} not\n")
    assert len(expected.unique()) == len(expected)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-4)


@each
def test_an_interrupted_training_ends_with_the_same_bits(case: str, tmp_path: Path) -> None:
    class Stopped(Exception):
        pass

    def stop(now: Progress) -> None:
        if now.step == 5:
            raise Stopped

    train, whole = training(), model_of(case, run=tmp_path / "whole")
    whole.fit(train)
    with pytest.raises(Stopped):
        model_of(case, run=tmp_path / "cut", on_progress=stop).fit(train)
    cut = model_of(case, run=tmp_path / "cut")
    cut.fit(train)
    assert curve_of(tmp_path / "whole") == curve_of(tmp_path / "cut")
    assert same_weights(whole.network, cut.network)


@each
@pytest.mark.parametrize("precision", ["tf32", "bfloat16"])
def test_a_training_stays_finite_and_forecasts_like_a_cpu(
    case: str, precision: str, tmp_path: Path
) -> None:
    train = training()
    config = config_of(case, precision=precision)
    model = model_class(CASES[case][0])(config, device="cuda", run=tmp_path / "run")
    model.fit(train)
    for line in curve_of(tmp_path / "run"):
        assert np.isfinite([value for value in line.values() if value is not None]).all()
    result, other = (predict_on(model, train, device) for device in (GPU, torch.device("cpu")))
    assert result.values.isfinite().all()
    assert result.values.shape == other.values.shape
    torch.testing.assert_close(result.weights.sum(1), torch.ones_like(result.weights.sum(1)))
    torch.testing.assert_close(other.weights.sum(1), torch.ones_like(other.weights.sum(1)))
    # The noise of paths depends on the device: only means and spreads are alike.
    size = other.values.abs().mean()
    mean, expected = (scenarios.values.mean((1, 2)) for scenarios in (result, other))
    assert (mean - expected).abs().mean() < size


MIDDLE = {
    "deepar": 64,
    "timemcl": 64,
    "timeprism": 100,
    "tempflow": 64,
    "transformer-tempflow": 64,
    "timegrad": 16,
    "tactis-2": 200,
}
"""Windows of a batch for which a step takes some GiB with 2,000 channels."""


@pytest.mark.parametrize("name", MIDDLE)
def test_a_training_takes_about_what_is_estimated(name: str) -> None:
    """With the reference's sizes: not more than half a GiB above it, and a third of it at least."""
    kind = model_class(name)
    values = np.random.default_rng(0).normal(1.0, 0.3, (3000, 2000))
    train = training_of(values, context=672, horizon=96)
    budget = TrainingConfig(epochs=1, batches_per_epoch=2, batch_size=MIDDLE[name])
    model = kind(kind.config_type(training=budget), device="cuda")
    estimate = model.memory_gib(train)
    before = torch.cuda.memory_allocated() / 2**30
    model.fit(train)
    taken = torch.cuda.max_memory_allocated() / 2**30
    reserved = torch.cuda.max_memory_reserved() / 2**30
    summary = f"{estimate:.2f} GiB estimated, {taken:.2f} taken, {reserved:.2f} reserved"
    sys.stdout.write(f"{name}: {summary}, {before:.2f} before\n")
    assert estimate / 3 < taken < estimate + 0.5, summary
