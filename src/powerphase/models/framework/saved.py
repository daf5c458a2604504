"""Forecasters that can be kept in a folder: fitted once, loaded wherever they forecast."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from torch import Tensor

from powerphase.errors import CheckpointError, ForecastError
from powerphase.models.framework.base import Prediction
from powerphase.models.framework.configuration import configured
from powerphase.models.framework.device import is_rank_zero
from powerphase.models.framework.run import Domain, Header, RunFolder
from powerphase.models.framework.training import CheckpointStore
from powerphase.scenarios import Context, Training


class SavedForecaster(ABC):
    """What all forecasters with a folder share; a model says how it learns and how it answers.

    Args:
        config: all constants, a frozen dataclass with `for_grid` and `variant`; the model's own
            defaults without one.
        seed: fixes whatever is random in the model.
        run: a folder for what is learned; one that was interrupted there is continued.
    """

    name: ClassVar[str]
    config_type: ClassVar[Any]
    """Its `VARIANTS` are the words that may follow the name."""
    takes_device: ClassVar[bool] = False
    """Whether it can be told where to be fitted."""

    def __init__(self, config: Any = None, seed: int = 42, run: str | Path | None = None) -> None:
        self.config: Any = self.config_type() if config is None else config
        self.seed = seed
        self.run = None if run is None else Path(run)
        self.data: dict[str, Any] = {}
        """Which data set and task the model learned from."""
        self.outcome: dict[str, Any] | None = None
        """How it went, once it is finished."""
        self._domain: Domain | None = None
        self._is_loaded = self._is_unfinished = False

    @classmethod
    def load(cls, run: str | Path) -> "SavedForecaster":
        """The model that was kept in a folder: as far as it is, if it is still being trained."""
        folder = RunFolder.open(run)
        header = folder.header
        if header.model != cls.name:
            raise CheckpointError(f"{run}: holds a training of {header.model}, not of {cls.name}")
        model = cls(configured(cls.config_type, header.config), seed=header.seed, run=run)
        model.data, model._domain, model._is_loaded = header.data, header.domain, True
        model._take(folder)
        return model

    @classmethod
    def learned_in(cls, folder: RunFolder) -> dict[str, Tensor]:
        """What was learned, of all that the folder keeps; networks keep more than that."""
        return folder.best()[0]

    @abstractmethod
    def _learn(self, train: Training, keeper: CheckpointStore) -> dict[str, Any]:
        """Learn, let the keeper have what was learned, and say how it went."""

    @abstractmethod
    def _take(self, folder: RunFolder) -> None:
        """Be what was learned in the folder."""

    @abstractmethod
    def answer(self, context: Context) -> Prediction:
        """The scenarios of windows that are in the model's place."""

    @property
    @abstractmethod
    def is_fitted(self) -> bool:
        """Whether there is something to forecast with."""

    @abstractmethod
    def _prepare(self, train: Training) -> None:
        """Refuse what cannot work, before anything is written."""

    @property
    def variant(self) -> str | None:
        """What is not the model's default about it."""
        if self._domain is None:
            return None
        found: str | None = self.config.variant(self._domain.grid)
        words = [found] if found else []
        return "-".join([*words, "unfinished"] if self._is_unfinished else words) or None

    def settle(self, train: Training) -> None:
        """Take the place to be fitted for, and fill in what the configuration leaves to it."""
        windows = train.validation
        self.config = self.config.for_grid(train.layout.grid)
        self._domain = Domain.of(train.layout, windows.context_steps, windows.horizon)
        self.data = train.data

    def fit(self, train: Training) -> None:
        """Learn from the training record; networks take what is best on the validation windows.

        A model that was loaded from a folder has learned already, and stays as it is; on other data
        than it learned from, it is refused.
        """
        if self._is_loaded:
            self._check_data(train)
            return
        self.settle(train)
        self._prepare(train)
        if self.run is None:
            self.outcome = self._learn(train, InMemoryCheckpoints())
            return
        assert self._domain is not None
        header = Header(self.name, asdict(self.config), self.seed, self._domain, self.data)
        folder = RunFolder(self.run, header)
        with folder.begun(writes=is_rank_zero()):
            if folder.header.outcome is not None:
                self._take(folder)
                return
            self.outcome = self._learn(train, folder)
            if is_rank_zero():
                folder.finish(self.outcome)

    def predict(self, context: Context) -> Prediction:
        """The scenarios of these windows."""
        if not self.is_fitted or self._domain is None:
            raise ForecastError(f"{self.name} is not trained; call fit, or load a training")
        asked = Domain.of(context.layout, context.past.shape[1], context.horizon)
        self._domain.check(asked, self.name if self.run is None else str(self.run))
        return self.answer(context)

    def _check_data(self, train: Training) -> None:
        for name, wanted in train.data.items():
            found = self.data.get(name)
            if found != wanted:
                raise CheckpointError(
                    f"{self.run}: was trained on {name} {found!r}, and the data set has "
                    f"{wanted!r}; give the data set that it was trained on, or train on this one"
                )


class InMemoryCheckpoints:
    """A keeper for models without a folder: it holds what is best and forgets the rest."""

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
