"""The disk space of powerphase and everything that it needs to run, as installed here.

    python benchmarks/environment.py --out benchmarks/measured/environment.json

Optional dependencies do not count. torch is the build for CPUs or GPUs that is installed.
"""

import argparse
import json
from collections.abc import Iterable
from importlib.metadata import distribution, version
from pathlib import Path

from packaging.requirements import Requirement


def main() -> None:
    """Add up the files of all packages that are needed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    names: set[str] = set()
    visit("powerphase", (), names)
    sizes = {name: size_of(name) for name in sorted(names)}
    report = {
        "packages": len(sizes),
        "gigabytes": sum(sizes.values()) / 1e9,
        "torch": version("torch"),
        "torch_gigabytes": sizes["torch"] / 1e9,
    }
    print(json.dumps(report, indent=1))
    if options.out:
        options.out.write_text(json.dumps(report, indent=1) + "\n")


def visit(name: str, extras: Iterable[str], names: set[str]) -> None:
    """Add the package and all that it needs to the names."""
    if name.lower() in names:
        return
    names.add(name.lower())
    for text in distribution(name).requires or []:
        need = Requirement(text)
        marker = need.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            visit(need.name, need.extras, names)


def size_of(name: str) -> int:
    """Bytes on disk of a package's files."""
    package = distribution(name)
    paths = [Path(str(package.locate_file(file))) for file in package.files or []]
    return sum(path.stat().st_blocks * 512 for path in paths if path.exists())


if __name__ == "__main__":
    main()
