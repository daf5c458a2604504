"""Forecasters that are networks: `fit` trains one, `predict` asks it, a folder keeps it."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn

from powerphase.cost import (
    commit,
    free_memory_gib,
    peak_memory_gib,
    reset_peak_memory,
)
from powerphase.errors import CheckpointError, ForecastError, TrainingError
from powerphase.models.checkpoint import load_into
from powerphase.models.configuration import configured
from powerphase.models.device import choose_device, is_leader
from powerphase.models.run import Header, Place, RunFolder
from powerphase.models.training import (
    Keeper,
    OnProgress,
    Trainer,
    seed_torch,
)
from powerphase.models.training_config import TrainingConfig
from powerphase.scenarios import Context, Scenarios, Training


class Config(Protocol):
    """What a trained model's configuration has: a frozen dataclass with these."""

    training: TrainingConfig

    def for_grid(self, grid: str) -> Any:
        """The same, with what is left to the grid filled in."""

    def variant(self, grid: str) -> str | None:
        """What is not the default about it, in one word."""


class Trained(ABC):
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

    name: ClassVar[str]
    config_type: ClassVar[type]

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
        self.config: Any = self.config_type() if config is None else config
        self.seed, self.device, self.channel_block = seed, device, channel_block
        self.backend = backend
        self.run = None if run is None else Path(run)
        self.data: dict[str, Any] = {}
        """Which data set and task the model was trained on."""
        self.on_progress = on_progress
        self.network: nn.Module | None = None
        self.outcome: dict[str, Any] | None = None
        """How the training went, once it is finished."""
        self._place: Place | None = None
        self._is_loaded = self._is_unfinished = False

    @classmethod
    def load(cls, run: str | Path) -> "Trained":
        """The model that was trained in a folder: as far as it is, if the training goes on."""
        folder = RunFolder.open(run)
        header = folder.header
        if header.model != cls.name:
            raise CheckpointError(f"{run}: holds a training of {header.model}, not of {cls.name}")
        model = cls(configured(cls.config_type, header.config), seed=header.seed)
        model.run, model.data = Path(run), header.data
        model._place, model._is_loaded = header.place, True
        model._take(folder)
        return model

    @abstractmethod
    def make_network(self, place: Place) -> nn.Module:
        """The network for this grid and these windows, with random weights."""

    @abstractmethod
    def memory_gib(self, train: Training, channel_block: int | None = None) -> float:
        """About how much memory the training takes on its device, in such blocks of channels."""

    @property
    def variant(self) -> str | None:
        """What is not the model's default about it."""
        if self._place is None:
            return None
        found: str | None = self.config.variant(self._place.grid)
        words = [found] if found else []
        return "-".join([*words, "unfinished"] if self._is_unfinished else words) or None

    @property
    def n_parameters(self) -> int | None:
        """Number of trained numbers."""
        if self.network is None:
            return None
        return sum(parameter.numel() for parameter in self.network.parameters())

    @property
    def n_steps(self) -> int | None:
        """Number of steps that the training took."""
        return None if self.outcome is None else self.outcome["steps"]

    def settle(self, train: Training) -> None:
        """Take the place to be trained for, and fill in what the configuration leaves to it."""
        windows = train.validation
        self.config = self.config.for_grid(train.layout.grid)
        self._place = Place.of(train.layout, windows.context_steps, windows.horizon)
        self.data = train.data

    def fit(self, train: Training) -> None:
        """Train, and take the weights that are best on the validation windows.

        A model that was loaded from a folder is trained already, and stays as it is; on other data
        than it was trained on, it is refused.
        """
        if self._is_loaded:
            self._check_data(train)
            return
        device = choose_device(self.device)
        self.settle(train)
        assert self._place is not None
        self._check_memory(train, device)
        if self.run is None:
            self._train(train, device, Memory())
            return
        header = Header(self.name, asdict(self.config), self.seed, self._place, self.data)
        folder = RunFolder(self.run, header)
        with folder.begun(writes=is_leader()):
            if folder.header.outcome is not None:
                self._take(folder)
                return
            self._train(train, device, folder)
            if is_leader() and self.outcome is not None:
                folder.finish(self.outcome)

    def predict(self, context: Context) -> Scenarios:
        """The scenarios of these windows."""
        if self.network is None or self._place is None:
            raise ForecastError(f"{self.name} is not trained; call fit, or load a training")
        asked = Place.of(context.layout, context.past.shape[1], context.horizon)
        self._place.check(asked, self.name if self.run is None else str(self.run))
        self.network.to(context.past.device).eval()
        with torch.cuda.device_of(context.past):  # kernels run on the current device
            return self.answer(context)

    def answer(self, context: Context) -> Scenarios:
        """What the network says."""
        found: Scenarios = self.network.scenarios(context)  # type: ignore[union-attr, operator]
        return found

    def _check_memory(self, train: Training, device: torch.device) -> None:
        """Refuse to begin what cannot fit; on a CPU, the system would kill it without a word."""
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

    def _check_data(self, train: Training) -> None:
        for name, wanted in train.data.items():
            found = self.data.get(name)
            if found != wanted:
                raise CheckpointError(
                    f"{self.run}: was trained on {name} {found!r}, and the data set has "
                    f"{wanted!r}; give the data set that it was trained on, or train on this one"
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
                "hardware": "unknown",
            }

    def _fresh_network(self) -> nn.Module:
        assert self._place is not None
        with torch.random.fork_rng(devices=[]):
            seed_torch(torch.device("cpu"), self.seed, "weights")
            return self.make_network(self._place)

    def _train(self, train: Training, device: torch.device, keeper: Keeper) -> None:
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
        self.outcome = {
            "steps": self.config.training.steps,
            "best_epoch": facts["epoch"],
            "validation_crps": facts["crps"],
            "train_s": trainer.seconds,
            # Of a training made in several goes, nobody knows what one would have taken.
            "peak_memory_gib": None if trainer.continued else peak_memory_gib(device),
            "hardware": ", then ".join(trainer.hardware) or "unknown",
            "torch": torch.__version__,
            "commit": commit(),
        }


def with_training(config: Any, changes: Mapping[str, Any]) -> Any:
    """The configuration with other numbers in `training`, where they are given."""
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(config, training=replace(config.training, **given))


class Memory:
    """A keeper for trainings without a folder: it holds the best weights and forgets the rest."""

    def __init__(self) -> None:
        self._best: tuple[dict[str, Tensor], dict[str, Any]] | None = None

    def resume(self) -> None:
        """Nothing is kept that could be resumed."""

    def keep_best(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Copy the weights."""
        copies = {name: tensor.detach().cpu().clone() for name, tensor in weights.items()}
        self._best = copies, dict(facts)

    def best(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The copy."""
        assert self._best is not None, "a training has at least one epoch"
        return self._best

    def save(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Nothing."""

    def log(self, line: Mapping[str, Any]) -> None:
        """Nothing."""
