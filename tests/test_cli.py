"""The command line: what a user sees, and what an error looks like."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result
from typer.testing import CliRunner

from powerphase import cli
from powerphase.dataset import RecipeOptions, Store, open_store
from powerphase.errors import PowerphaseError, UnknownName
from powerphase.grid import CATALOG, Grid
from powerphase.records.failure import Failure, write_failure

COMMANDS = cli.app.registered_commands
RUN = [sys.executable, "-c", "from powerphase.cli import main; main()"]


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [*RUN, *map(str, arguments)]
    env = {**os.environ, "COLUMNS": "200"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=env)


def here(*arguments: object) -> Result:
    """The same in this process, which has everything loaded already."""
    return CliRunner().invoke(cli.app, [*map(str, arguments)], env={"COLUMNS": "200"})


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("cli") / "s"
    done = run("generate", "ieee14", "--out", out, "--start", "2015-06-01", "--end", "2015-06-12")
    assert done.returncode == 0, done.stderr
    return out


def test_generate_makes_what_it_says(store: Path) -> None:
    manifest = open_store(store).manifest
    assert (manifest.grid, manifest.edition, manifest.n_steps) == ("ieee14", "synthetic", 12 * 96)
    assert manifest.recipe["seed"] == RecipeOptions.seed


def test_verify_and_info_describe_it(store: Path) -> None:
    verified = run("verify", store)
    assert verified.returncode == 0
    for phrase in ("valid", "manifest", "MVAr", "newton 1,152, iwamoto 0"):
        assert phrase in verified.stdout
    shown = run("info", store)
    assert shown.returncode == 0
    for phrase in (
        "ieee14: 14 buses, 56 channels",
        "2015-06-01 to 2015-06-12",
        "seed 2",
        "synthetic",
    ):
        assert phrase in shown.stdout


def test_verify_fails_on_damage_and_names_it(store: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(store, tmp_path / "s"))
    os.truncate(broken / "state/c/1/0", 100)
    verified = run("verify", broken)
    assert verified.returncode == 1
    assert "state, block 1" in verified.stdout
    assert "NOT VALID" in verified.stdout


@pytest.fixture
def each_grid_read_once(monkeypatch: pytest.MonkeyPatch, grid_of: Callable[[str], Grid]) -> None:
    monkeypatch.setattr("powerphase.grid.catalog.load_grid", grid_of)


@pytest.mark.usefixtures("each_grid_read_once")
def test_the_catalogue_holds_the_paper_s_table() -> None:
    lines = CliRunner().invoke(cli.app, ["grids"], env={"COLUMNS": "160"}).stdout.splitlines()
    table = {
        "activsg500": "500 410 2,000",
        "pegase1354": "1,354 1,094 5,416",
        "polish2383": "2,383 2,056 9,532",
        "pegase2869": "2,869 2,359 11,476",
        "polish3120": "3,120 2,771 12,480",
        "pegase9241": "9,241 7,796 36,964",
    }
    text = [" ".join(line.replace("│", " ").split()) for line in lines]
    for name, counts in table.items():
        (row,) = [line for line in text if line.startswith(name)]
        assert f"{counts} yes" in row


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["generate", "pegase1345"], "no grid 'pegase1345'; did you mean pegase1354"),
        (["verify", "nowhere"], "nowhere: "),
        (["info", "nowhere"], "nowhere: no data set, training, forecast or row here; check"),
        (["info", __file__], "test_cli.py: no data set, training, forecast or row here; check"),
        (["verify", __file__], "test_cli.py: "),
        (["generate", "ieee14", "--signals", "opsd", "--edition", "x"], "'x'"),
        (["score", "last-week", "--data", "nowhere"], "nowhere: "),
        (["leaderboard", "nowhere"], "nowhere"),
        (["info", "nowhere.json"], "nowhere.json"),
    ],
)
def test_an_error_is_one_sentence_on_standard_error(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    failed = run(*arguments)
    assert failed.returncode == 1
    assert failed.stdout == ""
    (line,) = failed.stderr.strip().splitlines()[-1:]
    assert line.startswith("powerphase: ")
    assert sentence in line
    assert "Traceback" not in failed.stderr


def test_debug_shows_the_traceback() -> None:
    failed = run("verify", "nowhere", "--debug")
    assert failed.returncode == 1
    assert "Traceback" in failed.stderr


def test_a_mistake_in_a_model_of_one_s_own_is_told_with_its_line(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slip.py").write_text(
        "class Slip:\n"
        "    def fit(self, train):\n"
        "        train.reed()\n"
        "    def predict(self, context):\n"
        "        pass\n"
    )
    monkeypatch.chdir(tmp_path)
    failed = run("score", "slip:Slip", "--data", store, "--windows", "3")
    assert failed.returncode == 1
    assert failed.stderr.strip().endswith("in slip.py, line 3; --debug shows all")


def test_a_failed_cell_is_shown_with_what_it_said_last(tmp_path: Path) -> None:
    place = {"task": "t", "edition": "e", "grid": "ieee14", "model": "m", "name": "m", "seed": 4}
    spent = {"seconds": 2.0, "date": "2026-01-02", "commit": None, "hardware": "a laptop"}
    failure = Failure(**place, kind="limit", sentence="too long", last_lines=["one"], **spent)
    shown = here("info", write_failure(failure, tmp_path))
    assert shown.exit_code == 0
    for phrase in ("m-4 on ieee14 e", "too long", "one", "after 2 s on a laptop"):
        assert phrase in shown.stdout


@pytest.mark.usefixtures("each_grid_read_once")
def test_names_of_grids_can_be_copied_from_a_narrow_terminal() -> None:
    shown = CliRunner().invoke(cli.app, ["grids"], env={"COLUMNS": "80"}).stdout
    assert all(name in shown for name in CATALOG)


def test_ctrl_c_stops_cleanly_and_the_same_command_continues(tmp_path: Path) -> None:
    command = [*RUN, "generate", "ieee118", "--out", str(tmp_path / "s"), "--end", "2015-12-31"]
    child = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Where the tests run in the background, interruptions are ignored, and children inherit it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (tmp_path / "s" / "state" / "c").exists() and child.poll() is None:
        time.sleep(0.01)
    child.send_signal(signal.SIGINT)
    _, stderr = child.communicate()
    assert child.returncode == 130
    assert stderr.strip().endswith("stopped; run the same command again to continue")
    assert not (tmp_path / "s" / ".powerphase-lock").exists()
    done = run(*command[len(RUN) :])
    assert done.returncode == 0
    assert open_store(tmp_path / "s").manifest.complete


@pytest.mark.parametrize("command", [command.callback.__name__ for command in COMMANDS])
def test_help_shows_an_example(command: str) -> None:
    shown = CliRunner().invoke(cli.app, [command, "--help"])
    assert f"powerphase {command}" in shown.stdout


def test_every_error_belongs_to_one_tree() -> None:
    from powerphase import errors

    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    own = [kind for kind in kinds if kind.__module__ == errors.__name__]
    assert len(own) >= 8
    assert all(issubclass(kind, PowerphaseError) for kind in own)
    assert all(f" {kind.__name__} " in errors.__doc__ for kind in own[1:])


def test_messages_are_shown_letter_by_letter(tmp_path: Path) -> None:
    case = tmp_path / "odd[bold]name:100:.m"
    case.write_text("mpc.x = [")
    failed = run("generate", case)
    assert "odd[bold]name:100:.m:1:" in failed.stderr


@pytest.fixture(scope="module")
def scored(sixty_days: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of results: one row from a forecast file, one scored as the model predicts."""
    root = tmp_path_factory.mktemp("scored")
    data = ("--data", sixty_days.path)
    made = here("forecast", "last-7-days", *data, "--out", root / "f")
    assert made.exit_code == 0, made.output
    assert "7 of 96 steps from 672" in made.stdout
    for what in (root / "f", "last-week"):
        done = here("score", what, *data, "--out", root / "results")
        assert done.exit_code == 0, done.output
        assert "How far is each channel's distribution from what happened?" in done.stdout
    return root


def test_the_leaderboard_holds_what_was_scored(scored: Path) -> None:
    shown = here("leaderboard", scored / "results")
    assert shown.exit_code == 0
    for phrase in ("ieee14, edition exact", "last-7-days (reference)", "last-week (reference)"):
        assert phrase in shown.stdout
    markdown = here("leaderboard", scored / "results", "--format", "markdown").stdout
    assert markdown.startswith("### ieee14, edition exact")
    table = here("leaderboard", scored / "results", "--format", "csv").stdout
    assert len(table.splitlines()) == 3


def test_info_tells_a_forecast_and_a_row_from_a_data_set(scored: Path) -> None:
    forecast = here("info", scored / "f").stdout
    assert "forecast" in forecast
    assert "last-7-days" in forecast
    (row,) = (scored / "results").rglob("last-week-0.json")
    shown = here("info", row).stdout
    assert "powerphase-day-ahead, version 1, 10 windows" in shown
    assert "Distortion" in shown


def test_more_windows_are_another_task(sixty_days: Store, tmp_path: Path) -> None:
    data = ("--data", sixty_days.path, "--windows", "all", "--out", tmp_path)
    assert here("score", "last-week", *data).exit_code == 0
    (row,) = tmp_path.rglob("*.json")
    assert row.parts[-4] == "powerphase-day-ahead-all"


def test_a_forecast_is_not_scored_by_another_task(scored: Path, sixty_days: Store) -> None:
    refused = run("score", scored / "f", "--data", sixty_days.path, "--windows", "5")
    assert refused.returncode == 1
    assert "score it with the data set and task that it was made for" in refused.stderr


def test_a_place_that_cannot_be_written_costs_no_scores_and_is_no_bug(
    sixty_days: Store, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.touch()
    refused = run("score", "last-week", "--data", sixty_days.path, "--out", file / "rows")
    assert (refused.returncode, refused.stdout) == (1, "")
    line = refused.stderr.strip().splitlines()[-1]
    assert line.startswith(f"powerphase: {file / 'rows'}: Not a directory; check the path")


def test_the_folder_above_a_data_set_is_answered_with_the_data_set(store: Path) -> None:
    refused = here("verify", store.parent)
    assert str(store) in str(refused.exception)


def test_an_unknown_model_gets_advice(sixty_days: Store, tmp_path: Path) -> None:
    for command in (["forecast", "last-weak", "--out", tmp_path / "f"], ["score", "last-weak"]):
        refused = here(*command, "--data", sixty_days.path)
        assert isinstance(refused.exception, UnknownName)
        said = str(refused.exception)
        assert "no model or training 'last-weak'; did you mean last-week" in said
        assert said.endswith(", or a class of your own as package.module:Class?")
