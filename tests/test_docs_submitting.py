"""The page for scenarios from elsewhere works as shown."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from powerphase import Store, Task, load_forecast, score
from powerphase.records import read_result, read_results
from tests.command_line import run

PAGE = (Path(__file__).parents[1] / "docs" / "submitting.md").read_text()


@pytest.fixture(scope="module")
def folder(sixty_days: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the example of the page was run."""
    root: Path = tmp_path_factory.mktemp("submitting")
    shutil.copytree(sixty_days.path, root / "data" / "ieee14")
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        exec(compile(example, "submitting.md", "exec"), {"__name__": "example"})
    return root


def test_the_commands_of_the_page_score_compare_and_check_the_forecast(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    commands = "".join(re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)).splitlines()
    assert len(commands) == 4
    shown = [run(*command.split()[1:]).stdout for command in commands]
    assert "CRPS" in shown[0]
    assert re.search(r"CRPS +calm-week .*(better|worse|noise)", shown[2])
    assert "1 match to 5 digits, 0 differ, 0 are refused, 1 could not be checked" in shown[3]
    row = read_result(next((folder / "results").rglob("calm-week-0.json")))
    assert row.cost["hardware"] == "a laptop"
    assert row.cost["peak_memory_gib"] is None
    assert row.cost["steps"] is None
    assert len(read_results([folder / "results"])) == 2


def test_the_file_holds_what_the_example_computes(folder: Path) -> None:
    task = Task(folder / "data" / "ieee14")
    evaluation = score(folder / "forecasts" / "calm-week", task)
    first = next(load_forecast(folder / "forecasts" / "calm-week").pieces(()))[2]
    past = task.test.context(0).past[0].numpy().reshape(7, 96, -1)
    expected = 0.7 * past + 0.3 * past.mean(axis=0)
    assert np.allclose(first.values[0].numpy(), expected, atol=1e-6)
    weights = first.weights[0, :, 0].numpy()
    assert weights == pytest.approx(np.arange(1, 8) / 28)
    # The mean of a window, computed independently.
    target = task.test.target(0)[0].numpy()
    error = (np.einsum("M,MHC->HC", weights, expected) - target) ** 2
    by_window = evaluation.row.by_window["mse"]
    assert by_window is not None
    assert by_window[0] == pytest.approx(error.mean(), rel=1e-5)
