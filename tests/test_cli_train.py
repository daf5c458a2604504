"""Training from the command line: its runs, its output and its errors."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from typer.testing import Result

from powerphase import cli
from powerphase.dataset import Store
from powerphase.models.framework.checkpoint import read_tensors
from powerphase.models.framework.run import RESUME, WEIGHTS, RunFolder
from powerphase.models.powerforge.model import PowerForge
from powerphase.records import open_forecast, read_result
from tests.command_line import error_of, run
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
"""The command, which waits after its first epoch until it is killed."""

ALONE = {**os.environ, "COLUMNS": "200", "OMP_NUM_THREADS": "1"}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("config") / "tiny.toml"
    file.write_text(TINY)
    return file


@pytest.fixture(scope="module")
def options(sixty_days: Store, config: Path) -> list[object]:
    return ["--data", sixty_days.path, "--config", config, "--device", "cpu"]


def load(folder: Path) -> PowerForge:
    model = PowerForge.load(folder)
    assert isinstance(model, PowerForge)
    return model


@pytest.fixture(scope="module")
def trained(options: list[object], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return folder, run("train", "powerforge", *options, "--out", folder)


def test_train_makes_a_run_and_shows_it(trained: tuple[Path, Result]) -> None:
    folder, result = trained
    assert files_in(folder) == {"model.json", "log.jsonl", WEIGHTS}
    assert "powerforge on 56 channels in batches of 4: about" in result.stdout
    for phrase in (
        "finished, 2 epochs",
        "seed 42",
        "ieee14, 14 buses",
        "validation CRPS",
        "hidden 8",
    ):
        assert phrase in result.stdout
    model = load(folder)
    assert (model.config.hidden, model.config.training.batch_size, model.seed) == (8, 4, 42)
    assert f"{model.n_parameters:,}: encoder" in result.stdout


def test_info_shows_the_same_of_a_finished_run(trained: tuple[Path, Result]) -> None:
    folder, result = trained
    info = run("info", folder).stdout
    _, _, description = result.stdout.partition("\n")
    assert info == description
    outcome = RunFolder.open(folder).header.outcome
    assert outcome is not None
    assert f"{outcome['validation_crps']:.5f} after epoch {outcome['best_epoch']}" in info
    assert f"{outcome['train_s']:.1f} s to fit" in info
    assert outcome["hardware"] in info


def test_the_same_command_again_changes_nothing(
    trained: tuple[Path, Result], options: list[object], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(trained[0], tmp_path / "run"))
    before = {name: (folder / name).read_bytes() for name in files_in(folder)}
    assert "finished, 2 epochs" in run("train", "powerforge", *options, "--out", folder).stdout
    assert {name: (folder / name).read_bytes() for name in files_in(folder)} == before


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
    assert "UNFINISHED, 1 of 2 epochs" in run("info", tmp_path / "run").stdout
    run(*command)
    assert (tmp_path / "run" / WEIGHTS).read_bytes() == (trained[0] / WEIGHTS).read_bytes()
    assert curve_of(tmp_path / "run") == curve_of(trained[0])


def test_two_processes_train_the_same_weights_as_one(
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
    alone, together = (read_tensors(path / WEIGHTS)[0] for path in (trained[0], tmp_path / "run"))
    for name, weights in alone.items():
        torch.testing.assert_close(together[name], weights, rtol=1e-5, atol=1e-5)
    for line, expected in zip(curve_of(tmp_path / "run"), curve_of(trained[0]), strict=True):
        assert line == pytest.approx(expected, rel=1e-4, abs=1e-9)


def test_a_rank_from_another_launcher_does_not_silence_the_command() -> None:
    """Other launchers set RANK too, for processes that do not train together."""
    code = "from powerphase.cli.display import console; console.print('visible')"
    env = {**os.environ, "RANK": "3"}
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env)
    assert process.stdout == "visible\n"


def test_options_override_the_config_and_the_default_folder_names_model_grid_and_seed(
    options: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    budget = ("--epochs", 1, "--batch-size", 2, "--channel-block", 8, "--seed", 5)
    result = run("train", "powerforge", *options, *budget)
    model = load(tmp_path / "runs" / "powerforge-ieee14-5")
    assert (model.config.training.epochs, model.config.training.batch_size) == (1, 2)
    assert model.config.training.batches_per_epoch == 2
    assert model.seed == 5
    assert "seed 5" in result.stdout


def test_other_options_in_the_same_folder_are_rejected(
    trained: tuple[Path, Result], options: list[object]
) -> None:
    command = ("train", "powerforge", *options, "--out", trained[0])
    assert "config" in error_of(*command, "--batch-size", 2)
    assert "finished" in error_of(*command, "--epochs", 3)
    assert "seed" in error_of(*command, "--seed", 3)


def test_typos_in_the_config_are_reported_with_their_near_misses(
    sixty_days: Store, tmp_path: Path
) -> None:
    (tmp_path / "c.toml").write_text("hiden = 8\n[training]\nlearning_rat = 0.1\n")
    command = ("train", "powerforge", "--data", sixty_days.path, "--config", tmp_path / "c.toml")
    message = error_of(*command, "--out", tmp_path / "run")
    for word in ("c.toml", "hiden:", "hidden", "training.learning_rate"):
        assert word in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("model", "changes", "fact"),
    [
        ("last-week", [], "last-week"),
        ("powerfrog", [], "powerforge"),
        ("my.net:Mine", [], "`powerphase score my.net:Mine`"),
        ("powerforge", ["--device", "gpu"], "'gpu'"),
        ("powerforge", ["--epochs", 0], "epochs"),
        ("powerforge", ["--batch-size", 0], "batch_size"),
        ("powerforge", ["--config", "nowhere.toml"], "nowhere.toml"),
        ("powerforge", ["--data", "nowhere"], "nowhere: "),
    ],
)
def test_a_training_that_cannot_start_is_an_error_and_leaves_no_run(
    options: list[object], tmp_path: Path, model: str, changes: list[object], fact: str
) -> None:
    assert fact in error_of("train", model, *options, *changes, "--out", tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_error_is_one_line_on_the_terminal(
    options: list[object],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    command = ("train", "powerfrog", *options, "--out", tmp_path / "run")
    monkeypatch.setattr(sys, "argv", ["powerphase", *map(str, command)])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as stop:
        cli.main()
    assert stop.value.code == 1
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("powerphase: ")
    assert "'powerfrog'" in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_an_error(options: list[object], tmp_path: Path) -> None:
    command = ("train", "powerforge", *options, "--device", "cuda", "--out", tmp_path / "run")
    assert "GPU" in error_of(*command)


def test_a_training_is_forecast_and_scored_by_its_folder(
    trained: tuple[Path, Result], sixty_days: Store, tmp_path: Path
) -> None:
    folder, data = trained[0], ("--data", sixty_days.path, "--device", "cpu")
    result = run("forecast", folder, *data, "--out", tmp_path / "f")
    assert "powerforge+short-custom, seed 42" in result.stdout
    assert open_forecast(tmp_path / "f").header.scenarios == 4
    rows = []
    for source, results in ((tmp_path / "f", tmp_path / "a"), (folder, tmp_path / "b")):
        run("score", source, *data, "--out", results)
        (file,) = results.rglob("powerforge+short-custom-42.json")
        rows.append(read_result(file))
    outcome = RunFolder.open(folder).header.outcome
    assert outcome is not None
    stored, live = ({k: v for k, v in row.scores.items() if v is not None} for row in rows)
    assert stored == pytest.approx(live, rel=1e-4)
    for row in rows:
        assert row.cost["train_s"] == outcome["train_s"]
        assert row.cost["steps"] == 4
        assert row.parameters == load(folder).n_parameters


def test_scoring_a_model_that_must_be_trained_suggests_the_command(
    sixty_days: Store, tmp_path: Path
) -> None:
    data = ("--data", sixty_days.path)
    advice = f"`powerphase train powerforge --data {sixty_days.path} --out RUN`"
    for command in (["forecast", "powerforge", "--out", tmp_path / "f"], ["score", "powerforge"]):
        assert advice in error_of(*command, *data)
    assert not (tmp_path / "f").exists()


def test_a_folder_without_a_training_is_named(sixty_days: Store, tmp_path: Path) -> None:
    data, missing = ("--data", sixty_days.path), tmp_path / "nowhere"
    assert str(missing) in error_of("score", missing, *data)
    assert str(missing) in error_of("forecast", missing, *data, "--out", tmp_path / "f")


def test_a_damaged_file_of_a_training_is_named(
    trained: tuple[Path, Result], sixty_days: Store, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(trained[0], tmp_path / "run"))
    os.truncate(folder / WEIGHTS, 1000)
    assert WEIGHTS in error_of("info", folder)
    assert WEIGHTS in error_of("score", folder, "--data", sixty_days.path)
    (folder / "model.json").write_text("{")
    assert "model.json" in error_of("info", folder)
