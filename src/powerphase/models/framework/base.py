"""What a forecaster is: any object with `fit` and `predict`. Nothing to subclass or to register."""

import json
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, is_dataclass
from operator import index
from typing import Any, Protocol, runtime_checkable

from powerphase.errors import ForecastError
from powerphase.scenarios import Context, Scenarios, Training

NAME = r"[a-z0-9]+(-[a-z0-9]+)*"

Prediction = Scenarios | Iterator[tuple[slice, Scenarios]]
"""The scenarios of all channels, or of one block of channels after another."""


@runtime_checkable
class Forecaster(Protocol):
    """The border of a model; `powerphase.scenarios` describes what crosses it."""

    def fit(self, train: Training) -> None:
        """Learn from the training record, and choose on its validation windows."""

    def predict(self, context: Context) -> Prediction:
        """Scenarios for the windows that follow these contexts.

        They must depend on the context, what was fitted and the seed alone, not on which windows
        were asked for before: an interrupted forecast goes on in the middle.
        """


@dataclass(frozen=True)
class Description:
    """How a model is named in a result row."""

    model: str
    variant: str | None = None
    """Whatever is not the model's default: an ablation, a quirk, a reduced budget."""
    config: dict[str, Any] = field(default_factory=dict)
    parameters: int | None = None
    """Number of fitted or trained numbers, where it has a meaning."""
    seed: int = 0
    """Fixes whatever is random in the model; 0 where nothing is."""


def describe(model: Any) -> Description:
    """The model's name, variant, config and number of parameters, as far as it tells them.

    A model may have the attributes `name`, `variant`, `config` (a dataclass or a dictionary),
    `n_parameters` and `seed`. Without a name it is called after its class, in lower case with
    hyphens.
    """
    config: Any = getattr(model, "config", None) or {}
    parameters = getattr(model, "n_parameters", None)
    return Description(
        model=_checked(getattr(model, "name", None) or _kebab(type(model).__name__)),
        variant=None if getattr(model, "variant", None) is None else _checked(model.variant),
        config=plain_config(asdict(config) if is_dataclass(config) else config),  # type: ignore[arg-type]
        parameters=None if parameters is None else index(parameters),
        seed=index(getattr(model, "seed", 0)),
    )


def _checked(name: object) -> str:
    if not isinstance(name, str) or re.fullmatch(NAME, name) is None:
        raise ForecastError(
            f"a model's name and variant are lower-case letters, digits and hyphens, not {name!r}"
        )
    return name


def plain_config(config: Any) -> dict[str, Any]:
    """A config as JSON has it: tuples become lists, and what JSON cannot hold is refused."""
    try:
        return dict(json.loads(json.dumps(config, allow_nan=False)))
    except (TypeError, ValueError) as error:
        problem = f"a model's config must be what JSON can hold, found {config!r} ({error})"
        raise ForecastError(problem) from error


def _kebab(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")
