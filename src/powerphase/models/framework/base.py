"""What a forecaster is: any object with `fit` and `predict`. There is no base class to inherit."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from operator import index
from typing import Any, Protocol, runtime_checkable

from powerphase.errors import ForecastError
from powerphase.registry import results_version
from powerphase.scenarios import Context, Scenarios, Training

NAME = r"[a-z0-9]+(-[a-z0-9]+)*"

Prediction = Scenarios | Iterator[tuple[slice, Scenarios]]
"""The scenarios of all channels at once, or block by block of channels."""


@runtime_checkable
class Forecaster(Protocol):
    """The interface of a model, in terms of the types in `powerphase.scenarios`."""

    def fit(self, train: Training) -> None:
        """Fit the model to the training record; choose what is best on its validation windows."""

    def predict(self, context: Context) -> Prediction:
        """Scenarios for the windows that follow these contexts.

        They must depend only on the context, the fitted state and the seed, not on which windows
        came before: an interrupted forecast continues in the middle.
        """


@dataclass(frozen=True)
class Description:
    """A model as result rows name it."""

    model: str
    variant: str | None = None
    """What differs from the model's default: an ablation, a quirk, a reduced budget."""
    config: dict[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    """Number of fitted or trained parameters, if that has a meaning."""
    seed: int = 0
    """Fixes what is random in the model; 0 if nothing is."""
    joint: bool | None = None
    """Whether each scenario is one future of the whole grid, such as a draw from the joint
    distribution or a past day. False for quantiles or draws of every channel by itself; None if
    unknown. Solving the power flow does not change it."""
    version: int = 1
    """Of the model's results; raised when the same config and seed give other scenarios."""

    def with_word(self, word: str) -> "Description":
        """The same with a word at the end of its variant."""
        return replace(self, variant=f"{self.variant}-{word}" if self.variant else word)


class Wrapper:
    """A forecaster that changes the scenarios of another one, whose name it has.

    Args:
        model: the other forecaster.
    """

    own_fit_s = 0.0
    """The seconds that its fit took in addition to that of the model."""

    def __init__(self, model: Forecaster) -> None:
        self.model = model


def unwrap(model: Forecaster) -> Forecaster:
    """The forecaster inside a wrapper; any other forecaster as it is."""
    return model.model if isinstance(model, Wrapper) else model


def describe(model: Any) -> Description:
    """What rows say about the model, from those of its attributes that it has.

    A model may have the attributes `name`, `variant`, `config` (a dataclass or a dictionary),
    `n_parameters`, `seed`, `joint_scenarios` (see `Description.joint`) and `results_version` (see
    `Description.version`; a registered model has that of the registry). Without a name it is named
    after its class, in lower case with hyphens.
    """
    name = _check_name(getattr(model, "name", None) or kebab(type(model).__name__))
    config: Any = getattr(model, "config", None) or {}
    parameters = getattr(model, "n_parameters", None)
    return Description(
        model=name,
        variant=None if getattr(model, "variant", None) is None else _check_name(model.variant),
        config=plain_config(stated_fields(config) if is_dataclass(config) else config),
        parameters=None if parameters is None else index(parameters),
        seed=index(getattr(model, "seed", 0)),
        joint=_check_joint(getattr(model, "joint_scenarios", None)),
        version=_check_version(getattr(model, "results_version", results_version(name))),
    )


def _check_name(name: object) -> str:
    if not isinstance(name, str) or re.fullmatch(NAME, name) is None:
        raise ForecastError(
            f"a model's name and variant are lower-case letters, digits and hyphens, not {name!r}"
        )
    return name


def _check_joint(joint: object) -> bool | None:
    if joint is not None and not isinstance(joint, bool):
        raise ForecastError(f"a model's joint_scenarios is True, False or None, not {joint!r}")
    return joint


def _check_version(version: object) -> int:
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise ForecastError(f"a model's results_version is 1 or more, not {version!r}")
    return version


def stated_fields(config: Any) -> dict[str, Any]:
    """The fields of a dataclass that say how a model is configured, as rows and runs state them.

    A field that the type's `LATER` names is left out while it has its default, so that rows which
    are older than the field still agree.
    """
    later = getattr(type(config), "LATER", ())
    default = {each.name: each.default for each in fields(config)}
    return {
        name: value
        for name, value in asdict(config).items()
        if name not in later or value != default[name]
    }


def plain_config(config: Any) -> dict[str, Any]:
    """A config as JSON has it, with lists for tuples; raise if JSON cannot hold it."""
    try:
        return dict(json.loads(json.dumps(config, allow_nan=False)))
    except (TypeError, ValueError) as error:
        problem = f"a model's config must be what JSON can hold, found {config!r} ({error})"
        raise ForecastError(problem) from error


def kebab(name: str) -> str:
    """A class name in lower case with hyphens: `DeepAREstimator` is `deep-ar-estimator`."""
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z]{2})(?=[A-Z][a-z]{2})", "-", name).lower()
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")
