"""Training from the command line: what a user does and sees, and what can go wrong."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import Result

from powerphase import Store
from powerphase.models import PowerForge
from powerphase.models.framework import RESUME, WEIGHTS, read_tensors
from powerphase.records import open_forecast, read_result
from tests.cli.conftest import Fails, outcome_of
from tests.command_line import invoke, run
from tests.models.toys import curve_of, files_in

TINY = """
hidden = 8
tokens = 3
scenarios = 4
node_embedding = 2
kernels = [3, 5]
calibration_batches = 2
dropout = 0.0
noise_start = 1e-12  # so that the number of processes that draw it does not matter

[training]
epochs = 2
batches_per_epoch = 2
batch_size = 4
"""
HALTED = """
import time
from powerphase.cli import main
from powerphase.models.framework import RunFolder
save_state = RunFolder.save_state
RunFolder.save_state = lambda *arguments: (save_state(*arguments), time.sleep(60))
main()
"""
"""The command, halted after its first epoch until it is killed."""

ONE_THREAD = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("config") / "tiny.toml"
    file.write_text(TINY)
    return file


@pytest.fixture(scope="module")
def options(sixty_days: Store, config: Path) -> list[object]:
    return ["--data", sixty_days.path, "--config", config, "--device", "cpu"]


@pytest.fixture(scope="module")
def trained(options: list[object], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder: Path = tmp_path_factory.mktemp("runs") / "run"
    return folder, run("train", "powerforge", *options, "--out", folder)


def test_train_writes_a_run_and_shows_it(trained: tuple[Path, Result]) -> None:
    folder, done = trained
    assert files_in(folder) == {"model.json", "log.jsonl", WEIGHTS}
    assert "56 channels in batches of 4" in done.stdout
    for fact in (
        "finished, 2 epochs",
        "seed 42",
        "ieee14, 14 buses",
        "validation loss",
        "hidden 8",
    ):
        assert fact in done.stdout
    model: Any = PowerForge.load(folder)
    assert (model.config.hidden, model.config.training.batch_size, model.seed) == (8, 4, 42)
    assert f"{model.n_parameters:,}: encoder" in done.stdout


def test_info_shows_the_same_about_a_finished_run(trained: tuple[Path, Result]) -> None:
    folder, done = trained
    shown = invoke("info", folder)
    assert shown.exit_code == 0
    _, _, summary = done.stdout.partition("\n")
    assert shown.stdout == summary
    outcome = outcome_of(folder)
    assert f"{outcome['validation_loss']:.5f} after epoch {outcome['best_epoch']}" in shown.stdout
    assert f"{outcome['train_s']:.1f} s to fit" in shown.stdout
    assert outcome["hardware"] in shown.stdout


def test_the_same_command_again_changes_nothing(
    trained: tuple[Path, Result], options: list[object], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(trained[0], tmp_path / "run"))
    before = {name: (folder / name).read_bytes() for name in files_in(folder)}
    again = invoke("train", "powerforge", *options, "--out", folder)
    assert again.exit_code == 0
    assert "finished, 2 epochs" in again.stdout
    assert {name: (folder / name).read_bytes() for name in files_in(folder)} == before


def test_the_same_command_finishes_a_killed_training(
    trained: tuple[Path, Result], options: list[object], tmp_path: Path
) -> None:
    command = [*map(str, ["train", "powerforge", *options, "--out", tmp_path / "run"])]
    halted = [sys.executable, "-c", HALTED, *command]
    process = subprocess.Popen(
        halted, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env=ONE_THREAD
    )
    try:
        while not (tmp_path / "run" / RESUME).exists() and process.poll() is None:
            time.sleep(0.02)
    finally:
        process.kill()
        process.wait()
    shown = invoke("info", tmp_path / "run")
    assert shown.exit_code == 0
    assert "UNFINISHED, 1 of 2 epochs" in shown.stdout
    assert invoke(*command).exit_code == 0
    assert (tmp_path / "run" / WEIGHTS).read_bytes() == (trained[0] / WEIGHTS).read_bytes()
    assert curve_of(tmp_path / "run") == curve_of(trained[0])


def test_two_processes_train_the_same_weights_as_one(
    trained: tuple[Path, Result], options: list[object], tmp_path: Path
) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    torchrun += ["--nproc-per-node", "2", "--no-python"]
    powerphase = Path(sys.executable).with_name("powerphase")
    command = [*torchrun, powerphase, "train", "powerforge", *options, "--out", tmp_path / "run"]
    process = subprocess.Popen(
        [*map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=ONE_THREAD,
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=120)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 0, errors
    assert output.count("finished, 2 epochs") == output.count("about") == 1
    assert files_in(tmp_path / "run") == files_in(trained[0])
    single, double = (read_tensors(path / WEIGHTS)[0] for path in (trained[0], tmp_path / "run"))
    for name, expected in single.items():
        torch.testing.assert_close(double[name], expected, rtol=1e-5, atol=1e-5)
    for line, expected_line in zip(curve_of(tmp_path / "run"), curve_of(trained[0]), strict=True):
        assert line == pytest.approx(expected_line, rel=1e-4, abs=1e-9)


def test_a_rank_without_torchrun_does_not_silence_the_output() -> None:
    """Other launchers set RANK too, for processes that do not train together."""
    code = "from powerphase.cli.display import console; console.print('printed')"
    env = {**os.environ, "RANK": "3"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert done.stdout == "printed\n"


def test_options_override_the_config_and_the_default_folder_names_model_grid_and_seed(
    options: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    budget = ("--epochs", 1, "--batch-size", 2, "--channel-block", 8, "--seed", 5)
    done = run("train", "powerforge", *options, *budget)
    model: Any = PowerForge.load(tmp_path / "runs" / "powerforge-ieee14-5")
    assert (model.config.training.epochs, model.config.training.batch_size) == (1, 2)
    assert model.config.training.batches_per_epoch == 2
    assert model.seed == 5
    assert "seed 5" in done.stdout


def test_other_options_in_the_same_folder_are_rejected(
    trained: tuple[Path, Result], options: list[object], fails: Fails
) -> None:
    command = ("train", "powerforge", *options, "--out", trained[0])
    for option, fact in (("--batch-size", "config"), ("--epochs", "finished"), ("--seed", "seed")):
        assert fact in fails(*command, option, 3).problem


def test_a_misspelt_config_field_gets_a_suggestion(
    sixty_days: Store, tmp_path: Path, fails: Fails
) -> None:
    (tmp_path / "c.toml").write_text("hiden = 8\n[training]\nlearning_rat = 0.1\n")
    command = ("train", "powerforge", "--data", sixty_days.path, "--config", tmp_path / "c.toml")
    problem = fails(*command, "--out", tmp_path / "run").problem
    for fact in ("c.toml: hiden: ", "did you mean hidden", "training.learning_rate"):
        assert fact in problem
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "arguments", "fact"),
    [
        ("last-week", [], "last-week"),
        ("powerfrog", [], "powerforge"),
        ("my.net:Mine", [], "powerphase score my.net:Mine"),
        ("powerforge", ["--device", "gpu"], "'gpu'"),
        ("powerforge", ["--epochs", 0], "epochs"),
        ("powerforge", ["--batch-size", 0], "batch_size"),
        ("powerforge", ["--config", "nowhere.toml"], "nowhere.toml"),
        ("powerforge", ["--data", "nowhere"], "nowhere"),
    ],
)
def test_an_impossible_training_fails_before_it_starts(
    options: list[object],
    tmp_path: Path,
    fails: Fails,
    model: str,
    arguments: list[object],
    fact: str,
) -> None:
    failed = fails("train", model, *options, *arguments, "--out", tmp_path / "run")
    assert fact in failed.problem
    assert not (tmp_path / "run").exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_fails(options: list[object], tmp_path: Path, fails: Fails) -> None:
    command = ("train", "powerforge", *options, "--device", "cuda", "--out", tmp_path / "run")
    assert "GPU" in fails(*command).problem


def test_a_training_is_forecast_and_scored_by_its_folder(
    trained: tuple[Path, Result], sixty_days: Store, tmp_path: Path
) -> None:
    folder, data = trained[0], ("--data", sixty_days.path, "--device", "cpu")
    done = run("forecast", folder, *data, "--out", tmp_path / "f")
    assert "powerforge+short-custom, seed 42" in done.stdout
    assert open_forecast(tmp_path / "f").header.scenarios == 4
    rows = []
    for source, results in ((tmp_path / "f", tmp_path / "a"), (folder, tmp_path / "b")):
        run("score", source, *data, "--out", results)
        (file,) = results.rglob("powerforge+short-custom-42.json")
        rows.append(read_result(file))
    outcome = outcome_of(folder)
    model: Any = PowerForge.load(folder)
    stored, live = ({k: v for k, v in row.scores.items() if v is not None} for row in rows)
    assert stored == pytest.approx(live, rel=1e-4)
    for row in rows:
        assert row.cost["train_s"] == outcome["train_s"]
        assert row.cost["steps"] == 4
        assert row.parameters == model.n_parameters


def test_an_untrained_network_gets_the_command_to_train_it(
    sixty_days: Store, tmp_path: Path, fails: Fails
) -> None:
    data = ("--data", sixty_days.path)
    advice = f"`powerphase train powerforge --data {sixty_days.path} --out RUN`"
    for command in (["forecast", "powerforge", "--out", tmp_path / "f"], ["score", "powerforge"]):
        assert advice in fails(*command, *data).problem
    assert not (tmp_path / "f").exists()


def test_a_folder_without_a_training_is_named(
    sixty_days: Store, tmp_path: Path, fails: Fails
) -> None:
    data = ("--data", sixty_days.path)
    missing = tmp_path / "nowhere"
    for command in (["score", missing], ["forecast", missing, "--out", tmp_path / "f"]):
        assert str(missing) in fails(*command, *data).problem


def test_the_damaged_file_of_a_training_is_named(
    trained: tuple[Path, Result], sixty_days: Store, tmp_path: Path, fails: Fails
) -> None:
    folder = Path(shutil.copytree(trained[0], tmp_path / "run"))
    os.truncate(folder / WEIGHTS, 1000)
    assert WEIGHTS in fails("info", folder).problem
    assert WEIGHTS in fails("score", folder, "--data", sixty_days.path).problem
    (folder / "model.json").write_text("{")
    assert "model.json" in fails("info", folder).problem
