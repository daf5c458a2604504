"""The registry of models: one entry for each forecaster that powerphase knows by name.

An entry drives everything that is said or done about a model by its name: which class to load, the
list of a full bench, help texts, the table of models in the documentation, and how the model looks
in figures and on the site. To add a model, add an entry to `ENTRIES`. The registry imports no
model: a class is loaded when it is first used.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import Any, Literal

from powerphase.errors import UnknownName

Kind = Literal["model", "reference", "oracle"]
"""A model competes for its rank; references and the oracle show what a score means."""

Dashes = tuple[int, ...]
SOLID: Dashes = ()


@dataclass(frozen=True)
class Look:
    """How a model is drawn."""

    title: str
    colour: str
    marker: str
    dashes: Dashes = SOLID


@dataclass(frozen=True)
class ModelInfo:
    """What powerphase knows about a model before it loads its class."""

    name: str
    """On the command line and in result rows."""
    class_path: str
    """`package.module:Class`, loaded on demand."""
    look: Look
    summary: str
    """The model in a few words, for help texts and documentation."""
    page: str
    """Its page in `docs/`."""
    kind: Kind = "model"
    results_version: int = 1
    """Raise it whenever the same config and seed give other scenarios, down to the last bit: rows
    state it, tables mark rows of an older version, and the rows in `tests/golden/rows` are made
    again."""
    needs_store: bool = False
    """Whether its constructor takes the data set: true of the oracle alone, which knows how the
    data were generated."""

    @property
    def title(self) -> str:
        """Its name in figures and tables."""
        return self.look.title

    def load(self) -> type[Any]:
        """Import and return its class."""
        module, _, attribute = self.class_path.partition(":")
        loaded: type[Any] = getattr(import_module(module), attribute)
        return loaded


ENTRIES = (
    ModelInfo(
        "powerforge",
        "powerphase.models.powerforge.model:PowerForge",
        Look("PowerForge", "#0072B2", "o"),
        "the paper's model: quantiles around a reference day",
        "powerforge.md",
    ),
    ModelInfo(
        "factorforge",
        "powerphase.models.factorforge.model:FactorForge",
        Look("FactorForge", "#D55E00", "D", (6, 1)),
        "our model: regression on a few factors of the whole grid",
        "factorforge.md",
        results_version=3,
    ),
    ModelInfo(
        "tactis-2",
        "powerphase.models.tactis.model:TACTiS",
        Look("TACTiS-2", "#009E73", "^", (4, 1, 1, 1)),
        "Transformer over single values, one marginal distribution each",
        "tactis.md",
    ),
    ModelInfo(
        "transformer-tempflow",
        "powerphase.models.flows.model:TransformerTempFlow",
        Look("Trans-TempFlow", "#56B4E9", "P", (3, 1)),
        "Transformer with a normalising flow over all channels at each step",
        "tempflow.md",
    ),
    ModelInfo(
        "timemcl",
        "powerphase.models.timemcl.model:TimeMCL",
        Look("TimeMCL", "#CC79A7", "v", (5, 2)),
        "LSTM with sixteen hypotheses, trained by multiple choice",
        "timemcl.md",
    ),
    ModelInfo(
        "timeprism",
        "powerphase.models.timeprism.model:TimePrism",
        Look("TimePrism", "#E69F00", "s", (2, 1)),
        "linear trends and seasons of every channel",
        "timeprism.md",
    ),
    ModelInfo(
        "tempflow",
        "powerphase.models.flows.model:TempFlow",
        Look("TempFlow", "#117733", "<", (1, 1)),
        "LSTM with a normalising flow over all channels at each step",
        "tempflow.md",
    ),
    ModelInfo(
        "ets",
        "powerphase.models.ets.model:ETS",
        Look("ETS", "#999933", "p", (6, 2, 2, 2)),
        "Holt-Winters exponential smoothing of every channel",
        "ets.md",
    ),
    ModelInfo(
        "deepar",
        "powerphase.models.deepar.model:DeepAR",
        Look("DeepAR", "#882255", "X", (1, 2)),
        "LSTM with a Gaussian over all channels at each step",
        "deepar.md",
    ),
    ModelInfo(
        "timegrad",
        "powerphase.models.timegrad.model:TimeGrad",
        Look("TimeGrad", "#332288", "h", (4, 2, 1, 2)),
        "LSTM with a diffusion over all channels at each step",
        "timegrad.md",
    ),
    ModelInfo(
        "boosting",
        "powerphase.models.anchors.boosting:Boosting",
        Look("boosting", "#8C564B", "x", (7, 1, 2, 1)),
        "gradient-boosted quantiles of the factors, coupled",
        "anchors.md",
        kind="reference",
    ),
    ModelInfo(
        "dynamic-factors",
        "powerphase.models.anchors.dynamic_factors:DynamicFactors",
        Look("dynamic factors", "#6B6ECF", "|", (5, 1, 2, 1)),
        "autoregression of the factors' days, with a Kalman filter",
        "anchors.md",
        kind="reference",
    ),
    ModelInfo(
        "analogs",
        "powerphase.models.anchors.analogs:Analogs",
        Look("analogs", "#637939", "_", (3, 1, 1, 1)),
        "past days that came after days like those of the context",
        "anchors.md",
        kind="reference",
    ),
    ModelInfo(
        "conformal-climatology",
        "powerphase.models.anchors.conformal:ConformalClimatology",
        Look("conformal climatology", "#7F7F7F", "3", (4, 1, 1, 1, 1, 1)),
        "climatology, corrected on days that it was not fitted to",
        "anchors.md",
        kind="reference",
    ),
    ModelInfo(
        "climatology",
        "powerphase.models.naive:Climatology",
        Look("climatology", "#555555", "*", (3, 2)),
        "quantiles of the training record by weekday and time of day",
        "task.md",
        kind="reference",
    ),
    ModelInfo(
        "last-week",
        "powerphase.models.naive:LastWeek",
        Look("last week", "#777777", ">", (1, 1)),
        "the same day one week ago",
        "task.md",
        kind="reference",
    ),
    ModelInfo(
        "last-7-days",
        "powerphase.models.naive:LastSevenDays",
        Look("last 7 days", "#999999", "d", (5, 1, 1, 1, 1, 1)),
        "each of the last seven days",
        "task.md",
        kind="reference",
    ),
    ModelInfo(
        "flat-week",
        "powerphase.models.naive:FlatWeek",
        Look("flat week", "#BBBBBB", "4", (8, 1, 1, 1)),
        "quantiles of the last week, whatever the hour",
        "task.md",
        kind="reference",
    ),
    ModelInfo(
        "oracle",
        "powerphase.evaluation.oracle:Oracle",
        Look("oracle", "#000000", "+", (1, 3)),
        "samples from the process that generated the data",
        "task.md",
        kind="oracle",
        needs_store=True,
    ),
)
"""All models, in the order of legends and tables."""

_BY_NAME = {info.name: info for info in ENTRIES}

MODELS: Mapping[str, ModelInfo] = MappingProxyType(_BY_NAME)
"""The same by name."""


def model_info(name: str) -> ModelInfo:
    """The entry of that name; a misspelt name raises `UnknownName` with its near misses."""
    if name not in MODELS:
        raise UnknownName.among("model", name, MODELS)
    return MODELS[name]


def model_class(name: str) -> type[Any]:
    """The class of the model of that name."""
    return model_info(name).load()


def model_kind(name: str) -> Kind:
    """The kind of the model of that name; a name that is not registered competes as a model."""
    return MODELS[name].kind if name in MODELS else "model"


def results_version(name: str) -> int:
    """The version of the results that the model's code gives now; 1 if it is not registered."""
    return MODELS[name].results_version if name in MODELS else 1


def bench_models() -> tuple[str, ...]:
    """The models of a full bench: references and the oracle first, since they take least time."""
    order: tuple[Kind, ...] = ("reference", "oracle", "model")
    return tuple(sorted(MODELS, key=lambda name: order.index(MODELS[name].kind)))


def models_help(*kinds: Kind) -> str:
    """The names of all models, or of those kinds, for help texts."""
    return ", ".join(name for name, info in MODELS.items() if not kinds or info.kind in kinds)
