"""Trainings on disk: they end the same whatever stops them, and are never mixed up."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch

from powerphase.dataset import Store
from powerphase.errors import CheckpointError, TrainingError
from powerphase.models.framework import (
    HEADER,
    LOG,
    RESUME,
    WEIGHTS,
    Domain,
    Header,
    Progress,
    RunFolder,
    describe,
    is_run,
    with_training,
)
from powerphase.models.framework import run as run_module
from powerphase.models.framework import training as training_module
from powerphase.models.powerforge import PowerForge
from powerphase.task import Task
from tests import damage
from tests.models.toys import (
    ToyConfig,
    ToyModel,
    curve_of,
    files_in,
    layout_of_two,
    same_weights,
    tiny,
    wavy_training,
)
from tests.models.typed import network_of, outcome_of, scenarios_of

STEPS, PER_EPOCH = 18, 3
FINISHED = {HEADER, WEIGHTS, LOG}


@pytest.fixture(scope="module")
def smooth(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training that nothing interrupted."""
    run = tmp_path_factory.mktemp("smooth") / "run"
    model = train(run)
    assert outcome_of(model)["best_epoch"] == 3, "the best epoch is not the last"
    rates = [line["learning_rate"] for line in curve_of(run)]
    assert rates == [0.4] * 5 + [0.2], "the schedule lowers the rate at the end"
    return run


class Stopped(Exception):
    """Stops a training in these tests."""


def train(run: Path, **options: Any) -> ToyModel:
    model = ToyModel(run=run, **options)
    model.fit(wavy_training())
    return model


def stop_at(step: int) -> Callable[[Progress], None]:
    def report(now: Progress) -> None:
        if now.step == step:
            raise Stopped

    return report


def assert_same_training(run: Path, other: Path) -> None:
    """Assert the same weights in every bit, and the same log."""
    assert (run / WEIGHTS).read_bytes() == (other / WEIGHTS).read_bytes()
    assert curve_of(run) == curve_of(other)
    epochs = [line["epoch"] for line in curve_of(run)]
    assert epochs == list(range(1, len(epochs) + 1))
    assert files_in(run) == files_in(other) == FINISHED
    mine, theirs = RunFolder.open(run).header, RunFolder.open(other).header
    assert mine.identity == theirs.identity
    assert mine.outcome is not None
    assert theirs.outcome is not None
    for name in ("steps", "best_epoch", "hardware", "torch"):
        assert mine.outcome[name] == theirs.outcome[name]


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_a_training_stopped_at_any_step_ends_the_same(
    smooth: Path, tmp_path: Path, step: int
) -> None:
    with pytest.raises(Stopped):
        train(tmp_path / "run", on_progress=stop_at(step))
    assert RunFolder.open(tmp_path / "run").header.outcome is None
    seen: list[int] = []
    torch.manual_seed(step)
    train(tmp_path / "run", on_progress=lambda now: seen.append(now.step))
    first = (step - 1) // PER_EPOCH * PER_EPOCH + 1
    assert seen == list(range(first, STEPS + 1))
    assert_same_training(tmp_path / "run", smooth)


def test_a_training_stopped_repeatedly_ends_the_same(smooth: Path, tmp_path: Path) -> None:
    for step in (2, 5, 4, 8, 12, 13, 18):
        with pytest.raises(Stopped):
            train(tmp_path / "run", on_progress=stop_at(step))
    train(tmp_path / "run")
    assert_same_training(tmp_path / "run", smooth)


def test_a_training_with_few_saves_ends_the_same(
    smooth: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = iter(range(10**6))
    monkeypatch.setattr(training_module, "perf_counter", lambda: float(next(clock)))
    monkeypatch.setattr(training_module, "SAVE_SECONDS", 7.0)  # every other epoch, by this clock
    with pytest.raises(Stopped):
        train(tmp_path / "run", on_progress=stop_at(STEPS))
    seen: list[int] = []
    train(tmp_path / "run", on_progress=lambda now: seen.append(now.step))
    assert 1 < seen[0] < STEPS - PER_EPOCH + 1
    monkeypatch.undo()
    assert_same_training(tmp_path / "run", smooth)


def stopping(method: str, call: int, after: bool) -> Any:
    """The method, but its n-th call stops the training before or after the work."""
    original, calls = getattr(RunFolder, method), []

    def patched(self: RunFolder, *arguments: Any) -> None:
        calls.append(method)
        if len(calls) != call:
            return original(self, *arguments)
        if after:
            original(self, *arguments)
        raise Stopped

    return patched


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize(
    ("method", "call"),
    [
        *((method, call) for method in ("log", "save_state") for call in (1, 4, 6)),
        ("save_best", 1),
        ("save_best", 2),
        ("finish", 1),
    ],
)
def test_a_training_stopped_while_it_writes_ends_the_same(
    smooth: Path, tmp_path: Path, method: str, call: int, after: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunFolder, method, stopping(method, call, after))
        with pytest.raises(Stopped):
            train(tmp_path / "run")
    train(tmp_path / "run")
    assert_same_training(tmp_path / "run", smooth)


def test_a_training_stopped_after_its_outcome_ends_the_same(smooth: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "unlink", lambda self, missing_ok: (_ for _ in ()).throw(Stopped))
        with pytest.raises(Stopped):
            train(run)
    assert RESUME in files_in(run)
    train(run)
    assert_same_training(run, smooth)


def test_half_written_files_are_written_again(smooth: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(Stopped):
        train(run, on_progress=stop_at(8))
    for name in (HEADER, WEIGHTS, RESUME, LOG):
        (run / f"{name}.partial").write_bytes(b"half")
    with (run / LOG).open("a") as log:
        log.write('{"epoch": 3, "lo')
    train(run)
    assert_same_training(run, smooth)


def test_a_folder_with_only_a_partial_file_can_be_trained_in(smooth: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / f"{HEADER}.partial").write_bytes(b'{"mod')
    (run / ".lock").touch()
    train(run)
    assert_same_training(run, smooth)


def test_a_finished_training_is_not_repeated(smooth: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(smooth, tmp_path / "run"))
    before = {name: (run / name).read_bytes() for name in (HEADER, WEIGHTS, LOG)}
    seen: list[Progress] = []
    model = train(run, on_progress=seen.append)
    assert seen == []
    assert {name: (run / name).read_bytes() for name in before} == before
    context = wavy_training().validation.context(0)
    expected = scenarios_of(ToyModel.load(smooth), context)
    assert torch.equal(scenarios_of(model, context).values, expected.values)
    assert model.outcome == RunFolder.open(smooth).header.outcome


def test_the_cost_of_an_interrupted_training_has_its_time_and_no_peak(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The clock is read twice in an epoch, so that here an epoch takes a second."""
    monkeypatch.setattr(training_module, "perf_counter", count(0.0).__next__)
    with pytest.raises(Stopped):
        train(tmp_path / "run", on_progress=stop_at(8))
    outcome = train(tmp_path / "run").outcome
    assert outcome is not None
    assert [line["seconds"] for line in RunFolder.open(tmp_path / "run").curve()] == [*range(1, 7)]
    assert outcome["train_s"] == 6
    assert outcome["peak_memory_gib"] is None


def test_the_outcome_names_all_machines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, step in (("small", 5), ("large", 8), ("large", 11), ("small", 0)):
        monkeypatch.setattr(training_module, "hardware", lambda device, name=machine: name)
        with pytest.raises(Stopped) if step else nullcontext():
            train(tmp_path / "run", on_progress=stop_at(step))
    outcome = RunFolder.open(tmp_path / "run").header.outcome
    assert outcome is not None
    assert outcome["hardware"] == "small, then large"


def test_progress_continues_with_the_numbers_of_the_last_epoch(half: Path) -> None:
    seen: list[Progress] = []
    train(half, on_progress=seen.append)
    line = curve_of(half)[1]
    assert seen[0] == Progress(7, STEPS, line["loss"], line["validation_crps"], "crps")


def test_an_interrupted_training_of_powerforge_ends_the_same(
    sixty_days: Store, tmp_path: Path
) -> None:
    training = Task(sixty_days, context=192, horizon=24).training
    config = tiny(epochs=3)
    PowerForge(config, run=tmp_path / "smooth").fit(training)
    with pytest.raises(Stopped):
        PowerForge(config, run=tmp_path / "run", on_progress=stop_at(5)).fit(training)
    torch.manual_seed(1)
    PowerForge(config, run=tmp_path / "run").fit(training)
    assert_same_training(tmp_path / "run", tmp_path / "smooth")


KILLED = """
import sys, time, torch
from tests.models.framework.test_run import train
from pathlib import Path
torch.set_num_threads(1)
train(Path(sys.argv[1]), on_progress=lambda now: time.sleep(60 * (now.step == 8)))
"""
"""A training that waits in its third epoch until it is killed."""


def test_a_killed_process_leaves_a_training_that_ends_the_same(
    smooth: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(run)], cwd=Path(__file__).parents[3]
    )
    try:
        while not (is_run(run) and len(curve_of(run)) == 2) and child.poll() is None:
            time.sleep(0.02)
        with pytest.raises(CheckpointError, match="another process"):
            train(run)
    finally:
        child.kill()
        child.wait()
    assert RunFolder.open(run).header.outcome is None
    assert len(curve_of(run)) == 2
    train(run)
    assert_same_training(run, smooth)


def with_epochs(epochs: int) -> ToyConfig:
    return with_training(ToyConfig(), {"epochs": epochs})


@pytest.mark.parametrize("epochs", [3, 5, 8])
def test_an_unfinished_training_can_get_another_number_of_epochs(
    half: Path, tmp_path: Path, epochs: int
) -> None:
    train(half, config=with_epochs(epochs))
    train(tmp_path / "smooth", config=with_epochs(epochs))
    assert_same_training(half, tmp_path / "smooth")
    assert ToyModel.load(half).config == with_epochs(epochs)
    assert ToyModel.load(half).n_steps == PER_EPOCH * epochs


def test_fewer_epochs_than_are_done_raise(half: Path) -> None:
    """The best weights may be those of a later epoch."""
    before = (half / HEADER).read_bytes()
    with pytest.raises(TrainingError, match="2 epochs"):
        train(half, config=with_epochs(1))
    assert (half / HEADER).read_bytes() == before


def test_fewer_epochs_than_the_best_weights_raise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training_module, "SAVE_SECONDS", 1e9)  # nothing but the first epoch
    with pytest.raises(Stopped):
        train(tmp_path / "run", on_progress=stop_at(STEPS))
    done = RunFolder.open(tmp_path / "run").best()[1]["epoch"]
    assert done > 1
    with pytest.raises(TrainingError, match=f"{done} epochs"):
        train(tmp_path / "run", config=with_epochs(1))


def test_more_epochs_for_a_finished_training_raise(smooth: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(smooth, tmp_path / "run"))
    with pytest.raises(CheckpointError, match="finished"):
        train(run, config=with_epochs(8))
    assert_same_training(run, smooth)


def test_all_processes_see_that_a_training_is_finished(
    smooth: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise those that do not write would wait for the one that does."""
    run = Path(shutil.copytree(smooth, tmp_path / "run"))
    for name, value in {"TORCHELASTIC_RUN_ID": "test", "RANK": "1", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, value)

    def wait(device: torch.device) -> None:
        raise Stopped

    monkeypatch.setattr(training_module, "process_group", wait)
    model = train(run, device="cpu")
    assert same_weights(model.network, ToyModel.load(smooth).network)


def header(**changes: Any) -> Header:
    domain = Domain.of(layout_of_two(), 5, 3)
    return replace(Header("toy", {"shade": 0}, 42, domain, {"record": "wavy"}), **changes)


def test_one_process_at_a_time_trains_in_a_folder(tmp_path: Path) -> None:
    first, second = (RunFolder(tmp_path / "run", header()) for _ in range(2))
    with (
        first.start(),
        pytest.raises(CheckpointError, match="another process"),
        second.start(),
    ):
        pass
    with second.start():
        pass


def test_a_process_that_does_not_write_needs_no_lock(tmp_path: Path) -> None:
    first, second = (RunFolder(tmp_path / "run", header()) for _ in range(2))
    with first.start(), second.start(writes=False):
        pass
    with RunFolder(tmp_path / "nowhere", header()).start(writes=False):
        pass
    assert not (tmp_path / "nowhere").exists()


OTHER_DOMAIN = replace(Domain.of(layout_of_two(), 5, 3), grid="three", p_scale_mw=2.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"model": "powerforge"}, "model"),
        ({"config": {"shade": 1}}, "config"),
        ({"seed": 7}, "seed"),
        ({"data": {"record": "flat"}}, "data"),
        ({"domain": OTHER_DOMAIN}, "place"),
        ({"seed": 7, "config": {}}, "config and seed"),
    ],
)
def test_another_training_in_the_same_folder_raises(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    run, folder = tmp_path / "run", RunFolder(tmp_path / "run", header())
    with folder.start():
        folder.save_best({"weight": torch.ones(2)}, {"epoch": 1})
    before = (run / HEADER).read_bytes()
    other = RunFolder(run, header(**changes))
    with pytest.raises(CheckpointError, match=f"toy, seed 42, .* {named};"), other.start():
        pass
    assert (run / HEADER).read_bytes() == before


@pytest.mark.parametrize(
    "options", [{"seed": 1}, {"config": ToyConfig(shade=1)}], ids=["seed", "config"]
)
def test_a_finished_training_is_not_overwritten_by_another(
    smooth: Path, tmp_path: Path, options: dict[str, Any]
) -> None:
    run = Path(shutil.copytree(smooth, tmp_path / "run"))
    with pytest.raises(CheckpointError, match=f"differs in {next(iter(options))}"):
        train(run, **options)
    assert_same_training(run, smooth)


def test_another_version_can_continue_a_training(tmp_path: Path) -> None:
    old, folder = RunFolder(tmp_path, header(version="0.0.1")), RunFolder(tmp_path, header())
    with old.start():
        old.save_best({"weight": torch.ones(2)}, {"epoch": 1})
    with folder.start():
        assert folder.header.version == "0.0.1"


def test_a_folder_with_other_files_raises_and_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("all my work")
    with pytest.raises(CheckpointError, match=tmp_path.name):
        train(tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize(
    "files",
    [
        {"model.json": "{"},
        {"model.json": '{"modelTopology": {}, "weightsManifest": []}', "group1-shard1of1.bin": "x"},
        {"model.json": "", "notes.txt": "years of work"},
        {"thesis.partial": "years of work"},
        {"weights.safetensors": "somebody else's"},
        {"log.jsonl": "somebody else's"},
    ],
    ids=lambda files: "-".join(files),
)
def test_nothing_of_a_folder_that_is_no_training_of_ours_is_lost(
    tmp_path: Path, files: dict[str, str]
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        train(tmp_path)
    assert {file.name: file.read_text() for file in tmp_path.iterdir()} == files


def test_a_file_in_place_of_the_folder_raises(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(CheckpointError, match="run"):
        train(tmp_path / "run")


def test_a_folder_that_cannot_be_written_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def deny(lock: Path) -> None:
        raise PermissionError(13, "Permission denied", str(lock))

    monkeypatch.setattr(run_module, "hold_lock", deny)
    with pytest.raises(CheckpointError, match=tmp_path.name):
        train(tmp_path)


def swap(name: str, run: Path, other: Path) -> None:
    shutil.copy(other / name, run / name)


def test_weights_of_another_training_raise(smooth: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(smooth, tmp_path / "run"))
    train(tmp_path / "other", seed=1)
    swap(WEIGHTS, run, tmp_path / "other")
    with pytest.raises(CheckpointError, match="seed"):
        ToyModel.load(run)
    with pytest.raises(CheckpointError, match="seed"):
        RunFolder.open(run).best()


def test_the_state_of_another_training_raises(tmp_path: Path) -> None:
    for name, seed in (("run", 42), ("other", 1)):
        with pytest.raises(Stopped):
            train(tmp_path / name, seed=seed, on_progress=stop_at(8))
    swap(RESUME, tmp_path / "run", tmp_path / "other")
    with pytest.raises(CheckpointError, match=RESUME):
        train(tmp_path / "run")


@pytest.mark.parametrize("harm", [damage.flip, damage.truncate])
@pytest.mark.parametrize("name", [WEIGHTS, RESUME])
def test_a_damaged_file_of_tensors_raises(
    tmp_path: Path, name: str, harm: Callable[[Path, float], None]
) -> None:
    run = tmp_path / "run"
    with pytest.raises(Stopped):
        train(run, on_progress=stop_at(8))
    harm(run / name, 0.9)
    with pytest.raises(CheckpointError, match=name):
        train(run)


@pytest.fixture
def half(tmp_path: Path) -> Path:
    """A training that was stopped in its third epoch."""
    with pytest.raises(Stopped):
        train(tmp_path / "half", on_progress=stop_at(8))
    return tmp_path / "half"


def test_a_cut_last_line_of_the_log_is_dropped(half: Path) -> None:
    whole = curve_of(half)
    os.truncate(half / LOG, (half / LOG).stat().st_size - 5)
    assert curve_of(half) == whole[:-1]


@pytest.mark.parametrize("bad", [b"no JSON\n", b"\xff\xfe\n", b"17\n", b'{"loss": 1.0}\n'])
def test_a_damaged_log_raises(half: Path, bad: bytes) -> None:
    content = (half / LOG).read_bytes()
    (half / LOG).write_bytes(bad + content)
    with pytest.raises(CheckpointError, match=LOG):
        RunFolder.open(half).curve()
    seen: list[Progress] = []
    with pytest.raises(CheckpointError, match=LOG):
        train(half, on_progress=seen.append)
    assert seen == [], "damage is found before a step is taken"


def test_a_training_continues_after_its_log_is_removed(half: Path, smooth: Path) -> None:
    (half / LOG).unlink()
    train(half)
    assert (half / WEIGHTS).read_bytes() == (smooth / WEIGHTS).read_bytes()
    assert curve_of(half) == curve_of(smooth)[2:]


def edit_header(run: Path, **changes: Any) -> None:
    result = json.loads((run / HEADER).read_text())
    (run / HEADER).write_text(json.dumps({**result, **changes}))


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"[]", b"17", b"null", b"\xff", b'{"format": 1}', b'{"format": 1, "place": {}}'],
)
def test_a_damaged_header_raises(half: Path, content: bytes) -> None:
    (half / HEADER).write_bytes(content)
    for use in (ToyModel.load, train, RunFolder.open):
        with pytest.raises(CheckpointError, match=HEADER):
            use(half)


def test_a_header_with_unknown_keys_raises(half: Path) -> None:
    edit_header(half, mood="sunny")
    with pytest.raises(CheckpointError, match=r"mood"):
        RunFolder.open(half)


def test_a_newer_format_raises_and_names_the_version_that_reads_it(half: Path) -> None:
    edit_header(half, format=2, version="9.8.7")
    with pytest.raises(CheckpointError, match=r"format 2.*9\.8\.7"):
        RunFolder.open(half)


def test_loading_the_training_of_another_model_raises(half: Path) -> None:
    with pytest.raises(CheckpointError, match="toy, not of powerforge"):
        PowerForge.load(half)


def test_a_run_is_a_folder_with_a_header(half: Path, tmp_path: Path) -> None:
    assert is_run(half)
    assert is_run(str(half))
    assert not is_run(tmp_path)
    assert not is_run(tmp_path / "nowhere")
    with pytest.raises(CheckpointError, match=HEADER):
        RunFolder.open(tmp_path)


def test_before_the_first_epoch_there_are_no_weights(tmp_path: Path) -> None:
    with pytest.raises(Stopped):
        train(tmp_path / "run", on_progress=stop_at(2))
    with pytest.raises(CheckpointError, match="run"):
        ToyModel.load(tmp_path / "run")


@pytest.mark.parametrize("with_log", [True, False])
def test_an_unfinished_training_loads_its_best_weights_and_is_named_so(
    half: Path, with_log: bool
) -> None:
    if not with_log:
        (half / LOG).unlink()
    model = ToyModel.load(half)
    weights, facts = RunFolder.open(half).best()
    assert facts["epoch"] == 1
    assert torch.equal(network_of(model).state_dict()["line.weight"], weights["line.weight"])
    assert describe(model).variant == "unfinished"
    assert model.n_steps == (6 if with_log else None)


def test_a_run_can_be_moved(smooth: Path, tmp_path: Path) -> None:
    context = wavy_training().validation.context(0)
    before = scenarios_of(ToyModel.load(smooth), context)
    moved = Path(shutil.copytree(smooth, tmp_path / "elsewhere"))
    assert torch.equal(scenarios_of(ToyModel.load(moved), context).values, before.values)


def test_a_training_without_weights_can_be_replaced(tmp_path: Path) -> None:
    """With another batch size, say, no other folder is needed."""
    with pytest.raises(Stopped):
        train(tmp_path, on_progress=stop_at(1))
    smaller = with_training(ToyConfig(), {"batch_size": 2})
    train(tmp_path, config=smaller)
    assert ToyModel.load(tmp_path).config == smaller
