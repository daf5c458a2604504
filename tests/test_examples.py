"""The notebooks: they run from start to end, use the public API, and are stored without outputs."""

import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

NOTEBOOKS = sorted((Path(__file__).parents[1] / "examples").glob("*.ipynb"))


@pytest.mark.filterwarnings("ignore")  # those of Jupyter
def test_notebooks_run(tmp_path: Path) -> None:
    """All in one kernel and one folder, so that they share a data set and the time to start."""
    assert len(NOTEBOOKS) == 3
    cells = []
    for path in NOTEBOOKS:
        for number, cell in enumerate(nbformat.read(path, as_version=4).cells):
            cell.id = f"{path.stem}-{number}"
            cells.append(cell)
        cells.append(new_code_cell("%reset -f", id=f"{path.stem}-end"))
    resources = {"metadata": {"path": str(tmp_path)}}
    client = NotebookClient(new_notebook(cells=cells), timeout=300, resources=resources)
    client.execute(env=os.environ | {"OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_import_public_names_only_and_have_no_outputs(path: Path) -> None:
    for cell in nbformat.read(path, as_version=4).cells:
        assert not cell.get("outputs")
        modules = re.findall(r"^(?:from|import) (powerphase\S*)", cell.source, flags=re.MULTILINE)
        assert set(modules) <= {"powerphase", "powerphase.models"}
