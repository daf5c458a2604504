"""What a forecaster is: any object with `fit` and `predict`. Nothing to subclass or to register."""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, is_dataclass
from typing import Any, Protocol, runtime_checkable

from powerphase.scenarios import Context, Scenarios, Training

Prediction = Scenarios | Iterator[tuple[slice, Scenarios]]
"""The scenarios of all channels, or of one block of channels after another."""


@runtime_checkable
class Forecaster(Protocol):
    """The border of a model; `powerphase.scenarios` describes what crosses it."""

    def fit(self, train: Training) -> None:
        """Learn from the training record, and choose on its validation windows."""

    def predict(self, context: Context) -> Prediction:
        """Scenarios for the windows that follow these contexts."""


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


def describe(model: object) -> Description:
    """The model's name, variant, config and number of parameters, as far as it tells them.

    A model may have the attributes `name`, `variant`, `config` (a dataclass or a dictionary),
    `n_parameters` and `seed`. Without a name it is called after its class, in lower case with
    hyphens.
    """
    name = getattr(model, "name", None) or _kebab(type(model).__name__)
    config: Any = getattr(model, "config", None) or {}
    return Description(
        model=name,
        variant=getattr(model, "variant", None),
        config=asdict(config) if is_dataclass(config) else dict(config),  # type: ignore[arg-type]
        parameters=getattr(model, "n_parameters", None),
        seed=getattr(model, "seed", 0),
    )


def _kebab(name: str) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", name).lower()
    return re.sub(r"[^a-z0-9]+", "-", words).strip("-")
