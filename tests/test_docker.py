"""The package can be built from the files that the Dockerfile copies and .dockerignore admits."""

import shutil
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]


def test_the_package_builds_from_the_files_of_the_docker_context(tmp_path: Path) -> None:
    lines = (REPOSITORY / "Dockerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    ignored = (REPOSITORY / ".dockerignore").read_text().splitlines()
    assert copied == {line[1:] for line in ignored if line.startswith("!")}
    for name in copied:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(source, tmp_path)
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", "dist"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True)
    assert len(list((tmp_path / "dist").glob("*.whl"))) == 1
