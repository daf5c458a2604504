"""The baselines from the command line: trained, shown, forecast and scored like any other model."""

from pathlib import Path

import pytest
from typer.testing import Result

from powerphase import Store
from powerphase.models.framework import RunFolder
from powerphase.records import open_forecast, read_result, read_results
from powerphase.registry import model_class
from tests.cli.conftest import outcome_of
from tests.command_line import invoke, run

NETWORKS = (
    *("deepar", "tactis-2", "tempflow", "timegrad", "timemcl", "timeprism"),
    "transformer-tempflow",
)
SMALL = {
    "tactis-2": "validation_bags = 2\n",
    "timegrad": "diffusion_steps = 4\npaths = 5\n",
}
"""Configs of the networks that would take long."""

VARIANT = "short-custom"
"""Of all trainings here: few steps, and batches of another size than the grid's."""


@pytest.fixture(scope="module", params=NETWORKS)
def trained(
    request: pytest.FixtureRequest, sixty_days: Store, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Result]:
    folder = tmp_path_factory.mktemp(request.param)
    small = SMALL.get(request.param, "")
    (folder / "tiny.toml").write_text(f"{small}[training]\nbatches_per_epoch = 2\n")
    options = ("--epochs", 2, "--batch-size", 3, "--device", "cpu", "--out", folder / "run")
    data = ("--data", sixty_days.path, "--config", folder / "tiny.toml")
    return request.param, folder / "run", run("train", request.param, *data, *options)


def test_a_training_shows_its_memory_and_validation_score(
    trained: tuple[str, Path, Result],
) -> None:
    name, folder, done = trained
    assert "56 channels in batches of 3" in done.stdout
    outcome = outcome_of(folder)
    assert f"{outcome['validation_loss']:.5f} after epoch {outcome['best_epoch']}" in done.stdout
    assert f" {model_class(name).load(folder).n_parameters:,}: " in done.stdout
    for fact in (f"{name}+{VARIANT}, seed 42", "finished, 2 epochs", "validation loss"):
        assert fact in done.stdout


def test_the_log_describes_the_inputs(trained: tuple[str, Path, Result]) -> None:
    name, folder, _ = trained
    kind = "constant" if name == "tactis-2" else "zero"
    for line in RunFolder.open(folder).curve():
        assert line["loss/largest input"] > 0
        assert 0 < line[f"loss/{kind} channels"] < 1  # the slack bus's angle is one


def test_a_training_is_scored_and_ranked(
    trained: tuple[str, Path, Result], sixty_days: Store, tmp_path: Path
) -> None:
    name, folder, _ = trained
    options = ("--data", sixty_days.path, "--windows", 1, "--device", "cpu")
    run("score", folder, *options, "--out", tmp_path / "results")
    (row,) = read_results([tmp_path / "results"])
    assert (row.model, row.variant, row.cost["steps"]) == (name, VARIANT, 4)
    assert (row.parameters or 0) > 0
    assert f"{name}+{VARIANT}" in run("leaderboard", tmp_path / "results").stdout


def test_ets_is_forecast_and_scored_by_its_name(sixty_days: Store, tmp_path: Path) -> None:
    data = ("--data", sixty_days.path, "--device", "cpu", "--windows", 2)
    for command, out in (("forecast", "made"), ("score", "results")):
        assert "ets, seed 42" in run(command, "ets", *data, "--out", tmp_path / out).stdout
    assert open_forecast(tmp_path / "made").header.scenarios == 100
    (file,) = (tmp_path / "results").rglob("ets-42.json")
    row = read_result(file)
    assert row.parameters == 56 * (96 + 5)
    assert (row.scores["crps"] or 0) > 0
    assert float(row.cost["train_s"] or 0) > 0


def test_variants_of_ets_are_fitted_and_scored(sixty_days: Store, tmp_path: Path) -> None:
    options = ("--data", sixty_days.path, "--windows", 1, "--device", "cpu")
    run("score", "ets+season-24+stale", *options, "--out", tmp_path / "results")
    (row,) = read_results([tmp_path / "results"])
    assert (row.model, row.variant) == ("ets", "season-24-stale")


def test_ets_can_be_saved(sixty_days: Store, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    done = run("train", "ets+season-24", "--data", sixty_days.path, "--out", folder)
    assert "ets+season-24, seed 42" in done.stdout
    options = ("--data", sixty_days.path, "--windows", 1, "--out", tmp_path / "forecast")
    assert "ets+season-24" in run("forecast", folder, *options).stdout


def test_a_backend_is_rejected_by_models_without_one(sixty_days: Store, tmp_path: Path) -> None:
    options = ("--data", sixty_days.path, "--backend", "torch", "--out", tmp_path / "run")
    done = invoke("train", "timemcl", *options)
    assert "--backend: timemcl" in str(done.exception)
    assert not (tmp_path / "run").exists()
