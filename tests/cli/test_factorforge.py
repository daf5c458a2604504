"""FactorForge from the command line: fitted, shown, forecast and scored, by name and by folder."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from powerphase import Store
from powerphase.models import FactorForge
from powerphase.models.framework import WEIGHTS
from powerphase.records import open_forecast, read_result
from tests.cli.conftest import Fails, outcome_of
from tests.command_line import run
from tests.models.toys import files_in


@pytest.fixture(scope="module")
def fitted(sixty_days: Store, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder: Path = tmp_path_factory.mktemp("runs") / "run"
    return folder, run("train", "factorforge", "--data", sixty_days.path, "--out", folder)


def test_train_saves_the_model_and_shows_it(fitted: tuple[Path, Result]) -> None:
    folder, done = fitted
    assert files_in(folder) == {"model.json", WEIGHTS}
    model: Any = FactorForge.load(folder)
    for fact in ("factorforge, seed 42", "finished", "ieee14, 14 buses", "s to fit"):
        assert fact in done.stdout
    assert "epochs" not in done.stdout
    assert f"{model.n_parameters:,}" in done.stdout


def rows_of(shown: str) -> list[list[str]]:
    """The table of factors, its heading first."""
    lines = [line.split() for line in shown.splitlines()]
    first = next(n for n, line in enumerate(lines) if line[:1] == ["factor"])
    stop = next(n for n in range(first + 1, len(lines)) if lines[n][0] != str(n - first))
    return lines[first:stop]


def test_info_shows_the_same_and_what_the_factors_follow(fitted: tuple[Path, Result]) -> None:
    folder, done = fitted
    shown = run("info", folder)
    assert done.stdout.endswith(shown.stdout)
    facts = outcome_of(folder)["factors"]
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
    folder = Path(shutil.copytree(fitted[0], tmp_path / "run"))
    before = {name: (folder / name).read_bytes() for name in files_in(folder)}
    again = run("train", "factorforge", "--data", sixty_days.path, "--out", folder)
    assert rows_of(again.stdout) == rows_of(fitted[1].stdout)
    assert {name: (folder / name).read_bytes() for name in files_in(folder)} == before


def test_config_seed_and_default_folder_work_as_for_every_model(
    sixty_days: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text("factors = 1\nscenarios = 5\n")
    arguments = ("--data", sixty_days.path, "--config", "c.toml", "--seed", 5)
    done = run("train", "factorforge", *arguments)
    model: Any = FactorForge.load(tmp_path / "runs" / "factorforge-ieee14-5")
    assert (model.config.factors, model.config.scenarios, model.seed) == (1, 5, 5)
    assert "factorforge+custom, seed 5" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["--epochs", 3], "--epochs: factorforge"),
        (["--batch-size", 3, "--channel-block", 8], "--batch-size, --channel-block: factorforge"),
    ],
)
def test_options_of_networks_are_rejected(
    sixty_days: Store,
    tmp_path: Path,
    fails: Fails,
    arguments: list[object],
    fact: str,
) -> None:
    command = ("train", "factorforge", "--data", sixty_days.path, "--out", tmp_path / "run")
    assert fact in fails(*command, *arguments).problem
    assert not (tmp_path / "run").exists()


def test_a_misspelt_config_field_gets_a_suggestion(
    sixty_days: Store, tmp_path: Path, fails: Fails
) -> None:
    (tmp_path / "c.toml").write_text("scenario = 5\n")
    arguments = (
        "--data",
        sixty_days.path,
        "--config",
        tmp_path / "c.toml",
        "--out",
        tmp_path / "run",
    )
    problem = fails("train", "factorforge", *arguments).problem
    assert "c.toml: scenario: " in problem
    assert "scenarios" in problem


def test_it_is_forecast_and_scored_by_its_name_and_by_its_folder(
    fitted: tuple[Path, Result], sixty_days: Store, tmp_path: Path
) -> None:
    data = ("--data", sixty_days.path, "--device", "cpu", "--windows", 2)
    for source, name in ((fitted[0], "by-folder"), ("factorforge", "by-name")):
        done = run("forecast", source, *data, "--out", tmp_path / name)
        assert "factorforge, seed 42" in done.stdout
    model: Any = FactorForge.load(fitted[0])
    assert open_forecast(tmp_path / "by-name").header.scenarios == model.config.scenarios
    rows: list[Any] = []
    for source in (fitted[0], "factorforge", tmp_path / "by-name"):
        results = tmp_path / f"results-{len(rows)}"
        run("score", source, *data, "--out", results)
        (file,) = results.rglob("factorforge-42.json")
        rows.append(read_result(file))
    live, *others = ({k: v for k, v in row.scores.items() if v is not None} for row in rows)
    assert live["crps"] > 0
    for other in others:
        assert other == pytest.approx(live, rel=1e-3, abs=1e-9)
    for row in rows:
        assert row.parameters == model.n_parameters
        assert row.cost["train_s"] > 0
    assert rows[0].cost["train_s"] == outcome_of(fitted[0])["train_s"]
