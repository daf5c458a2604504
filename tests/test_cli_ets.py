"""ETS from the command line: forecast and scored by its name."""

from pathlib import Path

from typer.testing import CliRunner

from powerphase import cli
from powerphase.dataset import Store
from powerphase.records.forecast_file import open_forecast
from powerphase.records.result import read_result


def test_it_is_forecast_and_scored_by_its_name(sixty_days: Store, tmp_path: Path) -> None:
    data = ("--data", str(sixty_days.path), "--device", "cpu", "--windows", "2")
    for command, out in (("forecast", "made"), ("score", "results")):
        given = [command, "ets", *data, "--out", str(tmp_path / out)]
        done = CliRunner().invoke(cli.app, given, env={"COLUMNS": "200"})
        assert done.exit_code == 0, done.output
        assert "ets, seed 42" in done.stdout
    assert open_forecast(tmp_path / "made").header.scenarios == 100
    (file,) = (tmp_path / "results").rglob("ets-42.json")
    row = read_result(file)
    assert row.parameters == 56 * (96 + 5)
    assert row.scores["crps"] > 0
    assert row.cost["train_s"] > 0
