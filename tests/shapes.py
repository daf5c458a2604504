"""Check the shapes in annotations of powerphase while tests run.

jaxtyping's own import hook checks every function, also those without shapes, which mypy covers
already; that took a third of the time of all tests. This hook checks functions and methods whose
annotations name a shape, and leaves the rest alone.
"""

import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import FunctionType, ModuleType
from typing import Any

from beartype import beartype
from jaxtyping import jaxtyped

PACKAGE = "powerphase"


class ShapeLoader(Loader):
    """Runs a module, then wraps its functions whose annotations have shapes."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        check_shapes(module, module.__name__)


class ShapeFinder(MetaPathFinder):
    """Finds modules of powerphase where Python would, and loads them with shape checks."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.partition(".")[0] != PACKAGE:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and spec.loader is not None:
            spec.loader = ShapeLoader(spec.loader)
        return spec


def check_shapes(owner: ModuleType | type, module: str) -> None:
    """Wrap the functions that were defined in the module or the class, and those of its classes."""
    for name, value in list(vars(owner).items()):
        if isinstance(value, type):
            if value.__module__ == module and value is not owner:
                check_shapes(value, module)
        elif (checked := _checked(value, module)) is not value:
            setattr(owner, name, checked)


def _checked(value: Any, module: str) -> Any:
    """The function, method or property with checks, if its annotations have shapes."""
    if isinstance(value, staticmethod | classmethod):
        inner = _checked(value.__func__, module)
        return value if inner is value.__func__ else type(value)(inner)
    if isinstance(value, property):
        getter = _checked(value.fget, module)
        return value if getter is value.fget else value.getter(getter)
    if isinstance(value, FunctionType) and value.__module__ == module and _has_shapes(value):
        return jaxtyped(typechecker=beartype)(value)
    return value


def _has_shapes(function: FunctionType) -> bool:
    return any("jaxtyping" in repr(kind) for kind in function.__annotations__.values())


def install() -> None:
    """Check all modules of powerphase that are imported from now on."""
    sys.meta_path.insert(0, ShapeFinder())
