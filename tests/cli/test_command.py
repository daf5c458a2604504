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

from powerphase import Grid, PowerphaseError, Store, cli, errors
from powerphase.dataset import RecipeOptions, open_store
from powerphase.errors import ForecastError, StoreError, UnknownName
from powerphase.grid import CATALOG
from powerphase.records import Failure, write_failure
from tests.cli.conftest import Fails
from tests.command_line import invoke, run

COMMANDS = [
    command.name or command.callback.__name__
    for command in cli.app.registered_commands
    if command.callback
]
PROCESS = [sys.executable, "-c", "from powerphase.cli import main; main()"]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out: Path = tmp_path_factory.mktemp("cli") / "s"
    run("generate", "ieee14", "--out", out, "--start", "2015-06-01", "--end", "2015-06-12")
    return out


def test_generate_makes_the_requested_data_set(store: Path) -> None:
    manifest = open_store(store).manifest
    assert (manifest.grid, manifest.edition, manifest.n_steps) == ("ieee14", "synthetic", 12 * 96)
    assert manifest.recipe["seed"] == RecipeOptions.seed


def test_verify_and_info_describe_it(store: Path) -> None:
    verified = run("verify", store).stdout
    for fact in ("valid", "MVAr", "1,152"):
        assert fact in verified
    shown = run("info", store).stdout
    for fact in ("ieee14", "14 buses", "56 channels", "2015-06-01", "2015-06-12", "synthetic"):
        assert fact in shown


def test_verify_fails_on_damage_and_names_it(store: Path, tmp_path: Path) -> None:
    broken = Path(shutil.copytree(store, tmp_path / "s"))
    os.truncate(broken / "state/c/1/0", 100)
    verified = invoke("verify", broken)
    assert verified.exit_code == 1
    assert "state, block 1" in verified.stdout
    assert "NOT VALID" in verified.stdout


@pytest.fixture
def each_grid_read_once(monkeypatch: pytest.MonkeyPatch, grid_of: Callable[[str], Grid]) -> None:
    monkeypatch.setattr("powerphase.grid.catalog.load_grid", grid_of)


@pytest.mark.usefixtures("each_grid_read_once")
def test_the_catalogue_has_the_grids_of_the_paper() -> None:
    lines = run("grids").stdout.splitlines()
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


@pytest.mark.usefixtures("each_grid_read_once")
def test_grid_names_are_whole_on_a_narrow_terminal() -> None:
    shown = invoke("grids", columns=80).stdout
    assert all(name in shown for name in CATALOG)


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["generate", "pegase1345"], "pegase1354"),
        (["verify", "nowhere"], "nowhere"),
        (["info", "nowhere"], "nowhere"),
        (["info", __file__], "test_command.py"),
        (["verify", __file__], "test_command.py"),
        (["generate", "ieee14", "--signals", "opsd", "--edition", "x"], "'x'"),
        (["score", "last-week", "--data", "nowhere"], "nowhere"),
        (["leaderboard", "nowhere"], "nowhere"),
        (["info", "nowhere.json"], "nowhere.json"),
    ],
)
def test_an_error_is_one_sentence_on_standard_error(
    fails: Fails, arguments: list[str], fact: str
) -> None:
    failed = fails(*arguments)
    assert failed.output == ""
    assert fact in failed.problem


def test_the_process_fails_and_debug_shows_the_traceback() -> None:
    command = [*PROCESS, "verify", "nowhere", "--debug"]
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert failed.stdout == ""
    assert "Traceback" in failed.stderr


def test_reads_that_another_s_failure_leaves_pending_add_nothing_to_the_error() -> None:
    code = (
        "import asyncio\n"
        "loop = asyncio.new_event_loop()\n"
        "task = loop.create_task(asyncio.sleep(60))\n"
        "loop.run_until_complete(asyncio.sleep(0))\n"
        "from powerphase.cli import main\n"
        "main()\n"
    )
    command = [sys.executable, "-c", code, "verify", "nowhere"]
    failed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert failed.returncode == 1
    assert "pending" not in failed.stderr
    assert len(failed.stderr.strip().splitlines()) == 1, failed.stderr


def test_an_error_in_a_user_s_model_names_its_line(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: Fails
) -> None:
    (tmp_path / "slip.py").write_text(
        "class Slip:\n"
        "    def fit(self, train):\n"
        "        train.reed()\n"
        "    def predict(self, context):\n"
        "        pass\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend("")  # so that the change to the path is undone
    failed = fails("score", "slip:Slip", "--data", store, "--windows", "3")
    assert "slip.py, line 3" in failed.problem


def test_info_shows_why_a_cell_failed(tmp_path: Path) -> None:
    failure = Failure(
        task="t",
        edition="e",
        grid="ieee14",
        model="m",
        name="m",
        seed=4,
        kind="limit",
        sentence="too long",
        last_lines=["one"],
        seconds=2.0,
        date="2026-01-02",
        commit=None,
        hardware="a laptop",
    )
    shown = run("info", write_failure(failure, tmp_path)).stdout
    for fact in ("m-4 on ieee14 e", "too long", "one", "2 s", "a laptop"):
        assert fact in shown


def test_ctrl_c_stops_cleanly_and_the_same_command_continues(tmp_path: Path) -> None:
    arguments = ["generate", "ieee118", "--out", str(tmp_path / "s"), "--end", "2015-06-30"]
    process = subprocess.Popen(
        [*PROCESS, *arguments],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        # Tests in the background ignore Ctrl-C, and their child processes inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    while not (tmp_path / "s" / "state" / "c").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate()
    assert process.returncode == 130
    # Tasks of zarr that were interrupted may add lines after it.
    assert any(line.startswith("powerphase: stopped") for line in stderr.splitlines())
    assert not (tmp_path / "s" / ".powerphase-lock").exists()
    run(*arguments)
    assert open_store(tmp_path / "s").manifest.complete


@pytest.mark.parametrize("command", COMMANDS)
def test_help_shows_an_example(command: str) -> None:
    assert f"powerphase {command}" in run(command, "--help").stdout


def test_all_errors_are_in_one_documented_tree() -> None:
    kinds = [kind for kind in vars(errors).values() if isinstance(kind, type)]
    ours = [kind for kind in kinds if kind.__module__ == errors.__name__]
    assert len(ours) >= 8
    assert all(issubclass(kind, PowerphaseError) for kind in ours)
    assert all(f" {kind.__name__} " in (errors.__doc__ or "") for kind in ours[1:])


def test_messages_are_not_parsed_as_markup(tmp_path: Path, fails: Fails) -> None:
    case = tmp_path / "odd[bold]name:100:.m"
    case.write_text("mpc.x = [")
    assert "odd[bold]name:100:.m:1:" in fails("generate", case).problem


@pytest.fixture(scope="module")
def scored(sixty_days: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tree of results: one row from a forecast file, one from a model."""
    root: Path = tmp_path_factory.mktemp("scored")
    data = ("--data", sixty_days.path)
    made = run("forecast", "last-7-days", *data, "--out", root / "f")
    assert "7 of 96 steps" in made.stdout
    for source in (root / "f", "last-week"):
        assert "CRPS" in run("score", source, *data, "--out", root / "results").stdout
    return root


def test_the_leaderboard_has_every_row(scored: Path) -> None:
    shown = run("leaderboard", scored / "results").stdout
    for fact in ("ieee14", "exact", "last-7-days", "last-week"):
        assert fact in shown
    markdown = run("leaderboard", scored / "results", "--format", "markdown").stdout
    assert markdown.startswith("### ieee14")
    table = run("leaderboard", scored / "results", "--format", "csv").stdout
    assert len(table.splitlines()) == 3


def test_info_recognises_forecasts_and_rows(scored: Path) -> None:
    forecast = run("info", scored / "f").stdout
    assert "forecast" in forecast
    assert "last-7-days" in forecast
    (row,) = (scored / "results").rglob("last-week-0.json")
    shown = run("info", row).stdout
    assert "10 windows" in shown
    assert "Distortion" in shown


def test_more_windows_are_another_task(sixty_days: Store, tmp_path: Path) -> None:
    run("score", "last-week", "--data", sixty_days.path, "--windows", "all", "--out", tmp_path)
    (row,) = tmp_path.rglob("*.json")
    assert row.parts[-4] == "powerphase-day-ahead-all"


def test_a_forecast_is_not_scored_by_another_task(scored: Path, sixty_days: Store) -> None:
    failed = invoke("score", scored / "f", "--data", sixty_days.path, "--windows", "5")
    assert isinstance(failed.exception, ForecastError)
    assert "powerphase-day-ahead-5-windows" in str(failed.exception)


def test_an_impossible_output_folder_fails_before_the_scoring(
    sixty_days: Store, tmp_path: Path, fails: Fails
) -> None:
    file = tmp_path / "file"
    file.touch()
    failed = fails("score", "last-week", "--data", sixty_days.path, "--out", file / "rows")
    assert failed.output == ""
    assert f"{file / 'rows'}: Not a directory" in failed.problem


def test_the_parent_folder_of_a_data_set_is_answered_with_its_path(store: Path) -> None:
    failed = invoke("verify", store.parent)
    assert isinstance(failed.exception, StoreError)
    assert str(store) in str(failed.exception)


def test_an_unknown_model_gets_a_suggestion(sixty_days: Store, tmp_path: Path) -> None:
    for command in (["forecast", "last-weak", "--out", tmp_path / "f"], ["score", "last-weak"]):
        failed = invoke(*command, "--data", sixty_days.path)
        assert isinstance(failed.exception, UnknownName)
        for fact in ("'last-weak'", "last-week", "package.module:Class"):
            assert fact in str(failed.exception)
