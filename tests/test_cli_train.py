"""Training from the command line: what a user does, sees, and is told when it goes wrong."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

from powerphase import cli
from powerphase.dataset import Store
from powerphase.models.framework.checkpoint import read_tensors
from powerphase.models.framework.run import RESUME, WEIGHTS, RunFolder
from powerphase.models.powerforge.model import PowerForge
from powerphase.records.forecast_file import open_forecast
from powerphase.records.result import read_result
from tests.models.toys import curve_of, files_in

TINY = """
hidden = 8
tokens = 3
scenarios = 4
node_embedding = 2
kernels = [3, 5]
calibration_batches = 2
dropout = 0.0
noise_start = 1e-12  # so that it does not matter how many processes draw it

[training]
epochs = 2
batches_per_epoch = 2
batch_size = 4
"""
HALTED = """
import time
from powerphase.cli import main
from powerphase.models.framework.run import RunFolder
save = RunFolder.save
RunFolder.save = lambda *arguments: (save(*arguments), time.sleep(60))
main()
"""
"""The command, which stays after its first epoch until it is killed."""

ALONE = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("config") / "tiny.toml"
    file.write_text(TINY)
    return file


@pytest.fixture(scope="module")
def options(sixty_days: Store, config: Path) -> list[object]:
    return ["--data", sixty_days.path, "--config", config, "--device", "cpu"]


def here(*arguments: object) -> Result:
    return CliRunner().invoke(cli.app, [*map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def trained(options: list[object], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    run = tmp_path_factory.mktemp("runs") / "run"
    done = here("train", "powerforge", *options, "--out", run)
    assert done.exit_code == 0, done.output
    return run, done


class Said(NamedTuple):
    """What a command that failed left on the screen."""

    output: str
    problem: str


@pytest.fixture
def refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Said]:
    """Runs a command that must fail: with exit code 1 and one sentence."""

    def run(*arguments: object) -> Said:
        monkeypatch.setattr(sys, "argv", ["powerphase", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        with pytest.raises(SystemExit) as stop:
            cli.main()
        output, errors = capsys.readouterr()
        assert stop.value.code == 1
        assert "Traceback" not in errors
        assert "this is a bug" not in errors
        *_, problem = errors.strip().splitlines()
        assert problem.startswith("powerphase: ")
        assert errors.count("powerphase: ") == 1
        return Said(output, problem)

    return run


def test_train_makes_a_run_and_shows_it(trained: tuple[Path, Result]) -> None:
    run, done = trained
    assert files_in(run) == {"model.json", "log.jsonl", WEIGHTS}
    assert "powerforge on 56 channels in batches of 4: about" in done.stdout
    for phrase in (
        "finished, 2 epochs",
        "seed 42",
        "ieee14, 14 buses",
        "validation CRPS",
        "hidden 8",
    ):
        assert phrase in done.stdout
    model = PowerForge.load(run)
    assert (model.config.hidden, model.config.training.batch_size, model.seed) == (8, 4, 42)
    assert f"{model.n_parameters:,}: encoder" in done.stdout


def test_info_tells_the_same_of_a_finished_run(trained: tuple[Path, Result]) -> None:
    run, done = trained
    shown = here("info", run)
    assert shown.exit_code == 0
    _, _, of_run = done.stdout.partition("\n")
    assert shown.stdout == of_run
    outcome = RunFolder.open(run).header.outcome
    assert f"{outcome['validation_crps']:.5f} after epoch {outcome['best_epoch']}" in shown.stdout
    assert f"{outcome['train_s']:.1f} s to fit" in shown.stdout
    assert outcome["hardware"] in shown.stdout


def test_the_same_command_again_changes_nothing(
    trained: tuple[Path, Result], options: list[object], tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained[0], tmp_path / "run"))
    before = {name: (run / name).read_bytes() for name in files_in(run)}
    again = here("train", "powerforge", *options, "--out", run)
    assert again.exit_code == 0
    assert "finished, 2 epochs" in again.stdout
    assert {name: (run / name).read_bytes() for name in files_in(run)} == before


def test_a_killed_training_is_shown_as_such_and_the_same_command_finishes_it(
    trained: tuple[Path, Result], options: list[object], tmp_path: Path
) -> None:
    command = [*map(str, ["train", "powerforge", *options, "--out", tmp_path / "run"])]
    halted = [sys.executable, "-c", HALTED, *command]
    child = subprocess.Popen(
        halted, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=ALONE
    )
    try:
        while not (tmp_path / "run" / RESUME).exists() and child.poll() is None:
            time.sleep(0.02)
    finally:
        child.kill()
        child.wait()
    shown = here("info", tmp_path / "run")
    assert shown.exit_code == 0
    assert "UNFINISHED, 1 of 2 epochs" in shown.stdout
    assert here(*command).exit_code == 0
    assert (tmp_path / "run" / WEIGHTS).read_bytes() == (trained[0] / WEIGHTS).read_bytes()
    assert curve_of(tmp_path / "run") == curve_of(trained[0])


def test_two_processes_train_what_one_does(
    trained: tuple[Path, Result], options: list[object], tmp_path: Path
) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", "--no-python"]
    powerphase = Path(sys.executable).with_name("powerphase")
    command = [*torchrun, powerphase, "train", "powerforge", *options, "--out", tmp_path / "run"]
    child = subprocess.Popen(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ALONE,
        start_new_session=True,
    )
    try:
        output, errors = child.communicate(timeout=120)
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
    assert child.returncode == 0, errors
    assert output.count("finished, 2 epochs") == output.count("about") == 1
    assert files_in(tmp_path / "run") == files_in(trained[0])
    one, other = (read_tensors(run / WEIGHTS)[0] for run in (trained[0], tmp_path / "run"))
    for name, wanted in one.items():
        torch.testing.assert_close(other[name], wanted, rtol=1e-5, atol=1e-5)
    for line, wanted in zip(curve_of(tmp_path / "run"), curve_of(trained[0]), strict=True):
        assert line == pytest.approx(wanted, rel=1e-4, abs=1e-9)


def test_a_number_that_torchrun_did_not_give_silences_nobody() -> None:
    """Other launchers set RANK too, for processes that do not train together."""
    code = "from powerphase.cli.display import console; console.print('heard')"
    env = {**os.environ, "RANK": "3"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout == "heard\n"


def test_options_go_before_the_config_and_the_default_place_names_model_grid_and_seed(
    options: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    budget = ("--epochs", 1, "--batch-size", 2, "--channel-block", 8, "--seed", 5)
    done = here("train", "powerforge", *options, *budget)
    assert done.exit_code == 0, done.output
    model = PowerForge.load(tmp_path / "runs" / "powerforge-ieee14-5")
    assert (model.config.training.epochs, model.config.training.batch_size) == (1, 2)
    assert model.config.training.batches_per_epoch == 2
    assert model.seed == 5
    assert "seed 5" in done.stdout


def test_other_options_in_the_same_folder_are_refused(
    trained: tuple[Path, Result], options: list[object], refused: Callable[..., Said]
) -> None:
    command = ("train", "powerforge", *options, "--out", trained[0])
    assert "that differs in config;" in refused(*command, "--batch-size", 2).problem
    assert "is finished" in refused(*command, "--epochs", 3).problem
    assert "that differs in seed;" in refused(*command, "--seed", 3).problem


def test_a_slip_in_the_config_names_what_was_meant(
    sixty_days: Store, tmp_path: Path, refused: Callable[..., Said]
) -> None:
    (tmp_path / "c.toml").write_text("hiden = 8\n[training]\nlearning_rat = 0.1\n")
    command = ("train", "powerforge", "--data", sixty_days.path, "--config", tmp_path / "c.toml")
    problem = refused(*command, "--out", tmp_path / "run").problem
    assert "c.toml: hiden: no such field, did you mean hidden" in problem
    assert "did you mean training.learning_rate" in problem
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "given", "sentence"),
    [
        ("last-week", [], "last-week needs no training"),
        ("powerfrog", [], "no model 'powerfrog'; did you mean powerforge"),
        ("my.net:Mine", [], "`powerphase score my.net:Mine` trains and scores it"),
        ("powerforge", ["--device", "gpu"], "no device 'gpu'; did you mean"),
        ("powerforge", ["--epochs", 0], "epochs"),
        ("powerforge", ["--batch-size", 0], "batch_size"),
        ("powerforge", ["--config", "nowhere.toml"], "nowhere.toml: cannot be read"),
        ("powerforge", ["--data", "nowhere"], "nowhere: "),
    ],
)
def test_what_cannot_be_trained_is_told_in_a_sentence(
    options: list[object],
    tmp_path: Path,
    refused: Callable[..., Said],
    model: str,
    given: list[object],
    sentence: str,
) -> None:
    said = refused("train", model, *options, *given, "--out", tmp_path / "run")
    assert sentence in said.problem
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_told_in_a_sentence(
    options: list[object], tmp_path: Path, refused: Callable[..., Said]
) -> None:
    command = ("train", "powerforge", *options, "--device", "cuda", "--out", tmp_path / "run")
    assert "torch finds no GPU here; choose the device cpu" in refused(*command).problem


def test_a_training_is_forecast_and_scored_by_its_folder(
    trained: tuple[Path, Result], sixty_days: Store, tmp_path: Path
) -> None:
    run, data = trained[0], ("--data", sixty_days.path, "--device", "cpu")
    done = here("forecast", run, *data, "--out", tmp_path / "f")
    assert done.exit_code == 0, done.output
    assert "powerforge+short-custom, seed 42" in done.stdout
    assert open_forecast(tmp_path / "f").header.scenarios == 4
    rows = []
    for what, results in ((tmp_path / "f", tmp_path / "a"), (run, tmp_path / "b")):
        scored = here("score", what, *data, "--out", results)
        assert scored.exit_code == 0, scored.output
        (file,) = results.rglob("powerforge+short-custom-42.json")
        rows.append(read_result(file))
    outcome = RunFolder.open(run).header.outcome
    stored, live = ({k: v for k, v in row.scores.items() if v is not None} for row in rows)
    assert stored == pytest.approx(live, rel=1e-4)
    for row in rows:
        assert row.cost["train_s"] == outcome["train_s"]
        assert row.cost["steps"] == 4
        assert row.parameters == PowerForge.load(run).n_parameters


def test_the_name_of_a_model_that_must_be_trained_gets_the_command(
    sixty_days: Store, tmp_path: Path, refused: Callable[..., Said]
) -> None:
    data = ("--data", sixty_days.path)
    advice = f"`powerphase train powerforge --data {sixty_days.path} --out RUN`"
    for command in (["forecast", "powerforge", "--out", tmp_path / "f"], ["score", "powerforge"]):
        assert advice in refused(*command, *data).problem
    assert not (tmp_path / "f").exists()


def test_a_folder_that_holds_no_training_is_told(
    sixty_days: Store, tmp_path: Path, refused: Callable[..., Said]
) -> None:
    data = ("--data", sixty_days.path)
    said = refused("score", tmp_path / "nowhere", *data).problem
    assert str(tmp_path / "nowhere") in said
    said = refused("forecast", tmp_path / "nowhere", *data, "--out", tmp_path / "f").problem
    assert f"no model or training '{tmp_path / 'nowhere'}'" in said


def test_a_damaged_training_is_told_in_a_sentence(
    trained: tuple[Path, Result], sixty_days: Store, tmp_path: Path, refused: Callable[..., Said]
) -> None:
    run = Path(shutil.copytree(trained[0], tmp_path / "run"))
    os.truncate(run / WEIGHTS, 1000)
    assert WEIGHTS in refused("info", run).problem
    assert WEIGHTS in refused("score", run, "--data", sixty_days.path).problem
    (run / "model.json").write_text("{")
    assert "is no description of a training" in refused("info", run).problem
