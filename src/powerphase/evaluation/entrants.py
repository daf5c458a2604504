"""Entrants: models as they are asked for, by name with variants, or as a class of the user's own.

`deepar`, `ets+stale` and `package.module:Class` are all entrants. Before anything is fitted, one
knows under which name its rows will stand, with which config and which seeds.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from powerphase.errors import ForecastError, UnknownName
from powerphase.models.framework.base import Description, Forecaster, describe, plain_config
from powerphase.models.framework.configuration import read_config
from powerphase.models.framework.neural import NeuralForecaster, with_training
from powerphase.models.framework.saved import SavedForecaster
from powerphase.models.framework.variants import with_variants
from powerphase.registry import MODELS, model_class
from powerphase.task.windows import Task

OWN = "a class of your own as package.module:Class"
"""What may be given instead of a name."""


@dataclass(frozen=True)
class ModelSpec:
    """A model that was asked for."""

    given: str
    kind: Any
    """Its class."""
    config: Any = None
    """Of one that can be kept in a folder: all constants, with its variants set."""

    @property
    def is_kept(self) -> bool:
        """Whether what it learns can be kept in a folder."""
        return issubclass(self.kind, SavedForecaster)

    @property
    def is_trained(self) -> bool:
        """Whether it is a network, with a budget."""
        return issubclass(self.kind, NeuralForecaster)

    @property
    def is_own(self) -> bool:
        """Whether it is a class of the user's."""
        return ":" in self.given

    @property
    def needs_store(self) -> bool:
        """Whether its constructor takes the data set, as the oracle's does."""
        return self.given in MODELS and MODELS[self.given].needs_store

    def seeds(self, asked: Sequence[int]) -> tuple[int, ...]:
        """Those of its rows: as asked, or the one that a model without randomness has."""
        if self.is_kept or self.takes("seed"):
            return tuple(dict.fromkeys(asked))
        return (describe(self._plain({})).seed,)

    def description(self, grid: str, seed: int, config: Any = None) -> Description:
        """How its row on the grid will be called, by the config if one is given."""
        if self.is_kept:
            settled = (config or self.config).for_grid(grid)
            constants = plain_config(asdict(settled))
            return Description(self.kind.name, settled.variant(grid), constants, None, seed)
        if self.needs_store:
            return Description(self.kind.name, None, asdict(self.kind.config_type()), None, seed)
        return describe(self._plain({"seed": seed}))

    def make(
        self, task: Task, seed: int, device: str = "auto", *, config: Any = None, **more: Any
    ) -> Forecaster:
        """The model, not yet fitted; of one that can be kept, `more` may name folder and bars."""
        if self.needs_store:
            informed: Forecaster = self.kind(task.store, seed)
            return informed
        if not self.is_kept:
            return self._plain({"seed": seed, "device": device})
        place = {"device": device} if self.kind.takes_device else {}
        made: Forecaster = self.kind(config or self.config, seed=seed, **place, **more)
        return made

    def takes(self, option: str) -> bool:
        """Whether its constructor does."""
        return option in signature(self.kind).parameters

    def _plain(self, options: dict[str, Any]) -> Forecaster:
        """One that is made from nothing, or from what it takes of these options."""
        taken = {name: one for name, one in options.items() if self.takes(name)}
        try:
            made = self.kind(**taken)
        except (Exception, SystemExit) as error:
            if not self.is_own:
                raise
            raise ForecastError(
                f"{self.given} cannot be made ({type(error).__name__}: {error}); give every "
                "argument of its constructor but seed and device a default"
            ) from error
        if not isinstance(made, Forecaster):
            raise ForecastError(f"{self.given} is no forecaster; give it fit and predict")
        told = describe(made)
        self._refuse_taken(told.model)
        if "seed" in taken and told.seed != taken["seed"]:
            raise ForecastError(
                f"{self.given} takes the seed {taken['seed']} and tells {told.seed}; keep it as "
                "self.seed, by which its rows are named"
            )
        return made

    def _refuse_taken(self, name: str) -> None:
        """Refuse a user's class under the name of a model here, whose rows would pass for its."""
        if self.is_own and name in MODELS and self.kind is not model_class(name):
            raise ForecastError(
                f"{self.given} is called {name}, as a model of powerphase is; give it a name of "
                "its own"
            )


def entrant(
    given: str,
    training: Mapping[str, int | None] | None = None,
    file: Path | None = None,
    sought: str = "model",
) -> ModelSpec:
    """The model that was asked for; a name that is none gets its near misses.

    Args:
        given: its name, with variants, or `package.module:Class`.
        training: epochs and batch size of a network, where they are not to be its own.
        file: fields of its config, where these are not to be its own.
        sought: what else than a name could have been meant, for the sentence of a wrong one.
    """
    name, *words = given.split("+")
    if ":" not in name and name not in MODELS:
        raise UnknownName.among(sought, name, MODELS, OWN)
    if ":" in name:
        kind: type[Any] = _own_class(name)
    else:
        kind = model_class(name)
    if issubclass(kind, SavedForecaster):
        _check_whole(given, kind)
        variants = getattr(kind.config_type, "VARIANTS", {})
        read = kind.config_type() if file is None else read_config(kind.config_type, file)
        config = with_variants(read, words, variants)
        if issubclass(kind, NeuralForecaster):
            config = with_training(config, training or {})
        found = ModelSpec(given, kind, config)
        found._refuse_taken(kind.name)
        return found
    if words:
        raise UnknownName(f"{name} has no variants, and {given!r} asks for one; leave it out")
    return ModelSpec(given, kind)


def _check_whole(given: str, kind: type[SavedForecaster]) -> None:
    """Refuse a user's network that is not written to its end."""
    lacking = [name for name in ("name", "config_type") if not hasattr(kind, name)]
    lacking += sorted(kind.__abstractmethods__)
    if lacking:
        raise ForecastError(
            f"{given} lacks {', '.join(lacking)}; docs/training.md shows a network with all of them"
        )


def _own_class(given: str) -> type[Any]:
    """The class `package.module:Class`, from the current folder or wherever Python looks."""
    module, _, name = given.partition(":")
    if "/" in module or module.endswith(".py"):
        meant = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise UnknownName(f"{module!r} is a file, and a module is needed; write {meant}:{name}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        home = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ForecastError(f"{module}: needs {error.name}, which is not installed") from error
        raise UnknownName(
            f"no module {module!r} in {here} or installed; run the command in the folder that has "
            f"it, and write package.module:Class"
        ) from error
    except (Exception, SystemExit) as error:
        kind = type(error).__name__
        raise ForecastError(f"{module}: cannot be imported ({kind}: {error}); mend it") from error
    found = getattr(home, name, None)
    if not isinstance(found, type):
        classes = [key for key, value in vars(home).items() if isinstance(value, type)]
        raise UnknownName.among(f"class in {module}", name, classes or ["a class"])
    return found
