"""The public names: complete, sorted, typed, cheap to import, and all that the pages need."""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import powerphase as pp
from tests.pages import FENCE, INLINE, blocks

ROOT = Path(__file__).parents[1]
SUBPACKAGES = ("models", "adapters")
PUBLIC = ("powerphase", *(f"powerphase.{name}" for name in SUBPACKAGES))
PAGES = (*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"))
EXAMPLES = tuple(path for kind in ("*.py", "*.ipynb") for path in ROOT.glob(f"examples/{kind}"))
HEAVY = frozenset({"torch", "numpy", "pandas", "scipy", "zarr", "lightsim2grid", "ray"})


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_exists(package: str) -> None:
    module = importlib.import_module(package)
    assert sorted(module.__all__) == sorted(set(module.__all__))
    for name in module.__all__:
        assert hasattr(module, name), name


def test_the_package_is_typed() -> None:
    assert (Path(pp.__file__).parent / "py.typed").exists()


def modules_after(code: str) -> set[str]:
    """All modules that are loaded in a new process after some code."""
    command = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())


def test_importing_the_package_and_its_command_loads_nothing_heavy() -> None:
    assert HEAVY.isdisjoint(modules_after("import powerphase, powerphase.cli"))


def test_generating_and_reading_load_no_torch() -> None:
    loaded = modules_after("import powerphase as pp; pp.generate, pp.open, pp.verify")
    assert "zarr" in loaded
    assert "torch" not in loaded


def programs(path: Path) -> list[str]:
    """The Python code of a page, a notebook or a script."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return blocks(text, "python")
    if path.suffix == ".py":
        return [text]
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return ["".join(cell["source"]) for cell in cells]


def uses(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """The modules of powerphase that a program imports, each with a name that it uses of it."""
    prefixes: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "powerphase":
                    prefixes[alias.asname or "powerphase"] = alias.name
                    yield alias.name, "__name__"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("powerphase"):
            yield from ((node.module or "", alias.name) for alias in node.names)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(ast.Attribute(ast.Name(root), package), name) if (
                root in prefixes and package in SUBPACKAGES
            ):
                yield f"{prefixes[root]}.{package}", name
            case ast.Attribute(ast.Name(root), name) if root in prefixes:
                yield prefixes[root], name


def names_in_text(page: str) -> Iterator[str]:
    """The dotted names in a page's lines that begin with the package."""
    for code in INLINE.findall(FENCE.sub("", page)):
        yield from re.findall(r"^(?:pp|powerphase)\.[a-z][\w.]*", code)


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.name)
def test_pages_mention_public_names_only(path: Path) -> None:
    public = {package: importlib.import_module(package).__all__ for package in PUBLIC}
    for name in names_in_text(path.read_text(encoding="utf-8")):
        first, *attributes = name.split(".")[1:]
        assert first in public["powerphase"], f"{path.name}: {name}"
        if first in SUBPACKAGES and attributes:
            assert attributes[0] in public[f"powerphase.{first}"], f"{path.name}: {name}"


@pytest.mark.parametrize("path", [*PAGES, *EXAMPLES], ids=lambda path: path.name)
def test_pages_and_examples_use_public_names_only(path: Path) -> None:
    shell_magics = ("%", "!")
    for program in programs(path):
        lines = [line for line in program.splitlines() if not line.startswith(shell_magics)]
        for module, name in uses(ast.parse("\n".join(lines))):
            assert module in PUBLIC, f"{path.name} imports {module}; export {name} from powerphase"
            assert hasattr(importlib.import_module(module), name), f"{path.name}: {module}.{name}"
