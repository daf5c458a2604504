"""The surface of the package: complete, sorted, typed, and cheap to import."""

import subprocess
import sys
from pathlib import Path

import powerphase as pp


def test_every_public_name_is_listed_sorted_and_there() -> None:
    assert pp.__all__ == sorted(pp.__all__)
    for name in pp.__all__:
        found = getattr(pp, name).__name__.rpartition(".")[2]
        assert found in (name, f"{name}_store")


def test_the_package_is_typed() -> None:
    assert (Path(pp.__file__).parent / "py.typed").exists()


def modules_after(code: str) -> set[str]:
    code = f"import sys; {code}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_importing_the_package_and_its_command_loads_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "pandas", "scipy", "zarr", "lightsim2grid", "ray"}
    assert heavy.isdisjoint(modules_after("import powerphase, powerphase.cli"))


def test_generating_and_reading_load_no_torch() -> None:
    loaded = modules_after("import powerphase as pp; pp.generate, pp.open, pp.verify")
    assert "zarr" in loaded
    assert "torch" not in loaded
