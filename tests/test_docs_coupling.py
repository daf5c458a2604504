"""The page on joint scenarios: its commands and code run as written, and its claims hold."""

from pathlib import Path

import pytest

from docs.measurements import coupling, solved_over_forecast
from powerphase.records import read_results
from tests.bench.in_process import run_jobs_in_process
from tests.pages import blocks, commands, output_of

PAGE = (Path(__file__).parents[1] / "docs" / "coupling.md").read_text(encoding="utf-8")


def test_the_page_s_commands_and_code_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    run_jobs_in_process(monkeypatch)
    shown = [command for command in commands(PAGE) if command.startswith("powerphase ")]
    outputs = [output_of(command) for command in shown]
    names = ("schaake-0 on", "ranked-physical-42 on", "", "ranked-42 on", "climatology+ranked")
    titles = [output.splitlines()[0] for output in outputs]
    for name, title in zip(names, titles[1:-1], strict=True):
        assert name.replace("-42 on", ", seed 42 on").replace("-0 on", " on") in title
    rows = {row.path.stem for row in read_results([tmp_path / "rows"])}
    assert rows == {"climatology+ranked-42", "factorforge+ranked-42"}
    capsys.readouterr()
    (code,) = blocks(PAGE, "python")
    exec(compile(code, "coupling.md", "exec"), {"__name__": "example"})
    printed = capsys.readouterr().out
    assert "climatology+ranked-physical" in printed
    assert "climatology+schaake" in printed


def measured(forecaster: str, reading: str, score: str) -> float:
    (row,) = (row for row in coupling()["rows"] if row["forecaster"] == forecaster)
    return float(row[reading][score])


@pytest.mark.parametrize("how", ["ranked", "schaake"])
@pytest.mark.parametrize("model", ["climatology", "factorforge"])
def test_coupling_changes_what_the_page_says(model: str, how: str) -> None:
    coupled = f"{model}+{how}"
    plain, after = (
        {score: measured(name, "forecast", score) for score in ("crps", "energy", "distortion")}
        for name in (model, coupled)
    )
    assert after["crps"] == pytest.approx(plain["crps"], rel=1e-3)
    assert after["energy"] < plain["energy"]
    assert after["distortion"] > plain["distortion"]
    assert solved_over_forecast(coupled) < 1.2 < 1.7 < solved_over_forecast(model)
    loading = measured(coupled, "solved", "loading_crps")
    assert loading < measured(model, "solved", "loading_crps")
    if model == "factorforge":
        assert loading < measured("factorforge+draws", "solved", "loading_crps")


def test_the_order_of_stratified_draws_is_better() -> None:
    plain, stratified = "climatology, ranked by plain draws", "climatology+ranked"
    for score in ("crps", "energy", "loading_crps"):
        assert measured(stratified, "solved", score) < measured(plain, "solved", score)


def test_only_past_days_have_line_flows_before_the_power_flow_is_solved() -> None:
    for model in ("climatology", "factorforge"):
        fan = measured(model, "forecast", "loading_crps")
        assert measured(f"{model}+schaake", "forecast", "loading_crps") < 1.2 * fan
        assert measured(f"{model}+ranked", "forecast", "loading_crps") > 10 * fan
