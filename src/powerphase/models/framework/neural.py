"""Forecasters that are networks, and how much memory a training takes."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from math import isfinite
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from powerphase.cost import (
    UNKNOWN,
    commit,
    free_memory_gib,
    peak_memory_gib,
    reset_peak_memory,
)
from powerphase.errors import ForecastError, TrainingError
from powerphase.models.framework.base import Prediction
from powerphase.models.framework.checkpoint import load_into
from powerphase.models.framework.config_reader import restore_config
from powerphase.models.framework.configuration import TrainingConfig
from powerphase.models.framework.device import choose_device, world_size
from powerphase.models.framework.network import Network
from powerphase.models.framework.run import Domain, RunFolder
from powerphase.models.framework.saved import SavedForecaster
from powerphase.models.framework.stepping import is_captured
from powerphase.models.framework.training import (
    CheckpointStore,
    OnProgress,
    Trainer,
    seed_torch,
)
from powerphase.scenarios import Context, Training

NUMBER_BYTES, GIB = 4, 2**30

PER_PARAMETER = 4.0
"""A weight, its gradient, and Adam's two numbers."""
WARM_UP_COPIES = 3.0
"""Copies during the warm-up steps: of a weight and, if a training continues, of Adam's two."""
VALIDATION = 3.0
"""Copies of the validation windows while they are read."""
ALWAYS_GIB = 0.45
"""Whatever the size."""


class NeuralForecaster(SavedForecaster):
    """A forecaster that trains a network; a subclass adds the config and the network.

    Args:
        config: all constants; None for the model's defaults.
        seed: fixes the initial weights, batches, dropout and noise.
        device: cpu, cuda, or auto for a GPU if there is one.
        channel_block: how many channels to process at a time, to save memory.
        backend: triton, torch, or auto for Triton's kernels on a GPU; for models that have both.
        run: a folder for the training; an interrupted training in it is continued.
        on_progress: called after each step.
    """

    takes_device: ClassVar[bool] = True
    takes_backend: ClassVar[bool] = False
    """Whether it has Triton kernels, and the same in PyTorch."""

    def __init__(
        self,
        config: Any = None,
        *,
        seed: int = 42,
        device: str = "auto",
        channel_block: int | None = None,
        backend: str = "auto",
        run: str | Path | None = None,
        on_progress: OnProgress | None = None,
    ) -> None:
        super().__init__(config, seed, run)
        self.device, self.channel_block, self.backend = device, channel_block, backend
        self.on_progress = on_progress
        self.network: Network | None = None
        self.training: dict[str, Any] | None = None
        """How the network was trained, as result rows state it."""

    @abstractmethod
    def make_network(self, domain: Domain) -> Network:
        """The network for this grid and these windows, with initial weights."""

    @abstractmethod
    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """An estimate of the memory that a training in such channel blocks takes on its device."""

    def meta_network(self, train: Training) -> Network:
        """The network for this training on the meta device: shapes without memory."""
        with torch.device("meta"):
            return self.make_network(Domain.of_training(train))

    def is_captured(self, network: nn.Module) -> bool:
        """Whether the training will capture its steps as a CUDA graph."""
        return is_captured(network, choose_device(self.device), world_size())

    @property
    def is_fitted(self) -> bool:
        """Whether the network is trained."""
        return self.network is not None

    @classmethod
    def trained_parameters(cls, network: nn.Module) -> dict[str, nn.Parameter]:
        """The parameters that are trained."""
        return {name: weight for name, weight in network.named_parameters() if weight.requires_grad}

    @classmethod
    def fitted_tensors(cls, folder: RunFolder) -> dict[str, Tensor]:
        """The trained weights in the folder, without running averages and frozen weights."""
        model = cls(restore_config(cls.config_type, folder.header.config))
        with torch.device("meta"):
            names = cls.trained_parameters(model.make_network(folder.header.domain))
        return {name: tensor for name, tensor in folder.best()[0].items() if name in names}

    @property
    def n_parameters(self) -> int | None:
        """Number of trained parameters."""
        if self.network is None:
            return None
        return sum(weight.numel() for weight in self.trained_parameters(self.network).values())

    @property
    def n_steps(self) -> int | None:
        """Number of steps that the training took."""
        return None if self.outcome is None else self.outcome["steps"]

    def predict(self, context: Context) -> Prediction:
        """The scenarios of these windows."""
        _check_past(context)
        if self.network is not None:
            self.network.to(context.past.device).eval()
        with torch.cuda.device_of(context.past):  # kernels run on the current device
            return super().predict(context)

    def _predict(self, context: Context) -> Prediction:
        """The network's scenarios."""
        assert self.network is not None
        return self.network.scenarios(context, self.seed)

    def configure(self, train: Training) -> None:
        """Also raise if the config has no batch size for the grid."""
        super().configure(train)
        if self.config.training.batch_size is None:
            raise TrainingError(
                f"{self.name}: {type(self.config).__name__} has no batch size for "
                f"{train.layout.grid}; derive it from powerphase.models.NetworkConfig, or set "
                "training.batch_size"
            )

    def _check(self, train: Training) -> None:
        """Raise if the training does not fit; on a CPU, the system would kill it silently."""
        device = choose_device(self.device)
        needed, free = self.memory_gib(train, self.channel_block), free_memory_gib(device)
        if free is None or needed <= free:
            return
        n_channels, batch = train.layout.n_channels, self.config.training.batch_size
        blocks = [n_channels >> halvings for halvings in range(1, n_channels.bit_length() - 2)]
        fitting = [block for block in blocks if self.memory_gib(train, block) <= free]
        advice = "give a smaller --batch-size, or use another machine"
        if fitting:
            advice = f"give --channel-block {fitting[0]}, which takes longer and computes the same"
        raise TrainingError(
            f"training {self.name} on {n_channels:,} channels with a batch of {batch} takes about "
            f"{needed:.1f} GiB, and {device.type} has {free:.1f} GiB free; {advice}"
        )

    def _load_state(self, folder: RunFolder) -> None:
        """Load the trained network from the folder."""
        weights, facts = folder.best()  # before memory is taken for what the header claims
        network = self._initial_network()
        load_into(network, weights, str(folder.weights_file))
        self.network = network.eval()
        self.outcome, curve = folder.header.outcome, folder.curve()
        self.training = describe_training(self.config.training, curve, facts["epoch"])
        self._is_unfinished = self.outcome is None
        if self.outcome is None:
            last = curve[-1] if curve else {"step": None, "seconds": None}
            self.outcome = {
                "steps": last["step"],
                "train_s": last["seconds"],
                "peak_memory_gib": None,
                "hardware": UNKNOWN,
            }

    def _initial_network(self) -> Network:
        assert self._domain is not None
        with torch.random.fork_rng(devices=[]):
            seed_torch(torch.device("cpu"), self.seed, "weights")
            network = self.make_network(self._domain)
        if not isinstance(network, Network):
            raise TrainingError(
                f"{self.name}: make_network returned a {type(network).__name__}; derive the "
                "network from powerphase.models.Network"
            )
        return network

    def _fit(self, train: Training, checkpoints: CheckpointStore) -> dict[str, Any]:
        device = choose_device(self.device)
        self.network = None  # the network of a failed training must not forecast
        reset_peak_memory()
        network = self._initial_network()
        options = (self.config.training, self.seed, device, checkpoints, self.on_progress)
        trainer = Trainer(network, train, *options)
        trainer.run()
        weights, facts = checkpoints.best()
        load_into(network, weights, f"the best weights of {self.name}")
        network.zero_grad()  # gradients are in the memory of the captured step
        self.network = network.eval()
        curve = checkpoints.curve()
        self.training = describe_training(self.config.training, curve, facts["epoch"])
        return {
            "steps": self.config.training.steps,
            "best_epoch": facts["epoch"],
            f"validation_{trainer.criterion}": trainer.best,
            "train_s": trainer.seconds,
            # Unknown for a training that was interrupted: each part had a peak of its own.
            "peak_memory_gib": None if trainer.continued else peak_memory_gib(device),
            "hardware": ", then ".join(trainer.hardware) or UNKNOWN,
            "torch": torch.__version__,
            "commit": commit(),
        }


def _check_past(context: Context) -> None:
    """Raise if a value of the context is not finite: a network would spread it."""
    low, high = context.past.aminmax()  # one pass and no copy; NaN comes through
    if low.isfinite() and high.isfinite():
        return
    window, step, channel = (~context.past.isfinite()).nonzero()[0].tolist()
    raise ForecastError(
        f"{context.layout.name_of(channel)} is {context.past[window, step, channel].item()} at "
        f"{context.time[window, step]} in the context; a network needs finite numbers",
        window=window,
        channel=channel,
    )


def describe_training(
    config: TrainingConfig, curve: list[dict[str, Any]], best_epoch: int
) -> dict[str, Any] | None:
    """A training as result rows state it; None without a log."""
    if not curve or config.batch_size is None:
        return None
    columns = {"loss": "loss", "validation": f"validation_{config.criterion}"}
    return {
        "windows_seen": curve[-1]["step"] * config.batch_size,
        "best_epoch": best_epoch,
        "criterion": config.criterion,
        "curve": {
            "step": [line["step"] for line in curve],
            **{k: [_five_digits(line[name]) for line in curve] for k, name in columns.items()},
        },
    }


def _five_digits(value: float | None) -> float | None:
    """The number as a curve needs it; None if it is not finite."""
    return None if value is None or not isfinite(value) else float(f"{value:.5g}")


def with_training(config: Any, changes: Mapping[str, Any]) -> Any:
    """The config with other values in `training`; None leaves a value as it is."""
    values = {name: value for name, value in changes.items() if value is not None}
    return replace(config, training=replace(config.training, **values))


def gib(numbers: float) -> float:
    """The memory of so many numbers, in GiB."""
    return NUMBER_BYTES * numbers / GIB


def peak_numbers(step: float, validation: float, parameters: int, captured: bool) -> float:
    """Numbers at the peak of a training, on top of what is always there.

    Before a step is captured, warm-up steps are taken and undone, which needs copies of what they
    change. The captured step then keeps its memory to itself, and validation takes its own on top;
    the copies are gone by then. Without a capture nothing of a step is kept.

    Args:
        step: numbers of a step.
        validation: numbers of a batch of validation windows.
        parameters: of the network.
        captured: whether steps are captured as a CUDA graph.
    """
    if not captured:
        return max(step, validation)
    return step + max(validation, WARM_UP_COPIES * parameters)
