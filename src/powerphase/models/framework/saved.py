"""Forecasters that can be saved in a folder: fitted once, loaded to forecast."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from torch import Tensor

from powerphase.errors import CheckpointError, ForecastError
from powerphase.models.framework.base import Prediction, stated_fields
from powerphase.models.framework.config_reader import restore_config
from powerphase.models.framework.device import is_rank_zero
from powerphase.models.framework.run import Domain, Header, RunFolder
from powerphase.models.framework.training import CheckpointStore
from powerphase.registry import results_version
from powerphase.scenarios import Context, Training
from powerphase.schema import Schema, check, object_with

S = TypeVar("S", bound="SavedForecaster")


class SavedForecaster(ABC):
    """A forecaster with a folder; a subclass defines how it is fitted and how it predicts.

    Args:
        config: all constants, a frozen dataclass with `for_grid` and `variant`; None for the
            model's defaults.
        seed: fixes whatever is random in the model.
        run: a folder for the fitted model; an interrupted training in it is continued.
    """

    name: ClassVar[str]
    config_type: ClassVar[Any]
    """The config's class; its `VARIANTS` are the words that may follow the name."""
    outcome_schema: ClassVar[Mapping[str, Schema]] = {}
    """What its outcome has beyond the facts that all trainings have."""
    takes_device: ClassVar[bool] = False
    """Whether its constructor takes the device to be fitted on."""

    def __init__(self, config: Any = None, seed: int = 42, run: str | Path | None = None) -> None:
        self.config: Any = self.config_type() if config is None else config
        self.seed = seed
        self.run = None if run is None else Path(run)
        self.data: dict[str, Any] = {}
        """The data set and the task that the model was fitted on."""
        self.outcome: dict[str, Any] | None = None
        """Facts about the finished training."""
        self._domain: Domain | None = None
        self._is_loaded = self._is_unfinished = False

    @classmethod
    def load(cls: type[S], run: str | Path) -> S:
        """The model in a folder; of an unfinished training, its best state so far."""
        folder = RunFolder.open(run)
        header = folder.header
        if header.model != cls.name:
            raise CheckpointError(f"{run}: holds a training of {header.model}, not of {cls.name}")
        model = cls(restore_config(cls.config_type, header.config), seed=header.seed, run=run)
        model.data, model._domain, model._is_loaded = header.data, header.domain, True
        check_outcome(header, cls, str(run))
        model._load_state(folder)
        return model

    @classmethod
    def fitted_tensors(cls, folder: RunFolder) -> dict[str, Tensor]:
        """The fitted tensors of those in the folder; the folder of a network has others too."""
        return folder.best()[0]

    @abstractmethod
    def _fit(self, train: Training, checkpoints: CheckpointStore) -> dict[str, Any]:
        """Fit the model, save its state in `checkpoints`, and return the outcome."""

    @abstractmethod
    def _load_state(self, folder: RunFolder) -> None:
        """Load the fitted state from the folder."""

    @abstractmethod
    def _predict(self, context: Context) -> Prediction:
        """The scenarios of windows that belong to the model's domain."""

    @property
    @abstractmethod
    def is_fitted(self) -> bool:
        """Whether the model can forecast."""

    @abstractmethod
    def _check(self, train: Training) -> None:
        """Raise if the training cannot work, before anything is written."""

    @property
    def results_version(self) -> int:
        """The version of its results: of a finished training, that of the code that fitted it."""
        return self._code_version if self.outcome is None else _fitted_version(self.outcome)

    @property
    def _code_version(self) -> int:
        """The version that the code gives now: a class outside the registry may state its own."""
        stated: Any = type(self).results_version
        return stated if isinstance(stated, int) else results_version(self.name)

    @property
    def joint_scenarios(self) -> bool | None:
        """Whether each scenario is one future of the whole grid; see `Description.joint`."""
        return None

    @property
    def variant(self) -> str | None:
        """What differs from the model's default."""
        if self._domain is None:
            return None
        variant: str | None = self.config.variant(self._domain.grid)
        words = [variant] if variant else []
        return "-".join([*words, "unfinished"] if self._is_unfinished else words) or None

    def configure(self, train: Training) -> None:
        """Set the domain, and complete what the config leaves open, for this training."""
        self.config = self.config.for_grid(train.layout.grid)
        self._domain = Domain.of_training(train)
        self.data = train.data

    def fit(self, train: Training) -> None:
        """Fit the model to the training record; networks are chosen by the validation windows.

        A model that was loaded from a folder stays as it is, and raises if it was fitted on other
        data.
        """
        if self._is_loaded:
            self._check_data(train)
            return
        self.configure(train)
        self._check(train)
        if self.run is None:
            self.outcome = self._stamp(self._fit(train, InMemoryCheckpoints()))
            return
        assert self._domain is not None
        header = Header(self.name, stated_fields(self.config), self.seed, self._domain, self.data)
        folder = RunFolder(self.run, header)
        with folder.start(writes=is_rank_zero()):
            if folder.header.outcome is not None:
                self._load_state(folder)
                self._check_version()
                return
            self.outcome = self._stamp(self._fit(train, folder))
            if is_rank_zero():
                folder.finish(self.outcome)

    def _stamp(self, outcome: dict[str, Any]) -> dict[str, Any]:
        """The outcome of a training, with the version of the code that fitted it."""
        return {**outcome, "results_version": self._code_version}

    def _check_version(self) -> None:
        """Raise if the finished training in the folder is not what the code would fit now."""
        fitted, current = _fitted_version(self.outcome or {}), self._code_version
        if fitted != current:
            raise CheckpointError(
                f"{self.run}: was trained by version {fitted} of {self.name}, and the code is "
                f"version {current}, which gives other scenarios; choose another folder, or "
                "remove this one"
            )

    def predict(self, context: Context) -> Prediction:
        """The scenarios of these windows."""
        if not self.is_fitted or self._domain is None:
            raise ForecastError(f"{self.name} is not trained; call fit, or load a training")
        size = (context.past.shape[1], context.horizon, context.step_s)
        domain = Domain.of(context.layout, *size)
        self._domain.check(domain, self.name if self.run is None else str(self.run))
        return self._predict(context)

    def _check_data(self, train: Training) -> None:
        names = dict.fromkeys([*train.data, *self.data]) if train.data else ()
        for name in names:
            trained_on, value = self.data.get(name), train.data.get(name)
            if trained_on != value:
                raise CheckpointError(
                    f"{self.run}: was trained on {name} {trained_on!r}, and the data set has "
                    f"{value!r}; use the data set that it was trained on, or train on this one"
                )


def _fitted_version(outcome: Mapping[str, Any]) -> int:
    """The version of the code that fitted a model; trainings that do not state it count as 1."""
    return int(outcome.get("results_version", 1))


def check_outcome(header: Header, kind: type[SavedForecaster], source: str) -> None:
    """Raise if the outcome of a finished training lacks what the model reports."""
    if header.outcome is not None:
        rule, advice = object_with(kind.outcome_schema), "restore it or train again"
        check(header.outcome, rule, f"{source}: outcome", CheckpointError, advice)


class InMemoryCheckpoints:
    """Checkpoints of models without a folder: it holds the best weights and drops the rest."""

    def __init__(self) -> None:
        self._best: tuple[dict[str, Tensor], dict[str, Any]] | None = None
        self._lines: list[dict[str, Any]] = []

    def load_state(self) -> None:
        """Return None: no state is saved."""

    def save_best(self, weights: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Copy the weights."""
        copies = {name: tensor.detach().cpu().clone() for name, tensor in weights.items()}
        self._best = copies, dict(facts)

    def best(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """The copy of the best weights."""
        assert self._best is not None, "a training has at least one epoch"
        return self._best

    def save_state(self, tensors: Mapping[str, Tensor], facts: Mapping[str, Any]) -> None:
        """Do nothing."""

    def log(self, line: Mapping[str, Any]) -> None:
        """Keep the line."""
        self._lines.append(dict(line))

    def curve(self) -> list[dict[str, Any]]:
        """The lines so far."""
        return self._lines
