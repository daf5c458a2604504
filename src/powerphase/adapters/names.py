"""What a text on the command line means: a model of a library, or an object of one's own.

`statsforecast:AutoTheta(season_length=96)+factors` names a class of a library with the arguments of
its constructor, which are plain Python values and are never run as code.
"""

import ast
import re
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from powerphase.adapters.backends import BACKENDS
from powerphase.adapters.darts import from_darts
from powerphase.adapters.forecaster import FACTORS, SeriesForecaster
from powerphase.adapters.functions import from_callable
from powerphase.adapters.gluonts import from_gluonts
from powerphase.adapters.nixtla import from_nixtla
from powerphase.adapters.series import is_made_by, require
from powerphase.adapters.sktime import from_sktime
from powerphase.adapters.zero_shot import ZeroShot
from powerphase.errors import ConfigError, UnknownName
from powerphase.models.framework.base import Forecaster

Adapter = Callable[..., SeriesForecaster]

LIBRARIES: Mapping[str, tuple[str, Adapter]] = MappingProxyType(
    {
        "statsforecast": ("statsforecast.models", from_nixtla),
        "neuralforecast": ("neuralforecast.models", from_nixtla),
        "gluonts": ("gluonts", from_gluonts),
        "sktime": ("sktime.forecasting", from_sktime),
        "darts": ("darts.models", from_darts),
    }
)
"""Where the classes of each library are looked up, and what adapts their objects."""

ZERO_SHOT = "zero-shot"

WORDS = (FACTORS,)
"""The words that may follow such a text, before that of a coupling."""


@dataclass(frozen=True)
class AdaptedModel:
    """A model that is not powerphase's own, as a text names it."""

    text: str
    make: Callable[[int], Forecaster] = field(compare=False)
    """The forecaster with this seed."""
    takes_seed: bool
    """Whether the seed changes anything."""
    model_class: type[Any] = field(compare=False)


def is_library_text(text: str) -> bool:
    """Whether the text names a model of a library, such as `statsforecast:AutoTheta`.

    A pretrained model may also be named as its rows are, such as `fracast`.
    """
    prefix = text.partition(":")[0]
    return text in BACKENDS or (":" in text and prefix in (*LIBRARIES, ZERO_SHOT))


def split_words(text: str) -> list[str]:
    """The parts of a text between plus signs, but for those within parentheses."""
    return re.split(r"\+(?![^()]*\))", text)


def library_model(text: str, words: Sequence[str]) -> AdaptedModel:
    """The model of a library that the text names; raises if there is none.

    Args:
        text: such as `darts:NaiveSeasonal(K=96)`; a class outside the usual module has a path, such
            as `gluonts:torch.DeepAREstimator(prediction_length=96, freq="15min")`.
        words: those that follow it.
    """
    text = f"{ZERO_SHOT}:{text}" if text in BACKENDS else text
    library, _, expression = text.partition(":")
    name, positional, named = _parse_call(text, expression)
    options = _options(text, words)
    if library == ZERO_SHOT:
        arguments: dict[str, Any] = {**named, **options}
        return _adapted(
            text, words, lambda seed: ZeroShot(name, *positional, **{**arguments, "seed": seed})
        )
    package, adapter = LIBRARIES[library]
    kind = _find_class(library, package, name)

    def make(seed: int) -> SeriesForecaster:
        try:
            model = kind(*positional, **named)
        except Exception as error:  # the library's own checks raise anything
            raise ConfigError(
                f"{text}: {kind.__name__} cannot be made ({type(error).__name__}: {error})"
            ) from error
        return adapter(model, seed=seed, **options)

    return _adapted(text, words, make)


def adapt(model: Any, **options: Any) -> SeriesForecaster:
    """A forecaster from an object of any known library, or from a function.

    Args:
        model: see `from_nixtla`, `from_gluonts`, `from_sktime`, `from_darts` and `from_callable`.
        options: of that function.
    """
    for library, (_, adapter) in LIBRARIES.items():
        if is_made_by(model, library):
            return adapter(model, **options)
    if callable(model) and not isinstance(model, type):
        return from_callable(model, **options)
    raise ConfigError(
        f"{type(model).__name__} is no forecaster; give an object with fit and predict, a model of "
        f"{', '.join(LIBRARIES)}, or a function (past, time, horizon)"
    )


def is_library_class(kind: type) -> bool:
    """Whether a class is from one of the libraries, or derived from one."""
    packages = {base.__module__.split(".")[0] for base in kind.__mro__}
    return not packages.isdisjoint(LIBRARIES)


def object_model(text: str, model: Any, words: Sequence[str]) -> AdaptedModel:
    """An object or function of a user's module, which the text names."""
    is_foreign = is_library_class(type(model)) or not isinstance(model, Forecaster)
    if is_foreign:
        options = _options(text, words)
        return _adapted(text, words, lambda seed: adapt(model, seed=seed, **options))
    if words:
        raise UnknownName(f"{text} is a forecaster and takes no words, found {'+'.join(words)!r}")
    return AdaptedModel(text, lambda seed: deepcopy(model), False, type(model))


def _adapted(
    text: str, words: Sequence[str], make: Callable[[int], SeriesForecaster]
) -> AdaptedModel:
    takes_seed = make(1).seed == 1
    return AdaptedModel("+".join([text, *words]), make, takes_seed, SeriesForecaster)


def _options(text: str, words: Sequence[str]) -> dict[str, Any]:
    """What the words say about how the model is used."""
    for word in words:
        if word not in WORDS:
            raise UnknownName.among("word", word, WORDS, f"a coupling at the end of {text!r}")
    return {"on": FACTORS} if FACTORS in words else {}


def _parse_call(text: str, expression: str) -> tuple[str, list[Any], dict[str, Any]]:
    """The name and the arguments in a text such as `AutoTheta(season_length=96)`."""
    name, opening, _ = expression.partition("(")
    if not opening:
        return name, [], {}
    try:
        call = ast.parse(f"call({expression[len(name) + 1 :]}", mode="eval").body
        if not isinstance(call, ast.Call) or None in [keyword.arg for keyword in call.keywords]:
            raise ValueError("expected a call with plain arguments")
        positional = [ast.literal_eval(value) for value in call.args]
        named = {str(k.arg): ast.literal_eval(k.value) for k in call.keywords}
    except (SyntaxError, ValueError) as error:
        raise ConfigError(
            f"{text}: its arguments must be plain values, such as NaiveSeasonal(K=96) ({error}); "
            "for anything else make the object in a module and give module:object"
        ) from error
    return name, positional, named


def _find_class(library: str, package: str, name: str) -> type[Any]:
    path, _, last = name.rpartition(".")
    module = require(".".join(filter(None, (package, path))), library)
    kind = getattr(module, last, None)
    if not isinstance(kind, type):
        names = [key for key in dir(module) if key[:1].isupper()]
        raise UnknownName.among(f"class in {module.__name__}", last, names or ["a class"])
    return kind
