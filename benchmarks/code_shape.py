"""The shape of the code by AST: how many modules, how long, which names. Prints a table.

    python -m benchmarks.code_shape [--names]

`--names` also lists the functions named by a participle and the locals that say nothing.
"""

import ast
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles

PACKAGE = Path("src/powerphase")
VAGUE = frozenset({"found", "one", "place", "places", "here", "own", "told", "given", "wanted"})
PARTICIPLES = frozenset(
    {"told", "heard", "found", "made", "given", "kept", "drawn", "shown", "left"}
)
NOT_PARTICIPLES = frozenset({"seed", "need", "speed", "feed", "embed", "seeds", "needs"})

Function = ast.FunctionDef | ast.AsyncFunctionDef


def is_participle(name: str) -> bool:
    """Whether a function is named by a participle alone or by one that nothing follows."""
    words = name.strip("_").split("_")
    last = words[-1]
    return last in PARTICIPLES or (
        len(words) == 1 and last.endswith("ed") and last not in NOT_PARTICIPLES
    )


def functions(tree: ast.AST) -> Iterator[Function]:
    """All functions and methods of a module."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def locals_of(function: Function) -> set[str]:
    """The names that a function binds, its arguments included."""
    names = {
        node.id
        for node in ast.walk(function)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
    }
    arguments = function.args
    return names | {a.arg for a in [*arguments.args, *arguments.kwonlyargs]}


def body_lines(function: Function) -> int:
    """Lines of the body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0  # type: ignore[operator]


def public_names(tree: ast.Module) -> int:
    """Public functions, classes and methods."""
    defined = [node for node in ast.walk(tree) if isinstance(node, Function | ast.ClassDef)]
    return sum(not node.name.startswith("_") for node in defined)


def importers(trees: dict[Path, ast.Module]) -> Counter[str]:
    """How many modules import each module of the package."""
    count: Counter[str] = Counter()
    for tree in trees.values():
        count.update(
            {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        )
    return count


def share(count: int, things: Sequence[object]) -> str:
    """A count, and its share of all things."""
    return f"{count} ({count / len(things):.1%})"


def main() -> None:
    """Print the table."""
    files = sorted(PACKAGE.rglob("*.py"))
    trees = {file: ast.parse(file.read_text()) for file in files}
    modules = [file for file in files if file.name != "__init__.py"]
    lengths = [len(file.read_text().splitlines()) for file in modules]
    every = [function for tree in trees.values() for function in functions(tree)]
    bodies = [body_lines(function) for function in every]
    participles = sorted(f.name for f in every if is_participle(f.name))
    names = [name for function in every for name in locals_of(function)]
    vague = Counter(name for name in names if name in VAGUE)
    count = importers(trees)
    dotted = [".".join(file.relative_to("src").with_suffix("").parts) for file in modules]
    p90 = quantiles(bodies, n=10)[-1]
    alone = sum(count[name] == 1 for name in dotted)
    rows = {
        "modules": len(modules),
        "median file, lines": median(lengths),
        "longest file, lines": max(lengths),
        "modules under 60 lines": sum(n < 60 for n in lengths),
        "modules with one importer": f"{alone / len(modules):.0%}",
        "public names": sum(public_names(tree) for tree in trees.values()),
        "function bodies, median / p90": f"{median(bodies):.0f} / {p90:.0f}",
        "functions named by a participle": share(len(participles), every),
        "vague locals": share(vague.total(), names),
    }
    for name, value in rows.items():
        print(f"{name:34} {value}")
    if "--names" in sys.argv:
        print("participles:", Counter(participles))
        print("vague:", vague)


if __name__ == "__main__":
    main()
