"""What a string means: a model's name, a class, a training or a forecast.

`deepar`, `ets+stale`, `climatology+ranked`, `package.module:Class`, `package.module:object`,
`statsforecast:AutoTheta+factors`, `oracle` and the folder of a training all resolve to a
`ModelSpec`. It gives the name, config and seeds of the model's rows before anything is fitted.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any

from powerphase.adapters.names import (
    AdaptedModel,
    is_library_class,
    is_library_text,
    library_model,
    object_model,
    split_words,
)
from powerphase.dataset.store import Store
from powerphase.errors import ForecastError, PowerphaseError, TrainingError, UnknownName
from powerphase.evaluation.coupling import (
    COUPLINGS,
    Coupling,
    check_coupling,
    couple,
    couple_forecast,
)
from powerphase.evaluation.forecasting import (
    Forecast,
    check_model_name,
    forecast,
    load_forecast,
)
from powerphase.models.framework.base import (
    Description,
    Forecaster,
    describe,
    plain_config,
    stated_fields,
)
from powerphase.models.framework.config_reader import read_config
from powerphase.models.framework.configuration import apply_variants
from powerphase.models.framework.neural import NeuralForecaster, with_training
from powerphase.models.framework.run import RunFolder, is_run
from powerphase.models.framework.saved import SavedForecaster
from powerphase.records.forecast_file import is_forecast
from powerphase.registry import MODELS, model_class, results_version
from powerphase.task.windows import Task


@dataclass(frozen=True)
class ModelSpec:
    """A model with its variants, not yet made."""

    text: str
    """As the user wrote it."""
    model_class: Any
    config: Any = None
    """All constants of a saved forecaster, with the variants applied."""
    run: Path | None = None
    """The folder of its training, if the model is trained already."""
    coupling: str | None = None
    """How its scenarios are coupled, if they are."""
    adapted: AdaptedModel | None = None
    """How it is made, if it is a model of another library, or an object of a user's module."""

    @property
    def uncoupled(self) -> "ModelSpec":
        """The same model without coupling: what is trained."""
        if self.coupling is None:
            return self
        return replace(self, text=self.text.removesuffix(f"+{self.coupling}"), coupling=None)

    @property
    def identity(self) -> tuple[Any, ...]:
        """Equal for specs of the same model, however it is written."""
        return self.model_class, self.config, self.adapted

    @property
    def is_saved(self) -> bool:
        """Whether its fitted state can be saved in a folder."""
        return issubclass(self.model_class, SavedForecaster)

    @property
    def is_network(self) -> bool:
        """Whether it is trained in epochs."""
        return issubclass(self.model_class, NeuralForecaster)

    @property
    def is_user_class(self) -> bool:
        """Whether the class is the user's."""
        return self.run is None and ":" in self.text

    @property
    def needs_store(self) -> bool:
        """Whether it is made from the data set itself, which only a reference may see."""
        name = self.uncoupled.text
        return name in MODELS and MODELS[name].needs_store

    def seeds(self, requested: Sequence[int]) -> tuple[int, ...]:
        """The seeds of its rows: those requested, or a single one if nothing in it is random."""
        if self.is_saved or self.accepts("seed"):
            return tuple(dict.fromkeys(requested))
        plain = self._make_plain({})
        return tuple(dict.fromkeys(describe(self.couple(plain, seed)).seed for seed in requested))

    def description(self, grid: str, seed: int, config: Any = None) -> Description:
        """How its row on the grid is described, with another config if one is given."""
        plain = self._plain_description(grid, seed, config)
        if self.coupling is None:
            return plain
        can_draw = hasattr(self.model_class, "joint_form")
        return Coupling(self.coupling, plain, can_draw=can_draw, seed=seed).description(plain)

    def _plain_description(self, grid: str, seed: int, config: Any) -> Description:
        if self.is_saved:
            complete = (config or self.config).for_grid(grid)
            constants = plain_config(stated_fields(complete))
            model = describe(self.model_class(complete, seed=seed))
            return replace(model, variant=complete.variant(grid), config=constants)
        if self.needs_store:
            constants = plain_config(stated_fields(self.model_class.config_type()))
            name, joint = self.model_class.name, self.model_class.joint_scenarios
            return Description(name, None, constants, None, seed, joint, results_version(name))
        return describe(self._make_plain({"seed": seed}))

    def make(
        self, task: Task, seed: int, device: str = "auto", *, config: Any = None, **options: Any
    ) -> Forecaster:
        """The forecaster, not yet fitted unless it was trained before.

        Args:
            task: which data set it is for.
            seed: fixes whatever is random in it; a training keeps its own.
            device: cpu, cuda, or auto for a GPU if there is one.
            config: replaces the config of a saved forecaster.
            options: further arguments of a saved forecaster, such as its run folder.
        """
        return self.couple(self._make(task, seed, device, config, options), seed)

    def couple(self, model: Forecaster, seed: int) -> Forecaster:
        """The model as it was asked for: coupled or as it is."""
        return model if self.coupling is None else couple(model, self.coupling, seed=seed)

    def _make(
        self, task: Task, seed: int, device: str, config: Any, options: dict[str, Any]
    ) -> Forecaster:
        if self.run is not None:
            return load_training(self.run, task)
        if self.needs_store:
            reference: Forecaster = self.model_class(task.store, seed)
            return reference
        if not self.is_saved:
            return self._make_plain({"seed": seed, "device": device})
        if self.model_class.takes_device:
            options["device"] = device
        model: Forecaster = self.model_class(config or self.config, seed=seed, **options)
        return model

    def accepts(self, option: str) -> bool:
        """Whether its constructor has an argument of that name."""
        if self.adapted is not None:
            return option == "seed" and self.adapted.takes_seed
        return option in signature(self.model_class).parameters

    def _make_plain(self, options: Mapping[str, Any]) -> Forecaster:
        """A forecaster made from those of the options that its constructor accepts."""
        arguments = {name: value for name, value in options.items() if self.accepts(name)}
        if self.adapted is not None:
            adapted = self.adapted.make(arguments.get("seed", 0))
            check_model_name(self.model_class, describe(adapted).model)
            return adapted
        try:
            model = self.model_class(**arguments)
        except (Exception, SystemExit) as error:
            if not self.is_user_class:
                raise
            raise ForecastError(
                f"{self.text} cannot be constructed ({type(error).__name__}: {error}); give every "
                "argument of its constructor, except seed and device, a default"
            ) from error
        if not isinstance(model, Forecaster):
            raise ForecastError(f"{self.text} is not a forecaster; it needs fit and predict")
        description = describe(model)
        self.check_name(description.model)
        if "seed" in arguments and description.seed != arguments["seed"]:
            raise ForecastError(
                f"{self.text} was given seed {arguments['seed']} but reports {description.seed}; "
                "store it as self.seed, which names its rows"
            )
        return model

    def check_name(self, name: str) -> None:
        """Raise if a user's class has the name of a built-in model: their rows would be mixed."""
        if self.is_user_class:
            check_model_name(self.model_class, name)


def resolve_model(
    text: str,
    training: Mapping[str, int | None] | None = None,
    config_file: Path | None = None,
    coupling: str | None = None,
) -> ModelSpec:
    """The model that the text stands for; an unknown name raises with its near misses.

    A coupling is the last word of a text, unless it is a word of the model's own config.

    Args:
        text: a name with or without variants, `package.module:Class`, or the folder of a training.
        training: epochs and batch size of a network, if not those of its config.
        config_file: fields of the config that replace the defaults.
        coupling: the same as a last word of the text, also for the folder of a training.
    """
    if coupling is not None:
        check_coupling(coupling)
    if is_run(text):
        trained = trainable_class(RunFolder.open(text).header.model)
        return ModelSpec(text, trained, run=Path(text), coupling=coupling)
    text = text if coupling is None else f"{text}+{coupling}"
    name, *variants = split_words(text)
    if is_library_text(name):
        return _adapted_spec(text, variants, lambda words: library_model(name, words))
    if ":" in name:
        loaded = _import_object(name)
        if not isinstance(loaded, type) or is_library_class(loaded):
            return _adapted_spec(text, variants, lambda words: _object_model(name, loaded, words))
        model_type: type[Any] = loaded
    elif name in MODELS:
        model_type = model_class(name)
    else:
        kind = "model or training" if "/" in name else "model"
        raise UnknownName.among(
            kind,
            name,
            MODELS,
            "your own class as package.module:Class, or a library's as statsforecast:AutoTheta",
        )
    last = _split_coupling(model_type, variants)
    if issubclass(model_type, SavedForecaster):
        _check_complete(text, model_type)
        config = _make_config(model_type, variants, training or {}, config_file)
        spec = ModelSpec(text, model_type, config, coupling=last)
        spec.check_name(model_type.name)
        return spec
    if variants:
        raise UnknownName(
            f"{name} has no variants but {', '.join(COUPLINGS)}; give {name} instead of {text!r}"
        )
    return ModelSpec(text, model_type, coupling=last)


def _adapted_spec(
    text: str, words: list[str], adapt: Callable[[list[str]], AdaptedModel]
) -> ModelSpec:
    """The model of another library, or an object, with the words that follow its name."""
    last = words.pop() if words and words[-1] in COUPLINGS else None
    adapted = adapt(words)
    return ModelSpec(text, adapted.model_class, coupling=last, adapted=adapted)


def _object_model(name: str, loaded: Any, words: list[str]) -> AdaptedModel:
    """The object or library class of a user's module."""
    if isinstance(loaded, SavedForecaster):
        raise ForecastError(f"{name} is an object of a saved forecaster; give its class instead")
    if not isinstance(loaded, type):
        return object_model(name, loaded, words)
    try:
        model = loaded()
    except PowerphaseError:
        raise
    except (Exception, SystemExit) as error:
        raise ForecastError(
            f"{name} cannot be constructed ({type(error).__name__}: {error}); make an object of it "
            "in the module, and give the name of that"
        ) from error
    return object_model(name, model, words)


def _split_coupling(model_type: type[Any], words: list[str]) -> str | None:
    """Take the coupling off the end of a model's words; None if there is none.

    FactorForge may couple its scenarios itself: what its config knows as a variant is no wrapper.
    """
    variants = getattr(getattr(model_type, "config_type", None), "VARIANTS", {})
    return words.pop() if words and words[-1] in COUPLINGS and words[-1] not in variants else None


def make_forecaster(
    text: str, task: Task, seed: int, device: str = "auto", coupling: str | None = None
) -> Forecaster:
    """The forecaster that the text stands for, ready for `forecast`.

    A built-in network must have been trained before: `text` is then the folder of its training.
    """
    spec = resolve_model(text, coupling=coupling)
    if spec.is_network and spec.run is None and not spec.is_user_class:
        name, option = spec.uncoupled.text, f" --couple {spec.coupling}" if spec.coupling else ""
        raise TrainingError(
            f"{name} must be trained first: run `powerphase train {name} --data "
            f"{task.store.path} --out RUN`, then give RUN{option} instead of its name"
        )
    return spec.make(task, seed, device)


def find_forecast(
    text: str,
    task: Task,
    seed: int,
    device: str = "auto",
    coupling: str | None = None,
    on_model: Callable[[Forecaster], None] | None = None,
) -> Forecast:
    """The forecast in the directory `text`, or that of the forecaster that the text stands for.

    A forecaster is given to `on_model` before it is fitted.
    """
    if is_forecast(text) or ("/" in text and not is_run(text)):
        source = load_forecast(text)
        return couple_forecast(source, task, coupling, seed=seed) if coupling else source
    model = make_forecaster(text, task, seed, device, coupling)
    if on_model is not None:
        on_model(model)
    return forecast(model, task, device=device)


def fitted_on(text: str, store: Store) -> str | None:
    """The fingerprint of the record that the training in a folder was fitted on, if it grew since.

    None for anything else, which is fitted on the record as it is.
    """
    if not is_run(text):
        return None
    fingerprint = RunFolder.open(text).header.data.get("fingerprint")
    has_grown = fingerprint != store.manifest.fingerprint and store.grew_from(str(fingerprint))
    return str(fingerprint) if has_grown else None


def load_training(run: str | Path, task: Task) -> SavedForecaster:
    """The model that was trained in a folder; raises if that was not on this task's data."""
    model = trainable_class(RunFolder.open(run).header.model).load(run)
    model.fit(task.training)  # learns nothing more, but checks the data
    return model


def trainable_class(name: str) -> type[SavedForecaster]:
    """The built-in model of that name; raises if it has nothing to save in a folder."""
    if ":" in name:
        raise TrainingError(
            f"{name}: only built-in models have `powerphase train`; `powerphase score {name}` "
            f"trains and scores it, `powerphase bench --models {name}` also saves the training"
        )
    model_type = model_class(name)
    if not issubclass(model_type, SavedForecaster):
        trainable = [other for other in MODELS if issubclass(model_class(other), SavedForecaster)]
        raise TrainingError(
            f"{name} needs no training, `powerphase forecast {name}` fits it; models to train: "
            f"{', '.join(trainable)}"
        )
    return model_type


def _make_config(
    model_type: type[SavedForecaster],
    variants: list[str],
    training: Mapping[str, int | None],
    file: Path | None,
) -> Any:
    config_type = model_type.config_type
    config = config_type() if file is None else read_config(config_type, file)
    config = apply_variants(config, variants, getattr(config_type, "VARIANTS", {}))
    if issubclass(model_type, NeuralForecaster):
        config = with_training(config, training)
    return config


def _check_complete(text: str, model_type: type[SavedForecaster]) -> None:
    """Raise if a user's network lacks something that it must define."""
    missing = [name for name in ("name", "config_type") if not hasattr(model_type, name)]
    missing += sorted(model_type.__abstractmethods__)
    if missing:
        raise ForecastError(
            f"{text} does not define {', '.join(missing)}; docs/training.md shows a complete class"
        )


def _import_object(text: str) -> Any:
    """The class or object `package.module:Class`, from the current folder or Python's path."""
    module, _, name = text.partition(":")
    if "/" in module or module.endswith(".py"):
        dotted = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise UnknownName(f"{module!r} is a file; give its module instead, {dotted}:{name}")
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        loaded = import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise ForecastError(f"{module}: needs {error.name}, which is not installed") from error
        raise UnknownName(
            f"no module {module!r} in {folder} or installed; run the command in the folder that "
            "contains it, and write package.module:Class"
        ) from error
    except (Exception, SystemExit) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ForecastError(f"{module}: cannot be imported ({reason}); fix the module") from error
    if not hasattr(loaded, name):
        classes = [key for key, value in vars(loaded).items() if isinstance(value, type)]
        raise UnknownName.among(f"class in {module}", name, classes or ["a class"])
    return getattr(loaded, name)
