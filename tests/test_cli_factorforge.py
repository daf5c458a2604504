"""FactorForge from the command line: fitted, shown, forecast and scored, by name and by folder."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from powerphase import cli
from powerphase.dataset import Store
from powerphase.models.factorforge.model import FactorForge
from powerphase.models.framework.run import WEIGHTS, RunFolder
from powerphase.records.forecast_file import open_forecast
from powerphase.records.result import read_result
from tests.models.toys import files_in


def here(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [*map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def fitted(sixty_days: Store, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    run = tmp_path_factory.mktemp("runs") / "run"
    done = here("train", "factorforge", "--data", sixty_days.path, "--out", run)
    assert done.exit_code == 0, done.output
    return run, done


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Runs a command that must fail, with exit code 1 and one sentence, which it gives."""

    def run(*arguments: object) -> str:
        monkeypatch.setattr(sys, "argv", ["powerphase", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stop:
            cli.main()
        _, errors = capsys.readouterr()
        assert stop.value.code == 1
        assert "Traceback" not in errors
        *_, problem = errors.strip().splitlines()
        assert problem.startswith("powerphase: ")
        return problem

    return run


def test_train_keeps_the_model_and_shows_it(fitted: tuple[Path, Result]) -> None:
    run, done = fitted
    assert files_in(run) == {"model.json", WEIGHTS}
    model = FactorForge.load(run)
    for phrase in ("factorforge, seed 42", "finished", "ieee14, 14 buses", "s to fit"):
        assert phrase in done.stdout
    assert "epochs" not in done.stdout
    assert f"{model.n_parameters:,}" in done.stdout


def rows_of(shown: str) -> list[list[str]]:
    """The table of factors, its heading first."""
    lines = [line.split() for line in shown.splitlines()]
    first = next(n for n, line in enumerate(lines) if line[:1] == ["factor"])
    stop = next(n for n in range(first + 1, len(lines)) if lines[n][0] != str(n - first))
    return lines[first:stop]


def test_info_tells_the_same_and_what_the_factors_follow(fitted: tuple[Path, Result]) -> None:
    run, done = fitted
    shown = here("info", run)
    assert shown.exit_code == 0
    assert done.stdout.endswith(shown.stdout)
    facts = RunFolder.open(run).header.outcome["factors"]
    heading, *rows = rows_of(shown.stdout)
    assert heading[-3:] == ["load", "solar", "wind"]
    assert len(rows) == len(facts["each"]) >= 1
    for row, fact in zip(rows, facts["each"], strict=True):
        assert row[-3:] == [f"{fact['follows'][name]:+.2f}" for name in heading[-3:]]
        assert row[1:4] == [
            f"{fact['share']:.2%}",
            f"{fact['persistence']:.3f}",
            f"{fact['error']:.2f}",
        ]
    assert max(abs(value) for value in facts["each"][0]["follows"].values()) > 0.5
    *_, shares = shown.stdout.strip().splitlines()
    for name, share in facts["shares"].items():
        assert f"{name} {'–' if share is None else f'{share:.0%}'}" in shares


def test_the_same_command_again_changes_nothing(
    fitted: tuple[Path, Result], sixty_days: Store, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(fitted[0], tmp_path / "run"))
    before = {name: (run / name).read_bytes() for name in files_in(run)}
    again = here("train", "factorforge", "--data", sixty_days.path, "--out", run)
    assert again.exit_code == 0
    assert rows_of(again.stdout) == rows_of(fitted[1].stdout)
    assert {name: (run / name).read_bytes() for name in files_in(run)} == before


def test_config_seed_and_the_default_place_are_as_for_every_model(
    sixty_days: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text("factors = 1\nscenarios = 5\n")
    given = ("--data", sixty_days.path, "--config", "c.toml", "--seed", 5)
    done = here("train", "factorforge", *given)
    assert done.exit_code == 0, done.output
    model = FactorForge.load(tmp_path / "runs" / "factorforge-ieee14-5")
    assert (model.config.factors, model.config.scenarios, model.seed) == (1, 5, 5)
    assert "factorforge+custom, seed 5" in done.stdout


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        (["--epochs", 3], "--epochs: factorforge has nothing of the kind to choose; leave it out"),
        (["--batch-size", 3, "--channel-block", 8], "--batch-size, --channel-block: factorforge"),
    ],
)
def test_options_of_networks_are_refused_in_a_sentence(
    sixty_days: Store,
    tmp_path: Path,
    refused: Callable[..., str],
    given: list[object],
    sentence: str,
) -> None:
    command = ("train", "factorforge", "--data", sixty_days.path, "--out", tmp_path / "run")
    assert sentence in refused(*command, *given)
    assert not (tmp_path / "run").exists()


def test_a_slip_in_the_config_names_what_was_meant(
    sixty_days: Store, tmp_path: Path, refused: Callable[..., str]
) -> None:
    (tmp_path / "c.toml").write_text("scenario = 5\n")
    given = ("--data", sixty_days.path, "--config", tmp_path / "c.toml", "--out", tmp_path / "run")
    problem = refused("train", "factorforge", *given)
    assert "c.toml: scenario: no such field, did you mean scenarios" in problem


def test_it_is_forecast_and_scored_by_its_name_and_by_its_folder(
    fitted: tuple[Path, Result], sixty_days: Store, tmp_path: Path
) -> None:
    data = ("--data", sixty_days.path, "--device", "cpu", "--windows", 2)
    for what, name in ((fitted[0], "by-folder"), ("factorforge", "by-name")):
        done = here("forecast", what, *data, "--out", tmp_path / name)
        assert done.exit_code == 0, done.output
        assert "factorforge, seed 42" in done.stdout
    model = FactorForge.load(fitted[0])
    assert open_forecast(tmp_path / "by-name").header.scenarios == model.config.scenarios
    rows = []
    for what in (fitted[0], "factorforge", tmp_path / "by-name"):
        results = tmp_path / f"results-{len(rows)}"
        scored = here("score", what, *data, "--out", results)
        assert scored.exit_code == 0, scored.output
        (file,) = results.rglob("factorforge-42.json")
        rows.append(read_result(file))
    live, *others = ({k: v for k, v in row.scores.items() if v is not None} for row in rows)
    assert live["crps"] > 0
    for other in others:
        assert other == pytest.approx(live, rel=1e-3, abs=1e-9)
    for row in rows:
        assert row.parameters == model.n_parameters
        assert row.cost["train_s"] > 0
    assert rows[0].cost["train_s"] == RunFolder.open(fitted[0]).header.outcome["train_s"]
