"""Small networks that train quickly, and a grid of two buses for them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from powerphase.circuit import Circuit, Limits
from powerphase.models.framework import (
    Domain,
    InMemoryCheckpoints,
    Losses,
    Network,
    NetworkConfig,
    NeuralForecaster,
    RunFolder,
    TrainingConfig,
)
from powerphase.models.powerforge import PowerForgeConfig
from powerphase.scenarios import Batches, Context, Layout, Record, Scenarios, Training, Windows

N_STEPS, CONTEXT, HORIZON, VALIDATION = 100, 5, 3, (100, 104, 108, 112, 116)
CPU = torch.device("cpu")


def layout_of_two() -> Layout:
    circuit = Circuit.chain(2)
    return Layout(
        grid="two",
        bus_id=np.array([7, 104]),
        bus_type=np.array([3, 1]),
        nominal_kv=np.array([380.0, 110.0]),
        circuit=circuit,
        limits=Limits.equal(circuit, (0.95, 1.05), 100.0),
        p_scale_mw=1.0,
        q_scale_mvar=1.0,
    )


def training_of(
    values: np.ndarray, n_steps: int = N_STEPS, origins: Sequence[int] = VALIDATION
) -> Training:
    """A training on the first steps of these values, validated on windows at these origins."""
    layout, time = layout_of_two(), np.datetime64("2015-01-01", "s") + 900 * np.arange(len(values))

    def record(n: int) -> Record:
        return Record(layout, time[:n], lambda steps, channels: values[steps, channels])

    validation = Windows(record(len(values)), np.array(origins, int), CONTEXT, HORIZON)
    return Training(record(n_steps), validation)


def wavy_training(n_steps: int = N_STEPS, origins: Sequence[int] = VALIDATION) -> Training:
    step, channel = np.arange(N_STEPS + 20)[:, None], np.arange(8)
    values = np.sin(step / (4 + channel)) + np.random.default_rng(0).normal(
        0, 0.1, (N_STEPS + 20, 8)
    )
    return training_of(values.astype(np.float32), n_steps, origins)


def flat_training() -> Training:
    """All zero, so that the CRPS of a scenario is its distance from zero."""
    return training_of(np.zeros((N_STEPS + 20, 8), np.float32))


class Toy(Network):
    """A linear layer for three scenarios, with dropout and a size that `prepare` measures."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(CONTEXT, 3 * HORIZON)
        self.dropout = nn.Dropout(0.3)
        self.size: Tensor
        self.register_buffer("size", torch.ones(()))

    def prepare(self, batches: Batches) -> None:
        self.size.copy_(batches[0][1].abs().mean())

    def forward(self, context: Context, target: Tensor) -> Losses:
        error = (self._values(context) - target.unsqueeze(1)).abs().mean()
        weights = 0.01 * self.line.weight.square().sum()
        return Losses(error + weights, {"error": error.detach(), "weights": weights.detach()})

    def scenarios(self, context: Context, seed: int = 0) -> Scenarios:
        return Scenarios.equal(self._values(context))

    def _values(self, context: Context) -> Tensor:
        seen = self.dropout(context.past.movedim(1, 2))
        return self.size * self.line(seen).unflatten(2, (3, HORIZON)).permute(0, 2, 3, 1)


class Scripted(Network):
    """A network whose validation score in each epoch is scripted, on the flat record.

    Args:
        scores: the CRPS after each epoch.
        per_epoch: steps of an epoch.
        width: a part of the loss, as a function of the step's number from 1 on.
        gradient: of the loss along each weight.
    """

    def __init__(
        self,
        scores: Sequence[float],
        per_epoch: int = 3,
        width: Callable[[int], float] = lambda step: 0.0,
        gradient: float = 1.0,
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4))
        self.steps: Tensor
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.scores, self.per_epoch, self.width, self.gradient = scores, per_epoch, width, gradient

    def prepare(self, batches: Batches) -> None:
        self.steps.zero_()

    def forward(self, context: Context, target: Tensor) -> Losses:
        self.steps += 1
        height, width = self.gradient * self.weight.sum(), torch.tensor(self.width(int(self.steps)))
        return Losses(height + width, {"height": height.detach(), "width": width})

    def scenarios(self, context: Context, seed: int = 0) -> Scenarios:
        score = self.scores[int(self.steps) // self.per_epoch - 1]
        n_windows, _, n_channels = context.past.shape
        return Scenarios.equal(torch.full((n_windows, 1, HORIZON, n_channels), score))


LONG_STEPS = TrainingConfig(
    epochs=6, batches_per_epoch=3, batch_size=4, learning_rate=0.4, patience=1, criterion="crps"
)
"""With it, the best epoch is not the last, and the learning rate is lowered once."""


@dataclass(frozen=True)
class ToyConfig(NetworkConfig):
    """A config with one constant."""

    training: TrainingConfig = LONG_STEPS
    shade: int = 0


class ToyModel(NeuralForecaster):
    """A forecaster with a `Toy`."""

    name = "toy"
    config_type = ToyConfig

    def make_network(self, domain: Domain) -> Network:
        return Toy()

    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        return 0.0


class Shelf(InMemoryCheckpoints):
    """Checkpoints that record the log and the saved state."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []
        self.saved: tuple[dict[str, Tensor], dict[str, Any]] | None = None

    def save_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        self.saved = {name: tensor.clone() for name, tensor in tensors.items()}, dict(facts)

    def log(self, line: Mapping[str, Any]) -> None:
        self.lines.append(dict(line))


def tiny(epochs: int = 2, training: Mapping[str, Any] | None = None, **changes: Any) -> Any:
    """A small config of PowerForge."""
    budget = {"epochs": epochs, "batches_per_epoch": 3, "batch_size": 8, **(training or {})}
    sizes = {"hidden": 8, "tokens": 3, "scenarios": 4, "node_embedding": 2, "segments": 2}
    return PowerForgeConfig(
        **{**sizes, "kernels": (3, 5), "calibration_batches": 2, **changes},
        training=TrainingConfig(**budget),
    )


def curve_of(run: Path) -> list[dict[str, Any]]:
    """The log without times, which differ between equal trainings."""
    lines = RunFolder.open(run).curve()
    return [{k: v for k, v in line.items() if k != "seconds"} for line in lines]


def files_in(run: Path) -> set[str]:
    """The files of a run folder, without the lock."""
    return {file.name for file in run.iterdir()} - {".lock"}


def same_weights(first: nn.Module | None, second: nn.Module | None) -> bool:
    """Whether all weights and buffers of two networks agree in every bit."""
    assert first is not None
    assert second is not None
    ours, theirs = first.state_dict(), second.state_dict()
    return ours.keys() == theirs.keys() and all(torch.equal(ours[k], theirs[k]) for k in ours)
