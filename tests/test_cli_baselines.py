"""The baselines from the command line: trained, shown, forecast and scored like any other model."""

from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from powerphase import cli
from powerphase.dataset import Store
from powerphase.models.framework.run import RunFolder
from powerphase.records.result import read_results
from powerphase.registry import model_class

NETWORKS = (
    *("deepar", "tactis-2", "tempflow", "timegrad", "timemcl", "timeprism"),
    "transformer-tempflow",
)
SMALL = {
    "tactis-2": "validation_bags = 2\n",
    "timegrad": "diffusion_steps = 4\npaths = 5\n",
}
"""What makes those small that would take long."""


def variant_of(name: str) -> str:
    return "short-custom" if name in SMALL else "short"


def here(*arguments: object) -> Result:
    done = CliRunner().invoke(cli.app, [*map(str, arguments)], env={"COLUMNS": "200"})
    assert done.exit_code == 0, done.output
    return done


@pytest.fixture(scope="module", params=NETWORKS)
def trained(
    request: pytest.FixtureRequest, sixty_days: Store, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, Result]:
    folder = tmp_path_factory.mktemp(request.param)
    small = SMALL.get(request.param, "")
    (folder / "tiny.toml").write_text(f"{small}[training]\nbatches_per_epoch = 2\n")
    options = ("--epochs", 2, "--batch-size", 3, "--device", "cpu", "--out", folder / "run")
    data = ("--data", sixty_days.path, "--config", folder / "tiny.toml")
    return request.param, folder / "run", here("train", request.param, *data, *options)


def test_a_training_says_what_it_takes_and_by_what_it_is_chosen(
    trained: tuple[str, Path, Result],
) -> None:
    name, run, done = trained
    assert f"{name} on 56 channels in batches of 3: about" in done.stdout
    outcome = RunFolder.open(run).header.outcome
    assert f"{outcome['validation_loss']:.5f} after epoch {outcome['best_epoch']}" in done.stdout
    assert f" {model_class(name).load(run).n_parameters:,}: " in done.stdout
    for phrase in (f"{name}+{variant_of(name)}, seed 42", "finished, 2 epochs", "validation loss"):
        assert phrase in done.stdout


def test_what_was_found_in_the_inputs_is_in_the_log(trained: tuple[str, Path, Result]) -> None:
    name, run, _ = trained
    still = "constant" if name == "tactis-2" else "zero"
    for line in RunFolder.open(run).curve():
        assert line["loss/largest input"] > 0
        assert 0 < line[f"loss/{still} channels"] < 1  # the slack bus's angle is one


def test_a_training_is_scored_and_ranked(
    trained: tuple[str, Path, Result], sixty_days: Store, tmp_path: Path
) -> None:
    name, run, _ = trained
    options = ("--data", sixty_days.path, "--windows", 1, "--device", "cpu")
    here("score", run, *options, "--out", tmp_path / "results")
    (row,) = read_results([tmp_path / "results"])
    assert (row.model, row.variant, row.cost["steps"]) == (name, variant_of(name), 4)
    assert row.parameters > 0
    assert f"{name}+{variant_of(name)}" in here("leaderboard", tmp_path / "results").stdout


def test_ets_is_fitted_on_the_way_by_its_name_and_variants(
    sixty_days: Store, tmp_path: Path
) -> None:
    options = ("--data", sixty_days.path, "--windows", 1, "--device", "cpu")
    here("score", "ets+season-24+stale", *options, "--out", tmp_path / "results")
    (row,) = read_results([tmp_path / "results"])
    assert (row.model, row.variant) == ("ets", "season-24-stale")


def test_ets_can_be_kept(sixty_days: Store, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = here("train", "ets+season-24", "--data", sixty_days.path, "--out", run)
    assert "ets+season-24, seed 42" in done.stdout
    assert "never move" in done.stdout
    options = ("--data", sixty_days.path, "--windows", 1, "--out", tmp_path / "forecast")
    assert "ets+season-24" in here("forecast", run, *options).stdout


def test_a_backend_is_refused_where_there_is_none(sixty_days: Store, tmp_path: Path) -> None:
    options = ["--data", str(sixty_days.path), "--backend", "torch", "--out", str(tmp_path / "run")]
    done = CliRunner().invoke(cli.app, ["train", "timemcl", *options])
    assert "--backend: timemcl has nothing of the kind to choose" in str(done.exception)
    assert not (tmp_path / "run").exists()
