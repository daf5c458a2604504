"""Forecasters that are networks: `fit` trains one, `predict` asks it, a folder keeps it."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
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
from powerphase.models.framework.configuration import configured
from powerphase.models.framework.device import choose_device, world_size
from powerphase.models.framework.network import Network
from powerphase.models.framework.run import Domain, RunFolder, is_run
from powerphase.models.framework.saved import SavedForecaster
from powerphase.models.framework.stepping import is_captured
from powerphase.models.framework.training import (
    CheckpointStore,
    OnProgress,
    Trainer,
    seed_torch,
)
from powerphase.scenarios import Context, Training

SAFE_SHARE = 0.9
"""Of the memory that is free, what the estimate for a batch size may take."""


class NeuralForecaster(SavedForecaster):
    """What all trained forecasters share; a model adds its configuration and its network.

    Args:
        config: all constants; the model's own defaults without one.
        seed: fixes first weights, batches, dropout and noise.
        device: cpu, cuda, or auto for a GPU where there is one.
        channel_block: how many channels to work on at a time where memory is short.
        backend: triton, torch, or auto for Triton's kernels on a GPU; of models that have both.
        run: a folder for the training; one that was interrupted there is continued.
        on_progress: called after each step.
    """

    takes_device: ClassVar[bool] = True
    takes_backend: ClassVar[bool] = False
    """Whether it has kernels and a form without them to choose between."""
    batch_sizes: ClassVar[tuple[int, ...]] = (200, 64, 32, 16, 8)
    """Of which a model takes the first that fits, if its configuration leaves it open."""

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

    @abstractmethod
    def make_network(self, domain: Domain) -> Network:
        """The network for this grid and these windows, with random weights."""

    @abstractmethod
    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """About how much memory the training takes on its device, in such blocks of channels."""

    def outline(self, train: Training) -> Network:
        """The network for this training without its numbers, to count them."""
        windows = train.validation
        domain = Domain.of(train.layout, windows.context_steps, windows.horizon)
        with torch.device("meta"):
            return self.make_network(domain)

    def is_captured(self, network: nn.Module) -> bool:
        """Whether its steps are recorded where the training will run."""
        return is_captured(network, choose_device(self.device), world_size())

    @property
    def is_fitted(self) -> bool:
        """Whether there is a trained network."""
        return self.network is not None

    @classmethod
    def learned(cls, network: nn.Module) -> dict[str, nn.Parameter]:
        """What is trained of a network."""
        return {name: one for name, one in network.named_parameters() if one.requires_grad}

    @classmethod
    def learned_in(cls, folder: RunFolder) -> dict[str, Tensor]:
        """The trained weights alone, without running averages and what is frozen."""
        model = cls(configured(cls.config_type, folder.header.config))
        with torch.device("meta"):
            names = cls.learned(model.make_network(folder.header.domain))
        return {name: one for name, one in folder.best()[0].items() if name in names}

    @property
    def n_parameters(self) -> int | None:
        """Number of trained numbers."""
        if self.network is None:
            return None
        return sum(one.numel() for one in self.learned(self.network).values())

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

    def answer(self, context: Context) -> Prediction:
        """What the network says."""
        assert self.network is not None
        return self.network.scenarios(context, self.seed)

    def settle(self, train: Training) -> None:
        """Also choose a batch size, where neither the user nor the model's grid has one."""
        super().settle(train)
        if self.config.training.batch_size is not None:
            return
        if world_size() > 1:
            raise TrainingError(
                f"{self.name} would choose its batch size by the memory of each process; give all "
                "of them one with --batch-size"
            )
        begun = self._begun_size()
        there, asked = free_memory_gib(choose_device(self.device)), self.config
        for size in self.batch_sizes if begun is None else (begun,):
            self.config = with_training(asked, {"batch_size": size})
            if there is None or self.memory_gib(train, self.channel_block) <= SAFE_SHARE * there:
                break

    def _begun_size(self) -> int | None:
        """Of the training that is in the folder: there may have been more memory, or less."""
        if self.run is None or not is_run(self.run):
            return None
        folder = RunFolder.open(self.run)
        if folder.header.model != self.name or not folder.weights_file.exists():
            return None
        size: int | None = folder.header.config["training"]["batch_size"]
        return size

    def _prepare(self, train: Training) -> None:
        """Refuse to begin what cannot fit; on a CPU, the system would kill it without a word."""
        device = choose_device(self.device)
        needed, there = self.memory_gib(train, self.channel_block), free_memory_gib(device)
        if there is None or needed <= there:
            return
        n_channels, batch = train.layout.n_channels, self.config.training.batch_size
        blocks = [n_channels >> halvings for halvings in range(1, n_channels.bit_length() - 2)]
        fitting = [block for block in blocks if self.memory_gib(train, block) <= there]
        advice = "give a smaller --batch-size, or use another machine"
        if fitting:
            advice = f"give --channel-block {fitting[0]}, which takes longer and computes the same"
        raise TrainingError(
            f"training {self.name} on {n_channels:,} channels with a batch of {batch} takes about "
            f"{needed:.1f} GiB, and {device.type} has {there:.1f} GiB free; {advice}"
        )

    def _take(self, folder: RunFolder) -> None:
        """Be what was trained in the folder."""
        network = self._fresh_network()
        load_into(network, folder.best()[0], str(folder.weights_file))
        self.network = network.eval()
        self.outcome, curve = folder.header.outcome, folder.curve()
        self._is_unfinished = self.outcome is None
        if self.outcome is None:
            last = curve[-1] if curve else {"step": None, "seconds": None}
            self.outcome = {
                "steps": last["step"],
                "train_s": last["seconds"],
                "peak_memory_gib": None,
                "hardware": UNKNOWN,
            }

    def _fresh_network(self) -> Network:
        assert self._domain is not None
        with torch.random.fork_rng(devices=[]):
            seed_torch(torch.device("cpu"), self.seed, "weights")
            return self.make_network(self._domain)

    def _learn(self, train: Training, keeper: CheckpointStore) -> dict[str, Any]:
        device = choose_device(self.device)
        self.network = None  # what a failed training leaves must not forecast
        reset_peak_memory()
        network = self._fresh_network()
        options = (self.config.training, self.seed, device, keeper, self.on_progress)
        trainer = Trainer(network, train, *options)
        trainer.run()
        weights, facts = keeper.best()
        load_into(network, weights, f"the best weights of {self.name}")
        network.zero_grad()  # gradients are in the memory of the recorded step
        self.network = network.eval()
        return {
            "steps": self.config.training.steps,
            "best_epoch": facts["epoch"],
            f"validation_{trainer.criterion}": trainer.best,
            "train_s": trainer.seconds,
            # Of a training made in several goes, nobody knows what one would have taken.
            "peak_memory_gib": None if trainer.continued else peak_memory_gib(device),
            "hardware": ", then ".join(trainer.hardware) or UNKNOWN,
            "torch": torch.__version__,
            "commit": commit(),
        }


def _check_past(context: Context) -> None:
    """Refuse a context with a value that is no number, from which a network would make more."""
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


def with_training(config: Any, changes: Mapping[str, Any]) -> Any:
    """The configuration with other numbers in `training`, where they are given."""
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(config, training=replace(config.training, **given))
