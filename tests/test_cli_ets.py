"""ETS from the command line: forecast and scored by its name."""

from pathlib import Path

from powerphase.dataset import Store
from powerphase.records import open_forecast, read_result
from tests.command_line import run


def test_ets_is_forecast_and_scored_by_its_name(sixty_days: Store, tmp_path: Path) -> None:
    data = ("--data", sixty_days.path, "--device", "cpu", "--windows", 2)
    for command, out in (("forecast", "forecast"), ("score", "results")):
        assert "ets, seed 42" in run(command, "ets", *data, "--out", tmp_path / out).stdout
    assert open_forecast(tmp_path / "forecast").header.scenarios == 100
    (file,) = (tmp_path / "results").rglob("ets-42.json")
    row = read_result(file)
    assert row.parameters == 56 * (96 + 5)
    assert (row.scores["crps"] or 0) > 0
    assert float(row.cost["train_s"] or 0) > 0
