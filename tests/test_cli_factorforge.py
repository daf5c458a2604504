"""FactorForge from the command line: fitted, shown, forecast and scored, by name and by folder."""

import shutil
from pathlib import Path

import pytest
from typer.testing import Result

from powerphase.dataset import Store
from powerphase.models.factorforge.model import FactorForge
from powerphase.models.framework.run import WEIGHTS, RunFolder
from powerphase.records import Result as Row
from powerphase.records import open_forecast, read_result
from tests.command_line import error_of, run
from tests.models.toys import files_in


@pytest.fixture(scope="module")
def fitted(sixty_days: Store, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, run("train", "factorforge", "--data", sixty_days.path, "--out", folder)


def test_train_saves_the_model_and_shows_it(fitted: tuple[Path, Result]) -> None:
    folder, result = fitted
    assert files_in(folder) == {"model.json", WEIGHTS}
    model = load(folder)
    for phrase in ("factorforge, seed 42", "finished", "ieee14, 14 buses", "s to fit"):
        assert phrase in result.stdout
    assert "epochs" not in result.stdout
    assert f"{model.n_parameters:,}" in result.stdout


def load(folder: Path) -> FactorForge:
    model = FactorForge.load(folder)
    assert isinstance(model, FactorForge)
    return model


def rows_of(output: str) -> list[list[str]]:
    """The table of factors, its heading first."""
    lines = [line.split() for line in output.splitlines()]
    first = next(n for n, line in enumerate(lines) if line[:1] == ["factor"])
    stop = next(n for n in range(first + 1, len(lines)) if lines[n][0] != str(n - first))
    return lines[first:stop]


def test_info_shows_the_same_and_what_each_factor_follows(fitted: tuple[Path, Result]) -> None:
    folder, result = fitted
    info = run("info", folder).stdout
    assert result.stdout.endswith(info)
    outcome = RunFolder.open(folder).header.outcome
    assert outcome is not None
    facts = outcome["factors"]
    heading, *rows = rows_of(info)
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
    *_, shares = info.strip().splitlines()
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


def test_config_seed_and_the_default_folder_are_as_for_every_model(
    sixty_days: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "c.toml").write_text("factors = 1\nscenarios = 5\n")
    options = ("--data", sixty_days.path, "--config", "c.toml", "--seed", 5)
    result = run("train", "factorforge", *options)
    model = load(tmp_path / "runs" / "factorforge-ieee14-5")
    assert (model.config.factors, model.config.scenarios, model.seed) == (1, 5, 5)
    assert "factorforge+custom, seed 5" in result.stdout


@pytest.mark.parametrize(
    "options", [{"--epochs": 3}, {"--batch-size": 3, "--channel-block": 8}], ids=str
)
def test_options_of_networks_are_rejected(
    sixty_days: Store, tmp_path: Path, options: dict[str, int]
) -> None:
    command = ("train", "factorforge", "--data", sixty_days.path, "--out", tmp_path / "run")
    message = error_of(*command, *(word for option in options.items() for word in option))
    assert all(word in message for word in ("factorforge", *options))
    assert not (tmp_path / "run").exists()


def test_a_typo_in_the_config_is_reported_with_the_near_miss(
    sixty_days: Store, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text("scenario = 5\n")
    data = ("--data", sixty_days.path, "--config", tmp_path / "c.toml")
    message = error_of("train", "factorforge", *data, "--out", tmp_path / "run")
    assert all(word in message for word in ("c.toml", "scenario:", "scenarios"))


def test_it_is_forecast_and_scored_by_its_name_and_by_its_folder(
    fitted: tuple[Path, Result], sixty_days: Store, tmp_path: Path
) -> None:
    data = ("--data", sixty_days.path, "--device", "cpu", "--windows", 2)
    for model, name in ((fitted[0], "by-folder"), ("factorforge", "by-name")):
        result = run("forecast", model, *data, "--out", tmp_path / name)
        assert "factorforge, seed 42" in result.stdout
    saved = load(fitted[0])
    assert open_forecast(tmp_path / "by-name").header.scenarios == saved.config.scenarios
    rows: list[Row] = []
    for source in (fitted[0], "factorforge", tmp_path / "by-name"):
        results = tmp_path / f"results-{len(rows)}"
        run("score", source, *data, "--out", results)
        (file,) = results.rglob("factorforge-42.json")
        rows.append(read_result(file))
    live, *stored = ({k: v for k, v in row.scores.items() if v is not None} for row in rows)
    assert live["crps"] > 0
    for scores in stored:
        assert scores == pytest.approx(live, rel=1e-3, abs=1e-9)
    for row in rows:
        assert row.parameters == saved.n_parameters
        assert float(row.cost["train_s"] or 0) > 0
    outcome = RunFolder.open(fitted[0]).header.outcome
    assert outcome is not None
    assert rows[0].cost["train_s"] == outcome["train_s"]
