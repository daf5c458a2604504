"""The page on fewer scenarios: its commands and code run as written, and its claims hold."""

from pathlib import Path

import pytest

from docs.measurements import many_scenarios, reduction_row, saved
from tests.pages import blocks, commands, output_of

PAGE = (Path(__file__).parents[1] / "docs" / "reduce.md").read_text(encoding="utf-8")


def test_the_page_s_commands_and_code_run_as_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shown = [command for command in commands(PAGE) if command.startswith("powerphase ")]
    outputs = [output_of(command) for command in shown]
    assert "factorforge+draws-reduced-5" in outputs[3]
    assert "energy score" in outputs[3]
    assert "factorforge+draws-reduced-5-kmedoids-factors" in outputs[4]
    assert "factorforge+draws-reduced-5-physical" in outputs[5]
    capsys.readouterr()
    (code,) = blocks(PAGE, "python")
    exec(compile(code, "reduce.md", "exec"), {"__name__": "example"})
    assert "Kantorovich" in capsys.readouterr().out


@pytest.mark.parametrize("count", [5, 10, 20])
def test_energy_costs_least_and_medoids_more_than_random_scenarios(count: int) -> None:
    costs = {
        method: reduction_row(method, space, count)
        for method, space in (("energy", "channels"), ("kmedoids", "channels"), ("random", ""))
    }
    distances = {method: cost["energy_distance"] for method, cost in costs.items()}
    scores = {method: cost["energy_score"] for method, cost in costs.items()}
    assert min(scores, key=scores.__getitem__) == "energy"
    assert distances["energy"] < distances["random"] < distances["kmedoids"]
    lowest = min(costs, key=lambda method: costs[method]["kantorovich"])
    assert lowest == "kmedoids"
    assert saved("energy", "channels", count) > 0.2


def test_a_thousand_scenarios_need_a_small_part_of_their_size() -> None:
    many = many_scenarios()
    assert many["scenarios"] == 1000
    assert max(row["peak_gib"] for row in many["rows"]) < many["window_gib"] / 5
