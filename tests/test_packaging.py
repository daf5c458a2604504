"""What is shipped: small, and with all files that the package reads."""

import subprocess
import sys
import tarfile
import zipfile
from email import message_from_bytes
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "powerphase"
MAX_BYTES = 10_000_000


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and with the wheel that is built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT)]
    build = subprocess.run(command, capture_output=True, text=True, check=False)
    assert build.returncode == 0, build.stdout + build.stderr
    return folder


def package_files() -> set[str]:
    """All files of the package in this checkout, by their paths in a wheel."""
    files = (path for path in PACKAGE.rglob("*") if path.is_file())
    paths = {path.relative_to(PACKAGE.parent) for path in files}
    return {path.as_posix() for path in paths if "__pycache__" not in path.parts}


def test_wheel_and_sdist_are_small(dist: Path) -> None:
    assert {path.suffix for path in dist.iterdir()} == {".whl", ".gz"}
    for path in dist.iterdir():
        assert path.stat().st_size <= MAX_BYTES, path.name


def test_the_wheel_holds_every_file_of_the_package(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert shipped == package_files()
    suffixes = {Path(name).suffix for name in shipped}
    assert {".py", ".pyi", ".typed", ".j2", ".css", ".js", ".csv", ".npz"} <= suffixes


def test_the_metadata_say_who_made_what_for_which_systems(dist: Path) -> None:
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        metadata = message_from_bytes(archive.read(name))
    for field in ("Author", "Project-URL", "Keywords", "License-Expression", "Requires-Python"):
        assert metadata[field], field
    classifiers = metadata.get_all("Classifier") or []
    assert "Operating System :: POSIX" in classifiers


def test_the_sdist_holds_no_results(dist: Path) -> None:
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        folders = {Path(name).parts[1] for name in archive.getnames()}
    assert {"src", "LICENSE", "README.md", "CHANGELOG.md"} <= folders
    assert folders.isdisjoint({"results", "docs", "tests", "benchmarks"})
